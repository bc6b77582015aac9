"""Certificates and policy to verdict and exit code (DESIGN section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from opguard.model import Certificate, RankEvents, Root, Run, Status
from opguard.policy import Policy
from opguard.store.environment_key import EnvironmentDifference, compare_environments

Verdict: TypeAlias = Literal["identical", "diverged", "uncomparable", "inconclusive"]

EXIT_CODES: Final[Mapping[Verdict, int]] = {
    "identical": 0,
    "diverged": 1,
    "uncomparable": 3,
    "inconclusive": 4,
}
REASONS: Final[Mapping[str, Verdict]] = {
    "NO_BASELINE": "uncomparable",
    "ENVIRONMENT": "uncomparable",
    "NUMERICS": "uncomparable",
    "RANKS": "uncomparable",
    "PIVOT": "diverged",
    "STATE": "diverged",
    "PARTIAL": "inconclusive",
    "LOST": "inconclusive",
    "NOTHING_COMPARED": "inconclusive",
    "COVERAGE": "inconclusive",
    "TRAILING_GAP": "inconclusive",
    "UNVERIFIED_WRITE": "inconclusive",
    "UNPAIRED_STATE": "inconclusive",
    "UNCAPTURED_RANK": "inconclusive",
    "UNINITIALISED": "inconclusive",
    "UNEXPLAINED": "inconclusive",
    "STRUCTURE": "inconclusive",
    "BASELINE_NOT_DETERMINISTIC": "inconclusive",
    "NOT_DETERMINISTIC": "diverged",
}
"""Reason codes and the verdict that each asks for; the first that applies decides."""

_SOFT: Final = {"uninitialised": "UNINITIALISED", "unexplained": "UNEXPLAINED"}
"""Classes that alone prove no divergence."""


@dataclass(frozen=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """All codes that apply, the deciding one first; ``("IDENTICAL",)`` if none does."""

    @property
    def exit_code(self) -> int:
        """What the command line returns."""
        return EXIT_CODES[self.verdict]

    @property
    def reason_code(self) -> str:
        """The deciding code."""
        return self.reasons[0]


def judge(codes: Iterable[str]) -> Judgement:
    """Verdict of the reason codes that apply."""
    found = set(codes)
    reasons = tuple(code for code in REASONS if code in found)
    if not reasons:
        return Judgement("identical", ("IDENTICAL",))
    return Judgement(REASONS[reasons[0]], reasons)


def judge_runs(
    baseline: Run, candidate: Run, certificates: Mapping[int, Certificate], policy: Policy
) -> tuple[Judgement, Mapping[int, Judgement]]:
    """Verdict on two runs, and on each rank that both have."""
    ranks = {
        rank: tuple(rank_reasons(certificate, baseline.ranks[rank], candidate.ranks[rank], policy))
        for rank, certificate in certificates.items()
    }
    codes = {code for found in ranks.values() for code in found}
    codes.update(_run_reasons(baseline, candidate, policy))
    return judge(codes), {rank: judge(found) for rank, found in ranks.items()}


def environment_difference(baseline: Run, candidate: Run) -> EnvironmentDifference:
    """Where the first ranks of two runs differ."""
    return compare_environments(first_rank(baseline).opening, first_rank(candidate).opening)


def first_rank(run: Run) -> RankEvents:
    """The lowest rank of a run."""
    return run.ranks[min(run.ranks)]


def _run_reasons(baseline: Run, candidate: Run, policy: Policy) -> Iterator[str]:
    difference = environment_difference(baseline, candidate)
    versions = {first_rank(run).opening.get("fingerprint_version") for run in (baseline, candidate)}
    if set(difference.key) - set(policy.allow_environment) or len(versions) > 1:
        yield "ENVIRONMENT"
    if difference.probe and "numerics" not in policy.allow_environment:
        yield "NUMERICS"
    if baseline.world_size != candidate.world_size or set(baseline.ranks) != set(candidate.ranks):
        yield "RANKS"
    elif len(baseline.ranks) < baseline.world_size:
        yield "UNCAPTURED_RANK"
    for run in (baseline, candidate):
        for rank in run.ranks.values():
            yield from _capture_reasons(rank)


def _capture_reasons(rank: RankEvents) -> Iterator[str]:
    coverage = (rank.closing or {}).get("coverage") or {}
    if rank.partial:
        yield "PARTIAL"
    if coverage.get("lost_events"):
        yield "LOST"
    if coverage.get("uncaptured_ranks"):
        yield "UNCAPTURED_RANK"


def rank_reasons(
    certificate: Certificate, baseline: RankEvents, candidate: RankEvents, policy: Policy
) -> Iterator[str]:
    """Reason codes of one rank."""
    yield from _capture_reasons(baseline)
    yield from _capture_reasons(candidate)
    yield from _divergence_reasons(certificate)
    state, counts = certificate.state, certificate.counts
    if not counts["agreeing"] and not state.compared:
        yield "NOTHING_COMPARED"
    if min(certificate.paired_share) < policy.floors.paired:
        yield "COVERAGE"
    if max(certificate.trailing_share) > policy.floors.trailing:
        yield "TRAILING_GAP"
    if certificate.unverified:
        yield "UNVERIFIED_WRITE"
    if state.unpaired and not policy.allow_unpaired_state:
        yield "UNPAIRED_STATE"
    if state.unread and not policy.allow_unpaired_state:
        yield "LOST"
    if policy.strict_structure and counts["gaps_baseline"] + counts["gaps_candidate"]:
        yield "STRUCTURE"


def _divergence_reasons(certificate: Certificate) -> Iterator[str]:
    """Roots of soft classes decide only where there are no others."""
    hard = [root for root in certificate.roots if root.class_name not in _SOFT]
    if not hard:
        for root in certificate.roots:
            yield _SOFT[root.class_name]
        return
    if (certificate.status == Status.DISAGREES).any():
        yield "PIVOT"
    if certificate.state.differing:
        yield "STATE"


def first_pivot(candidate: Run, certificates: Mapping[int, Certificate]) -> tuple[int, Root] | None:
    """Rank and pivot of the whole comparison.

    Operators before final-state entries; then the earliest step, the smallest event number
    within the step, the lowest rank.
    """
    found = []
    for rank, certificate in certificates.items():
        root = certificate.pivot
        if root is not None:
            events = candidate.ranks[rank]
            step = int(events.step[root.candidate_seq])
            first = int(np.argmax(events.step == step))
            in_state = not (certificate.status == Status.DISAGREES).any()
            found.append(((in_state, step, root.candidate_seq - first, rank), root))
    if not found:
        return None
    (_, _, _, rank), root = min(found, key=lambda item: item[0])
    return rank, root
