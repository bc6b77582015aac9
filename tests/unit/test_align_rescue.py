from __future__ import annotations

import numpy as np
from align_builder import Rank, Value, pairs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.align import aligner, windows
from opguard.align.aligner import align
from opguard.align.anchors import Chain
from opguard.align.rescue import Rescued, merge
from opguard.columns import join_sides
from opguard.model import STATE_OPERATOR


def of(*names: str, op: str = "mm", **more: object) -> Rank:
    """One event a name: reads that content, writes its double."""
    rank = Rank()
    for name in names:
        rank.op(op, {"self": name}, {"0": name * 2}, **more)  # type: ignore[arg-type]
    return rank


def test_equal_runs_pair_in_order() -> None:
    assert pairs_of(of("p", "q", "p"), of("p", "q", "p")) == [(0, 0), (1, 1), (2, 2)]


def test_empty_runs() -> None:
    assert pairs_of(Rank(), Rank()) == []
    assert pairs_of(Rank(), of("p")) == []
    assert pairs_of(of("p"), Rank()) == []


def test_insertions_are_gaps() -> None:
    assert pairs_of(of("p", "q", "r"), of("p", "x", "q", "r")) == [(0, 0), (1, 2), (2, 3)]
    assert pairs_of(of("p", "x", "q"), of("p", "q")) == [(0, 0), (2, 1)]


def test_state_events_are_never_aligned() -> None:
    a, b = of("p"), of("p")
    for rank in (a, b):
        rank.state("w", "w")
    assert pairs_of(a, b) == [(0, 0)]
    assert a.build().boundaries[1].operator == STATE_OPERATOR


def test_twins_elsewhere_are_moved() -> None:
    assert pairs_of(of("p", "q", "r"), of("r", "p", "q")) == [(2, -0), (0, 1), (1, 2)]
    alignment = align(join_sides(of("p", "q", "r").build(), of("r", "p", "q").build()))
    assert alignment.moved.tolist() == [True, False, False]


def test_interleaved_order_pairs_every_twin() -> None:
    # A neighbour of the same operator must not be taken for the twin that moved past it.
    a = of(*"aAbBcCdD")
    b = of(*"AaBbCcDd")
    found = {(x, abs(y)) for x, y in pairs_of(a, b)}
    assert found == {(i, i ^ 1) for i in range(8)}


def test_moved_arguments_without_inputs() -> None:
    def run(*sizes: str) -> Rank:
        rank = Rank()
        rank.op("mm", {"self": "p"}, {"0": "pp"})
        for size in sizes:
            rank.op("full", {}, {"0": f"=filled {size}"}, args=size)
        return rank

    assert {(x, abs(y)) for x, y in pairs_of(run("1", "2"), run("2", "1"))} == {
        (0, 0), (1, 2), (2, 1),
    }  # fmt: skip
    # A changed argument is the same call with another argument.
    assert pairs_of(run("1"), run("3")) == [(0, 0), (1, 1)]


def test_twin_with_another_output_is_paired_where_it_moved() -> None:
    a, b = Rank(), Rank()
    for rank, order in ((a, "pqr"), (b, "qrp")):
        for name in order:
            rank.op("mm", {"self": name}, {"0": name + ("!" if rank is b and name == "p" else "")})
    assert {(x, abs(y)) for x, y in pairs_of(a, b)} == {(0, 2), (1, 0), (2, 1)}


def test_an_exact_counterpart_outweighs_a_likely_one() -> None:
    # Unequal counts of q: the pair (p, q) of the windows gives way to what is exactly equal.
    a = of("m", "p", "n", "q")
    b = of("m", "q", "q", "n", "p")
    found = {(x, abs(y)) for x, y in pairs_of(a, b)}
    assert (1, 4) in found
    assert {x for x, _ in found} == {0, 1, 2, 3}
    assert dict(found)[3] in (1, 2)


def test_equal_results_of_other_operators_are_paired() -> None:
    a, b = Rank(), Rank()
    for rank in (a, b):
        rank.op("mm", {"self": "p"}, {"0": "pp"})
    a.op("addmm", {"bias": "c", "self": "x", "w": "w"}, {"0": "y"})
    product = b.op("mm", {"self": "x", "w": "w"}, {"0": "xw"})
    b.op("add", {"self": product, "other": "c"}, {"0": "y"})
    assert pairs_of(a, b) == [(0, 0), (1, 2)]


def test_constant_results_are_no_evidence() -> None:
    a, b = Rank(), Rank()
    for rank, op in ((a, "zeros_like"), (b, "mul")):
        rank.op("mm", {"self": "p"}, {"0": "pp"})
        rank.op(op, {"self": op}, {"0": "=zeros"})
    assert pairs_of(a, b) == [(0, 0)]


def test_repeated_results_are_no_evidence() -> None:
    a, b = Rank(), Rank()
    for rank, op in ((a, "one"), (b, "two")):
        rank.op(op, {"self": op}, {"0": "y"})
        rank.op(op, {"self": op + "'"}, {"0": "y"})
    assert pairs_of(a, b) == []


def test_shapes_and_dtypes_belong_to_the_bytes() -> None:
    a, b = Rank(), Rank()
    a.op("one", {"self": "p"}, {"0": Value("y")})
    b.op("two", {"self": "q"}, {"0": Value("y", shape="[2,2]")})
    assert pairs_of(a, b) == []


def test_merge_orders_by_candidate_and_marks_what_moved() -> None:
    chain = Chain(np.array([0, 4]), np.array([1, 5]))
    baseline, candidate, moved = merge(chain, Rescued(np.array([2, 6, 3]), np.array([2, 0, 3])))
    assert candidate.tolist() == [0, 1, 2, 3, 5]
    assert baseline.tolist() == [6, 0, 2, 3, 4]
    assert moved.tolist() == [True, False, False, False, False]


def test_cut_windows_are_said() -> None:
    def run(salt: str) -> Rank:
        rank = Rank()
        for i in range(9):
            rank.op("mm", {"self": f"{salt}{i}"}, {"0": f"{salt}{i}y"}, module="")
        return rank

    assert align(join_sides(run("p").build(), run("q").build())).notes == ()
    original = windows.LARGEST_WINDOW
    try:
        windows.LARGEST_WINDOW = 4  # type: ignore[misc]
        alignment = align(join_sides(run("p").build(), run("q").build()))
    finally:
        windows.LARGEST_WINDOW = original  # type: ignore[misc]
    assert len(alignment.notes) == 1
    assert "cut by position: 1;" in alignment.notes[0]
    assert alignment.baseline.tolist() == list(range(9))
    assert aligner.LARGEST_WINDOW == 4096


@settings(deadline=None)
@given(st.permutations(range(10)))
def test_any_order_of_distinct_events_pairs_everything(order: list[int]) -> None:
    names = [f"n{i}" for i in range(10)]
    found = pairs_of(of(*names, module=""), of(*(names[i] for i in order), module=""))
    assert {(x, abs(y)) for x, y in found} == {(i, order.index(i)) for i in range(10)}


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("pqrs"), max_size=12), st.lists(st.sampled_from("pqrs"), max_size=12)
)
def test_pairs_are_one_to_one_and_in_candidate_order(a: list[str], b: list[str]) -> None:
    alignment = align(join_sides(of(*a).build(), of(*b).build()))
    assert alignment.candidate.tolist() == sorted(set(alignment.candidate.tolist()))
    assert len(set(alignment.baseline.tolist())) == len(alignment.baseline)
    steady = alignment.baseline[~alignment.moved]
    assert (np.diff(steady) > 0).all()
