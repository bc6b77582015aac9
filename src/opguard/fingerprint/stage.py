"""Fingerprints of host memory; small tensors are copied to a stage and hashed together later.

Copying a small tensor costs the program's thread a fraction of hashing it, and a thousand small
tensors are hashed together in the time of a few. So the program's threads only copy, and the
writer thread resolves whole stages.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from opguard.fingerprint import spec
from opguard.model import I64, U8, U64

STAGE_BYTES: Final = 8 << 20

# The address of ctypes' own memmove, without the conversion of its result: 50 ns a call less.
_memmove = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
_memory_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_READ_ONLY: Final = 0x100
"""``PyBUF_READ`` of the C API."""

_TAIL_MASKS: Final = np.array(
    [spec.MASK64] + [(1 << 8 * count) - 1 for count in range(1, 8)], np.dtype("<u8")
)
"""What to keep of a segment's last word, by its length modulo 8."""


class Digest:
    """The fingerprint of one tensor; its fields are unset until its stage is resolved."""

    __slots__ = ("mix64", "regions", "small", "xor32")

    mix64: int
    xor32: int
    small: bytes
    """The bytes themselves if they are at most 64, else empty."""
    regions: tuple[int, ...] | None
    """``mix64`` of 8 equal runs of words, for 65,536 bytes and more."""


def resolved(
    mix64: int, xor32: int, small: bytes = b"", regions: tuple[int, ...] | None = None
) -> Digest:
    """A digest whose fields are known at once."""
    digest = Digest()
    digest.mix64 = mix64
    digest.xor32 = xor32
    digest.small = small
    digest.regions = regions
    return digest


def digest_memory(address: int, nbytes: int) -> Digest:
    """Hash ``nbytes`` bytes of readable memory at ``address`` in place.

    The memory must stay alive and unchanged meanwhile; the interpreter lock is released in it.
    """
    if nbytes == 0:
        return resolved(0, 0)
    view = _memory_view(address, nbytes, _READ_ONLY)
    data: U8 = np.frombuffer(view, np.uint8)
    if nbytes >= spec.REGION_BYTES:
        mix, fold, regions = spec.digest_with_regions(data)
        return resolved(mix, fold, regions=regions)
    mix, fold = spec.digest(data)
    return resolved(mix, fold, view.tobytes() if nbytes <= spec.SMALL_BYTES else b"")


class Stage:
    """A buffer into which bytes are copied now, to be hashed together later.

    It has no lock: one thread at a time may use it. Segments start at multiples of 8 bytes.
    """

    __slots__ = ("_address", "_buffer", "_capacity", "_segments")

    def __init__(self, capacity: int = STAGE_BYTES) -> None:
        """``capacity`` in bytes, rounded down to a multiple of 8."""
        self._buffer: U8 = np.zeros(capacity & -8, np.uint8)
        self._address: int = self._buffer.ctypes.data
        self._capacity = capacity & -8
        self._segments: list[tuple[Digest, int, int]] = []
        """(digest, length, end with padding). One append makes a segment: a signal handler may
        raise between any two statements."""

    @property
    def used(self) -> int:
        """Bytes in use, padding included."""
        return self._segments[-1][2] if self._segments else 0

    def add(self, address: int | bytes, nbytes: int) -> Digest | None:
        """Copy ``nbytes`` bytes of readable memory at ``address``; None if they do not fit."""
        if not nbytes:
            return resolved(0, 0)
        segments = self._segments
        start = segments[-1][2] if segments else 0
        end = start + (nbytes + 7 & -8)
        if end > self._capacity:
            return None
        _memmove(self._address + start, address, nbytes)
        digest = Digest()
        segments.append((digest, nbytes, end))
        return digest

    def add_bytes(self, data: bytes) -> Digest | None:
        """Copy ``data``; None if it does not fit."""
        return self.add(data, len(data))

    def clear(self) -> None:
        """Forget all segments; digests that were not resolved stay unset."""
        self._segments = []

    def resolve(self) -> None:
        """Fill every digest handed out since :meth:`clear`."""
        if not self._segments:
            return
        lengths = np.array([length for _, length, _ in self._segments], np.int64)
        words = lengths + 7 >> 3
        starts = np.cumsum(words) - words
        large = np.flatnonzero(lengths >= spec.REGION_BYTES).tolist()
        # A segment is one piece to hash, a large one is a piece a region.
        counts = np.ones_like(lengths)
        counts[large] = spec.REGIONS
        first_piece = np.cumsum(counts) - counts
        cuts = np.repeat(starts, counts)
        origins = cuts.astype(np.uint64)
        for index in large:
            at = int(first_piece[index])
            cuts[at : at + spec.REGIONS] += spec.region_starts(int(words[index]))
        self._clear_padding(starts + words - 1, lengths)
        mixes, folds = spec.piece_sums(self._buffer[: self.used], cuts, origins)
        self._fill(
            np.add.reduceat(mixes, first_piece),
            np.bitwise_xor.reduceat(folds, first_piece),
            starts * 8,
        )
        for index in large:
            at = int(first_piece[index])
            self._segments[index][0].regions = tuple(mixes[at : at + spec.REGIONS].tolist())

    def _clear_padding(self, last_words: I64, lengths: I64) -> None:
        """Zero what earlier use left between the end of each segment and the next one."""
        self._buffer.view(np.dtype("<u8"))[last_words] &= _TAIL_MASKS[lengths & 7]

    def _fill(self, mixes: U64, folds: U64, starts: I64) -> None:
        folded = (folds ^ folds >> np.uint64(32)) & np.uint64(0xFFFF_FFFF)
        view = self._buffer.data
        small_bytes = spec.SMALL_BYTES
        columns = (self._segments, starts.tolist(), mixes.tolist(), folded.tolist())
        for (digest, length, _), start, mix, fold in zip(*columns, strict=True):
            digest.mix64 = mix
            digest.xor32 = fold
            digest.small = view[start : start + length].tobytes() if length <= small_bytes else b""
            digest.regions = None
