"""Fingerprints by tensor operations alone, for devices without a kernel of their own.

torch has no unsigned 64-bit arithmetic: int64 wraps modulo 2^64 just as well, and a logical
shift is an arithmetic one with the copies of the sign bit masked off.
"""

from __future__ import annotations

from typing import Final

import torch

from opguard.fingerprint import spec

CHUNK_WORDS: Final = 1 << 19
"""Words hashed at once: four temporaries of 4 MiB, whatever the size of the tensor."""

_K: Final = spec.K - (1 << 64)
_M: Final = spec.M - (1 << 64)
_LOW_HALF: Final = 0xFFFF_FFFF


def digest(t: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    """``(mix64, xor32, regions)`` of the bytes of a row-major tensor without conj or neg bit.

    Works on any device and any alignment, and synchronises with the device once, at the end.
    """
    # Not reshape(-1): it keeps strides that mean nothing (one element), and view rejects them.
    data = t.as_strided((t.numel(),), (1,)).view(torch.uint8)
    words = -(-data.numel() // 8)
    starts = [*spec.region_starts(words).tolist(), words]
    totals = torch.zeros(spec.REGIONS + 1, dtype=torch.int64, device=t.device)
    folds = torch.zeros(min(words, CHUNK_WORDS), dtype=torch.int64, device=t.device)
    for begin in range(0, words, CHUNK_WORDS):
        count = min(CHUNK_WORDS, words - begin)
        raw = _words(data[begin * 8 : (begin + count) * 8], count)
        folds[:count] ^= raw
        mixed = _mix(raw, begin)
        for region in range(len(starts) - 1):
            low = max(starts[region] - begin, 0)
            high = min(starts[region + 1] - begin, count)
            if low < high:
                totals[region] += mixed[low:high].sum()
    if words:
        totals[spec.REGIONS] = _fold(folds)
    *regions, fold = totals.tolist()
    unsigned = tuple(value & spec.MASK64 for value in regions)
    return sum(unsigned) & spec.MASK64, (fold ^ fold >> 32) & _LOW_HALF, unsigned


def _words(part: torch.Tensor, count: int) -> torch.Tensor:
    """The bytes as int64 words, copied only if they are unaligned or need padding."""
    if part.numel() == count * 8 and part.data_ptr() % 8 == 0 and part.storage_offset() % 8 == 0:
        return part.view(torch.int64)
    padded = torch.zeros(count * 8, dtype=torch.uint8, device=part.device)
    padded[: part.numel()] = part
    return padded.view(torch.int64)


def _mix(words: torch.Tensor, first_word: int) -> torch.Tensor:
    """``f(word ^ (index + 1) * K)`` of each word, as a new tensor."""
    x = torch.arange(
        first_word + 1, first_word + 1 + words.numel(), dtype=torch.int64, device=words.device
    )
    x.mul_(_K).bitwise_xor_(words)
    for _ in range(2):
        x.bitwise_xor_((x >> 32).bitwise_and_(_LOW_HALF)).mul_(_M)
    return x.bitwise_xor_((x >> 32).bitwise_and_(_LOW_HALF))


def _fold(words: torch.Tensor) -> torch.Tensor:
    """XOR of all words, by halves: torch has no XOR reduction. Overwrites ``words``."""
    while words.numel() > 1:
        half = words.numel() // 2
        rest = words.numel() - half
        words[:half] ^= words[rest:]
        words = words[:rest]
    return words[0]
