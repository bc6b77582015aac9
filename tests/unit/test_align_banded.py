from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.align import banded, keys
from opguard.align.banded import align_windows
from opguard.align.keys import GAP, TOKENS, Features, pair_scores
from opguard.align.windows import Windows, cut_large, plainly_parallel
from opguard.columns import hash_columns

# operator, module, arguments, tokens: few of each, so that ties and repeats are common
EVENT = st.tuples(
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 1),
    st.lists(st.integers(10, 14), max_size=TOKENS),
)
EVENTS = st.lists(EVENT, min_size=1, max_size=9)


def features_of(events: list[tuple[int, int, int, list[int]]], filler: int) -> Features:
    operator, module, arguments = (
        np.array([event[i] for event in events], np.int32) for i in range(3)
    )
    tokens = np.full((len(events), TOKENS), filler, np.uint64)
    for row, event in enumerate(events):
        tokens[row, : len(event[3])] = event[3]
    zero = np.zeros(len(events), np.int32)
    return Features(
        operator=operator,
        module=module,
        phase=zero.astype(np.uint8),
        step=zero,
        arguments=arguments,
        shapes=zero.astype(np.uint64),
        sizes=zero.astype(np.uint64),
        tokens=tokens,
        token_count=np.array([len(event[3]) for event in events], np.int32),
        same=hash_columns(module, arguments),
    )


def plain_score(one: tuple[int, int, int, list[int]], two: tuple[int, int, int, list[int]]) -> int:
    """DESIGN section 6 in twentieths."""
    score = 20
    agreeing = sum(x == y for x, y in zip(one[3], two[3], strict=False))
    most = max(len(one[3]), len(two[3]))
    if most:
        score += 60 * agreeing // most
    score -= 5 * (one[1] != two[1])
    if one[2] != two[2]:
        score -= 5
        if most and not agreeing:
            score -= 30
    return score


def plain_alignment(a: list, b: list, half: int) -> list[tuple[int, int]]:  # type: ignore[type-arg]
    """Cell by cell; rows are the longer side, the band lies around the straight line."""
    swapped = len(b) > len(a)
    rows, columns = (b, a) if swapped else (a, b)
    n, m = len(rows), len(columns)
    best: dict[tuple[int, int], int] = {}
    for i in range(n + 1):
        for j in range(m + 1):
            if abs(j - i * m // n) > half:
                continue
            options = [0] if i == j == 0 else []
            if (i - 1, j - 1) in best and rows[i - 1][0] == columns[j - 1][0]:
                options.append(best[i - 1, j - 1] + plain_score(rows[i - 1], columns[j - 1]))
            options += [best[cell] + GAP for cell in ((i - 1, j), (i, j - 1)) if cell in best]
            if options:
                best[i, j] = max(options)
    pairs, i, j = [], n, m
    while i and j:
        same = rows[i - 1][0] == columns[j - 1][0] and (i - 1, j - 1) in best
        if same and best[i, j] == best[i - 1, j - 1] + plain_score(rows[i - 1], columns[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((j, i) if swapped else (i, j))
            continue
        ways = [(i - 1, j), (i, j - 1)]
        if swapped:
            ways.reverse()  # a baseline event is left out first
        i, j = next(w for w in ways if w in best and best[w] + GAP == best[i, j])
    return sorted(pairs)


def solve(windows: list[tuple[list, list]]) -> list[list[tuple[int, int]]]:  # type: ignore[type-arg]
    """All windows in one call, pairs relative to each window."""
    a = [event for window in windows for event in window[0]]
    b = [event for window in windows for event in window[1]]
    sizes = np.array([[len(one), len(two)] for one, two in windows], np.int64)
    ends = np.cumsum(sizes, axis=0)
    starts = ends - sizes
    spans = Windows(starts[:, 0], ends[:, 0], starts[:, 1], ends[:, 1])
    i, j = align_windows(spans, features_of(a, 0), features_of(b, 1))
    found: list[list[tuple[int, int]]] = [[] for _ in windows]
    for left, right in sorted(zip(i.tolist(), j.tolist(), strict=True)):
        window = int(np.searchsorted(ends[:, 0], left, side="right"))
        found[window].append((left - int(starts[window, 0]), right - int(starts[window, 1])))
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(EVENTS, EVENTS), min_size=1, max_size=5))
def test_equals_the_plain_reference(windows: list) -> None:  # type: ignore[type-arg]
    assert solve(windows) == [plain_alignment(a, b, 64) for a, b in windows]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(EVENTS, EVENTS), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_equals_the_plain_reference_in_a_narrow_band(windows: list, band: int) -> None:  # type: ignore[type-arg]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banded, "BAND", band)
        found = solve(windows)
    for (a, b), pairs in zip(windows, found, strict=True):
        size = max(1, ceil(log2(max(len(a), len(b), 2))))
        assert pairs == plain_alignment(a, b, min(band, 1 << size))


def test_batches_and_score_blocks_do_not_change_the_answer() -> None:
    windows = [
        (
            [(i % 3, 0, 0, [10 + i % 5]) for i in range(7)],
            [(i % 2, 0, 0, [10 + i]) for i in range(5)],
        ),
        ([(1, 0, 0, [11])], [(0, 0, 0, []), (1, 0, 0, [11])]),
    ] * 3
    expected = solve(windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banded, "_CELLS", 1)
        patch.setattr(banded, "_BLOCK", 1)
        assert solve(windows) == expected


@settings(deadline=None)
@given(EVENTS, EVENTS)
def test_scores_follow_the_table(a: list, b: list) -> None:  # type: ignore[type-arg]
    i, j = np.meshgrid(np.arange(len(a)), np.arange(len(b)), indexing="ij")
    scores = pair_scores(features_of(a, 0), features_of(b, 1), i.ravel(), j.ravel())
    assert scores.tolist() == [plain_score(one, two) for one in a for two in b]


@pytest.mark.parametrize(
    ("sizes", "inputs", "expected"),
    [(0, [10], 20 + 60 - 12), (1, [10], 20 + 60 - 12), (0, [11], 20 - 12), (1, [11], 20 - 12 - 30)],
)
def test_other_sizes_without_an_equal_input_are_no_counterpart(
    sizes: int, inputs: list[int], expected: int
) -> None:
    one, two = (features_of([(0, 0, 0, tokens)], side) for side, tokens in ((0, [10]), (1, inputs)))
    two = replace(
        two,
        shapes=np.array([1], np.uint64),
        sizes=np.array([sizes], np.uint64),
        same=hash_columns(np.array([7])),
    )
    first = np.zeros(1, np.int64)
    assert pair_scores(one, two, first, first).tolist() == [expected]


def test_weights_are_those_of_the_design() -> None:
    scaled = {
        "MATCH": 1.0, "SHAPES_DIFFER": -0.6, "MODULE_DIFFERS": -0.25, "PHASE_DIFFERS": -0.5,
        "STEP_DIFFERS": -0.25, "INPUTS_AGREE": 3.0, "ARGUMENTS_DIFFER": -0.25,
        "NOTHING_AGREES": -1.5, "GAP": -0.3,
    }  # fmt: skip
    assert {name: getattr(keys, name) / keys.SCALE for name in scaled} == scaled
    assert keys.BAND == 64
    assert keys.LARGEST_WINDOW == 4096
    assert all(keys.INPUTS_AGREE % count == 0 for count in range(1, TOKENS + 1))


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(*[st.lists(EVENT, min_size=n, max_size=n)] * 2))
)
def test_plainly_parallel_windows_need_no_search(window: tuple) -> None:  # type: ignore[type-arg]
    a, b = window
    whole = Windows(*(np.array([x]) for x in (0, len(a), 0, len(b))))
    if plainly_parallel(whole, features_of(a, 0), features_of(b, 1))[0]:
        assert plain_alignment(a, b, 64) == [(i, i) for i in range(len(a))]


def test_equal_windows_are_plainly_parallel_and_shifted_ones_are_not() -> None:
    row = [(0, 0, 0, [10, 11]), (1, 0, 0, []), (0, 0, 0, [12])]
    windows = Windows(np.array([0, 0]), np.array([3, 2]), np.array([0, 1]), np.array([3, 3]))
    features = features_of(row, 0), features_of(row, 1)
    assert plainly_parallel(windows, *features).tolist() == [True, False]


def test_large_windows_are_cut_by_position() -> None:
    windows = Windows(np.array([0, 5]), np.array([5, 9005]), np.array([0, 3]), np.array([3, 4503]))
    pieces, cut = cut_large(windows)
    assert cut == 1
    assert pieces.start_a.tolist() == [0, 5, 3005, 6005]
    assert pieces.end_a.tolist() == [5, 3005, 6005, 9005]
    assert pieces.start_b.tolist() == [0, 3, 1503, 3003]
    assert pieces.end_b.tolist() == [3, 1503, 3003, 4503]
