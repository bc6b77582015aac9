"""A small language for runs in memory: named contents instead of bytes.

``rank = Rank(); y = rank.op("mm", {"self": "x", "mat2": w}, {"0": "y"})``: an input is a text
(data that no event produced) or what an earlier event returned; equal texts are equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opguard.align.aligner import align
from opguard.certify import certify
from opguard.columns import join_sides
from opguard.model import (
    CLASSES,
    DTYPES,
    REASON_SHIFT,
    STATE_OPERATOR,
    STRING_KINDS,
    Boundary,
    Certificate,
    EventFlag,
    RankEvents,
    Reason,
    RecordFlag,
    Run,
    Strings,
)
from opguard.policy import Policy

POLICY = Policy()
OPENING: dict[str, Any] = {
    "fingerprint_version": 1,
    "environment": {"torch": "2.13.0"},
    "environment_key": "linux-x86_64",
    "probe": {"aten.mm.default": "00"},
    "command": ["train.py"],
    "mode": "trusted",
    "mechanism": "native",
    "rng": {},
}
CLOSING: dict[str, Any] = {
    "coverage": {},
    "interrupted": False,
    "stopped": False,
    "exit_code": 0,
    "exception": None,
}


@dataclass(frozen=True)
class Value:
    """A tensor record: content and everything that qualifies it."""

    content: str
    producers: tuple[int, ...] = ()
    dtype: str = "float32"
    shape: str = "[4]"
    strides: str = "[1]"
    fresh: bool = True
    via: bool = False
    void: bool = False
    reason: Reason = Reason.PRESENT
    index: int = -1
    small: bytes = b""
    regions: tuple[int, ...] = ()

    def but(self, **changes: Any) -> Value:
        return replace(self, **changes)


def digest(content: str) -> tuple[int, int]:
    """mix64 and xor32; contents that start with ``=`` are constant bytes."""
    data = hashlib.blake2b(content.encode(), digest_size=12).digest()
    xor32 = 0 if content.startswith("=") else int.from_bytes(data[8:], "little")
    return int.from_bytes(data[:8], "little"), xor32


Given = Mapping[str, "Value | str"]


@dataclass
class Rank:
    """Builds the events of one rank."""

    rank: int = 0
    opening: dict[str, Any] = field(default_factory=lambda: dict(OPENING))
    closing: dict[str, Any] | None = field(default_factory=lambda: dict(CLOSING))

    def __post_init__(self) -> None:
        self._ids: dict[str, dict[str, int]] = {kind: {} for kind in STRING_KINDS}
        self._boundaries: dict[Boundary, int] = {}
        self._events: list[tuple[int, int, int, int, int]] = []
        self._records: list[tuple[Value, str, bool]] = []

    def op(
        self,
        operator: str,
        inputs: Given | None = None,
        outputs: Given | None = None,
        *,
        module: str = "Net.a",
        phase: str = "forward",
        step: int = 0,
        args: str = "",
        line: int = 1,
        file: str = "/home/me/train.py",
        raised: bool = False,
        state: bool = False,
        stack: tuple[tuple[str, int, str], ...] = (),
    ) -> Value:
        """Add an event; the first output, to be used as an input of later ones."""
        boundary = Boundary(operator, module, phase, stack or ((file, line, "run"),))
        number = self._boundaries.setdefault(boundary, len(self._boundaries))
        flags = EventFlag.RAISED * raised | EventFlag.STATE * state
        arguments = self._id("arguments", args)
        self._events.append((number, step, arguments, int(flags), len(self._records)))
        for slot, value in (inputs or {}).items():
            self._record(slot, value, output=False)
        first = None
        for slot, value in (outputs or {}).items():
            made = self._record(slot, value, output=True)
            first = first or made
        return first or Value("")

    def state(self, name: str, value: Value | str, **more: Any) -> None:
        """Add a final-state entry."""
        self.op(
            STATE_OPERATOR, outputs={"0": value}, module=name, phase="other", state=True, **more
        )

    def _record(self, slot: str, value: Value | str, output: bool) -> Value:
        if isinstance(value, str):
            value = Value(value)
        elif value.index >= 0 and not output:
            value = value.but(producers=(value.index,))
        made = value.but(index=len(self._records))
        self._records.append((made, slot, output))
        return made if output else value

    def _id(self, kind: str, text: str) -> int:
        return self._ids[kind].setdefault(text, len(self._ids[kind]))

    def build(self) -> RankEvents:
        values = [value for value, _, _ in self._records]
        digests = [digest(value.content) for value in values]
        flags = [
            RecordFlag.OUTPUT * output
            | RecordFlag.FRESH * (value.fresh and not output)
            | RecordFlag.VIA * value.via
            | RecordFlag.VOID * value.void
            | value.reason << REASON_SHIFT
            for value, _, output in self._records
        ]
        with_regions = [i for i, value in enumerate(values) if value.regions]
        columns = list(zip(*self._events, strict=True)) if self._events else [()] * 5
        count = len(self._events)
        slots = [self._id("slot", slot) for _, slot, _ in self._records]
        shapes = [self._id("shape", value.shape) for value in values]
        strides = [self._id("strides", value.strides) for value in values]
        return RankEvents(
            rank=self.rank,
            boundary=np.array(columns[0], np.uint32),
            step=np.array(columns[1], np.int32),
            thread=np.zeros(count, np.uint16),
            stream=np.zeros(count, np.uint16),
            host_ns=np.arange(count, dtype=np.uint64),
            arguments=np.array(columns[2], np.uint32),
            flags=np.array(columns[3], np.uint8),
            first_record=np.array([*columns[4], len(values)], np.int64),
            slot=np.array(slots, np.uint16),
            dtype=np.array([DTYPES.index(value.dtype) for value in values], np.uint8),
            record_flags=np.array(flags, np.uint8),
            shape=np.array(shapes, np.uint32),
            strides=np.array(strides, np.uint32),
            mix64=np.array([mix for mix, _ in digests], np.uint64),
            xor32=np.array([xor for _, xor in digests], np.uint32),
            first_producer=_offsets([len(value.producers) for value in values]),
            producers=np.array([p for value in values for p in value.producers], np.int64),
            small_offset=_offsets([len(value.small) for value in values]),
            small=np.frombuffer(b"".join(value.small for value in values), np.uint8),
            region_records=np.array(with_regions, np.int64),
            region_values=np.array([values[i].regions for i in with_regions], np.uint64).reshape(
                -1, 8
            ),
            boundaries=tuple(self._boundaries),
            strings=Strings({kind: tuple(ids) for kind, ids in self._ids.items()}),
            opening=self.opening,
            closing=self.closing,
        )


def _offsets(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)


def run_of(*ranks: Rank, world_size: int | None = None) -> Run:
    built = {rank.rank: rank.build() for rank in ranks}
    return Run("/runs/x", "id", world_size or len(built), built)


def certificate_of(baseline: Rank, candidate: Rank, policy: Policy = POLICY) -> Certificate:
    sides = join_sides(baseline.build(), candidate.build())
    return certify(sides, align(sides), policy)


def pairs_of(baseline: Rank, candidate: Rank) -> list[tuple[int, int]]:
    """Pairs of the alignment; those off the monotone order as (baseline, -candidate)."""
    alignment = align(join_sides(baseline.build(), candidate.build()))
    return [
        (int(a), -int(b) if moved else int(b))
        for a, b, moved in zip(
            alignment.baseline, alignment.candidate, alignment.moved, strict=True
        )
    ]


Build = Callable[[Rank, bool], None]


def certificate_of_both(build: Build) -> Certificate:
    """Certificate of ``build(rank, suspect)`` for both sides."""
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        build(rank, bool(suspect))
    return certificate_of(*ranks)


def classes(certificate: Certificate) -> list[str]:
    return [CLASSES[code] for code in certificate.classes]


def pick(suspect: bool, reference: str, other: str) -> str:
    return other if suspect else reference


def view(x: Value, content: str, geometry: str) -> Value:
    """``x`` seen as a view that is known through it."""
    return x.but(content=content, via=True, strides=f"[1]|{geometry}", fresh=False)
