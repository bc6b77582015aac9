"""Rows of events and records as capture appends them, and the chunk they become.

Appending happens on the program's threads, building on the writer thread.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeAlias

import numpy as np

from opguard.fingerprint.stage import STAGE_BYTES, Digest, Stage, digest_memory
from opguard.model import (
    EVENT_COLUMNS,
    RECORD_COLUMNS,
    Chunk,
    RecordFlag,
    StringKind,
)

EVENTS_A_CHUNK: Final = 4096
MOST_STAGED: Final = 16 << 10
"""Bytes of a tensor up to which it is copied and hashed later, together with others. More are
hashed in place: copying would cost as much, and a second thread that hashes makes the program
wait for the interpreter lock at each of its operators."""
_STAGE_IS_FULL: Final = STAGE_BYTES - (1 << 20)

EventRow: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""boundary, step, thread, stream, host_ns, arguments, flags, first record in the chunk."""
RecordRow: TypeAlias = tuple[int, int, int, int, int, "Digest | None", tuple[int, ...]]
"""slot, dtype, flags, shape, strides, digest, producers."""

_KEEPS_BYTES: Final = int(RecordFlag.OUTPUT | RecordFlag.FRESH)
_OUTPUT: Final = int(RecordFlag.OUTPUT)


class StagePool:
    """Stages that were hashed and can be filled again."""

    def __init__(self) -> None:
        self._free: deque[Stage] = deque()

    def take(self) -> Stage:
        """An empty stage."""
        try:
            return self._free.popleft()
        except IndexError:
            return Stage()

    def give_back(self, stage: Stage) -> None:
        """The stage's digests are resolved; its memory may be used again."""
        stage.clear()
        self._free.append(stage)


class Rows:
    """What was captured since the last chunk was handed over."""

    def __init__(self, pool: StagePool, first_event: int = 0, first_record: int = 0) -> None:
        """``first_event``, ``first_record``: how many were captured before."""
        self.first_event = first_event
        self.first_record = first_record
        self._pool = pool
        self._stage = pool.take()
        self.events: list[EventRow] = []
        self.records: list[RecordRow] = []
        self.strings: tuple[tuple[StringKind, int, str], ...] = ()

    @property
    def event_count(self) -> int:
        """Events that are lost if these rows are."""
        return len(self.events)

    @property
    def full(self) -> bool:
        """It is time to hand the rows over."""
        return len(self.events) >= EVENTS_A_CHUNK or self._stage.used > _STAGE_IS_FULL

    def digest(self, address: int | bytes, nbytes: int) -> Digest:
        """Fingerprint of ``nbytes`` bytes of host memory: staged, or hashed at once if large."""
        if nbytes <= MOST_STAGED:
            found = self._stage.add(address, nbytes)
            if found is not None:
                return found
        if isinstance(address, bytes):
            return digest_memory(np.frombuffer(address, np.uint8).ctypes.data, nbytes)
        return digest_memory(address, nbytes)

    def build(self) -> Chunk:
        """Hash what is staged and turn the rows into columns."""
        self._stage.resolve()
        self._pool.give_back(self._stage)
        events = _columns(self.events, EVENT_COLUMNS)
        records, digests, producers = self._record_columns()
        regions = [
            (position, digest.regions)
            for position, (row, digest) in enumerate(zip(self.records, digests, strict=True))
            if digest is not None and digest.regions is not None and row[2] & _OUTPUT
        ]
        return Chunk(
            events=events,
            records=records,
            producers=producers,
            region_records=np.array([position for position, _ in regions], np.uint32),
            region_values=np.array([values for _, values in regions], np.uint64).reshape(-1, 8),
            strings=self.strings,
        )

    def _record_columns(self) -> tuple[dict[str, Any], tuple[Digest | None, ...], Any]:
        slots, dtypes, flags, shapes, strides, digests, producers = (
            zip(*self.records, strict=True) if self.records else ((),) * 7
        )
        small = [
            digest.small if digest is not None and row_flags & _KEEPS_BYTES else b""
            for digest, row_flags in zip(digests, flags, strict=True)
        ]
        columns = {
            "slot": slots,
            "dtype": dtypes,
            "record_flags": flags,
            "shape": shapes,
            "strides": strides,
            "mix64": [0 if digest is None else digest.mix64 for digest in digests],
            "xor32": [0 if digest is None else digest.xor32 for digest in digests],
            "first_producer": _offsets([len(items) for items in producers]),
            "small_offset": _offsets([len(data) for data in small]),
        }
        arrays: dict[str, Any] = {
            name: np.asarray(values, dtype=RECORD_COLUMNS[name]) for name, values in columns.items()
        }
        arrays["small"] = np.frombuffer(b"".join(small), np.uint8)
        flat = [producer for items in producers for producer in items]
        return arrays, digests, np.array(flat, np.uint32)


def _columns(rows: list[EventRow], dtypes: Any) -> dict[str, Any]:
    columns = zip(*rows, strict=True) if rows else [()] * len(dtypes)
    return {
        name: np.asarray(values, dtype=dtype)
        for (name, dtype), values in zip(dtypes.items(), columns, strict=True)
    }


def _offsets(lengths: list[int]) -> Any:
    ends = np.cumsum(np.asarray(lengths, np.int64))
    return ends - np.asarray(lengths, np.int64)
