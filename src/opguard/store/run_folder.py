"""The folder of a run: its names, and how the ranks of one job come to share it.

::

    run.json              {"format":"opguard-run","version":1,"run_id":…,"world_size":N}
    rank-00000/open.json  versions, rank, environment, probe, command, mode, mechanism, settings
               strings.jsonl, chunks.jsonl, chunk-000000.npz, regions-000000.npz
               close.json
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from opguard._version import FINGERPRINT_VERSION, __version__
from opguard.errors import CaptureError, FormatError, UsageError
from opguard.store.files import encode_object, folder_lock, read_object, sync_folder, write_all

RUN_FORMAT: Final = "opguard-run"
RUN_VERSION: Final = 1

RUN_FILE: Final = "run.json"
OPEN_FILE: Final = "open.json"
STRINGS_FILE: Final = "strings.jsonl"
CHUNKS_FILE: Final = "chunks.jsonl"
CLOSE_FILE: Final = "close.json"

RANK_FOLDER: Final = re.compile(r"rank-([0-9]{5,9})")
_OWN_FOLDER: Final = re.compile(r"\.?rank-[0-9]{5,9}(\.[0-9]+\.tmp)?")
_RUN_START: Final = b'{"format":"opguard-run",'
_RANDOM: Final = "random-"


def rank_folder_name(rank: int) -> str:
    """Name of the folder of ``rank`` inside the run's folder."""
    return f"rank-{rank:05d}"


def chunk_file_name(chunk: int) -> str:
    """Name of the file with the columns of ``chunk``."""
    return f"chunk-{chunk:06d}.npz"


def regions_file_name(chunk: int) -> str:
    """Name of the file with the regions of ``chunk``, there only if it has any."""
    return f"regions-{chunk:06d}.npz"


def check_free(folder: Path, rank: int, world_size: int, run_id: str | None, force: bool) -> None:
    """Refuse early, without writing, what :func:`create_rank_folder` would refuse.

    Raises:
        UsageError: the folder holds something else, or is no folder.
        CaptureError: the folder cannot be read.
    """
    try:
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder")
        with folder_lock(folder):  # another rank may be about to create the run
            if any(folder.iterdir()) and not _may_join(folder, rank, world_size, run_id):
                _check_replaceable(folder, force)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def run_is_of_others(folder: Path) -> bool:
    """True if spawned ranks made the run in ``folder``: their parent is none of them."""
    try:
        return int(read_object(folder / RUN_FILE).get("world_size", 1)) > 1
    except (FormatError, TypeError, ValueError):
        return False


def make_folder(folder: Path) -> None:
    """Make the folder of a run where it is missing, and see whether it may be written.

    Raises:
        UsageError: it is no folder, or lies below something that is none.
        CaptureError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder} is not a folder") from None
    except NotADirectoryError:
        raise UsageError(f"{folder} lies below something that is not a folder") from None
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CaptureError(f"cannot write the run to {folder}: {os.strerror(errno.EACCES)}")


def create_rank_folder(
    folder: Path,
    *,
    rank: int,
    world_size: int,
    run_id: str | None,
    opening: Mapping[str, Any],
    force: bool,
) -> Path:
    """Create the run or join it, and make this rank's folder with ``open.json`` in it.

    A rank joins a run of equal world size that lacks its folder and has its own ``run_id``, or,
    for a rank of several that has none, a run whose id is random too. ``force`` empties the
    folder of any other run first; it takes away what a run holds and nothing else.

    Returns:
        The rank's folder, holding ``open.json`` and the two empty line files.

    Raises:
        UsageError: the folder holds something else, or is no folder.
        CaptureError: the folder cannot be made or written.
    """
    make_folder(folder)
    try:
        with folder_lock(folder):
            created = _create_or_join(folder, rank, world_size, run_id, force)
            try:
                return _make_rank_folder(folder, rank, opening)
            except BaseException:
                if created:
                    with contextlib.suppress(OSError):
                        os.unlink(folder / RUN_FILE)
                raise
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> CaptureError:
    return CaptureError(f"cannot write the run to {folder}: {error.strerror or error}")


def _create_or_join(
    folder: Path, rank: int, world_size: int, run_id: str | None, force: bool
) -> bool:
    """True if this rank created ``run.json``, False if it joins the run that is there."""
    if any(folder.iterdir()):
        if _may_join(folder, rank, world_size, run_id):
            return False
        _check_replaceable(folder, force)
        _empty_run(folder)
    value = {
        "format": RUN_FORMAT,
        "version": RUN_VERSION,
        "run_id": run_id or _RANDOM + uuid.uuid4().hex,
        "world_size": world_size,
    }
    with _exclusively_created(folder / RUN_FILE) as descriptor:
        write_all(descriptor, encode_object(value))
    sync_folder(folder)
    return True


@contextlib.contextmanager
def _exclusively_created(path: Path) -> Iterator[int]:
    """Descriptor of a new file, made durable at the end and taken away again on an error."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield descriptor
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _may_join(folder: Path, rank: int, world_size: int, run_id: str | None) -> bool:
    try:
        run = read_object(folder / RUN_FILE)
    except FormatError:
        return False
    theirs = run.get("run_id")
    same_job = theirs == run_id if run_id else world_size > 1 and str(theirs).startswith(_RANDOM)
    return (
        same_job
        and (run.get("format"), run.get("version")) == (RUN_FORMAT, RUN_VERSION)
        and run.get("world_size") == world_size
        and not os.path.lexists(folder / rank_folder_name(rank))
    )


def _empty_run(folder: Path) -> None:
    """Take the run out of ``folder``. ``run.json`` goes last, so that a second try can go on."""
    for entry in sorted(folder.iterdir()):
        if not _OWN_FOLDER.fullmatch(entry.name):
            continue
        if entry.is_symlink():
            entry.unlink()
        elif entry.is_dir():
            shutil.rmtree(entry)
    (folder / RUN_FILE).unlink()


def _check_replaceable(folder: Path, force: bool) -> None:
    """Refuse to replace what is in ``folder``, unless it is a run and ``force`` is given."""
    if not force:
        raise UsageError(f"{folder} is not empty; name another folder, or use --force")
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link; --force does not delete through links")
    run_file = folder / RUN_FILE
    if run_file.is_symlink() or not run_file.is_file():
        raise UsageError(f"{folder} is not empty and holds no run; --force deletes only runs")
    start = run_file.read_bytes()[: len(_RUN_START)]
    if start not in {_RUN_START, b""}:  # empty: its writer was killed between two calls
        raise UsageError(f"{run_file} is not OpGuard's; --force deletes only runs")


def _make_rank_folder(folder: Path, rank: int, opening: Mapping[str, Any]) -> Path:
    """Fill the rank's folder under a temporary name: it is never seen without ``open.json``."""
    final = folder / rank_folder_name(rank)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    versions = {
        "format": RUN_FORMAT,
        "version": RUN_VERSION,
        "fingerprint_version": FINGERPRINT_VERSION,
        "opguard": __version__,
        "rank": rank,
    }
    try:
        temporary.mkdir()
        for name, data in (
            (OPEN_FILE, encode_object({**opening, **versions})),
            (STRINGS_FILE, b""),
            (CHUNKS_FILE, b""),
        ):
            with _exclusively_created(temporary / name) as descriptor:
                write_all(descriptor, data)
        sync_folder(temporary)
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    return final
