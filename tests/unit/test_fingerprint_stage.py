"""Staged segments and memory hashed in place, against plain integer arithmetic."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fingerprint_reference import expected
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.fingerprint import spec
from opguard.fingerprint.stage import Digest, Stage, digest_memory

RANDOM = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
ADDRESS = RANDOM.ctypes.data


def random_part(offset: int, count: int) -> bytes:
    return RANDOM[offset : offset + count].tobytes()


def check(digest: Digest, data: bytes) -> None:
    """Every field of a digest, from the bytes alone."""
    want = expected(data)
    assert digest.mix64 == want.mix64
    assert digest.xor32 == want.xor32
    assert digest.small == (data if len(data) <= 64 else b"")
    assert digest.regions == (want.regions if len(data) >= 65_536 else None)


SEGMENTS = st.lists(
    st.tuples(
        st.integers(0, 4096),
        st.one_of(st.integers(0, 20), st.sampled_from([63, 64, 65]), st.integers(0, 900)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=80)
@given(rounds=st.lists(SEGMENTS, min_size=1, max_size=3))
def test_many_segments_and_reuse_of_the_buffer(rounds: list[list[tuple[int, int]]]) -> None:
    stage = Stage(64 << 10)
    for segments in rounds:
        digests = [stage.add(ADDRESS + offset, count) for offset, count in segments]
        stage.resolve()
        for digest, (offset, count) in zip(digests, segments, strict=True):
            assert digest is not None
            check(digest, random_part(offset, count))
        stage.clear()
        assert stage.used == 0


@pytest.mark.parametrize("around", [65_535, 65_536, 65_541, 300_007])
def test_large_segments_between_small_ones(around: int) -> None:
    """Regions, and segments that lie across two chunks of the hash."""
    lengths = [5, around, 0, 64, 250_001, 7, around, 1]
    stage = Stage(2 << 20)
    digests = [stage.add(ADDRESS + 3 * i, length) for i, length in enumerate(lengths)]
    stage.resolve()
    for i, (digest, length) in enumerate(zip(digests, lengths, strict=True)):
        assert digest is not None
        check(digest, random_part(3 * i, length))


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    stage = Stage(40)
    first = stage.add_bytes(bytes(range(17)))
    assert stage.used == 24
    assert stage.add_bytes(bytes(17)) is None
    assert stage.used == 24
    second = stage.add_bytes(bytes(range(16)))
    assert stage.used == 40
    assert stage.add_bytes(b"\0") is None
    empty = stage.add(0, 0)
    stage.resolve()
    assert first is not None
    assert second is not None
    assert empty is not None
    check(first, bytes(range(17)))
    check(second, bytes(range(16)))
    check(empty, b"")


def test_the_copy_is_taken_when_added() -> None:
    memory = np.arange(16, dtype=np.uint8)
    stage = Stage(64)
    digest = stage.add(memory.ctypes.data, 16)
    memory[:] = 0
    stage.resolve()
    assert digest is not None
    check(digest, bytes(range(16)))


def test_padding_is_zero_although_the_buffer_was_used_before() -> None:
    stage = Stage(64)
    stage.add_bytes(b"\xff" * 64)
    stage.resolve()
    stage.clear()
    digests = [stage.add_bytes(b"\x01"), stage.add_bytes(b"\x02\x03\x04")]
    stage.resolve()
    for digest, data in zip(digests, [b"\x01", b"\x02\x03\x04"], strict=True):
        assert digest is not None
        check(digest, data)


def test_resolved_on_another_thread_while_the_next_stage_fills() -> None:
    full, filling = Stage(1 << 20), Stage(1 << 20)
    lengths = [1 + 37 * i % 2000 for i in range(700)]
    digests = [full.add(ADDRESS + i, length) for i, length in enumerate(lengths)]
    resolver = threading.Thread(target=full.resolve)
    resolver.start()
    others = [filling.add(ADDRESS + 5 * i, length) for i, length in enumerate(lengths)]
    resolver.join(timeout=60)
    filling.resolve()
    for i, length in enumerate(lengths):
        for digest, offset in ((digests[i], i), (others[i], 5 * i)):
            assert digest is not None
            assert (digest.mix64, digest.xor32) == spec.digest(RANDOM[offset : offset + length])


def test_an_unresolved_digest_has_no_value() -> None:
    digest = Stage(64).add_bytes(b"abc")
    with pytest.raises(AttributeError, match="mix64"):
        _ = digest.mix64  # type: ignore[union-attr]


@settings(deadline=None, max_examples=60)
@given(offset=st.integers(0, 64), count=st.integers(0, 900))
def test_memory_in_place(offset: int, count: int) -> None:
    check(digest_memory(ADDRESS + offset, count), random_part(offset, count))


@pytest.mark.parametrize("count", [64, 65, 65_535, 65_536, 400_003])
def test_memory_in_place_around_the_thresholds(count: int) -> None:
    check(digest_memory(ADDRESS + 1, count), random_part(1, count))
