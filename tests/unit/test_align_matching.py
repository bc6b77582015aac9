from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.align.matching import Repeats, among, match_equal, union

VALUES = st.lists(st.integers(0, 6), max_size=20)


def reference(a: list[int], b: list[int], repeats: Repeats) -> list[tuple[int, int]]:
    pairs = []
    for value in set(a):
        at_a = [i for i, item in enumerate(a) if item == value]
        at_b = [i for i, item in enumerate(b) if item == value]
        allowed = {
            "unique": len(at_a) == len(at_b) == 1,
            "balanced": len(at_a) == len(at_b),
            "any": True,
        }[repeats]
        if allowed:
            pairs += zip(at_a, at_b, strict=False)
    return sorted(pairs, key=lambda pair: pair[1])


@pytest.mark.parametrize("repeats", ["unique", "balanced", "any"])
@settings(deadline=None)
@given(a=VALUES, b=VALUES)
def test_matches_the_kth_with_the_kth(a: list[int], b: list[int], repeats: Repeats) -> None:
    left, right, unique = match_equal(np.array(a, np.uint64), np.array(b, np.uint64), repeats)
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == reference(a, b, repeats)
    assert unique.tolist() == [a.count(a[i]) == b.count(a[i]) == 1 for i in left.tolist()]


@settings(deadline=None)
@given(a=VALUES, b=VALUES)
def test_union_and_membership(a: list[int], b: list[int]) -> None:
    assert union(np.array(a, np.int64), np.array(b, np.int64)).tolist() == sorted({*a, *b})
    found = among(np.array(a, np.uint64), np.array(b, np.uint64))
    assert found.tolist() == [value in b for value in a]
