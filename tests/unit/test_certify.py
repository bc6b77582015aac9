"""Statuses, roots, prefix and counts of minimal pairs of runs."""

from __future__ import annotations

from align_builder import (
    Rank,
    Value,
    certificate_of,
    certificate_of_both,
    pick,
    view,
)

from opguard.model import Reason, Status


def test_equal_runs_agree() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"}, line=7 if suspect else 3)
        rank.op("relu", {"self": x}, {"0": "y"})

    certificate = certificate_of_both(build)
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


def test_both_raised_is_not_compared() -> None:
    ranks = Rank(), Rank()
    for rank in ranks:
        rank.op("mm", {"self": "p"}, raised=True)
    certificate = certificate_of(*ranks)
    assert certificate.status.tolist() == [Status.NOT_COMPARED]


def test_two_voids_do_not_spoil_the_prefix() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("empty", {}, {"0": Value(pick(suspect, "u", "v"), void=True)})
        rank.op("mm", {"self": "p"}, {"0": "x"})

    certificate = certificate_of_both(build)
    assert certificate.pivot is None
    assert certificate.prefix_complete


def test_argument_alone_is_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("dropout", {"self": "p"}, {"0": "x"}, args=pick(suspect, "0.0", "0.1"))

    certificate = certificate_of_both(build)
    assert certificate.pivot is None
    assert certificate.counts["differing_inputs"] == 1


def test_random_state_alone_is_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("bernoulli_", {"rng": pick(suspect, "s", "t")}, {"self!": "x"})

    assert certificate_of_both(build).pivot is None


def test_strides_alone_are_no_disagreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        laid_out = Value("p", strides=pick(suspect, "[4,1]", "[1,4]"))
        rank.op("norm", {"self": laid_out}, {"0": Value("x", strides=pick(suspect, "[1]", "[2]"))})

    assert certificate_of_both(build).pivot is None


def test_differing_shapes_disagree_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        shape = pick(suspect, "[4]", "[5]")
        rank.op("mm", {"self": "p"}, {"0": Value("x", shape=shape, reason=Reason.IN_FLIGHT)})

    assert certificate_of_both(build).status.tolist() == [Status.DISAGREES]


def test_output_of_one_side_only_differs_unless_it_cannot_be_compared() -> None:
    for value, status in (
        (Value("m"), Status.DISAGREES),
        (Value("m", void=True), Status.AGREES),
        (Value("m", reason=Reason.CAPTURING), Status.AGREES),
    ):

        def build(rank: Rank, suspect: bool, value: Value = value) -> None:
            more = {"1": value} if suspect else {}
            rank.op("mm", {"self": "p"}, {"0": "x", **more})

        assert certificate_of_both(build).status.tolist() == [status]


def test_missing_fingerprint_is_never_agreement() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": Value("x", reason=Reason.FREED)})

    certificate = certificate_of_both(build)
    assert certificate.status.tolist() == [Status.NOT_COMPARED]
    assert not certificate.prefix_complete
    assert certificate.counts["unfingerprinted"] == 2
    assert certificate.counts["not_compared"] == 1


def test_modes_may_differ() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        seen = view(x, "x", "0,[2]") if suspect else x.but(content="part of x")
        rank.op("relu", {"self": seen}, {"0": "y"})

    certificate = certificate_of_both(build)
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

    certificate = certificate_of_both(build)
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

    roots = certificate_of_both(build).roots
    assert [(root.class_name, root.candidate_seq, root.count) for root in roots] == [
        ("argument", 0, 3), ("argument", 3, 1),
    ]  # fmt: skip


def test_prefix_ends_before_the_pivot_and_counts_what_it_lacks() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("mm", {"self": "q"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2"))
        rank.op("mm", {"self": "r"}, {"0": Value("z", reason=Reason.FREED)})

    certificate = certificate_of_both(build)
    assert (certificate.prefix_pairs, certificate.prefix_complete) == (1, True)


def test_lost_events_make_the_prefix_incomplete() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.closing = {"coverage": {"lost_events": 3 if suspect else 0}}

    assert not certificate_of_both(build).prefix_complete


def test_trailing_events_that_only_return_numbers_do_not_count() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": "x"})
        if suspect:
            number = Value("n", dtype="python_float", shape="[]")
            rank.op("item", {"self": "x"}, {"0": number})
            rank.op("barrier")
            rank.op("mul", {"self": "x"}, {"0": "y"})
            rank.op("zero_", {}, {"self!": "=z", "0": number})

    certificate = certificate_of_both(build)
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

    certificate = certificate_of_both(build)
    assert certificate.pivot is None
    assert certificate.unverified == ()
    assert certificate.state.compared == 1
    assert certificate.counts["gaps_candidate"] == 2
    assert certificate.counts["agreeing"] == 8
