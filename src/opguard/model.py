"""Domain types shared by capture, store, alignment and reports. All are frozen; no torch.

The numeric codes below are stored in runs: they are only ever added to, never renumbered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from opguard._version import FINGERPRINT_VERSION as FINGERPRINT_VERSION  # noqa: PLC0414 offered here

NONE_ID: Final = 0xFFFFFFFF
"""``first_producer``/string id of "there is none"."""

U8: TypeAlias = npt.NDArray[np.uint8]
U16: TypeAlias = npt.NDArray[np.uint16]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

Mode: TypeAlias = Literal["trusted", "full", "collectives"]
Mechanism: TypeAlias = Literal["native", "dispatch"]

PHASES: Final = ("other", "forward", "recompute", "backward", "optimizer")
"""Phase code of a boundary is the position in this tuple."""

STATE_OPERATOR: Final = "opguard.state"
"""Operator name of the events that carry the final state (DESIGN section 3)."""

DTYPES: Final = (
    "none", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16",
    "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16",
    "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32",
    "uint64", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2",
    "int3", "int4", "int5", "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "python_bool", "python_int", "python_float", "python_complex", "bytes", "unknown",
)  # fmt: skip
"""dtype code of a record is the position in this tuple; ``python_*`` are returned numbers."""


class EventFlag(IntFlag):
    """Bits of the event column ``flags`` (u1)."""

    RAISED = 1
    """The operator raised; the event has inputs only."""
    STATE = 2
    """An entry of the final state, not an operator call."""


class RecordFlag(IntFlag):
    """Bits 0-3 of the record column ``flags`` (u1); bits 4-7 hold a :class:`Reason`."""

    OUTPUT = 1
    """An output (returned tensor or number, written argument). Unset: an input."""
    FRESH = 2
    """An input whose bytes were read for this event; unset: its value was known."""
    VIA = 4
    """``mix64`` is that of the value through which this view is known; ``strides`` then also
    holds the relative geometry. Compared only with another ``VIA`` of equal ``strides``."""
    VOID = 8
    """It overlaps memory that nothing wrote; it is never compared."""


REASON_SHIFT: Final = 4


class Reason(IntEnum):
    """Why a record has no fingerprint. Such a record never counts as agreeing."""

    PRESENT = 0
    """It has one."""
    FREED = 1
    CAPTURING = 2
    IN_FLIGHT = 3
    UNSUPPORTED = 4
    """No readable storage (opaque layouts)."""
    NOT_SELECTED = 5
    """Outside ``--steps``, or an operator the mode does not fingerprint."""


StringKind: TypeAlias = Literal[
    "operator", "module", "frame", "stack", "arguments", "shape", "strides", "slot", "boundary"
]
STRING_KINDS: Final[tuple[StringKind, ...]] = (
    "operator", "module", "frame", "stack", "arguments", "shape", "strides", "slot", "boundary",
)  # fmt: skip
"""Each kind is numbered from 0 on its own, in order of first use. Values:

* ``operator``: ``aten.addmm.default``; ``module``: ``GPT.blocks.0.ln1`` or empty.
* ``frame``: JSON ``[file, line, function]``; ``stack``: JSON list of frame ids, innermost first.
* ``arguments``: ``alpha=1, dim=[0, 1]``; after a tab follows what is shown but never compared.
* ``shape``: ``[4,64]``; ``strides``: ``[64,1]``, followed by ``@`` and the offset in its storage
  in bytes where that is not 0; for ``VIA`` records by ``|`` and the geometry relative to the
  value through which it is known.
* ``slot``: ``self``, ``weight``, ``tensors[3]``, ``rng`` (inputs), ``0``, ``2[1]``,
  ``0.indices``, ``self!``, ``exp_avgs[3]!`` (outputs; ``!`` marks written arguments).
* ``boundary``: JSON ``[operator id, module id, phase code, stack id]``; stack id -1: none.
"""

EVENT_COLUMNS: Final[Mapping[str, str]] = {
    "boundary": "<u4", "step": "<i4", "thread": "<u2", "stream": "<u2", "host_ns": "<u8",
    "arguments": "<u4", "flags": "u1", "first_record": "<u4",
}  # fmt: skip
RECORD_COLUMNS: Final[Mapping[str, str]] = {
    "slot": "<u2", "dtype": "u1", "record_flags": "u1", "shape": "<u4", "strides": "<u4",
    "mix64": "<u8", "xor32": "<u4", "first_producer": "<u4", "small_offset": "<u4", "small": "u1",
}  # fmt: skip
"""Columns of one chunk. ``first_record``, ``first_producer`` and ``small_offset`` are offsets
within the chunk; the end of an entry is the start of the next one. ``small`` is a plain byte
string, not one value a record. ``producers`` (u4) stands beside them: global record indices of
the rank, counted over all its chunks."""


@dataclass(frozen=True)
class Chunk:
    """What capture hands to the store: up to 4,096 events and the strings they introduced.

    ``events`` and ``records`` hold the arrays named in ``EVENT_COLUMNS``/``RECORD_COLUMNS``.
    ``region_records`` (u4, R) are chunk-local record positions, ``region_values`` (u8, R x 8)
    their regions. ``strings`` are ``(kind, id, value)`` in order of first use.
    """

    events: Mapping[str, npt.NDArray[Any]]
    records: Mapping[str, npt.NDArray[Any]]
    producers: U32
    region_records: U32
    region_values: U64
    strings: tuple[tuple[StringKind, int, str], ...]

    @property
    def event_count(self) -> int:
        """Events in the chunk."""
        return len(self.events["boundary"])

    @property
    def record_count(self) -> int:
        """Tensor records in the chunk."""
        return len(self.records["slot"])


class PendingChunk(Protocol):
    """A chunk that is built on the writer thread, off the program's threads."""

    @property
    def first_event(self) -> int:
        """``seq`` of its first event. The writer publishes chunks in this order: one from the
        idle hook and one that the program submits at that moment may reach it either way."""

    @property
    def event_count(self) -> int:
        """How many events it holds."""

    def build(self) -> Chunk:
        """The finished chunk."""
        ...


IdleHook: TypeAlias = Callable[[], "PendingChunk | None"]
"""Called by the writer thread once a second: hands over what is waiting, if anything."""


@dataclass(frozen=True)
class Boundary:
    """A stable place in the program where an operator produces tensors; carries no data."""

    operator: str
    module: str
    phase: str
    stack: tuple[tuple[str, int, str], ...]
    """(file, line, function), innermost first. Shown, never part of identity."""


@dataclass(frozen=True)
class Strings:
    """The string tables of one rank, by kind; the position is the id."""

    tables: Mapping[StringKind, tuple[str, ...]]

    def values(self, kind: StringKind) -> tuple[str, ...]:
        """All strings of a kind; empty where the rank has none."""
        return self.tables.get(kind, ())


@dataclass(frozen=True)
class RankEvents:
    """All events of one rank as columns. E events, R records, P producer entries.

    Offsets are global and have one entry more than they have rows (``first_record``: E + 1,
    ``first_producer`` and ``small_offset``: R + 1). ``seq`` of an event is its position.
    A producer is the global index of the record that wrote the bytes: an output of an earlier
    event. The outputs of in-place writes (slot ending in ``!``) also list, as producers, the
    records whose bytes they overwrote; the first write into a storage that ``set_`` gave to a
    tensor lists the record that created that tensor. Records of ``STATE`` events list the last
    writers of their storage, or, if capture saw none, the first input record that read it.
    """

    rank: int
    boundary: U32
    step: I32
    thread: U16
    stream: U16
    host_ns: U64
    arguments: U32
    flags: U8
    first_record: I64
    slot: U16
    dtype: U8
    record_flags: U8
    shape: U32
    strides: U32
    mix64: U64
    xor32: U32
    first_producer: I64
    producers: I64
    small_offset: I64
    small: U8
    region_records: I64
    """Global record indices that have regions, ascending."""
    region_values: U64
    """(len(region_records), 8): mix64 of 8 equal runs of words."""
    boundaries: tuple[Boundary, ...]
    strings: Strings
    opening: Mapping[str, Any]
    """open.json: environment, probe, command, mode, mechanism, settings, rng."""
    closing: Mapping[str, Any] | None
    """close.json (counts, coverage, losses), None for a partial rank."""
    problems: tuple[str, ...] = ()
    """What was ignored while reading a partial rank, in words."""

    @property
    def partial(self) -> bool:
        """True when the rank was not closed, or the program was interrupted."""
        return self.closing is None or bool(self.closing.get("interrupted"))

    @property
    def event_count(self) -> int:
        """Events of the rank, final state included."""
        return len(self.boundary)

    @property
    def record_count(self) -> int:
        """Tensor records of the rank."""
        return len(self.slot)


@dataclass(frozen=True)
class Run:
    """One side of a comparison: the ranks that were found, of ``world_size``."""

    path: str
    run_id: str
    world_size: int
    ranks: Mapping[int, RankEvents]


class Status(IntEnum):
    """What the certificate says of a pair."""

    NOT_COMPARED = 0
    """Nothing in it could be compared (void, no fingerprint, no outputs)."""
    AGREES = 1
    DISAGREES = 2
    IGNORED = 3
    """It disagrees, and a policy rule hides it."""


CLASSES: Final = (
    "", "raised", "uninitialised", "reordered", "argument", "source", "structural", "rewired",
    "overwritten", "random", "origin", "origin?", "tolerated", "propagated", "unexplained",
)  # fmt: skip
"""Class code of a disagreeing pair is the position in this tuple, in order of precedence."""


@dataclass(frozen=True)
class Alignment:
    """Pairs of event positions, in candidate order; what is in no pair is a gap.

    ``opguard.state`` events are never in it. ``moved`` marks pairs off the monotone order.
    """

    baseline: I64
    candidate: I64
    moved: Bools
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Root:
    """A disagreeing pair that starts a divergence (class other than propagated, tolerated)."""

    class_name: str
    baseline_seq: int
    candidate_seq: int
    slots: tuple[str, ...]
    """Output slots that differ."""
    count: int = 1
    """Roots of the same class, operator and line, listed once."""
    note: str = ""
    """For people: ``strides differ``, …"""


@dataclass(frozen=True)
class StateEntry:
    """One final-state entry that differs, has no partner or was not compared.

    Positions are event seqs or -1.
    """

    name: str
    baseline_seq: int
    candidate_seq: int
    why: str = ""
    """For people: why it was not compared."""


@dataclass(frozen=True)
class StateComparison:
    """What comparing the final states of one rank gave."""

    compared: int = 0
    differing: tuple[StateEntry, ...] = ()
    unpaired: tuple[StateEntry, ...] = ()
    not_compared: tuple[StateEntry, ...] = ()
    """Random states that nothing ties together, and entries that could not be read."""
    unread: int = 0
    """Entries in ``not_compared`` in which a difference would have mattered."""


@dataclass(frozen=True)
class Certificate:
    """What alignment and comparison of one rank established."""

    rank: int
    alignment: Alignment
    status: U8
    """(pairs,) :class:`Status` codes."""
    classes: U8
    """(pairs,) positions in ``CLASSES``."""
    pivot: Root | None
    roots: tuple[Root, ...]
    """In candidate order; the pivot is the first of them."""
    prefix_pairs: int
    prefix_complete: bool
    state: StateComparison
    unverified: tuple[tuple[str, int], ...]
    """("baseline" | "candidate", seq) of gap events whose writes nothing verified."""
    paired_share: tuple[float, float]
    trailing_share: tuple[float, float]
    counts: Mapping[str, int] = field(default_factory=dict)
    """agreeing, moved, void, gaps_baseline, gaps_candidate, ignored, differing_inputs,
    not_compared, unfingerprinted."""
