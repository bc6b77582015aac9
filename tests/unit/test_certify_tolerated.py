"""Ignore rules, and what flows from the differences that they hide."""

from __future__ import annotations

from align_builder import Rank, Value, certificate_of, classes

from opguard.model import Certificate, Status
from opguard.policy import IgnoreRule, Policy


def chain(suspect: bool, second_bug: bool = False) -> Rank:
    """gelu (bug) -> mul -> gap on one side -> relu; sort beside it, into add."""
    mark = "'" if suspect else ""
    rank = Rank()
    x = rank.op("gelu", {"self": "p"}, {"0": "x" + mark}, args=f"1{mark}", module="Net.act")
    x = rank.op("mul", {"self": x, "w": "w"}, {"0": "xw" + mark})
    if suspect:
        x = rank.op("clone", {"self": x}, {"0": "xw" + mark})
    x = rank.op("relu", {"self": x, "m": "m"}, {"0": "xr" + mark})
    other = rank.op(
        "sort", {"self": "q"}, {"0": "s" + (mark if second_bug else "")}, module="Net.sort"
    )
    rank.op("neg", {"self": other}, {"0": "n" + (mark if second_bug else "")})
    rank.op("add", {"self": x, "other": other}, {"0": "sum" + mark})
    rank.state("w", Value("x" + mark, producers=(x.index,)))
    return rank


def compare(*rules: IgnoreRule, second_bug: bool = False) -> Certificate:
    return certificate_of(chain(False), chain(True, second_bug), Policy(ignore=rules))


def test_without_rules_it_diverges() -> None:
    certificate = compare()
    assert classes(certificate) == ["argument", "propagated", "propagated", "", "", "propagated"]
    assert len(certificate.state.differing) == 1


def test_what_flows_from_an_ignored_difference_is_tolerated() -> None:
    certificate = compare(IgnoreRule("known", op="gelu"))
    assert classes(certificate) == ["tolerated", "tolerated", "tolerated", "", "", "tolerated"]
    assert certificate.pivot is None
    assert certificate.state.differing == ()
    assert certificate.counts["ignored"] == 5
    assert certificate.prefix_pairs == 6


def test_what_flows_from_another_difference_too_is_not() -> None:
    certificate = compare(IgnoreRule("known", module="Net.act"), second_bug=True)
    assert classes(certificate) == [
        "tolerated", "tolerated", "tolerated", "origin", "propagated", "propagated",
    ]  # fmt: skip
    assert certificate.pivot is not None
    assert certificate.pivot.candidate_seq == 4


def test_rules_need_every_part_to_match() -> None:
    for rule in (
        IgnoreRule("", op="gelu", module="Net.other"),
        IgnoreRule("", op="gelu", slot="1"),
        IgnoreRule("", slot="self!"),
    ):
        assert compare(rule).pivot is not None
    for rule in (
        IgnoreRule("", op="ge*", module="Net.*", slot="?"),
        IgnoreRule("", slot="0"),
    ):
        assert compare(rule).pivot is None


def test_a_slot_beside_an_ignored_one_still_counts() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        rank.op("sort", {"self": "p"}, {"0": f"x{suspect}", "1": f"i{suspect}"})
    rules = (IgnoreRule("ties", slot="1"),)
    certificate = certificate_of(*ranks, Policy(ignore=rules))
    assert certificate.status.tolist() == [Status.DISAGREES]
    assert certificate.pivot is not None
    assert certificate.pivot.slots == ("0",)


def test_an_ignored_number_tolerates_the_arguments_that_it_becomes() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        number = Value(f"n{suspect}", dtype="python_float", shape="[]")
        rank.op("item", {"self": "s"}, {"0": number})
        rank.op("mul", {"self": "p"}, {"0": f"y{suspect}"}, args=f"0.{suspect}")
    certificate = certificate_of(*ranks, Policy(ignore=(IgnoreRule("time", op="item"),)))
    assert classes(certificate) == ["tolerated", "tolerated"]
    assert certificate.pivot is None


def test_a_number_that_a_real_difference_reached_is_not_tolerated() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        known = rank.op("gelu", {"self": "p"}, {"0": f"x{suspect}"}, module="Net.known")
        other = rank.op("sort", {"self": "q"}, {"0": f"s{suspect}"})
        both = rank.op("add", {"self": known, "other": other}, {"0": f"sum{suspect}"})
        number = Value(f"n{suspect}", dtype="python_float", shape="[]")
        rank.op("item", {"self": both}, {"0": number})
        inputs = {"self": known, "w": "w"}
        rank.op("mul", inputs, {"0": f"y{suspect}"}, args=f"0.{suspect}")
    certificate = certificate_of(*ranks, Policy(ignore=(IgnoreRule("", module="Net.known"),)))
    assert classes(certificate) == ["tolerated", "origin", *["propagated"] * 3]
