"""The two line files of a rank as they are read: ``chunks.jsonl`` and ``strings.jsonl``."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from opguard.errors import FormatError
from opguard.model import PHASES, STRING_KINDS, Boundary, StringKind, Strings
from opguard.store.chunk_codec import EVENT_BYTES, RECORD_BYTES, REGIONS
from opguard.store.files import count_member, decode_object, member, read_file, sha256

LINES_LIMIT: Final = 1 << 30
"""Most bytes a line file may have: it is read whole."""
_LARGEST_CHUNK: Final = 1 << 32
"""Offsets within a chunk are u4."""

_ARCHIVE_BYTES: Final = 4096
"""More than an archive of two columns takes beside them."""

T = TypeVar("T")
Frame: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True)
class LineFile:
    """The lines of a file, each with its line end, and the digest of the whole file."""

    path: Path
    lines: Sequence[bytes]
    sha256: str
    cut_off: bool
    """The last line had no end and is left out."""


@dataclass(frozen=True)
class FileMark:
    """What a stored file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ChunkLine:
    """One line of ``chunks.jsonl``: the lengths of a chunk's columns, and its files."""

    number: int
    events: int
    records: int
    producers: int
    small: int
    strings: int
    columns: FileMark
    regions: FileMark | None


def read_lines(path: Path, *, may_be_cut: bool) -> LineFile:
    """Read a line file.

    Args:
        path: the file.
        may_be_cut: leave out a last line without end; otherwise that is damage.

    Raises:
        FormatError: the file is missing, too large, or cut off.
    """
    data = read_file(path, LINES_LIMIT)
    lines = io.BytesIO(data).readlines()  # not splitlines: only a newline ends a line
    cut_off = bool(lines) and not lines[-1].endswith(b"\n")
    if cut_off and not may_be_cut:
        raise FormatError(f"{path}: truncated, its last line has no end")
    return LineFile(path, lines[:-1] if cut_off else lines, sha256(data), cut_off)


def parse_chunk_lines(file: LineFile) -> list[ChunkLine]:
    """The chunks that count, in order.

    Raises:
        FormatError: a line is damaged, out of order, or claims more than its file can hold.
    """
    found = []
    for number, line in enumerate(file.lines):
        where = f"{file.path}: line {number + 1}"
        value = decode_object(line, where)
        if count_member(value, "chunk", where) != number:
            raise FormatError(f'{where}: field "chunk" is {value["chunk"]}, expected {number}')
        found.append(_chunk_line(value, where))
    return found


def _chunk_line(value: dict[str, Any], where: str) -> ChunkLine:
    lengths = {
        name: count_member(value, name, where)
        for name in ("events", "records", "producers", "small", "strings")
    }
    columns = _file_mark(value, where)
    least = (
        lengths["events"] * EVENT_BYTES
        + lengths["records"] * RECORD_BYTES
        + lengths["producers"] * 4
        + lengths["small"]
    )
    if least > columns.bytes or columns.bytes >= _LARGEST_CHUNK:
        raise FormatError(f"{where}: claims {least} bytes of columns in {columns.bytes} bytes")
    regions = None
    if value.get("regions") is not None:
        regions = _file_mark(member(value, "regions", dict, where), where)
        if regions.bytes > (4 + 8 * REGIONS) * lengths["records"] + _ARCHIVE_BYTES:
            raise FormatError(f"{where}: regions claim {regions.bytes} bytes")
    return ChunkLine(value["chunk"], **lengths, columns=columns, regions=regions)


def _file_mark(value: dict[str, Any], where: str) -> FileMark:
    return FileMark(count_member(value, "bytes", where), member(value, "sha256", str, where))


def parse_strings(file: LineFile, count: int) -> Strings:
    """The string tables of the first ``count`` lines.

    Raises:
        FormatError: a line is missing, damaged, or breaks the numbering of its kind.
    """
    if len(file.lines) < count:
        raise FormatError(f"{file.path}: {len(file.lines)} lines, the chunks need {count}")
    tables: dict[StringKind, list[str]] = {kind: [] for kind in STRING_KINDS}
    for number, line in enumerate(file.lines[:count]):
        where = f"{file.path}: line {number + 1}"
        value = decode_object(line, where)
        kind = member(value, "kind", str, where)
        if kind not in tables:
            raise FormatError(f'{where}: field "kind" is {kind!r:.40}, unknown')
        table = tables[kind]
        if count_member(value, "id", where) != len(table):
            raise FormatError(f'{where}: field "id" is {value["id"]}, expected {len(table)}')
        table.append(member(value, "value", str, where))
    return Strings({kind: tuple(table) for kind, table in tables.items()})


def parse_boundaries(strings: Strings, where: str) -> tuple[Boundary, ...]:
    """The boundaries that the strings of that kind spell.

    Raises:
        FormatError: one is malformed or names a string that is not there.
    """
    operators, modules = strings.values("operator"), strings.values("module")
    try:
        frames = [_frame(text) for text in strings.values("frame")]
        stacks = [
            tuple(_at(frames, number) for number in json.loads(text))
            for text in strings.values("stack")
        ]
        found = []
        for text in strings.values("boundary"):
            operator, module, phase, stack = json.loads(text)
            found.append(
                Boundary(
                    operator=_at(operators, operator),
                    module=_at(modules, module),
                    phase=_at(PHASES, phase),
                    stack=() if stack == -1 else _at(stacks, stack),
                )
            )
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise FormatError(f"{where}: a malformed boundary, stack or frame: {error}") from None
    return tuple(found)


def _frame(text: str) -> Frame:
    file, line, function = json.loads(text)
    if not (type(file) is str and type(line) is int and type(function) is str):
        raise ValueError(f"{text:.80} is no frame")
    return file, line, function


def _at(table: Sequence[T], position: Any) -> T:
    if type(position) is not int or not 0 <= position < len(table):
        raise ValueError(f"{position!r:.40} is no position in a table of {len(table)}")
    return table[position]
