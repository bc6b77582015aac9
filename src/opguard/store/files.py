"""Files of a store: atomic replacement, append-only lines, objects that carry their digest.

A stored JSON object is one line of ASCII text whose last member is ``digest``::

    {"format":"opguard-run","version":1,"digest":"<64 lower-case hex digits>"}\\n
    |<-- what the digest covers -->|

The digest is the SHA-256 of the bytes from the opening brace up to, not including, the text
``,"digest":`` (of ``{`` alone for an object without other members). Written without spaces, in
the order the members were given, everything outside ASCII escaped, NaN and infinities refused.
A reader checks the bytes as they stand, so no second spelling of a number or a string passes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from opguard.errors import FormatError

try:
    import fcntl
except ImportError:  # Windows has none; folders are then shared without a lock
    fcntl = None  # type: ignore[assignment]

OBJECT_LIMIT: Final = 64 << 20
"""Most bytes one stored object may have; the largest is ``close.json`` of a long run."""

_TAIL: Final = re.compile(rb'"digest":"([0-9a-f]{64})"\}')
_TAIL_LENGTH: Final = len('"digest":""}') + 64

T = TypeVar("T")


def encode_object(value: Mapping[str, Any]) -> bytes:
    """The line, with line end, that stores ``value``; it must not have a ``digest`` of its own.

    Raises:
        ValueError: a number is NaN or infinite. TypeError: a value is no JSON.
    """
    text = json.dumps(dict(value), separators=(",", ":"), allow_nan=False)
    covered = text[:-1].encode("ascii")
    comma = b"," if value else b""
    return covered + comma + b'"digest":"' + sha256(covered).encode("ascii") + b'"}\n'


def decode_object(line: bytes, where: str) -> dict[str, Any]:
    """The object on ``line`` (with its line end), its digest checked and left out.

    Args:
        where: file, and line for files of many, for the message.

    Raises:
        FormatError: the line is truncated, edited or no object.
    """
    if not line.endswith(b"\n"):
        raise FormatError(f"{where}: truncated, the line has no end")
    start = len(line) - 1 - _TAIL_LENGTH
    found = _TAIL.fullmatch(line, start, len(line) - 1) if start > 0 else None
    covered = line[: start - 1] if line[start - 1 : start] == b"," else line[:start]
    if found is None or (len(covered) == start) != (covered == b"{"):
        raise FormatError(f"{where}: no digest at the end of the object")
    if sha256(covered).encode("ascii") != found[1]:
        raise FormatError(f"{where}: damaged, the text does not match its digest")
    try:
        value = json.loads(covered + b"}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where}: not a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def member(value: Mapping[str, Any], name: str, kind: type[T], where: str) -> T:
    """``value[name]``, which must be exactly of type ``kind``.

    Raises:
        FormatError: it is missing or of another type (a bool is no int).
    """
    found = value.get(name)
    if type(found) is not kind:
        raise FormatError(f'{where}: field "{name}" is not {kind.__name__}: {found!r:.80}')
    return found


def count_member(value: Mapping[str, Any], name: str, where: str) -> int:
    """``value[name]`` as a whole number from 0 up. Raises FormatError otherwise."""
    found = member(value, name, int, where)
    if found < 0:
        raise FormatError(f'{where}: field "{name}" is negative: {found}')
    return found


def sha256(data: bytes) -> str:
    """Lower-case hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a crash leaves the old file or the new one, never a part.

    Raises:
        OSError: writing failed; the temporary file is gone and the old one stands, unless only
            making the new name durable failed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of ``data``; the system may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable. Does nothing where folders cannot be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``; it leaves no file behind and ends with the process."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems have no locks: exclusive creation alone has to do there.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):  # a forked child holds a copy of the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class LineFile:
    """A file that only grows, by whole lines. Not buffered: a forked copy has nothing to flush."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; it must be there and empty."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Hex SHA-256 of what was appended so far."""
        return self._digest.hexdigest()

    def append(self, lines: bytes) -> None:
        """Append ``lines`` and make them durable.

        Raises:
            OSError: writing failed; what was written of them is cut off again where possible.
        """
        try:
            write_all(self._descriptor, lines)
            os.fsync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(lines)
        self._digest.update(lines)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def open_regular(path: Path) -> tuple[int, int]:
    """Descriptor and size of a regular file; a pipe or device in its place is not waited for.

    Raises:
        FormatError: it is missing, no regular file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise FormatError(f"{path}: missing") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FormatError(f"{path}: not a regular file")
    return descriptor, status.st_size


def read_file(path: Path, limit: int) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes.

    Raises:
        FormatError: it is missing, no regular file, larger, or cannot be read.
    """
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit:
            raise FormatError(f"{path}: {size} bytes, more than the {limit} that it may have")
        try:
            return file.read(size)
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The one object that a file of one line holds. Raises FormatError as the parts do."""
    return decode_object(read_file(path, OBJECT_LIMIT), str(path))
