"""The columns of a rank, filled chunk by chunk into arrays that are allocated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opguard.errors import FormatError
from opguard.model import (
    DTYPES,
    EVENT_COLUMNS,
    NONE_ID,
    REASON_SHIFT,
    RECORD_COLUMNS,
    Reason,
    StringKind,
    Strings,
)
from opguard.store.chunk_codec import CHUNK_COLUMNS, Columns, decode_chunk, decode_regions
from opguard.store.files import read_file, sha256
from opguard.store.rank_lines import ChunkLine, FileMark
from opguard.store.run_folder import chunk_file_name, regions_file_name

SMALL_LIMIT: Final = 64
"""Most bytes of its tensor that a record keeps."""

_UNITS: Final = {
    **dict.fromkeys(EVENT_COLUMNS, "events"),
    **dict.fromkeys(RECORD_COLUMNS, "records"),
    "small": "small",
    "producers": "producers",
}
"""Column: the length of a chunk that is its own length."""
_OFFSETS: Final = {
    "first_record": "records",
    "first_producer": "producers",
    "small_offset": "small",
}
"""Offset column: the length that it counts in."""
_STRING_IDS: Final[Mapping[str, tuple[StringKind, bool]]] = {
    "boundary": ("boundary", False),
    "arguments": ("arguments", True),
    "slot": ("slot", False),
    "shape": ("shape", True),
    "strides": ("strides", True),
}
"""Column of string ids: their kind, and whether ``NONE_ID`` may stand among them."""


class RankColumns:
    """The columns of all chunks of a rank, with offsets that count over all of them."""

    def __init__(self, lines: Sequence[ChunkLine]) -> None:
        """Allocate for ``lines``, whose claims were checked against the sizes of their files."""
        self._ends = dict.fromkeys(("events", "records", "producers", "small"), 0)
        self.columns: dict[str, npt.NDArray[Any]] = {}
        for name, code in CHUNK_COLUMNS.items():
            length = sum(getattr(line, _UNITS[name]) for line in lines)
            if name in _OFFSETS:
                self.columns[name] = np.zeros(length + 1, np.int64)
            else:
                self.columns[name] = np.zeros(length, np.int64 if name == "producers" else code)
        self._region_records: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._region_values: list[npt.NDArray[np.uint64]] = [np.zeros((0, 8), np.uint64)]

    def load(self, folder: Path, line: ChunkLine, strings: Strings) -> None:
        """Read, check and append one chunk.

        Raises:
            FormatError: naming the file, and the column that is wrong.
        """
        path = folder / chunk_file_name(line.number)
        columns = decode_chunk(_read_marked(path, line.columns), str(path))
        for name, values in columns.items():
            if len(values) != getattr(line, _UNITS[name]):
                raise FormatError(
                    f"{path}: column {name} has {len(values)} values,"
                    f" not {getattr(line, _UNITS[name])}"
                )
        _check_offsets(columns, line, str(path))
        _check_codes(columns, strings, str(path))
        _check_producers(columns, self._ends["records"], str(path))
        if line.regions is not None:
            self._load_regions(folder / regions_file_name(line.number), line.regions, line.records)
        self._append(columns)

    def _append(self, columns: Columns) -> None:
        for name, values in columns.items():
            start = self._ends[_UNITS[name]]
            target = self.columns[name][start : start + len(values)]
            target[:] = values
            if name in _OFFSETS:
                target += self._ends[_OFFSETS[name]]
        for unit in self._ends:
            self._ends[unit] += next(len(columns[n]) for n, u in _UNITS.items() if u == unit)
        for name, counted in _OFFSETS.items():
            self.columns[name][self._ends[_UNITS[name]]] = self._ends[counted]

    def _load_regions(self, path: Path, mark: FileMark, records: int) -> None:
        columns = decode_regions(_read_marked(path, mark), str(path))
        positions = columns["region_records"].astype(np.int64)
        if len(positions) and (positions[-1] >= records or (np.diff(positions) <= 0).any()):
            raise FormatError(f"{path}: column region_records is not ascending below {records}")
        self._region_records.append(positions + self._ends["records"])
        self._region_values.append(columns["region_values"])

    def regions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Global positions of the records with regions, and their 8 values each."""
        return np.concatenate(self._region_records), np.concatenate(self._region_values)


def _read_marked(path: Path, mark: FileMark) -> bytes:
    data = read_file(path, mark.bytes)
    if len(data) < mark.bytes:
        raise FormatError(f"{path}: truncated to {len(data)} of {mark.bytes} bytes")
    if sha256(data) != mark.sha256:
        raise FormatError(f"{path}: damaged, it does not match its sha256 in chunks.jsonl")
    return data


def _check_offsets(columns: Columns, line: ChunkLine, where: str) -> None:
    for name, counted in _OFFSETS.items():
        total: int = getattr(line, counted)
        bounds = np.append(columns[name].astype(np.int64), total)
        lengths = np.diff(bounds)
        if bounds[0] != 0 or (lengths < 0).any():
            raise FormatError(f"{where}: column {name} does not ascend from 0 to {total}")
        if name == "small_offset" and len(lengths) and lengths.max() > SMALL_LIMIT:
            raise FormatError(f"{where}: a record keeps more than {SMALL_LIMIT} bytes")


def _check_codes(columns: Columns, strings: Strings, where: str) -> None:
    for name, (kind, may_be_none) in _STRING_IDS.items():
        ids = columns[name]
        wrong = ids >= len(strings.values(kind))
        if may_be_none:
            wrong &= ids != NONE_ID
        if wrong.any():
            raise FormatError(f"{where}: column {name} names {kind} {ids[wrong][0]}, unknown")
    for name, codes, known in (
        ("dtype", columns["dtype"], len(DTYPES)),
        ("record_flags", columns["record_flags"] >> REASON_SHIFT, len(Reason)),
    ):
        if len(codes) and codes.max() >= known:
            raise FormatError(f"{where}: column {name} holds the unknown code {codes.max()}")


def _check_producers(columns: Columns, records_before: int, where: str) -> None:
    """Every producer is a record of an earlier event, so following them always ends."""
    first_record = columns["first_record"].astype(np.int64)
    records = np.diff(np.append(first_record, len(columns["slot"])))
    first_producer = columns["first_producer"].astype(np.int64)
    producers = np.diff(np.append(first_producer, len(columns["producers"])))
    bound = np.repeat(np.repeat(first_record, records), producers) + records_before
    wrong = columns["producers"] >= bound
    if wrong.any():
        raise FormatError(
            f"{where}: column producers names record {columns['producers'][wrong][0]},"
            " which is not of an earlier event"
        )
