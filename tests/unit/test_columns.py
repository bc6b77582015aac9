from __future__ import annotations

import numpy as np
from align_builder import Rank, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.columns import hash_columns, join_sides, spans
from opguard.model import Reason


def test_ids_are_common_to_both_sides() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": Value("p", shape="[2]")}, {"0": Value("x", shape="[3]")}, module="m")
    b.op("add", {"other": Value("p", shape="[3]")}, module="n")
    b.op("mm", {"self": Value("p", shape="[2]")}, module="m", args="a=1\tshown")
    b.op("mm", {"self": "p"}, module="m", args="a=1\tshown too")
    sides = join_sides(a.build(), b.build())
    one, two = sides.baseline, sides.candidate
    assert two.operator.tolist() == [1, 0, 0]
    assert [sides.operators[i] for i in two.operator] == ["add", "mm", "mm"]
    assert two.module[1] == one.module[0] != two.module[0]
    assert two.slot[1] == one.slot[0] != two.slot[0]
    assert two.shape[0] == one.shape[1]
    assert two.shape[1] == one.shape[0]
    assert two.arguments[1] == two.arguments[2] != one.arguments[0]


def test_record_facts() -> None:
    rank = Rank()
    rank.op(
        "op",
        {"rng": "s", "self": Value("p", via=True, fresh=False), "m": Value("q", void=True)},
        {"self!": Value("=const"), "0": Value("n", dtype="python_int", reason=Reason.FREED)},
        raised=True,
    )
    rank.state("w", "w")
    side = join_sides(rank.build(), Rank().build()).baseline
    assert side.record_event.tolist() == [0, 0, 0, 0, 0, 1]
    assert side.rng.tolist() == [True, False, False, False, False, False]
    assert side.via.tolist() == [False, True, False, False, False, False]
    assert side.fresh.tolist() == [True, False, True, False, False, False]
    assert side.void.tolist() == [False, False, True, False, False, False]
    assert side.output.tolist() == [False, False, False, True, True, True]
    assert side.in_place.tolist() == [False, False, False, True, False, False]
    assert side.number.tolist() == [False, False, False, False, True, False]
    assert side.present.tolist() == [True, True, True, True, False, True]
    assert side.readable.tolist() == [True, True, False, True, False, True]
    assert side.raised.tolist() == [True, False]
    assert side.state.tolist() == [False, True]


def weak(data: bytes) -> bool:
    """Whether content is called weak, by the published xor32 of its bytes."""
    words = np.frombuffer(data + b"\0" * (-len(data) % 4), "<u4")
    rank = Rank()
    rank.op("op", {}, {"0": "x"})
    run = rank.build()
    run.xor32[0] = np.bitwise_xor.reduce(words) if len(words) else 0
    return bool(join_sides(run, Rank().build()).baseline.weak[0])


@settings(deadline=None)
@given(st.integers(0, 255), st.integers(0, 40))
def test_constant_bytes_are_weak(byte: int, length: int) -> None:
    assert weak(bytes([byte]) * length)


def test_repeated_elements_are_weak_and_data_is_not() -> None:
    assert weak(np.ones(4096, np.float32).tobytes())
    assert not weak(np.random.default_rng(0).bytes(4096))
    assert not weak(np.float32([1.5, 2.25, 3.125]).tobytes())


def test_sums_over_events() -> None:
    rank = Rank()
    rank.op("a", {"x": "p", "y": "q"})
    rank.op("b")
    rank.op("c", {}, {"0": "r"})
    side = join_sides(rank.build(), Rank().build()).baseline
    top = np.array([2**64 - 1, 2, 5], np.uint64)
    assert side.per_event(top).tolist() == [1, 0, 5]
    assert side.count_per_event(np.array([True, True, False])).tolist() == [2, 0, 0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8))
def test_spans(parts: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in parts], np.int64)
    counts = np.array([count for _, count in parts], np.int64)
    expected = [start + i for start, count in parts for i in range(count)]
    assert spans(starts, counts).tolist() == expected


def test_hashes_tell_rows_and_columns_apart() -> None:
    left, right = np.array([1, 2, 1, 0]), np.array([2, 1, 2, 0])
    rows = hash_columns(left, right)
    assert len(set(rows.tolist())) == 3
    assert rows[0] == rows[2]
    assert rows.tolist() != hash_columns(right, left).tolist()
    assert (
        hash_columns(np.array([-1])).tolist()
        == hash_columns(np.array([2**64 - 1], np.uint64)).tolist()
    )
