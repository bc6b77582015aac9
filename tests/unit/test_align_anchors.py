from __future__ import annotations

from bisect import bisect_left

import numpy as np
from align_builder import Rank, pairs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.align.anchors import Chain, content_anchors, key_anchors, longest_increasing
from opguard.align.keys import Keys
from opguard.columns import join_sides


def patience(values: list[int]) -> list[int]:
    """Plain patience sorting over the whole sequence."""
    tops: list[int] = []
    piles: list[list[int]] = []
    back: dict[int, int | None] = {}
    for position, value in enumerate(values):
        pile = bisect_left(tops, value)
        if pile == len(tops):
            tops.append(value)
            piles.append([])
        tops[pile] = value
        piles[pile].append(position)
        back[position] = piles[pile - 1][-1] if pile else None
    chosen: list[int] = []
    position = piles[-1][-1] if piles else None
    while position is not None:
        chosen.append(position)
        position = back[position]
    return chosen[::-1]


def longest_length(values: list[int]) -> int:
    best: list[int] = []
    for i, value in enumerate(values):
        best.append(1 + max((best[j] for j in range(i) if values[j] < value), default=0))
    return max(best, default=0)


@settings(deadline=None)
@given(st.permutations(range(12)))
def test_longest_increasing_is_the_reference_and_longest(values: list[int]) -> None:
    chosen = longest_increasing(np.array(values, np.int64)).tolist()
    assert chosen == patience(values)
    assert len(chosen) == longest_length(values)


@settings(deadline=None)
@given(st.integers(2, 40), st.lists(st.integers(0, 38), max_size=8))
def test_longest_increasing_of_nearly_sorted(count: int, swaps: list[int]) -> None:
    values = list(range(count))
    for at in swaps:
        if at + 1 < count:
            values[at], values[at + 1] = values[at + 1], values[at]
    assert longest_increasing(np.array(values, np.int64)).tolist() == patience(values)


def test_longest_increasing_of_nothing() -> None:
    assert longest_increasing(np.empty(0, np.int64)).tolist() == []


def test_chain_fits_and_grows() -> None:
    chain = Chain(np.array([2, 5]), np.array([3, 4]))
    baseline, candidate = np.array([1, 3, 6, 3]), np.array([2, 4, 9, 9])
    # (3, 4) meets the pair (5, 4); (3, 9) crosses it.
    assert chain.fits(baseline, candidate).tolist() == [True, True, True, False]
    grown = chain.extended(np.array([0, 6]), np.array([0, 9]))
    assert grown.baseline.tolist() == [0, 2, 5, 6]
    assert grown.candidate.tolist() == [0, 3, 4, 9]


def anchored(a: Rank, b: Rank):  # type: ignore[no-untyped-def]
    sides = join_sides(a.build(), b.build())
    keys = Keys(sides.baseline, sides.modules), Keys(sides.candidate, sides.modules)
    events = np.arange(keys[0].side.run.event_count), np.arange(keys[1].side.run.event_count)
    return keys, events, content_anchors(*keys, *events)


def test_content_anchors_ignore_outputs_and_lines() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": "x"}, {"0": "y"}, line=1)
    b.op("mm", {"self": "x"}, {"0": "other"}, line=9)
    _, _, found = anchored(a, b)
    assert (found.chain.baseline.tolist(), found.chain.candidate.tolist()) == ([0], [0])


def test_content_anchors_need_equal_arguments() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": "x"}, {"0": "y"}, args="alpha=1")
    b.op("mm", {"self": "x"}, {"0": "y"}, args="alpha=2")
    _, _, found = anchored(a, b)
    assert len(found.chain.baseline) == 0


def test_what_follows_a_tab_is_not_compared() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": "x"}, {"0": "y"}, args="alpha=1\tgroup=7")
    b.op("mm", {"self": "x"}, {"0": "y"}, args="alpha=1\tgroup=8")
    _, _, found = anchored(a, b)
    assert len(found.chain.baseline) == 1


def test_each_part_of_the_key_may_be_left_out() -> None:
    for part, value in (("phase", "recompute"), ("module", "Net.b"), ("step", 4)):
        a, b = Rank(), Rank()
        a.op("mm", {"self": "x"}, {"0": "y"})
        b.op("mm", {"self": "x"}, {"0": "y"}, **{part: value})
        _, _, found = anchored(a, b)
        assert len(found.chain.baseline) == 1, part


def test_two_parts_of_the_key_may_not() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": "x"}, {"0": "y"})
    b.op("mm", {"self": "x"}, {"0": "y"}, phase="backward", module="Net.b")
    _, _, found = anchored(a, b)
    assert len(found.chain.baseline) == 0


def test_repeated_content_anchors_only_when_equally_frequent() -> None:
    a, b, c = Rank(), Rank(), Rank()
    for rank, times in ((a, 2), (b, 2), (c, 3)):
        for _ in range(times):
            rank.op("mm", {"self": "x"}, {"0": "y"})
    assert anchored(a, b)[2].chain.baseline.tolist() == [0, 1]
    assert anchored(a, c)[2].chain.baseline.tolist() == []


def test_twins_off_the_chain_are_kept_apart() -> None:
    a, b = Rank(), Rank()
    for rank, order in ((a, "pqr"), (b, "qrp")):
        for name in order:
            rank.op("mm", {"self": name}, {"0": name * 2})
    _, _, found = anchored(a, b)
    assert found.chain.baseline.tolist() == [1, 2]
    assert found.baseline_twins.tolist() == [0]
    assert found.candidate_twins.tolist() == [2]
    assert found.sure.tolist() == [True]


def key_chain(a: Rank, b: Rank) -> list[int]:
    keys, events, found = anchored(a, b)
    return key_anchors(*keys, *events, found.chain).baseline.tolist()


def test_key_anchors_are_unique_and_inside_a_module() -> None:
    a, b = Rank(), Rank()
    for rank, name in ((a, "p"), (b, "q")):
        rank.op("mm", {"self": name + "1"}, {"0": name}, module="Net.a")
        rank.op("mm", {"self": name + "2"}, {"0": name}, module="")
        rank.op("mm", {"self": name + "3"}, {"0": name}, module="Net.b")
        rank.op("mm", {"self": name + "4"}, {"0": name}, module="Net.b")
    assert key_chain(a, b) == [0]


def test_key_anchors_need_something_that_agrees() -> None:
    a, b = Rank(), Rank()
    a.op("mm", {"self": "p"}, {"0": "y"}, args="1")
    b.op("mm", {"self": "q"}, {"0": "z"}, args="2")
    assert key_chain(a, b) == []
    assert pairs_of(a, b) == []
