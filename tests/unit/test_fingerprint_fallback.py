"""Tensor operations against plain integer arithmetic; here on the CPU, as on any device."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from fingerprint_reference import expected
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.fingerprint import fallback, spec


def as_tensor(data: bytes, offset: int = 0) -> torch.Tensor:
    """The bytes as a view ``offset`` bytes into a longer storage."""
    block = torch.zeros(offset + len(data), dtype=torch.uint8)
    if data:
        block[offset:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return block[offset:]


@settings(deadline=None, max_examples=60)
@given(
    data=st.binary(max_size=600),
    offset=st.integers(0, 9),
    chunk=st.sampled_from([5, 16, 1 << 19]),
)
def test_equals_integer_arithmetic(data: bytes, offset: int, chunk: int) -> None:
    with mock.patch.object(fallback, "CHUNK_WORDS", chunk):
        assert fallback.digest(as_tensor(data, offset)) == expected(data)


@pytest.mark.parametrize("count", [(4 << 20) - 3, 4 << 20, (4 << 20) + 9, 12_000_001])
def test_lengths_around_the_chunk(count: int) -> None:
    data = np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)
    assert fallback.digest(torch.from_numpy(data)) == spec.digest_with_regions(data)


@pytest.mark.parametrize("base", [0, 1, 3])
def test_memory_that_is_not_aligned_at_all(base: int) -> None:
    data = bytes(range(200))
    block = bytearray(base + 200)
    block[base:] = data
    t = torch.frombuffer(block, dtype=torch.uint8, offset=base)
    assert fallback.digest(t) == expected(data)


def test_the_tensor_and_the_random_state_are_left_alone() -> None:
    t = torch.arange(40_000, dtype=torch.int64)
    before, version, state = t.clone(), t._version, torch.get_rng_state()
    fallback.digest(t)
    assert torch.equal(t, before)
    assert t._version == version
    assert torch.equal(torch.get_rng_state(), state)


def test_one_synchronisation_whatever_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors have no numbers: whatever asks for one before the end raises."""
    asked: list[torch.Tensor] = []

    def tolist(t: torch.Tensor) -> list[int]:
        asked.append(t)
        return [0] * t.numel()

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    monkeypatch.setattr(fallback, "CHUNK_WORDS", 64)
    fallback.digest(torch.empty(5001, dtype=torch.uint8, device="meta"))
    assert [t.shape for t in asked] == [(9,)]


@pytest.mark.parametrize("strides", [(0,), (7,)])
@pytest.mark.parametrize("length", [0, 1])
def test_strides_that_mean_nothing(length: int, strides: tuple[int, ...]) -> None:
    t = torch.arange(10, dtype=torch.int16).as_strided((length,), strides, 3)
    assert fallback.digest(t) == expected(bytes([3, 0] * length))
