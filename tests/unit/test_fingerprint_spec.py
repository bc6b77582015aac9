"""The numpy reference against the published vectors and against plain integer arithmetic."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from fingerprint_reference import MASK, expected
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.fingerprint import spec
from opguard.model import U8

VECTORS = [
    # bytes, n, xor32, mix64
    (b"", 0, "00000000", "0000000000000000"),
    (bytes([1]), 1, "00000001", "f7622d3784a0ad54"),
    (bytes([1, 2, 3]), 3, "00030201", "8466113442a3355a"),
    (bytes(8), 8, "00000000", "4e17cf67001b3979"),
    (bytes(16), 16, "00000000", "891becc266ae16b6"),
    (bytes(range(16)), 16, "00000000", "2890641f9a22dc21"),
    (bytes(range(17)), 17, "00000010", "546f8f6a6f90d979"),
    (np.array([1, 2, 3], "<f4").tobytes(), 12, "3fc00000", "bfaccca5f447b49f"),
    (np.array([3, 2, 1], "<f4").tobytes(), 12, "3fc00000", "11bb3b1e47176c80"),
    (np.array([0.0], "<f4").tobytes(), 4, "00000000", "4e17cf67001b3979"),
    (np.array([-0.0], "<f4").tobytes(), 4, "80000000", "50af0d777e646d44"),
    (np.ones(4096, "<f4").tobytes(), 16384, "00000000", "09023333cff11aef"),
    (np.zeros(4096, "<f4").tobytes(), 16384, "00000000", "a40db17ce74a5a86"),
    (np.arange(1000, dtype="<i8").tobytes(), 8000, "00000000", "ce20af76eb6d5b58"),
    (
        bytes((i * i + 7) % 251 for i in range(100003)),
        100003,
        "186dad61",
        "1e5d517be1ba6253",
    ),
]


def as_array(data: bytes, offset: int = 0) -> U8:
    """The bytes at an address that is ``offset`` past a multiple of 8."""
    block = np.zeros(len(data) + offset + 8, np.uint8)
    start = -block.ctypes.data % 8 + offset
    block[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return block[start : start + len(data)]


def random_bytes(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(("data", "count", "xor32", "mix64"), VECTORS)
def test_published_vectors(data: bytes, count: int, xor32: str, mix64: str) -> None:
    assert len(data) == count
    array = as_array(data)
    assert f"{spec.mix64(array):016x}" == mix64
    assert f"{spec.xor32(array):08x}" == xor32
    assert spec.digest(array) == (int(mix64, 16), int(xor32, 16))
    assert expected(data)[:2] == (int(mix64, 16), int(xor32, 16))


@settings(deadline=None, max_examples=150)
@given(
    data=st.binary(max_size=600),
    offset=st.integers(0, 7),
    first_word=st.integers(0, 2**40),
    chunk=st.sampled_from([5, 16, 32_768]),
)
def test_equals_integer_arithmetic(data: bytes, offset: int, first_word: int, chunk: int) -> None:
    array = as_array(data, offset)
    want = expected(data, first_word)
    with mock.patch.object(spec, "CHUNK_WORDS", chunk):
        assert spec.digest(array, first_word) == want[:2]
        assert spec.mix64(array, first_word) == want.mix64
        assert spec.xor32(array) == want.xor32
        assert spec.regions(array, first_word) == want.regions
        assert spec.digest_with_regions(array, first_word) == want


@pytest.mark.parametrize("count", [262_143, 262_144, 262_145, 600_001])
@pytest.mark.parametrize("offset", [0, 3])
def test_lengths_around_the_chunk(count: int, offset: int) -> None:
    data = random_bytes(count, seed=count)
    assert spec.digest_with_regions(as_array(data, offset)) == expected(data)


@settings(deadline=None, max_examples=100)
@given(data=st.binary(max_size=500), share=st.floats(0, 1))
def test_parts_compose_at_every_word_boundary(data: bytes, share: float) -> None:
    cut = int(share * (len(data) // 8)) * 8
    head, tail = as_array(data[:cut]), as_array(data[cut:])
    assert spec.mix64(as_array(data)) == (spec.mix64(head) + spec.mix64(tail, cut // 8)) & MASK


@settings(deadline=None, max_examples=100)
@given(data=st.binary(max_size=500))
def test_regions_add_up_to_the_whole(data: bytes) -> None:
    array = as_array(data)
    regions = spec.regions(array)
    assert len(regions) == 8
    assert sum(regions) & MASK == spec.mix64(array)
    words = -(-len(data) // 8)
    assert all(value == 0 for value in regions[words:])


def test_regions_are_runs_whose_first_take_the_remainder() -> None:
    data = random_bytes(19 * 8, seed=1)
    sizes = [3, 3, 3, 2, 2, 2, 2, 2]
    begin = 0
    for region, size in zip(spec.regions(as_array(data)), sizes, strict=True):
        part = as_array(data[begin * 8 : (begin + size) * 8])
        assert region == spec.mix64(part, begin)
        begin += size


def test_a_changed_region_is_the_only_one_that_differs() -> None:
    data = bytearray(random_bytes(80_000, seed=2))
    before = spec.regions(as_array(bytes(data)))
    data[45_000] ^= 1
    after = spec.regions(as_array(bytes(data)))
    assert [a != b for a, b in zip(before, after, strict=True)] == [i == 4 for i in range(8)]


@settings(deadline=None, max_examples=100)
@given(data=st.binary(min_size=1, max_size=200), where=st.integers(0), bit=st.integers(0, 7))
def test_a_change_within_one_word_always_shows(data: bytes, where: int, bit: int) -> None:
    changed = bytearray(data)
    changed[where % len(data)] ^= 1 << bit
    assert spec.mix64(as_array(bytes(changed))) != spec.mix64(as_array(data))


def test_order_repetition_and_sign_are_told_apart() -> None:
    rows = np.random.default_rng(3).standard_normal((6, 4)).astype("<f4")
    variants: list[npt.NDArray[np.float32]] = [
        rows,
        rows[::-1],
        rows[[1, 0, 2, 3, 4, 5]],
        np.repeat(rows[:3], 2, axis=0),
        np.tile(rows[:3], (2, 1)),
        -rows,
        np.zeros_like(rows),
        -np.zeros_like(rows),
        np.ones_like(rows),
    ]
    found = {spec.mix64(as_array(v.tobytes())) for v in variants}
    assert len(found) == len(variants)


def test_threads_do_not_share_scratch() -> None:
    blocks = [random_bytes(300_000 + seed, seed) for seed in range(8)]
    wanted = [spec.digest(as_array(block)) for block in blocks]

    def work(index: int) -> list[tuple[int, int]]:
        array = as_array(blocks[index])
        return [spec.digest(array) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for index, results in enumerate(pool.map(work, range(8))):
            assert results == [wanted[index]] * 20


def test_spec_and_stage_work_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from opguard.fingerprint.stage import Stage\n"
        "stage = Stage(64); digest = stage.add_bytes(bytes([1])); stage.resolve()\n"
        "print(f'{digest.mix64:016x}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "f7622d3784a0ad54"
