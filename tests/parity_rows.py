"""Events of a run as plain objects, with all that is stored of them but the time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opguard.model import DTYPES, EventFlag, RankEvents, RecordFlag

Stack = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Deviation:
    """Calls that PyTorch makes other ones of under a mode.

    Where operators are named, a stretch of ``native`` stands for one of ``dispatch``: nothing but
    the module is compared, and the last outputs stand for each other. An empty stretch under
    ``native``: what ``dispatch`` has is one too many.
    """

    name: str
    reason: str
    native: tuple[str, ...] = ()
    dispatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One tensor record; producers are global record indices."""

    slot: str
    is_output: bool
    values: dict[str, Any]
    producers: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One event of a run."""

    seq: int
    op: str
    module: str
    stack: Stack
    flags: int
    values: dict[str, Any]
    first_record: int
    records: tuple[Record, ...]

    def __str__(self) -> str:
        file, line, _ = (*self.stack, ("", 0, ""))[0]
        return f"{self.seq} {self.op} {self.phase} {file}:{line}"

    @property
    def phase(self) -> str:
        """``forward``, ``backward``, …"""
        return str(self.values["phase"])

    @property
    def raised(self) -> bool:
        """The operator raised."""
        return bool(self.flags & EventFlag.RAISED)

    @property
    def writes_in_place(self) -> bool:
        """By its name."""
        return "_." in self.op

    def outputs(self) -> list[int]:
        """Global indices of its output records."""
        return [self.first_record + i for i, r in enumerate(self.records) if r.is_output]

    def inputs(self) -> list[int]:
        """The same of inputs."""
        return [self.first_record + i for i, r in enumerate(self.records) if not r.is_output]


def events_of(rank: RankEvents) -> Iterator[Event]:
    """All events of a rank, final state included."""
    arguments = rank.strings.values("arguments")
    records = list(_records(rank))
    for seq in range(rank.event_count):
        boundary = rank.boundaries[rank.boundary[seq]]
        first, last = int(rank.first_record[seq]), int(rank.first_record[seq + 1])
        values = {
            "phase": boundary.phase,
            "step": int(rank.step[seq]),
            "thread": int(rank.thread[seq]),
            "stream": int(rank.stream[seq]),
            "arguments": arguments[rank.arguments[seq]],
        }
        yield Event(
            seq, boundary.operator, boundary.module, _named(boundary.stack), int(rank.flags[seq]),
            values, first, tuple(records[first:last]),
        )  # fmt: skip


def _records(rank: RankEvents) -> Iterator[Record]:
    slots, shapes, strides = (rank.strings.values(kind) for kind in ("slot", "shape", "strides"))
    of_record = zip(rank.region_records, rank.region_values, strict=True)
    regions = {int(record): values.tolist() for record, values in of_record}
    for index in range(rank.record_count):
        flags = int(rank.record_flags[index])
        values = {
            "dtype": DTYPES[rank.dtype[index]],
            "flags": flags,
            "shape": shapes[rank.shape[index]],
            "strides": strides[rank.strides[index]],
            "mix64": f"{int(rank.mix64[index]):016x}",
            "xor32": f"{int(rank.xor32[index]):08x}",
            "regions": regions.get(index),
            "small": rank.small[rank.small_offset[index] : rank.small_offset[index + 1]].tobytes(),
        }
        produced = rank.producers[rank.first_producer[index] : rank.first_producer[index + 1]]
        yield Record(
            slots[rank.slot[index]], bool(flags & RecordFlag.OUTPUT), values,
            tuple(produced.tolist()),
        )  # fmt: skip


def _named(stack: Stack) -> Stack:
    """Modules of traced code are numbered over the process."""
    return tuple(
        (re.sub(r"<eval_with_key>.*", "<traced>", f), line, name) for f, line, name in stack
    )
