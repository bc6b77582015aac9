"""Fingerprint version 1 in plain integer arithmetic, word by word: slow, and easy to believe."""

from __future__ import annotations

from typing import NamedTuple

MASK = 2**64 - 1


class Expected(NamedTuple):
    """What every implementation must say of some bytes."""

    mix64: int
    xor32: int
    regions: tuple[int, ...]


def expected(data: bytes, first_word: int = 0) -> Expected:
    """Follow DESIGN section 4 literally."""
    terms = [
        _scramble(word ^ (first_word + i + 1) * 0x9E3779B97F4A7C15 & MASK)
        for i, word in enumerate(_words(data, 8))
    ]
    xor32 = 0
    for word in _words(data, 4):
        xor32 ^= word
    regions = []
    begin = 0
    for region in range(8):
        end = begin + len(terms) // 8 + (1 if region < len(terms) % 8 else 0)
        regions.append(sum(terms[begin:end]) & MASK)
        begin = end
    assert begin == len(terms)
    return Expected(sum(terms) & MASK, xor32, tuple(regions))


def _words(data: bytes, size: int) -> list[int]:
    padded = data + bytes(-len(data) % size)
    return [int.from_bytes(padded[at : at + size], "little") for at in range(0, len(padded), size)]


def _scramble(x: int) -> int:
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & MASK
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32
