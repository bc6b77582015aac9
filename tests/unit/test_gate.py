"""Every reason code, which verdict it asks for, and which one decides."""

from __future__ import annotations

from typing import Any

import pytest
from align_builder import CLOSING, OPENING, Rank, Value, run_of

from opguard import api
from opguard.gate import EXIT_CODES, REASONS, judge
from opguard.model import Reason
from opguard.policy import Floors, Policy
from opguard.report.result import Result, Unpaired, UnpairedOperator


def plain(suspect: bool = False, **fields: Any) -> Rank:
    """Three agreeing events; ``suspect`` gives the second another argument and result."""
    rank = Rank(**fields)
    x = rank.op("mm", {"self": "p"}, {"0": "x"})
    mark = "'" if suspect else ""
    y = rank.op("gelu", {"self": x, "w": "w"}, {"0": "y" + mark}, args="1" + mark, step=1)
    rank.op("relu", {"self": y, "m": "m"}, {"0": "z" + mark}, step=1)
    return rank


def opened(**changes: Any) -> dict[str, Any]:
    return {**OPENING, **changes}


def closed(**changes: Any) -> dict[str, Any]:
    return {**CLOSING, **changes}


def compare(a: Rank, b: Rank, policy: Policy | None = None) -> Result:
    return api.compare(run_of(a), run_of(b), policy)


def verdict(result: Result) -> tuple[str, int, tuple[str, ...]]:
    return result.verdict, result.exit_code, result.reasons


def test_identical() -> None:
    result = compare(plain(), plain())
    assert verdict(result) == ("identical", 0, ("IDENTICAL",))
    assert result.reason_code == "IDENTICAL"


def test_pivot() -> None:
    result = compare(plain(), plain(suspect=True))
    assert verdict(result) == ("diverged", 1, ("PIVOT",))


def test_state_alone_diverges() -> None:
    ranks = plain(), plain()
    for rank, content in zip(ranks, "pq", strict=True):
        rank.state("net.w", content)
    result = compare(*ranks)
    assert verdict(result) == ("diverged", 1, ("STATE",))
    assert result.pivot is not None
    assert (result.pivot.op, result.pivot.module) == ("opguard.state", "net.w")
    assert "net.w" in result.reason


def test_pivot_and_state() -> None:
    ranks = plain(), plain(suspect=True)
    for rank, content in zip(ranks, "pq", strict=True):
        rank.state("net.w", content)
    assert compare(*ranks).reasons == ("PIVOT", "STATE")


def test_environment() -> None:
    facts = {"torch": "2.12.0"}
    other = plain(suspect=True, opening=opened(environment=facts))
    result = compare(plain(), other)
    assert verdict(result) == ("uncomparable", 3, ("ENVIRONMENT", "PIVOT"))
    assert result.environment.differs == ("torch",)
    assert result.pivot is not None  # the alignment is still shown
    allowed = compare(plain(), other, Policy(allow_environment=("torch",)))
    assert verdict(allowed) == ("diverged", 1, ("PIVOT",))


def test_mechanism_is_part_of_the_environment() -> None:
    result = compare(plain(), plain(opening=opened(mechanism="dispatch")))
    assert verdict(result) == ("uncomparable", 3, ("ENVIRONMENT",))
    assert result.environment.differs == ("mechanism",)
    allowed = Policy(allow_environment=("mechanism",))
    assert compare(plain(), plain(opening=opened(mechanism="dispatch")), allowed).exit_code == 0


def test_fingerprint_versions_cannot_be_allowed() -> None:
    other = plain(opening=opened(fingerprint_version=2))
    parts = ("torch", "mechanism", "numerics")
    assert compare(plain(), other, Policy(allow_environment=parts)).reasons == ("ENVIRONMENT",)


def test_numerics() -> None:
    other = plain(opening=opened(probe={"aten.mm.default": "01"}))
    result = compare(plain(), other)
    assert verdict(result) == ("uncomparable", 3, ("NUMERICS",))
    assert result.environment.baseline["numerics"] == {"aten.mm.default": "00"}
    assert compare(plain(), other, Policy(allow_environment=("numerics",))).exit_code == 0


def test_other_facts_are_only_shown() -> None:
    facts = {"torch": "2.13.0", "variables": {"OMP_NUM_THREADS": "4"}}
    result = compare(plain(), plain(opening=opened(environment=facts)))
    assert result.verdict == "identical"
    assert result.environment.differs == ("OMP_NUM_THREADS",)


def test_ranks_of_one_side_only() -> None:
    result = api.compare(run_of(plain()), run_of(plain(), plain(rank=1)))
    assert verdict(result) == ("uncomparable", 3, ("RANKS",))
    assert [rank.rank for rank in result.ranks] == [0]


def test_ranks_that_neither_side_has() -> None:
    result = api.compare(run_of(plain(), world_size=2), run_of(plain(), world_size=2))
    assert verdict(result) == ("inconclusive", 4, ("UNCAPTURED_RANK",))


@pytest.mark.parametrize("closing", [None, closed(interrupted=True)])
def test_partial(closing: dict[str, Any] | None) -> None:
    result = compare(plain(), plain(closing=closing))
    assert verdict(result) == ("inconclusive", 4, ("PARTIAL",))
    assert result.programs.candidate.partial_ranks == (0,)
    assert result.ranks[0].candidate_partial
    assert not result.ranks[0].baseline_partial


def test_a_pivot_in_a_partial_run_diverges() -> None:
    result = compare(plain(), plain(suspect=True, closing=None))
    assert verdict(result) == ("diverged", 1, ("PIVOT", "PARTIAL"))


def test_a_stopped_run_is_closed() -> None:
    result = compare(plain(), plain(closing=closed(stopped=True)))
    assert result.verdict == "identical"
    assert result.programs.candidate.stopped


def test_lost() -> None:
    result = compare(plain(closing=closed(coverage={"lost_events": 2})), plain())
    assert verdict(result) == ("inconclusive", 4, ("LOST",))
    assert result.coverage.lost_events == 2
    assert not result.certified_prefix.complete


def test_uncaptured_rank() -> None:
    result = compare(plain(), plain(closing=closed(coverage={"uncaptured_ranks": 1})))
    assert verdict(result) == ("inconclusive", 4, ("UNCAPTURED_RANK",))


def test_empty_runs_compare_nothing() -> None:
    result = compare(Rank(), Rank())
    assert verdict(result) == ("inconclusive", 4, ("NOTHING_COMPARED", "COVERAGE"))


def test_one_empty_run() -> None:
    result = compare(Rank(), plain())
    assert result.reasons == ("NOTHING_COMPARED", "COVERAGE", "TRAILING_GAP")


def test_nothing_with_a_fingerprint() -> None:
    ranks = Rank(), Rank()
    for rank in ranks:
        rank.op("mm", {"self": "p"}, {"0": Value("x", reason=Reason.CAPTURING)})
    assert compare(*ranks).reasons == ("NOTHING_COMPARED",)


def longer(count: int) -> Rank:
    rank = plain()
    for number in range(count):
        rank.op("exp", {"self": f"e{number}"}, {"0": f"ee{number}"})
    return rank


def test_coverage_and_trailing_gap() -> None:
    # 3 of 7 paired; what is unpaired stands at the end.
    assert compare(plain(), longer(4)).reasons == ("COVERAGE", "TRAILING_GAP")
    assert compare(longer(4), plain()).reasons == ("COVERAGE", "TRAILING_GAP")
    assert compare(plain(), longer(1)).reasons == ("TRAILING_GAP",)
    loose = Policy(floors=Floors(paired=0.4, trailing=0.6))
    assert compare(plain(), longer(4), loose).verdict == "identical"


def test_leading_gaps_are_no_trailing_gap() -> None:
    late = Rank()
    late.op("exp", {"self": "e"}, {"0": "ee"})
    x = late.op("mm", {"self": "p"}, {"0": "x"})
    y = late.op("gelu", {"self": x, "w": "w"}, {"0": "y"}, args="1", step=1)
    late.op("relu", {"self": y, "m": "m"}, {"0": "z"}, step=1)
    assert compare(plain(), late).verdict == "identical"
    strict = compare(plain(), late, Policy(strict_structure=True))
    assert verdict(strict) == ("inconclusive", 4, ("STRUCTURE",))


def test_unverified_write() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("randn", {"rng": "s"}, {"0": "x"})
        if suspect:
            rank.op("mul_", {"self": x}, {"self!": Value("y", producers=(x.index,))}, line=31)
        rank.op("mm", {"self": "p"}, {"0": "q"})
    result = compare(*ranks)
    assert verdict(result) == ("inconclusive", 4, ("UNVERIFIED_WRITE",))
    assert result.counts.unverified == 1
    assert any("mul_ at /home/me/train.py:31;" in note for note in result.notes)
    assert result.unpaired == Unpaired((), (UnpairedOperator("mul_", "Net.a", 1),))


def test_unpaired_state() -> None:
    ranks = plain(), plain()
    ranks[1].state("extra", "e")
    result = compare(*ranks)
    assert verdict(result) == ("inconclusive", 4, ("UNPAIRED_STATE",))
    assert result.final_state.unpaired_entries[0].candidate == "extra"
    assert compare(*ranks, Policy(allow_unpaired_state=True)).verdict == "identical"


def uninitialised(suspect: bool) -> Rank:
    rank = plain()
    mark = "'" if suspect else ""
    hole = rank.op("empty", {}, {"0": Value("u" + mark, void=True)})
    rank.op("add", {"self": hole, "other": "o"}, {"0": "sum" + mark})
    return rank


def test_uninitialised_alone_is_inconclusive() -> None:
    result = compare(uninitialised(False), uninitialised(True))
    assert verdict(result) == ("inconclusive", 4, ("UNINITIALISED",))
    assert result.pivot is not None
    assert result.pivot.class_name == "uninitialised"


def test_uninitialised_beside_another_root_diverges() -> None:
    ranks = uninitialised(False), uninitialised(True)
    for rank, content in zip(ranks, "pq", strict=True):
        rank.op("sort", {"self": "k"}, {"0": content})
    assert compare(*ranks).reasons == ("PIVOT",)


def test_unexplained_alone_is_inconclusive() -> None:
    ranks = plain(), plain()
    for rank, content in zip(ranks, "pq", strict=True):
        rank.op("sort", {"self": Value("k", reason=Reason.FREED)}, {"0": content})
    assert verdict(compare(*ranks)) == ("inconclusive", 4, ("UNEXPLAINED",))


def test_each_code_has_a_verdict_and_a_sentence() -> None:
    from opguard.report.reasons import sentence

    for code, asked in REASONS.items():
        judgement = judge([code])
        assert (judgement.verdict, judgement.reason_code) == (asked, code)
        assert sentence(code, None, ()).endswith(".")
    assert EXIT_CODES == {"identical": 0, "diverged": 1, "uncomparable": 3, "inconclusive": 4}


def test_the_deciding_code_comes_first() -> None:
    assert judge(["PARTIAL", "STATE", "PIVOT"]).reasons == ("PIVOT", "STATE", "PARTIAL")
    assert judge(["PIVOT", "NUMERICS"]).verdict == "uncomparable"
    assert judge([]).reasons == ("IDENTICAL",)


def test_pivot_across_ranks_is_the_earliest_step_then_event() -> None:
    def run(first: int | None, second: int | None):  # type: ignore[no-untyped-def]
        ranks = Rank(rank=0), Rank(rank=1)
        for rank, wrong in zip(ranks, (first, second), strict=True):
            for number in range(6):
                mark = "'" if number == wrong else ""
                rank.op("mm", {"self": f"p{number}"}, {"0": f"x{number}{mark}"}, step=number // 3)
        return run_of(*ranks)

    good = run(None, None)
    for first, second, expected in ((4, 3, (1, 3)), (3, 3, (0, 3)), (4, 1, (1, 1)), (2, 3, (0, 2))):
        pivot = api.compare(good, run(first, second)).pivot
        assert pivot is not None
        assert pivot.candidate is not None
        assert (pivot.rank, pivot.candidate.seq) == expected
    result = api.compare(good, run(None, 3))
    assert [(rank.rank, rank.verdict) for rank in result.ranks] == [
        (0, "identical"),
        (1, "diverged"),
    ]
    assert result.certified_prefix.pairs == 3


def test_two_equal_ranks() -> None:
    result = api.compare(run_of(plain(), plain(rank=1)), run_of(plain(), plain(rank=1)))
    assert result.verdict == "identical"
    assert result.counts.paired == 6
    assert result.certified_prefix.pairs == 6


def test_operators_come_before_final_state_across_ranks() -> None:
    runs = []
    for suspect in (False, True):
        ranks = plain(), plain(suspect=suspect, rank=1)
        ranks[0].state("net.w", "w" + "'" * suspect)
        runs.append(run_of(*ranks))
    result = api.compare(*runs)
    assert result.pivot is not None
    assert (result.pivot.op, result.pivot.rank) == ("gelu", 1)
    assert result.reasons == ("PIVOT", "STATE")


def test_state_that_could_not_be_read_hides_nothing() -> None:
    ranks = plain(), plain()
    for rank, content in zip(ranks, "pq", strict=True):
        rank.state("table", Value(content, reason=Reason.UNSUPPORTED))
    result = compare(*ranks)
    assert verdict(result) == ("inconclusive", 4, ("LOST",))
    entry = result.final_state.not_compared_entries[0]
    assert (entry.candidate, entry.why) == ("table", "could not be read")
    assert compare(*ranks, Policy(allow_unpaired_state=True)).verdict == "identical"


def test_state_that_nothing_wrote_does_not_matter() -> None:
    ranks = plain(), plain()
    for rank, content in zip(ranks, "pq", strict=True):
        rank.state("hole", Value(content, void=True))
    result = compare(*ranks)
    assert verdict(result) == ("identical", 0, ("IDENTICAL",))
    assert result.final_state.not_compared == 1
