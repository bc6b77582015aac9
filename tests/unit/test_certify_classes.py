"""Each class of DESIGN section 6, by a minimal pair of runs."""

from __future__ import annotations

import pytest
from align_builder import (
    Rank,
    Value,
    certificate_of_both,
    classes,
    pick,
    view,
)

from opguard.model import Reason, Status


def test_raised() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, None if suspect else {"0": "x"}, raised=suspect)

    assert classes(certificate_of_both(build)) == ["raised"]


def test_uninitialised() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        hole = rank.op("empty", {}, {"0": Value(pick(suspect, "u", "v"), void=True)})
        x = rank.op("add", {"self": hole.but(producers=(0,))}, {"0": pick(suspect, "x", "y")})
        rank.op("relu", {"self": x}, {"0": pick(suspect, "xx", "yy")})

    certificate = certificate_of_both(build)
    assert certificate.status.tolist() == [
        Status.NOT_COMPARED, Status.DISAGREES, Status.DISAGREES,
    ]  # fmt: skip
    assert classes(certificate) == ["", "uninitialised", "propagated"]
    assert certificate.counts["void"] == 1


def test_reordered_writes() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        buffer = rank.op("zeros", {}, {"0": "=zero"})
        for name in "qp" if suspect else "pq":
            written = Value(name, producers=(buffer.index,))
            buffer = rank.op("copy_", {"src": name}, {"self!": written})

    certificate = certificate_of_both(build)
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

    certificate = certificate_of_both(build)
    assert [root.class_name for root in certificate.roots] == ["reordered"]
    assert classes(certificate)[-1] == "propagated"


def test_writes_to_disjoint_spans_may_change_places() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        buffer = rank.op("zeros", {}, {"0": "=zero"})
        for name in "qp" if suspect else "pq":
            written = Value(name, producers=(buffer.index,))
            rank.op("copy_", {"src": name}, {"self!": written})

    assert certificate_of_both(build).pivot is None


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

    certificate = certificate_of_both(build)
    assert certificate.pivot is None
    assert certificate.unverified == ()
    assert certificate.counts["moved"] > 0


def test_argument() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        rank.op("relu", {"self": x}, {"0": pick(suspect, "xx", "yy")})

    assert classes(certificate_of_both(build)) == ["argument", "propagated"]


def test_argument_that_a_number_carried() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2"))
        number = Value(pick(suspect, "n", "o"), dtype="python_float", shape="[]")
        rank.op("item", {"self": "s"}, {"0": number})
        rank.op(
            "mul", {"self": "q"}, {"0": pick(suspect, "z", "w")}, args=pick(suspect, ".1", ".2")
        )

    certificate = certificate_of_both(build)
    assert classes(certificate)[0] == "argument"
    assert classes(certificate)[2] == "propagated"


def test_input_of_one_side_only_is_an_argument() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        inputs = {"self": "p"} | ({"bias": "b"} if suspect else {})
        rank.op("linear", inputs, {"0": pick(suspect, "x", "y")})

    assert classes(certificate_of_both(build)) == ["argument"]


def test_source() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("mm", {"self": pick(suspect, "p", "q"), "w": "w"}, {"0": pick(suspect, "x", "y")})

    assert classes(certificate_of_both(build)) == ["source"]


def test_outside_write_that_leaves_no_producer_is_a_source() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("relu", {"self": "poked" if suspect else x}, {"0": pick(suspect, "y", "z")})

    assert classes(certificate_of_both(build)) == ["", "source"]


def test_structural_by_a_missing_event() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        table = rank.op("normal_", {"rng": "seed"}, {"self!": "table"})
        read = table.but(producers=(table.index,))
        if not suspect:
            row = rank.op("zero_", {}, {"self!": Value("=row", producers=(table.index,))})
            read = read.but(content="table0", producers=(row.index, table.index), index=-1)
        rank.op("embedding", {"weight": read, "ids": "ids"}, {"0": pick(suspect, "x", "y")})

    certificate = certificate_of_both(build)
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

    assert classes(certificate_of_both(build)) == ["", "structural"]


def test_propagated_through_gaps_is_not_structural() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        if suspect:
            x = rank.op("mul", {"self": x, "scale": "s"}, {"0": "x2"})
        rank.op("relu", {"self": x, "other": "o"}, {"0": pick(suspect, "z", "w")})

    assert classes(certificate_of_both(build)) == ["argument", "propagated"]


def test_propagated_through_a_chain_of_gaps() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=f"{suspect}")
        if suspect:
            x = rank.op("mul", {"self": x, "scale": "s"}, {"0": "x2"})
            x = rank.op("exp", {"self": x}, {"0": "x3"})
            x = rank.op("log", {"self": x}, {"0": "x4"})
        rank.op("relu", {"self": x, "other": "o"}, {"0": pick(suspect, "z", "w")})

    assert classes(certificate_of_both(build)) == ["argument", "propagated"]


def test_structural_through_an_output_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        if suspect:
            x = rank.op("mul", {"self": x, "scale": "s"}, {"0": "x2"})
        gone = Value(pick(suspect, "m", "n"), reason=Reason.FREED)
        y = rank.op("gather", {"self": x, "w": "w"}, {"0": gone}).but(reason=Reason.PRESENT)
        rank.op("relu", {"self": y, "other": "o"}, {"0": pick(suspect, "z", "v")})

    assert classes(certificate_of_both(build)) == ["", "", "structural"]


def test_an_output_without_fingerprint_beside_one_that_differs() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        gone = Value(pick(suspect, "m", "n"), reason=Reason.FREED)
        outputs = {"1": gone, "0": Value(pick(suspect, "x", "y"))}
        y = rank.op("sort", {"self": "p"}, outputs).but(reason=Reason.PRESENT)
        rank.op("relu", {"self": y, "other": "o"}, {"0": pick(suspect, "z", "v")})

    assert classes(certificate_of_both(build)) == ["origin", "propagated"]


def test_inputs_that_differ_outweigh_those_that_are_unknown() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        read = x.but(content=pick(suspect, "x", "poked"))
        y = Value("y", reason=Reason.FREED)
        if suspect:
            y = rank.op("exp", {"self": "q"}, {"0": "y"}).but(reason=Reason.FREED)
        rank.op("add", {"self": read, "other": y}, {"0": pick(suspect, "z", "w")})

    assert classes(certificate_of_both(build)) == ["", "overwritten"]


def test_rewired() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        y = rank.op("mm", {"self": "q"}, {"0": "y"})
        rank.op("relu", {"self": y if suspect else x, "w": "w"}, {"0": pick(suspect, "z", "v")})

    assert classes(certificate_of_both(build)) == ["", "", "rewired"]


def test_rewired_to_data_that_the_other_side_has() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op("relu", {"self": "p" if suspect else x, "w": "w"}, {"0": pick(suspect, "z", "v")})

    assert classes(certificate_of_both(build)) == ["", "rewired"]


def test_overwritten() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        read = x.but(content=pick(suspect, "x", "poked"))
        rank.op("relu", {"self": read, "w": "w"}, {"0": pick(suspect, "y", "z")})

    assert classes(certificate_of_both(build)) == ["", "overwritten"]


def test_random() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("bernoulli_", {"rng": pick(suspect, "s", "t")}, {"self!": pick(suspect, "x", "y")})

    assert classes(certificate_of_both(build)) == ["random"]


@pytest.mark.parametrize(("fresh", "expected"), [(True, "origin"), (False, "origin?")])
def test_origin(fresh: bool, expected: str) -> None:
    def build(rank: Rank, suspect: bool) -> None:
        rank.op("sort", {"self": Value("p", fresh=fresh)}, {"0": pick(suspect, "x", "y"), "1": "i"})

    certificate = certificate_of_both(build)
    assert classes(certificate) == [expected]
    assert certificate.pivot is not None
    assert certificate.pivot.slots == ("0",)
    assert certificate.pivot.note == ""


def test_strides_explain_an_origin() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        laid_out = Value("p", strides=pick(suspect, "[4,1]", "[1,4]"))
        rank.op("norm", {"self": laid_out}, {"0": pick(suspect, "x", "y")})

    certificate = certificate_of_both(build)
    assert certificate.pivot is not None
    assert (certificate.pivot.class_name, certificate.pivot.note) == ("origin", "strides differ")


def test_unexplained() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        freed = Value("p", reason=Reason.FREED)
        rank.op("mm", {"self": freed, "w": "w"}, {"0": pick(suspect, "x", "y")})

    certificate = certificate_of_both(build)
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

    assert classes(certificate_of_both(build)) == ["argument", "propagated"]


def test_propagated_through_an_output_without_fingerprint() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op(
            "gelu", {"self": "p"}, {"0": pick(suspect, "x", "y")}, args=pick(suspect, "1", "2")
        )
        gone = Value(pick(suspect, "m", "n"), reason=Reason.FREED)
        y = rank.op("gather", {"self": x}, {"0": gone})
        read = y.but(reason=Reason.PRESENT)
        rank.op("relu", {"self": read, "w": "w"}, {"0": pick(suspect, "z", "v")})

    certificate = certificate_of_both(build)
    assert classes(certificate) == ["argument", "", "propagated"]
    assert certificate.status.tolist()[1] == Status.NOT_COMPARED


def test_views_of_one_geometry_are_compared_by_the_value_behind() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        rank.op(
            "relu",
            {"self": view(x, pick(suspect, "x", "poked"), "0")},
            {"0": pick(suspect, "y", "z")},
        )

    assert classes(certificate_of_both(build)) == ["", "overwritten"]


def test_views_of_other_geometry_agree_by_their_producers() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        seen = view(x, "x", "0") if suspect else x.but(content="part of x")
        rank.op("relu", {"self": seen, "w": "w"}, {"0": pick(suspect, "y", "z")})

    # The input agrees (its producers are partners), so the operator is to blame; it was not read.
    assert classes(certificate_of_both(build)) == ["", "origin?"]


def test_views_that_were_not_read_ask_for_full_mode() -> None:
    def build(rank: Rank, suspect: bool) -> None:
        seen = view(Value("x"), "x", "0") if suspect else Value("part of x")
        rank.op("relu", {"self": seen, "w": "w"}, {"0": pick(suspect, "y", "z")})

    certificate = certificate_of_both(build)
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

    certificate = certificate_of_both(build)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == expected
    assert certificate.pivot.note == ("strides differ" if expected == "origin?" else "")
