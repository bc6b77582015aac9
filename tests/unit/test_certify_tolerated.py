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


def averaged(weight: str, count: int = 6, steps: int = 3) -> Rank:
    """Averages of parameters that agree: the first step reads equal averages, later ones do not."""
    rank = Rank()
    averages = [rank.op("clone", {"self": f"p{i}"}, {"0": f"p{i}"}) for i in range(count)]
    for step in range(steps):
        rank.op("addmm", {"self": f"x{step}"}, {"0": f"y{step}"}, step=step)
        inputs = {f"self[{i}]": average for i, average in enumerate(averages)}
        inputs |= {f"tensors1[{i}]": Value(f"p{i} {step}") for i in range(count)}
        outputs = {
            f"self[{i}]!": Value(f"{weight} {i} {step}", producers=(average.index,))
            for i, average in enumerate(averages)
        }
        first = rank.op("lerp_", inputs, outputs, args=weight, module="", phase="other", step=step)
        averages = [Value(f"{weight} {i} {step}", index=first.index + i) for i in range(count)]
    for i, average in enumerate(averages):
        rank.state(f"ema.{i}", average.but(producers=(average.index,), index=-1))
    return rank


def test_an_ignored_operator_on_lists_stays_paired_when_its_argument_changed() -> None:
    policy = Policy(ignore=(IgnoreRule("decay", op="lerp_"),))
    certificate = certificate_of(averaged("0.1"), averaged("0.01"), policy)
    assert (certificate.counts["gaps_baseline"], certificate.counts["gaps_candidate"]) == (0, 0)
    assert certificate.unverified == ()
    assert certificate.pivot is None
    assert certificate.state.differing == ()
    assert certificate.counts["ignored"] == 3 + 6
    certificate = certificate_of(averaged("0.1"), averaged("0.01"))
    assert certificate.pivot is not None
    assert (certificate.pivot.class_name, certificate.pivot.count) == ("argument", 3)


def decayed(weight: str) -> Rank:
    """The second ``mul_`` reads nothing that agrees and has another argument: it is unpaired."""
    rank = Rank()
    w = rank.op("randn", {"rng": "seed"}, {"0": "w"})
    rank.op("addmm", {"self": "x"}, {"0": "y"})
    for step in range(2):
        written = Value(f"{weight} {step}", producers=(w.index,))
        w = rank.op("mul_", {"self": w}, {"self!": written}, args=weight, step=step)
    return rank


def test_unverified_writes_of_an_ignored_operator_do_not_count() -> None:
    sides = decayed("0.9"), decayed("0.99")
    rules = (IgnoreRule("decay", op="mul_"),)
    assert certificate_of(*sides, Policy(ignore=rules)).unverified == ()
    elsewhere = (IgnoreRule("decay", op="mul_", module="Net.b"),)
    assert certificate_of(*sides, Policy(ignore=elsewhere)).unverified == (
        ("baseline", 3),
        ("candidate", 3),
    )
