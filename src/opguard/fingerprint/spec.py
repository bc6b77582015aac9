"""Fingerprint version 1 (DESIGN section 4): constants and the numpy reference.

The bytes are read as little-endian 64-bit words ``w[0..m-1]``, zero-padded. Modulo 2^64::

    mix64 = sum of f(w[i] ^ (i + 1) * K)
    f(x):   x ^= x >> 32;  x *= M;  x ^= x >> 32;  x *= M;  x ^= x >> 32

``xor32`` is the XOR of the bytes as little-endian 32-bit words.
"""

from __future__ import annotations

import functools
import threading
from typing import Final

import numpy as np

from opguard.model import I64, U8, U64

K: Final = 0x9E3779B97F4A7C15
M: Final = 0xD6E8FEB86659FD93
MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF
REGIONS: Final = 8
REGION_BYTES: Final = 65_536
"""Tensors of at least this many bytes carry regions."""
SMALL_BYTES: Final = 64
"""Tensors of at most this many bytes carry the bytes themselves."""

CHUNK_WORDS: Final = 32_768
"""Words hashed at once: with two scratch arrays of 256 KiB every pass stays in the L2 cache."""

_WORD: Final = np.dtype("<u8")
_HALF: Final = np.uint64(32)
_MULTIPLIER: Final = np.uint64(M)
_CACHE_LINE: Final = 64


def _aligned_words() -> U64:
    """A chunk that starts at a cache line: numpy aligns to 16 bytes, which costs an eighth."""
    block = np.empty(CHUNK_WORDS * 8 + _CACHE_LINE, np.uint8)
    start = -block.ctypes.data % _CACHE_LINE
    words: U64 = block[start : start + CHUNK_WORDS * 8].view(_WORD)
    return words


class _Scratch(threading.local):
    """Working memory of one thread: fresh temporaries would cost five sixths of the speed."""

    def __init__(self) -> None:
        self.words = _aligned_words()
        self.other = _aligned_words()


_scratch = _Scratch()
_RAMP: Final = _aligned_words()
np.multiply(np.arange(1, CHUNK_WORDS + 1, dtype=_WORD), np.uint64(K), out=_RAMP)
_RAMP.flags.writeable = False


def mix64(data: U8, first_word: int = 0) -> int:
    """``mix64`` of a buffer whose first word has index ``first_word`` in a larger whole.

    Args:
        data: contiguous bytes (n,), at any address.
        first_word: words that precede it. The whole's ``mix64`` is the sum modulo 2^64 of its
            parts' when every part but the last is a multiple of 8 bytes long.
    """
    return digest(data, first_word)[0]


def xor32(data: U8) -> int:
    """XOR of the bytes (n,) as little-endian 32-bit words, zero-padded."""
    return digest(data)[1]


def regions(data: U8, first_word: int = 0) -> tuple[int, ...]:
    """``mix64`` of 8 equal runs of words; they add up to the whole's modulo 2^64.

    The first runs take the remainder. With fewer than 8 words the last ones are empty: 0.
    """
    return digest_with_regions(data, first_word)[2]


def digest(data: U8, first_word: int = 0) -> tuple[int, int]:
    """``(mix64, xor32)`` in one pass; arguments as in :func:`mix64`."""
    if not data.size:
        return 0, 0
    words = -(-data.size // 8)
    if words <= CHUNK_WORDS and first_word == 0:
        mix, fold, _ = _one_chunk(data, words, _ONE_PIECE)
        return mix, fold
    mixes, folds = piece_sums(data, _ONE_PIECE, _origin(first_word))
    return int(mixes[0]), _fold(int(folds[0]))


def digest_with_regions(data: U8, first_word: int = 0) -> tuple[int, int, tuple[int, ...]]:
    """``(mix64, xor32, regions)`` in one pass; arguments as in :func:`mix64`."""
    if not data.size:
        return 0, 0, (0,) * REGIONS
    words = -(-data.size // 8)
    starts = region_starts(words)
    if words <= CHUNK_WORDS and first_word == 0:
        return _one_chunk(data, words, starts)
    mixes, folds = piece_sums(data, starts, np.repeat(_origin(first_word), len(starts)))
    values = [int(value) for value in mixes]
    fold = int(np.bitwise_xor.reduce(folds))
    values += [0] * (REGIONS - len(values))
    return sum(values) & MASK64, _fold(fold), tuple(values)


def _one_chunk(data: U8, words: int, starts: I64) -> tuple[int, int, tuple[int, ...]]:
    """:func:`digest_with_regions` of a buffer of one chunk, without the cost of the general way:
    half of all activations of a small model are that short."""
    raw = _words(data, 0, words)
    fold = int(np.bitwise_xor.reduce(raw))
    values: list[int] = np.add.reduceat(_mix(raw, _RAMP[:words]), starts).tolist()
    values += [0] * (REGIONS - len(values))
    return sum(values) & MASK64, _fold(fold), tuple(values)


@functools.lru_cache(maxsize=4096)
def region_starts(words: int) -> I64:
    """First word of each region that is not empty, ascending (at most 8). Not to be changed."""
    size, longer = divmod(words, REGIONS)
    index = np.arange(min(words, REGIONS), dtype=np.int64)
    return index * size + np.minimum(index, longer)


def piece_sums(data: U8, starts: I64, origins: U64) -> tuple[U64, U64]:
    """Hash consecutive pieces of one buffer together.

    Args:
        data: contiguous bytes (n,), n > 0.
        starts: first word of each piece (P,), strictly ascending from 0, below the word count.
        origins: word position (modulo 2^64) that counts as index 0 in each piece (P,).

    Returns:
        ``mix64`` and the XOR of the 64-bit words of each piece, (P,) each.
    """
    mixes: U64 = np.zeros(len(starts), _WORD)
    folds: U64 = np.zeros(len(starts), _WORD)
    words = -(-data.size // 8)
    begins = np.arange(0, words, CHUNK_WORDS)
    first = (np.searchsorted(starts, begins, "right") - 1).tolist()
    after = np.searchsorted(starts, begins + CHUNK_WORDS, "left").tolist()
    for begin, low, high in zip(begins.tolist(), first, after, strict=True):
        count = min(CHUNK_WORDS, words - begin)
        cuts = starts[low:high] - begin
        cuts[0] = 0
        raw = _words(data, begin * 8, count)
        folds[low:high] ^= np.bitwise_xor.reduceat(raw, cuts)
        mixed = _mix(raw, _positions(begin, count, cuts, origins[low:high]))
        mixes[low:high] += np.add.reduceat(mixed, cuts)
    return mixes, folds


def _words(data: U8, offset: int, count: int) -> U64:
    """``count`` words of the buffer: as they lie, or aligned and zero-padded in scratch."""
    part = data[offset : offset + count * 8]
    if part.size == count * 8:
        words: U64 = part.view(_WORD)
        if words.flags.aligned:
            return words
    loaded = _scratch.words[:count]
    target = loaded.view(np.uint8)
    target[: part.size] = part
    target[part.size :] = 0
    return loaded


def _positions(begin: int, count: int, cuts: I64, origins: U64) -> U64:
    """``(index + 1) * K`` of each word of a chunk; it may be read-only."""
    ramp = _RAMP[:count]
    out = _scratch.other[:count]
    if len(cuts) == 1 or (origins == origins[0]).all():
        shift = (begin - int(origins[0])) * K & MASK64
        return np.add(ramp, np.array(shift, _WORD), out=out) if shift else ramp
    shifts = (np.array(begin, _WORD) - origins) * np.array(K, _WORD)
    return np.add(ramp, np.repeat(shifts, np.diff(cuts, append=count)), out=out)


def _mix(words: U64, positions: U64) -> U64:
    """``f(word ^ position)`` of each word, in scratch."""
    x = _scratch.words[: len(words)]
    shifted = _scratch.other[: len(words)]
    np.bitwise_xor(words, positions, out=x)
    np.right_shift(x, _HALF, out=shifted)
    np.bitwise_xor(x, shifted, out=x)
    np.multiply(x, _MULTIPLIER, out=x)
    np.right_shift(x, _HALF, out=shifted)
    np.bitwise_xor(x, shifted, out=x)
    np.multiply(x, _MULTIPLIER, out=x)
    np.right_shift(x, _HALF, out=shifted)
    np.bitwise_xor(x, shifted, out=x)
    return x


_ONE_PIECE: Final = np.zeros(1, np.int64)


def _origin(first_word: int) -> U64:
    return np.array([-first_word & MASK64], _WORD)


def _fold(word: int) -> int:
    return (word ^ word >> 32) & 0xFFFF_FFFF
