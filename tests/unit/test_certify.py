"""Statuses, classes, roots and prefix of minimal pairs of runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from align_builder import Rank, Value, certificate_of

from opguard.model import CLASSES, Certificate, Reason, Status

Build = Callable[[Rank, bool], None]


def compare(build: Build) -> Certificate:
    """Certificate of ``build(rank, suspect)`` for both sides."""
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        build(rank, bool(suspect))
    return certificate_of(*ranks)


def classes(certificate: Certificate) -> list[str]:
    return [CLASSES[code] for code in certificate.classes]


def pick(suspect: bool, reference: str, other: str) -> str:
    return other if suspect else reference


def test_equal_runs_agree() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"}, line=7 if suspect else 3)
        rank.op("relu", {"self": x}, {"0": "y"})

    certificate = compare(build)
    assert certificate.status.tolist() == [Status.AGREES] * 2
    assert certificate.pivot is None
    assert certificate.roots == ()
    assert (certificate.prefix_pairs, certificate.prefix_complete) == (2, True)
    assert certificate.paired_share == (1.0, 1.0)
    assert certificate.trailing_share == (0.0, 0.0)
    assert certificate.counts["agreeing"] == 2


def test_empty_runs() -> None:
    certificate = certificate_of(Rank(), Rank())
    assert certificate.pivot is None
    assert certificate.counts["agreeing"] == 0
    assert certificate.paired_share == (0.0, 0.0)


def test_raised() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, None if suspect else {"0": "x"}, raised=suspect)

    assert classes(compare(build)) == ["raised"]


def test_both_raised_is_not_compared() -> None:
    ranks = Rank(), Rank()
    for rank in ranks:
        rank.op("mm", {"self": "p"}, raised=True)
    certificate = certificate_of(*ranks)
    assert certificate.status.tolist() == [Status.NOT_COMPARED]


def test_uninitialised() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        hole = rank.op("empty", {}, {"0": Value(pick(suspect, "u", "v"), void=True)})
        x = rank.op("add", {"self": hole.but(producers=(0,))}, {"0": pick(suspect, "x", "y")})
        rank.op("relu", {"self": x}, {"0": pick(suspect, "xx", "yy")})

    certificate = compare(build)
    assert certificate.status.tolist() == [
        Status.NOT_COMPARED, Status.DISAGREES, Status.DISAGREES,
    ]  # fmt: skip
    assert classes(certificate) == ["", "uninitialised", "propagated"]
    assert certificate.counts["void"] == 1


def test_two_voids_do_not_spoil_the_prefix() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("empty", {}, {"0": Value(pick(suspect, "u", "v"), void=True)})
        rank.op("mm", {"self": "p"}, {"0": "x"})

    certificate = compare(build)
    assert certificate.pivot is None
    assert certificate.prefix_complete


def test_reordered_writes() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        buffer = rank.op("zeros", {}, {"0": "=zero"})
        for name in "qp" if suspect else "pq":
            written = Value(name, producers=(buffer.index,))
            buffer = rank.op("copy_", {"src": name}, {"self!": written})

    certificate = compare(build)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "reordered"
    assert certificate.pivot.candidate_seq == 2
    assert certificate.pivot.slots == ("self!",)
    assert [root.class_name for root in certificate.roots] == ["reordered"]


def test_readers_of_reordered_writes_are_propagated() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        buffer = rank.op("zeros", {}, {"0": "=zero"})
        for name in "qp" if suspect else "pq":
            written = Value(name, producers=(buffer.index,))
            buffer = rank.op("copy_", {"src": name}, {"self!": written})
        rank.op("relu", {"self": buffer}, {"0": buffer.content * 2})

    certificate = compare(build)
    assert [root.class_name for root in certificate.roots] == ["reordered"]
    assert classes(certificate)[-1] == "propagated"


def test_writes_to_disjoint_spans_may_change_places() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        buffer = rank.op("zeros", {}, {"0": "=zero"})
        for name in "qp" if suspect else "pq":
            written = Value(name, producers=(buffer.index,))
            rank.op("copy_", {"src": name}, {"self!": written})

    assert compare(build).pivot is None


def test_identical_towers_may_change_places() -> None:
    # Their buffers are filled with the same bytes, so the fills are paired crosswise.
    def build(rank: Rank, suspect: bool) -> None:
        for name in "qp" if suspect else "pq":
            buffer = rank.op("empty", {}, {"0": Value("hole", void=True)}, module="")
            filled = Value("=zero", producers=(buffer.index,))
            buffer = rank.op("zero_", {}, {"self!": filled}, module="")
            written = Value(name, producers=(buffer.index,))
            buffer = rank.op("copy_", {"src": name}, {"self!": written}, module="")
            rank.op("relu", {"self": buffer}, {"0": name * 2}, module="")

    certificate = compare(build)
    assert certificate.pivot is None
    assert certificate.unverified == ()
    assert certificate.counts["moved"] > 0


def test_argument() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        rank.op("relu", {"self": x}, {"0": pick(suspect, "xx", "yy")})

    assert classes(compare(build)) == ["argument", "propagated"]


def test_argument_that_a_number_carried() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2"))
        number = Value(pick(suspect, "n", "o"), dtype="python_float", shape="[]")
        rank.op("item", {"self": "s"}, {"0": number})
        rank.op(
            "mul", {"self": "q"}, {"0": pick(suspect, "z", "w")}, args=pick(suspect, ".1", ".2")
        )

    certificate = compare(build)
    assert classes(certificate)[0] == "argument"
    assert classes(certificate)[2] == "propagated"


def test_argument_alone_is_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("dropout", {"self": "p"}, {"0": "x"}, args=pick(suspect, "0.0", "0.1"))

    certificate = compare(build)
    assert certificate.pivot is None
    assert certificate.counts["differing_inputs"] == 1


def test_input_of_one_side_only_is_an_argument() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        inputs = {"self": "p"} | ({"bias": "b"} if suspect else {})
        rank.op("linear", inputs, {"0": pick(suspect, "x", "y")})

    assert classes(compare(build)) == ["argument"]


def test_source() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": pick(suspect, "p", "q"), "w": "w"}, {"0": pick(suspect, "x", "y")})

    assert classes(compare(build)) == ["source"]


def test_outside_write_that_leaves_no_producer_is_a_source() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("relu", {"self": "poked" if suspect else x}, {"0": pick(suspect, "y", "z")})

    assert classes(compare(build)) == ["", "source"]


def test_structural_by_a_missing_event() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        table = rank.op("normal_", {"rng": "seed"}, {"self!": "table"})
        read = table.but(producers=(table.index,))
        if not suspect:
            row = rank.op("zero_", {}, {"self!": Value("=row", producers=(table.index,))})
            read = read.but(content="table0", producers=(row.index, table.index), index=-1)
        rank.op("embedding", {"weight": read, "ids": "ids"}, {"0": pick(suspect, "x", "y")})

    certificate = compare(build)
    assert classes(certificate) == ["", "structural"]
    assert certificate.pivot is not None
    assert (certificate.pivot.baseline_seq, certificate.pivot.candidate_seq) == (2, 1)


def test_structural_through_several_gaps() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        if suspect:
            x = rank.op("mul", {"self": x, "scale": "s"}, {"0": "x2"})
            x = rank.op("exp", {"self": x}, {"0": "x3"})
        rank.op("relu", {"self": x, "other": "o"}, {"0": pick(suspect, "y", "z")})

    assert classes(compare(build)) == ["", "structural"]


def test_propagated_through_gaps_is_not_structural() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        if suspect:
            x = rank.op("mul", {"self": x, "scale": "s"}, {"0": "x2"})
        rank.op("relu", {"self": x, "other": "o"}, {"0": pick(suspect, "z", "w")})

    assert classes(compare(build)) == ["argument", "propagated"]


def test_rewired() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        y = rank.op("mm", {"self": "q"}, {"0": "y"})
        rank.op("relu", {"self": y if suspect else x, "w": "w"}, {"0": pick(suspect, "z", "v")})

    assert classes(compare(build)) == ["", "", "rewired"]


def test_rewired_to_data_that_the_other_side_has() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("relu", {"self": "p" if suspect else x, "w": "w"}, {"0": pick(suspect, "z", "v")})

    assert classes(compare(build)) == ["", "rewired"]


def test_overwritten() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        read = x.but(content=pick(suspect, "x", "poked"))
        rank.op("relu", {"self": read, "w": "w"}, {"0": pick(suspect, "y", "z")})

    assert classes(compare(build)) == ["", "overwritten"]


def test_random() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("bernoulli_", {"rng": pick(suspect, "s", "t")}, {"self!": pick(suspect, "x", "y")})

    assert classes(compare(build)) == ["random"]


def test_random_state_alone_is_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("bernoulli_", {"rng": pick(suspect, "s", "t")}, {"self!": "x"})

    assert compare(build).pivot is None


@pytest.mark.parametrize(("fresh", "expected"), [(True, "origin"), (False, "origin?")])
def test_origin(fresh: bool, expected: str) -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("sort", {"self": Value("p", fresh=fresh)}, {"0": pick(suspect, "x", "y"), "1": "i"})

    certificate = compare(build)
    assert classes(certificate) == [expected]
    assert certificate.pivot is not None
    assert certificate.pivot.slots == ("0",)
    assert certificate.pivot.note == ""


def test_strides_explain_an_origin() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        laid_out = Value("p", strides=pick(suspect, "[4,1]", "[1,4]"))
        rank.op("norm", {"self": laid_out}, {"0": pick(suspect, "x", "y")})

    certificate = compare(build)
    assert certificate.pivot is not None
    assert (certificate.pivot.class_name, certificate.pivot.note) == ("origin", "strides differ")


def test_strides_alone_are_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        laid_out = Value("p", strides=pick(suspect, "[4,1]", "[1,4]"))
        rank.op("norm", {"self": laid_out}, {"0": Value("x", strides=pick(suspect, "[1]", "[2]"))})

    assert compare(build).pivot is None


def test_unexplained() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        freed = Value("p", reason=Reason.FREED)
        rank.op("mm", {"self": freed, "w": "w"}, {"0": pick(suspect, "x", "y")})

    certificate = compare(build)
    assert classes(certificate) == ["unexplained"]
    assert [root.class_name for root in certificate.roots] == ["unexplained"]


def test_propagated_by_an_input_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        rank.op(
            "relu", {"self": x.but(reason=Reason.FREED), "w": "w"}, {"0": pick(suspect, "z", "v")}
        )

    assert classes(compare(build)) == ["argument", "propagated"]


def test_propagated_through_an_output_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        gone = Value(pick(suspect, "m", "n"), reason=Reason.FREED)
        y = rank.op("gather", {"self": x}, {"0": gone})
        read = y.but(reason=Reason.PRESENT)
        rank.op("relu", {"self": read, "w": "w"}, {"0": pick(suspect, "z", "v")})

    certificate = compare(build)
    assert classes(certificate) == ["argument", "", "propagated"]
    assert certificate.status.tolist()[1] == Status.NOT_COMPARED


def test_differing_shapes_disagree_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        shape = pick(suspect, "[4]", "[5]")
        rank.op("mm", {"self": "p"}, {"0": Value("x", shape=shape, reason=Reason.IN_FLIGHT)})

    assert compare(build).status.tolist() == [Status.DISAGREES]


def test_output_of_one_side_only_differs_unless_it_cannot_be_compared() -> None:
    for value, status in (
        (Value("m"), Status.DISAGREES),
        (Value("m", void=True), Status.AGREES),
        (Value("m", reason=Reason.CAPTURING), Status.AGREES),
    ):

        def build(rank: Rank, suspect: bool, value: Value = value) -> None:
            more = {"1": value} if suspect else {}
            rank.op("mm", {"self": "p"}, {"0": "x", **more})

        assert compare(build).status.tolist() == [status]


def test_missing_fingerprint_is_never_agreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": Value("x", reason=Reason.FREED)})

    certificate = compare(build)
    assert certificate.status.tolist() == [Status.NOT_COMPARED]
    assert not certificate.prefix_complete
    assert certificate.counts["unfingerprinted"] == 2
    assert certificate.counts["not_compared"] == 1


def view(x: Value, content: str, geometry: str) -> Value:
    """``x`` seen as a view that is known through it."""
    return x.but(content=content, via=True, strides=f"[1]|{geometry}", fresh=False)


def test_views_of_one_geometry_are_compared_by_the_value_behind() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op(
            "relu",
            {"self": view(x, pick(suspect, "x", "poked"), "0")},
            {"0": pick(suspect, "y", "z")},
        )

    assert classes(compare(build)) == ["", "overwritten"]


def test_views_of_other_geometry_agree_by_their_producers() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        seen = view(x, "x", "0") if suspect else x.but(content="part of x")
        rank.op("relu", {"self": seen, "w": "w"}, {"0": pick(suspect, "y", "z")})

    # The input agrees (its producers are partners), so the operator is to blame; it was not read.
    assert classes(compare(build)) == ["", "origin?"]


def test_views_that_were_not_read_ask_for_full_mode() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        seen = view(Value("x"), "x", "0") if suspect else Value("part of x")
        rank.op("relu", {"self": seen, "w": "w"}, {"0": pick(suspect, "y", "z")})

    certificate = compare(build)
    assert classes(certificate) == ["origin?"]
    assert certificate.roots[0].class_name == "origin?"


@pytest.mark.parametrize(("content", "expected"), [("x", "origin?"), ("z", "structural")])
def test_a_copy_on_one_side_is_looked_through(content: str, expected: str) -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        seen = view(x, "x", "0,[2,4]")
        if not suspect:
            copied = {"self": seen.but(content=content)}
            seen = rank.op("aten.clone.default", copied, {"0": Value("part of x", strides="[4]")})
        rank.op("norm", {"self": seen, "w": "w"}, {"0": pick(suspect, "y", "z")})

    certificate = compare(build)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == expected
    assert certificate.pivot.note == ("strides differ" if expected == "origin?" else "")


def test_modes_may_differ() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        seen = view(x, "x", "0,[2]") if suspect else x.but(content="part of x")
        rank.op("relu", {"self": seen}, {"0": "y"})

    certificate = compare(build)
    assert certificate.pivot is None
    assert certificate.counts["agreeing"] == 2
    assert certificate.counts["differing_inputs"] == 0


def test_pairs_by_result_compare_results_only() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        if suspect:
            y = rank.op("mul_", {"self": "x", "other": "o"}, {"self!": "y"}, args="2")
        else:
            y = rank.op("mul", {"self": "x"}, {"0": "y"}, args="1")
        rank.op("relu", {"self": y}, {"0": "z"})

    certificate = compare(build)
    assert certificate.status.tolist() == [Status.AGREES] * 2
    assert certificate.counts["differing_inputs"] == 0


def test_roots_alike_are_listed_once() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        for i in range(3):
            rank.op(
                "gelu", {"self": f"p{i}"}, {"0": f"{i}{suspect}"},
                args=pick(suspect, "1", "2"), step=i, line=5,
            )  # fmt: skip
        rank.op("gelu", {"self": "q"}, {"0": f"{suspect}"}, args=pick(suspect, "1", "2"), line=6)

    roots = compare(build).roots
    assert [(root.class_name, root.candidate_seq, root.count) for root in roots] == [
        ("argument", 0, 3), ("argument", 3, 1),
    ]  # fmt: skip


def test_prefix_ends_before_the_pivot_and_counts_what_it_lacks() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("mm", {"self": "q"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2"))
        rank.op("mm", {"self": "r"}, {"0": Value("z", reason=Reason.FREED)})

    certificate = compare(build)
    assert (certificate.prefix_pairs, certificate.prefix_complete) == (1, True)


def test_lost_events_make_the_prefix_incomplete() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.closing = {"coverage": {"lost_events": 3 if suspect else 0}}

    assert not compare(build).prefix_complete


def test_trailing_events_that_only_return_numbers_do_not_count() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        if suspect:
            number = Value("n", dtype="python_float", shape="[]")
            rank.op("item", {"self": "x"}, {"0": number})
            rank.op("barrier")
            rank.op("mul", {"self": "x"}, {"0": "y"})
            rank.op("zero_", {}, {"self!": "=z", "0": number})

    certificate = compare(build)
    assert certificate.trailing_share == (0.0, 2 / 5)
    assert certificate.paired_share == (1.0, 1 / 5)


def test_checkpointing_is_no_difference() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        w = rank.op("randn", {"rng": "seed"}, {"0": "w"})
        h = rank.op("mm", {"self": "x", "w": w}, {"0": "h"})
        y = rank.op("relu", {"self": h}, {"0": "y"})
        loss = rank.op("mean", {"self": y}, {"0": "loss"}, module="")
        g = rank.op("mean_backward", {"self": loss}, {"0": "g"}, module="", phase="backward")
        if suspect:
            h = rank.op("mm", {"self": "x", "w": w}, {"0": "h"}, phase="recompute")
            y = rank.op("relu", {"self": h}, {"0": "y"}, phase="recompute")
        g = rank.op("threshold_backward", {"grad": g, "out": y}, {"0": "gh"}, phase="backward")
        g = rank.op("mm", {"self": "x", "grad": g}, {"0": "gw"}, phase="backward")
        updated = Value("w'", producers=(w.index,))
        w = rank.op("add_", {"self": w, "other": g}, {"self!": updated}, phase="optimizer")
        rank.state("w", w.but(producers=(w.index,)))

    certificate = compare(build)
    assert certificate.pivot is None
    assert certificate.unverified == ()
    assert certificate.state.compared == 1
    assert certificate.counts["gaps_candidate"] == 2
    assert certificate.counts["agreeing"] == 8
