"""Synthetic events, chunks and runs for tests: written by hand, or a million at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opguard.model import (
    DTYPES,
    EVENT_COLUMNS,
    PHASES,
    RECORD_COLUMNS,
    Chunk,
    IdleHook,
    RecordFlag,
    StringKind,
)
from opguard.store.run_writer import RunWriter


@dataclass(frozen=True)
class Record:
    """One tensor record, in words; strings are interned by the builder."""

    slot: str
    mix64: int = 0
    dtype: str = "float32"
    shape: str = "[4]"
    strides: str = "[1]"
    flags: int = 0
    xor32: int = 0
    producers: tuple[int, ...] = ()
    small: bytes = b""
    regions: tuple[int, ...] = ()


@dataclass
class EventBuilder:
    """Collects events one by one and cuts them into chunks.

    ``event`` returns the global indices of the event's output records, to be given as producers.
    """

    _ids: dict[str, dict[str, int]] = field(default_factory=dict)
    _strings: list[tuple[StringKind, int, str]] = field(default_factory=list)
    _events: list[dict[str, int]] = field(default_factory=list)
    _records: list[list[Record]] = field(default_factory=list)
    _marks: list[int] = field(default_factory=list)
    _record_count: int = 0

    def intern(self, kind: StringKind, value: str) -> int:
        """Id of ``value`` among the strings of its kind."""
        table = self._ids.setdefault(kind, {})
        if value not in table:
            table[value] = len(table)
            self._strings.append((kind, table[value], value))
        return table[value]

    def event(
        self,
        operator: str,
        *,
        module: str = "",
        phase: str = "forward",
        step: int = 0,
        inputs: Sequence[Record] = (),
        outputs: Sequence[Record] = (),
        arguments: str = "",
        stack: Sequence[tuple[str, int, str]] = (),
        flags: int = 0,
        thread: int = 0,
    ) -> list[int]:
        """Add one event."""
        frames = [self.intern("frame", json.dumps(list(frame))) for frame in stack]
        boundary = [
            self.intern("operator", operator),
            self.intern("module", module),
            PHASES.index(phase),
            self.intern("stack", json.dumps(frames)) if stack else -1,
        ]
        self._events.append(
            {
                "boundary": self.intern("boundary", json.dumps(boundary)),
                "step": step,
                "thread": thread,
                "stream": 0,
                "host_ns": 1000 + len(self._events),
                "arguments": self.intern("arguments", arguments),
                "flags": flags,
            }
        )
        written = [_as_output(record) for record in outputs]
        self._records.append([*inputs, *written])
        for record in self._records[-1]:
            self.intern("slot", record.slot)
            self.intern("shape", record.shape)
            self.intern("strides", record.strides)
        self._marks.append(len(self._strings))
        self._record_count += len(inputs) + len(written)
        return list(range(self._record_count - len(written), self._record_count))

    def chunks(self, size: int = 4096) -> list[Chunk]:
        """All events so far, cut into chunks of ``size``."""
        return [self._chunk(i, min(i + size, len(self._events))) for i in self._starts(size)]

    def _starts(self, size: int) -> range:
        return range(0, len(self._events), size)

    def _chunk(self, start: int, end: int) -> Chunk:
        groups = self._records[start:end]
        rows = [record for group in groups for record in group]
        events = {name: [e.get(name, 0) for e in self._events[start:end]] for name in EVENT_COLUMNS}
        events["first_record"] = _offsets(len(group) for group in groups)
        records = {
            "slot": [self.intern("slot", r.slot) for r in rows],
            "dtype": [DTYPES.index(r.dtype) for r in rows],
            "record_flags": [r.flags for r in rows],
            "shape": [self.intern("shape", r.shape) for r in rows],
            "strides": [self.intern("strides", r.strides) for r in rows],
            "mix64": [r.mix64 for r in rows],
            "xor32": [r.xor32 for r in rows],
            "first_producer": _offsets(len(r.producers) for r in rows),
            "small_offset": _offsets(len(r.small) for r in rows),
            "small": list(b"".join(r.small for r in rows)),
        }
        regions = [i for i, r in enumerate(rows) if r.regions]
        first_mark = self._marks[start - 1] if start else 0
        return Chunk(
            events={n: np.array(v, EVENT_COLUMNS[n]) for n, v in events.items()},
            records={n: np.array(v, RECORD_COLUMNS[n]) for n, v in records.items()},
            producers=np.array([p for r in rows for p in r.producers], "<u4"),
            region_records=np.array(regions, "<u4"),
            region_values=np.array([rows[i].regions for i in regions], "<u8").reshape(-1, 8),
            strings=tuple(self._strings[first_mark : self._marks[end - 1]]),
        )


def _as_output(record: Record) -> Record:
    return Record(**{**record.__dict__, "flags": record.flags | RecordFlag.OUTPUT})


def _offsets(lengths: Iterable[int]) -> list[int]:
    return np.cumsum([0, *lengths])[:-1].tolist()


@dataclass(frozen=True)
class BuiltChunk:
    """A pending chunk that is already built."""

    chunk: Chunk
    first_event: int

    @property
    def event_count(self) -> int:
        """Events of the chunk."""
        return self.chunk.event_count

    def build(self) -> Chunk:
        """The chunk."""
        return self.chunk


def pending(chunks: Iterable[Chunk]) -> Iterator[BuiltChunk]:
    """``chunks`` as they would be submitted, one after the other."""
    first = 0
    for chunk in chunks:
        yield BuiltChunk(chunk, first)
        first += chunk.event_count


def nothing_waits() -> None:
    """An idle hook without anything to hand over."""


class Gate:
    """A pending chunk that is built only when it is let through."""

    def __init__(self, built: BuiltChunk) -> None:
        self.first_event = built.first_event
        self.event_count = built.event_count
        self._built = built
        self.open = threading.Event()
        self.building = threading.Event()

    def build(self) -> Chunk:
        """Wait, then the chunk."""
        self.building.set()
        assert self.open.wait(10)
        return self._built.build()


def some_chunks(count: int, size: int = 3) -> list[Chunk]:
    """Chunks of ``size`` events, each reading what the one before wrote: 2 records an event."""
    builder = EventBuilder()
    previous: list[int] = []
    for i in range(count * size):
        source = Record("self", mix64=i, producers=tuple(previous))
        previous = builder.event(f"op{i}", inputs=[source], outputs=[Record("0", mix64=i + 1)])
    return builder.chunks(size)


OPENING: Mapping[str, Any] = {
    "environment": {"platform": "linux", "torch": "2.13.0"},
    "probe": {"mm": "0123456789abcdef"},
    "command": ["train.py"],
    "mode": "trusted",
    "mechanism": "dispatch",
    "settings": {},
    "rng": {},
}


def open_writer(folder: str | Path, idle: IdleHook = nothing_waits) -> RunWriter:
    """A writer of the only rank of a run."""
    return RunWriter(folder, rank=0, world_size=1, run_id=None, opening=OPENING, idle=idle)


def write_run(
    folder: Path,
    chunks: Iterable[Chunk],
    *,
    rank: int = 0,
    world_size: int = 1,
    run_id: str | None = None,
    opening: Mapping[str, Any] = OPENING,
    summary: Mapping[str, Any] | None = {},
) -> Path:
    """Write a run of one rank (``summary`` None: partial) and return its folder."""
    writer = RunWriter(
        folder,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        opening=opening,
        idle=nothing_waits,
    )
    for chunk in pending(chunks):
        writer.submit(chunk)
    if summary is None:
        writer.abandon()
    else:
        writer.close(summary)
    assert writer.failed is None, writer.failed
    return folder


def many_chunks(events: int, *, seed: int = 0, size: int = 4096) -> Iterator[Chunk]:
    """Chunks with 2.7 records an event and one producer an input, like a training step's."""
    random = np.random.default_rng(seed)
    start = records_before = 0
    while start < events:
        count = min(size, events - start)
        chunk = _many_chunk(random, start, count, records_before)
        yield chunk
        start += count
        records_before += chunk.record_count


def _many_chunk(random: np.random.Generator, start: int, count: int, records_before: int) -> Chunk:
    lengths = np.array([2, 3, 3, 2, 3, 4, 2, 3, 2, 3])[np.arange(start, start + count) % 10]
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows = int(lengths.sum())
    outputs = np.zeros(rows, bool)
    outputs[first + lengths - 1] = True
    known = ~outputs & (np.repeat(first, lengths) + records_before > 0)
    owner = np.repeat(first + records_before, lengths)[known]
    tables: dict[StringKind, int] = {
        "operator": 40, "module": 60, "boundary": 800, "arguments": 100,
        "shape": 50, "strides": 50, "slot": 12,
    }  # fmt: skip

    def ids(kind: StringKind, rows: int, code: str) -> Any:
        return random.integers(0, tables[kind], rows).astype(code)

    events = {
        "boundary": ids("boundary", count, "<u4"),
        "step": (np.arange(start, start + count) // 1000).astype("<i4"),
        "thread": np.zeros(count, "<u2"),
        "stream": np.zeros(count, "<u2"),
        "host_ns": np.arange(start, start + count).astype("<u8") * 1000,
        "arguments": ids("arguments", count, "<u4"),
        "flags": np.zeros(count, "u1"),
        "first_record": first.astype("<u4"),
    }
    records = {
        "slot": ids("slot", rows, "<u2"),
        "dtype": np.full(rows, DTYPES.index("float32"), "u1"),
        "record_flags": np.where(outputs, int(RecordFlag.OUTPUT), 0).astype("u1"),
        "shape": ids("shape", rows, "<u4"),
        "strides": ids("strides", rows, "<u4"),
        "mix64": random.integers(0, 2**64, rows, "u8").astype("<u8"),
        "xor32": random.integers(0, 2**32, rows, "u4").astype("<u4"),
        "first_producer": np.concatenate([[0], np.cumsum(known)[:-1]]).astype("<u4"),
        "small_offset": np.zeros(rows, "<u4"),
        "small": np.zeros(0, "u1"),
    }
    empty = np.zeros((0, 8), "<u8")
    return Chunk(
        events=events,
        records=records,
        producers=random.integers(0, owner).astype("<u4"),
        region_records=np.zeros(0, "<u4"),
        region_values=empty,
        strings=tuple(_strings(tables)) if start == 0 else (),
    )


def _strings(tables: Mapping[StringKind, int]) -> Iterator[tuple[StringKind, int, str]]:
    for kind, length in tables.items():
        for i in range(length):
            boundary = json.dumps([i % tables["operator"], i % tables["module"], i % 5, -1])
            yield kind, i, boundary if kind == "boundary" else f"{kind}.{i}"
