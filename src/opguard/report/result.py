"""The outcome of a comparison as frozen dataclasses that mirror ``result.json`` (schema 1).

Every renderer takes a :class:`Result`. Fields may be added, never renamed. ``to_json`` is
canonical: the same comparison gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opguard.gate import Verdict
from opguard.report.codec import decode, encode

SCHEMA = 1


@dataclass(frozen=True)
class Place:
    """Where an event stands on one side.

    ``file``, ``line`` and ``function`` are the innermost frame that is the user's own;
    empty and 0 where nothing is known. ``stack`` holds all frames, innermost first.
    """

    seq: int
    occurrence: int
    """Earlier events of the same operator on that rank and side."""
    file: str = ""
    line: int = 0
    function: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True)
class TensorDifference:
    """One slot whose two sides differ; ``dtype`` and ``shape`` are the candidate's."""

    slot: str
    dtype: str
    shape: tuple[int, ...]
    mix64: tuple[str | None, str | None]
    """Baseline and candidate, 16 hexadecimal digits; None where that side lacks it."""
    regions_differ: tuple[int, ...] = ()
    """Which of the 8 regions differ; empty where regions are not known."""
    baseline_dtype: str = ""
    baseline_shape: tuple[int, ...] = ()
    values: tuple[str, str] | None = None
    """Both sides' elements in words, where the run stored the bytes (at most 64)."""


@dataclass(frozen=True)
class SideTexts:
    """One text for each side."""

    baseline: str = ""
    candidate: str = ""


@dataclass(frozen=True)
class GapEvent:
    """An event that only one side has and that leads into a finding."""

    side: Literal["baseline", "candidate"]
    op: str
    module: str
    phase: str
    step: int
    place: Place


@dataclass(frozen=True)
class Finding:
    """The pivot, or another root of the divergence."""

    class_name: str = field(metadata={"json": "class"})
    op: str
    module: str
    phase: str
    step: int
    rank: int
    occurrence: int
    """Earlier events of that operator in the candidate, on that rank."""
    slots: tuple[str, ...]
    arguments: SideTexts
    baseline: Place | None
    """None only for a final-state entry without partner."""
    candidate: Place | None
    tensors: tuple[TensorDifference, ...] = ()
    """Outputs that differ (for ``opguard.state``: the entry itself)."""
    inputs: tuple[TensorDifference, ...] = ()
    """Compared inputs that differ."""
    gaps: tuple[GapEvent, ...] = ()
    """Events of one side only that produced what differs in the inputs, at most 8."""
    count: int = 1
    """Roots of the same class, operator and line that this one stands for."""
    note: str = ""


@dataclass(frozen=True)
class AgreeingPair:
    """A pair that agreed, shown as the neighbourhood of the pivot."""

    op: str
    module: str
    phase: str
    step: int
    occurrence: int
    """In the candidate."""
    baseline_seq: int
    candidate_seq: int
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class CertifiedPrefix:
    """The leading pairs that agree, on the pivot's rank, or summed over ranks without one."""

    pairs: int = 0
    complete: bool = True
    """False when something in it was lost or left without fingerprint."""


@dataclass(frozen=True)
class Counts:
    """Events and pairs over all ranks; ``opguard.state`` events are not in them."""

    baseline_events: int = 0
    candidate_events: int = 0
    paired: int = 0
    agreeing: int = 0
    moved: int = 0
    void: int = 0
    """Pairs with a tensor that was not compared because it overlaps unwritten memory."""
    gaps_baseline: int = 0
    gaps_candidate: int = 0
    ignored: int = 0
    """Pairs that disagree and are hidden by the policy, directly or downstream."""
    not_compared: int = 0
    """Pairs in which nothing could be compared."""
    differing_inputs: int = 0
    """Agreeing pairs some of whose inputs, arguments or random state differ."""
    unverified: int = 0
    """In-place writes of one side only that nothing verified."""


@dataclass(frozen=True)
class StateName:
    """A final-state entry of one rank; the name is empty on a side that lacks it."""

    rank: int
    baseline: str
    candidate: str
    why: str = ""
    """Why it was not compared, in words."""


@dataclass(frozen=True)
class FinalState:
    """Comparison of parameters, gradients, buffers, optimizer and random states at the end."""

    compared: int = 0
    differing: int = 0
    unpaired: int = 0
    not_compared: int = 0
    differing_entries: tuple[StateName, ...] = ()
    """The first 20."""
    unpaired_entries: tuple[StateName, ...] = ()
    """The first 20."""
    not_compared_entries: tuple[StateName, ...] = ()
    """The first 20, each with its reason."""


@dataclass(frozen=True)
class KernelCoverage:
    """Device kernels of one side; None in :class:`Kernels` means *kernels not observed*."""

    total: int = 0
    attributed: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Kernels:
    """Device kernels that were observed, by side."""

    baseline: KernelCoverage | None = None
    candidate: KernelCoverage | None = None


@dataclass(frozen=True)
class Coverage:
    """What could not be captured, summed over both sides and all ranks."""

    unfingerprinted: Mapping[str, int] = field(default_factory=dict)
    """Reason (``freed``, ``capturing``, …) to number of tensor records."""
    opaque_regions: tuple[str, ...] = ()
    foreign_values: int = 0
    lost_events: int = 0
    uncaptured_processes: int = 0
    uncaptured_ranks: int = 0
    unarmed_threads: int = 0
    """Threads that ran before the capture started and were not captured."""
    kernels: Kernels = field(default_factory=Kernels)


@dataclass(frozen=True)
class UnpairedOperator:
    """Events of one operator and module that have no counterpart."""

    op: str
    module: str
    count: int


@dataclass(frozen=True)
class Unpaired:
    """The first 20 on each side, by first appearance."""

    baseline: tuple[UnpairedOperator, ...] = ()
    candidate: tuple[UnpairedOperator, ...] = ()


@dataclass(frozen=True)
class RankOutcome:
    """One rank's own verdict."""

    rank: int
    verdict: Verdict
    reason_code: str = ""
    baseline_partial: bool = False
    candidate_partial: bool = False


@dataclass(frozen=True)
class Environment:
    """Facts of both sides; ``differs`` names the facts that are not equal."""

    baseline: Mapping[str, Any] = field(default_factory=dict)
    candidate: Mapping[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Commands:
    """Ready to paste; empty where there is none."""

    reproduce: str = ""
    accept: str = ""


@dataclass(frozen=True)
class Program:
    """One side's run: where it lies and how its program ended."""

    path: str = ""
    run_id: str = ""
    command: tuple[str, ...] = ()
    mode: str = ""
    steps: tuple[int, int] | None = None
    """The half-open range of ``--steps``; None: all steps were fingerprinted."""
    world_size: int = 1
    partial_ranks: tuple[int, ...] = ()
    unclosed_ranks: tuple[int, ...] = ()
    """Those of ``partial_ranks`` whose program did not come to any end that was seen."""
    exit_code: int | None = None
    """None when the program did not reach its end."""
    exception: str | None = None
    interrupted: bool = False
    stopped: bool = False
    """Ended by ``--stop-after``."""
    problems: tuple[str, ...] = ()
    """What was ignored while reading partial ranks, in words."""


@dataclass(frozen=True)
class Programs:
    """Both sides' programs."""

    baseline: Program = field(default_factory=Program)
    candidate: Program = field(default_factory=Program)


@dataclass(frozen=True)
class Result:
    """A whole comparison. See DESIGN section 7 for the meaning of each field."""

    verdict: Verdict
    exit_code: int
    reason_code: str
    reasons: tuple[str, ...]
    reason: str
    """One sentence for people, and what restricts it."""
    restrictions: tuple[str, ...] = ()
    """Sentences: what the verdict does not reach (``--steps``, ``--stop-after``, policy)."""
    mechanism: SideTexts = field(default_factory=SideTexts)
    pivot: Finding | None = None
    roots: tuple[Finding, ...] = ()
    certified_prefix: CertifiedPrefix = field(default_factory=CertifiedPrefix)
    counts: Counts = field(default_factory=Counts)
    final_state: FinalState = field(default_factory=FinalState)
    coverage: Coverage = field(default_factory=Coverage)
    ranks: tuple[RankOutcome, ...] = ()
    environment: Environment = field(default_factory=Environment)
    commands: Commands = field(default_factory=Commands)
    agreed_before: tuple[AgreeingPair, ...] = ()
    """The last pairs (at most 5) that agreed before the pivot, in candidate order."""
    programs: Programs = field(default_factory=Programs)
    unpaired: Unpaired = field(default_factory=Unpaired)
    notes: tuple[str, ...] = ()
    """What else a reader should know, a sentence each."""
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Canonical JSON text, ending in a newline."""
        document = {"schema": self.schema, **encode(self)}
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: the text is no JSON, of a newer schema, or a field is missing or wrong.
        """
        return decode(cls, text, schema=SCHEMA)
