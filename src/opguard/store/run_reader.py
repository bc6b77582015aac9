"""Reads a run back as columns, and believes nothing that it has not checked.

Of a closed rank every byte of every file is covered by a digest. Of a partial one (no
``close.json``) the chunks that count are; what came after the last of them is left out and named
in ``RankEvents.problems``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opguard.errors import FormatError, UsageError
from opguard.model import RankEvents, Run
from opguard.store.files import (
    OBJECT_LIMIT,
    count_member,
    decode_object,
    member,
    read_file,
    read_object,
    sha256,
)
from opguard.store.rank_columns import RankColumns
from opguard.store.rank_lines import (
    ChunkLine,
    FileMark,
    parse_boundaries,
    parse_chunk_lines,
    parse_strings,
    read_lines,
)
from opguard.store.run_folder import (
    CHUNKS_FILE,
    CLOSE_FILE,
    OPEN_FILE,
    RANK_FOLDER,
    RUN_FILE,
    RUN_FORMAT,
    RUN_VERSION,
    STRINGS_FILE,
    chunk_file_name,
    rank_folder_name,
    regions_file_name,
)

_CHUNK_NAMES: Final = re.compile(r"(chunk|regions)-[0-9]+\.npz")


@dataclass(frozen=True)
class _Opening:
    """``open.json`` of a rank."""

    path: Path
    value: Mapping[str, Any]
    sha256: str

    @property
    def formats(self) -> str:
        return (
            f"format version {self.value.get('version')},"
            f" fingerprint version {self.value.get('fingerprint_version')}"
        )


def load_run(path: str | Path) -> Run:
    """Read all ranks of the run in folder ``path``.

    Raises:
        UsageError: there is no such folder, or it holds no run.
        FormatError: a file is damaged, newer than this release reads, or of another format than
            its sibling; the message names the file and what is wrong in it.
    """
    folder = Path(path)
    names = _names(folder)
    if RUN_FILE not in names:
        raise UsageError(f"{folder}: holds no run ({RUN_FILE} is missing)")
    where = str(folder / RUN_FILE)
    run = read_object(folder / RUN_FILE)
    _check_version(run, where)
    world_size = count_member(run, "world_size", where)
    found = _rank_folders(folder, names)
    if not found:
        raise UsageError(f"{folder}: the run holds no rank")
    if max(found) >= world_size:
        raise FormatError(f"{where}: world_size is {world_size}, and there is {found[max(found)]}")
    openings = {rank: _read_opening(found[rank], rank) for rank in found}
    _check_openings(list(openings.values()))
    return Run(
        path=str(folder),
        run_id=member(run, "run_id", str, where),
        world_size=world_size,
        ranks={rank: _load_rank(found[rank], rank, openings[rank]) for rank in openings},
    )


def _rank_folders(folder: Path, names: Sequence[str]) -> dict[int, Path]:
    matches = [match for name in names if (match := RANK_FOLDER.fullmatch(name))]
    ranks = {int(match[1]): match[0] for match in matches}
    return {
        rank: folder / name
        for rank, name in sorted(ranks.items())
        if name == rank_folder_name(rank)
    }


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        raise UsageError(f"{folder}: no such folder") from None
    except NotADirectoryError:
        raise UsageError(f"{folder}: not a folder, so no run") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{folder}: cannot be read: {error}") from None


def _check_version(value: Mapping[str, Any], where: str) -> None:
    if value.get("format") != RUN_FORMAT:
        raise FormatError(f'{where}: field "format" is {value.get("format")!r:.40}, not a run')
    version = count_member(value, "version", where)
    if version != RUN_VERSION:
        raise FormatError(
            f"{where}: format version {version}, and this release reads version {RUN_VERSION}"
        )


def _read_opening(folder: Path, rank: int) -> _Opening:
    path = folder / OPEN_FILE
    data = read_file(path, OBJECT_LIMIT)
    value = decode_object(data, str(path))
    if value.get("rank") != rank:
        raise FormatError(f'{path}: field "rank" is {value.get("rank")!r:.40}, expected {rank}')
    return _Opening(path, value, sha256(data))


def _check_openings(openings: Sequence[_Opening]) -> None:
    first = openings[0]
    for other in openings[1:]:
        if other.formats != first.formats:
            raise FormatError(
                f"{other.path}: {other.formats}; {first.path}: {first.formats};"
                " ranks of one run must have the same"
            )
    for opening in openings:
        _check_version(opening.value, str(opening.path))
        count_member(opening.value, "fingerprint_version", str(opening.path))


def _load_rank(folder: Path, rank: int, opening: _Opening) -> RankEvents:
    closing = _read_closing(folder)
    partial = closing is None
    chunk_file = read_lines(folder / CHUNKS_FILE, may_be_cut=partial)
    lines = parse_chunk_lines(chunk_file)
    string_file = read_lines(folder / STRINGS_FILE, may_be_cut=partial)
    string_count = sum(line.strings for line in lines)
    strings = parse_strings(string_file, string_count)
    problems = _uncounted(folder, lines)
    if closing is not None:
        digests = {
            OPEN_FILE: opening.sha256,
            STRINGS_FILE: string_file.sha256,
            CHUNKS_FILE: chunk_file.sha256,
        }
        _check_closing(folder, closing, digests, lines)
        if problems:
            raise FormatError(f"{folder}: {problems[0]}, in a closed rank")
    elif chunk_file.cut_off:
        problems.append(f"{CHUNKS_FILE}: its last line is cut off")
    _check_sizes(folder, lines)
    columns = RankColumns(lines)
    for line in lines:
        columns.load(folder, line, strings)
    region_records, region_values = columns.regions()
    return RankEvents(
        rank=rank,
        **columns.columns,
        region_records=region_records,
        region_values=region_values,
        boundaries=parse_boundaries(strings, str(string_file.path)),
        strings=strings,
        opening=opening.value,
        closing=closing,
        problems=tuple(problems),
    )


def _read_closing(folder: Path) -> dict[str, Any] | None:
    path = folder / CLOSE_FILE
    return read_object(path) if os.path.lexists(path) else None


def _uncounted(folder: Path, lines: Sequence[ChunkLine]) -> list[str]:
    """What a crash can leave: files of chunks without a line."""
    counted = set(_marks(lines))
    return [
        f"{name}: no line of {CHUNKS_FILE} counts it"
        for name in sorted(os.listdir(folder))
        if _CHUNK_NAMES.fullmatch(name) and name not in counted
    ]


def _marks(lines: Sequence[ChunkLine]) -> dict[str, FileMark]:
    """The files of ``lines`` by name."""
    marks = {chunk_file_name(line.number): line.columns for line in lines}
    for line in lines:
        if line.regions is not None:
            marks[regions_file_name(line.number)] = line.regions
    return marks


def _check_closing(
    folder: Path,
    closing: Mapping[str, Any],
    digests: dict[str, str],
    lines: Sequence[ChunkLine],
) -> None:
    where = str(folder / CLOSE_FILE)
    files = member(closing, "files", dict, where)
    digests |= {name: mark.sha256 for name, mark in _marks(lines).items()}
    # The line files come first: were a line missing, the file of its chunk would be blamed.
    for name in {**digests, **files}:
        if files.get(name) != digests.get(name):
            raise FormatError(f"{folder / name}: damaged, it does not match its sha256 in {where}")
    written = member(closing, "written", dict, where)
    for name, expected in (
        ("chunks", len(lines)),
        ("events", sum(line.events for line in lines)),
        ("records", sum(line.records for line in lines)),
        ("strings", sum(line.strings for line in lines)),
    ):
        if count_member(written, name, where) != expected:
            raise FormatError(f'{where}: field "{name}" is {written[name]}, not {expected}')


def _check_sizes(folder: Path, lines: Sequence[ChunkLine]) -> None:
    """Before anything is allocated for what the lines claim, see that the files have it."""
    for name, mark in _marks(lines).items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None
        if size != mark.bytes:
            raise FormatError(f"{path}: {size} bytes, not the {mark.bytes} that were written")
