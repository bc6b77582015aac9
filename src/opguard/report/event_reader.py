"""Events of one rank in words, as reports show them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from opguard.frames import Frame, user_frame
from opguard.model import (
    DTYPES,
    I64,
    NONE_ID,
    REASON_SHIFT,
    Bools,
    Boundary,
    EventFlag,
    RankEvents,
    RecordFlag,
    StringKind,
)
from opguard.report.result import Place

_NUMPY: Final = {
    "bool": "?", "uint8": "u1", "int8": "i1", "uint16": "<u2", "int16": "<i2", "uint32": "<u4",
    "int32": "<i4", "uint64": "<u8", "int64": "<i8", "float16": "<f2", "float32": "<f4",
    "float64": "<f8", "complex64": "<c8", "complex128": "<c16", "python_bool": "?",
    "python_int": "<i8", "python_float": "<f8", "python_complex": "<c16",
}  # fmt: skip


_LAUNCHER: Final = re.compile(
    r"(^|/)(site|dist)-packages/click/|(^|/)runpy\.py$|^<frozen runpy>$|(^|/)bin/opguard$"
    r"|(^|/)opguard/__main__\.py$"
)


@dataclass(frozen=True)
class Tensor:
    """One tensor record."""

    index: int
    slot: str
    dtype: str
    shape: tuple[int, ...]
    mix64: str | None
    """None where nothing can be compared."""
    strides: str
    via: bool


class EventReader:
    """One rank's events in words. ``paired`` (E,): in a pair."""

    def __init__(self, run: RankEvents, paired: Bools) -> None:
        self.run = run
        self.paired = paired
        self._positions: dict[str, I64] = {}

    def boundary(self, seq: int) -> Boundary:
        """The event's boundary."""
        boundary: Boundary = self.run.boundaries[self.run.boundary[seq]]
        return boundary

    def place(self, seq: int) -> Place:
        """Where the event stands."""
        boundary = self.boundary(seq)
        file, line, function = user_frame(boundary.stack)
        return Place(seq, self._occurrence(seq), file, line, function, _program(boundary.stack))

    def arguments(self, seq: int) -> str:
        """All arguments, those that are only shown too."""
        number = int(self.run.arguments[seq])
        texts = self.run.strings.values("arguments")
        return "" if number == NONE_ID else texts[number].replace("\t", " ").strip()

    def tensors(self, seq: int, outputs: bool) -> dict[str, Tensor]:
        """Records of one direction by slot."""
        run = self.run
        found = {}
        for index in range(int(run.first_record[seq]), int(run.first_record[seq + 1])):
            flags = int(run.record_flags[index])
            if bool(flags & RecordFlag.OUTPUT) == outputs:
                tensor = self._tensor(index, flags)
                found[tensor.slot] = tensor
        return found

    def sources(self, seq: int) -> dict[str, Tensor]:
        """What the event read; of a final-state entry the entry itself."""
        state = bool(self.run.flags[seq] & EventFlag.STATE)
        return (self.tensors(seq, outputs=True) if state else {}) | self.tensors(seq, outputs=False)

    def _tensor(self, index: int, flags: int) -> Tensor:
        run = self.run
        known = not flags >> REASON_SHIFT and not flags & RecordFlag.VOID
        return Tensor(
            index=index,
            slot=run.strings.values("slot")[run.slot[index]],
            dtype=DTYPES[run.dtype[index]],
            shape=_shape(self._text("shape", int(run.shape[index]))),
            mix64=f"{int(run.mix64[index]):016x}" if known else None,
            strides=self._text("strides", int(run.strides[index])),
            via=bool(flags & RecordFlag.VIA),
        )

    def _text(self, kind: StringKind, number: int) -> str:
        return "" if number == NONE_ID else self.run.strings.values(kind)[number]

    def producers(self, record: int) -> list[int]:
        """Records that wrote the bytes of ``record``."""
        start, end = self.run.first_producer[record : record + 2]
        return [int(producer) for producer in self.run.producers[start:end]]

    def regions(self, record: int) -> list[int] | None:
        """The record's regions, None where it has none."""
        at = int(np.searchsorted(self.run.region_records, record))
        if at == len(self.run.region_records) or self.run.region_records[at] != record:
            return None
        return [int(value) for value in self.run.region_values[at]]

    def values(self, tensor: Tensor) -> str | None:
        """The elements in words, None where the run did not store the bytes."""
        start, end = self.run.small_offset[tensor.index : tensor.index + 2]
        dtype = _NUMPY.get(tensor.dtype)
        if start == end or dtype is None or (end - start) % np.dtype(dtype).itemsize:
            return None
        items = np.frombuffer(self.run.small[start:end].tobytes(), dtype).tolist()
        return ", ".join(map(repr, items))

    def event_of(self, record: int) -> int:
        """The event that a record belongs to."""
        return int(np.searchsorted(self.run.first_record, record, side="right")) - 1

    def _occurrence(self, seq: int) -> int:
        operator = self.boundary(seq).operator
        if operator not in self._positions:
            same = np.array([b.operator == operator for b in self.run.boundaries], np.bool_)
            self._positions[operator] = np.flatnonzero(same[self.run.boundary])
        return int(np.searchsorted(self._positions[operator], seq))


def _program(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack without what started the program, its outermost frames."""
    end = len(stack)
    while end and _LAUNCHER.search(stack[end - 1][0].replace("\\", "/")):
        end -= 1
    return stack[:end]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text)) if text else ()
