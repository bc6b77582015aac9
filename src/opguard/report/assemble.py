"""Puts the result of a comparison together from its parts."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from opguard.gate import (
    Judgement,
    environment_difference,
    first_pivot,
    first_rank,
)
from opguard.model import Certificate, EventFlag, RankEvents, Run
from opguard.report.event_reader import EventReader
from opguard.report.findings import Findings
from opguard.report.reasons import sentence
from opguard.report.result import (
    AgreeingPair,
    CertifiedPrefix,
    Commands,
    Counts,
    Coverage,
    Environment,
    FinalState,
    Finding,
    Program,
    Programs,
    RankOutcome,
    Result,
    SideTexts,
    StateName,
    Unpaired,
    UnpairedOperator,
)
from opguard.report.scope import notes_on_runs, restrictions
from opguard.store.environment_key import flat_facts, key_parts

MOST_NAMES: Final = 20
MOST_WRITES: Final = 3


def assemble(
    baseline: Run,
    candidate: Run,
    certificates: Mapping[int, Certificate],
    judgement: Judgement,
    ranks: Mapping[int, Judgement],
    policy_path: str | None = None,
) -> Result:
    """The result of comparing two runs, one certificate and judgement a common rank."""
    findings = {
        rank: Findings(baseline.ranks[rank], candidate.ranks[rank], certificate)
        for rank, certificate in certificates.items()
    }
    pivot: Finding | None = None
    before: tuple[AgreeingPair, ...] = ()
    found = first_pivot(candidate, certificates)
    if found is not None:
        rank, root = found
        pivot = findings[rank].finding(root)
        before = findings[rank].agreed_before(root)
    environment = _environment(baseline, candidate)
    counts = _counts(certificates)
    restricted = restrictions(baseline, candidate, counts.ignored)
    reason = sentence(judgement.reason_code, pivot, environment.differs)
    return Result(
        verdict=judgement.verdict,
        exit_code=judgement.exit_code,
        reason_code=judgement.reason_code,
        reasons=judgement.reasons,
        reason=" ".join((reason, *restricted)),
        restrictions=restricted,
        mechanism=SideTexts(_mechanism(baseline), _mechanism(candidate)),
        pivot=pivot,
        roots=tuple(
            findings[rank].finding(root)
            for rank, certificate in sorted(certificates.items())
            for root in certificate.roots
        ),
        certified_prefix=_prefix(certificates, pivot),
        counts=counts,
        final_state=_final_state(baseline, candidate, certificates),
        coverage=_coverage([*baseline.ranks.values(), *candidate.ranks.values()]),
        ranks=tuple(
            RankOutcome(
                rank,
                outcome.verdict,
                outcome.reason_code,
                baseline.ranks[rank].partial,
                candidate.ranks[rank].partial,
            )
            for rank, outcome in sorted(ranks.items())
        ),
        environment=environment,
        commands=Commands(reproduce=_command(baseline, candidate, policy_path)),
        agreed_before=before,
        programs=Programs(_program(baseline), _program(candidate)),
        unpaired=_unpaired([found for _, found in sorted(findings.items())]),
        notes=(*notes_on_runs(baseline, candidate), *_notes(certificates, findings)),
    )


def _mechanism(run: Run) -> str:
    return str(first_rank(run).opening.get("mechanism", ""))


def _command(baseline: Run, candidate: Run, policy_path: str | None) -> str:
    policy = ["--policy", policy_path] if policy_path else []
    return shlex.join(["opguard", "compare", baseline.path, candidate.path, *policy])


def _prefix(certificates: Mapping[int, Certificate], pivot: Finding | None) -> CertifiedPrefix:
    chosen = [c for c in certificates.values() if pivot is None or c.rank == pivot.rank]
    return CertifiedPrefix(
        sum(certificate.prefix_pairs for certificate in chosen),
        bool(chosen) and all(certificate.prefix_complete for certificate in chosen),
    )


def _counts(certificates: Mapping[int, Certificate]) -> Counts:
    total: Counter[str] = Counter()
    for certificate in certificates.values():
        counts, paired = certificate.counts, len(certificate.alignment.baseline)
        total.update({name: counts[name] for name in counts if name != "unfingerprinted"})
        total["paired"] += paired
        total["baseline_events"] += paired + counts["gaps_baseline"]
        total["candidate_events"] += paired + counts["gaps_candidate"]
        total["unverified"] += len(certificate.unverified)
    return Counts(**total)


def _final_state(
    baseline: Run, candidate: Run, certificates: Mapping[int, Certificate]
) -> FinalState:
    ranks = sorted(certificates)
    states = [certificates[rank].state for rank in ranks]

    def names(field: str) -> tuple[StateName, ...]:
        entries = [
            StateName(
                rank,
                _entry_name(baseline.ranks[rank], entry.baseline_seq),
                _entry_name(candidate.ranks[rank], entry.candidate_seq),
                entry.why,
            )
            for rank, state in zip(ranks, states, strict=True)
            for entry in getattr(state, field)[:MOST_NAMES]
        ]
        return tuple(entries[:MOST_NAMES])

    return FinalState(
        compared=sum(state.compared for state in states),
        differing=sum(len(state.differing) for state in states),
        unpaired=sum(len(state.unpaired) for state in states),
        not_compared=sum(len(state.not_compared) for state in states),
        differing_entries=names("differing"),
        unpaired_entries=names("unpaired"),
        not_compared_entries=names("not_compared"),
    )


def _entry_name(run: RankEvents, seq: int) -> str:
    return run.boundaries[run.boundary[seq]].module if seq >= 0 else ""


def _coverage(ranks: Sequence[RankEvents]) -> Coverage:
    parts: list[Mapping[str, Any]] = [(r.closing or {}).get("coverage") or {} for r in ranks]
    unfingerprinted: Counter[str] = Counter()
    for part in parts:
        unfingerprinted.update(part.get("unfingerprinted") or {})

    def total(name: str) -> int:
        return sum(int(part.get(name) or 0) for part in parts)

    return Coverage(
        unfingerprinted=dict(unfingerprinted),
        opaque_regions=tuple(
            sorted({name for part in parts for name in part.get("opaque_regions") or ()})
        ),
        foreign_values=total("foreign_values"),
        lost_events=total("lost_events"),
        uncaptured_processes=total("uncaptured_processes"),
        uncaptured_ranks=total("uncaptured_ranks"),
        unarmed_threads=total("unarmed_threads"),
    )


def _environment(baseline: Run, candidate: Run) -> Environment:
    difference = environment_difference(baseline, candidate)
    numerics = ("numerics",) if difference.probe else ()
    return Environment(
        baseline=_facts(baseline, difference.probe),
        candidate=_facts(candidate, difference.probe),
        differs=difference.key + numerics + difference.facts,
    )


def _facts(run: Run, probe: tuple[str, ...]) -> dict[str, Any]:
    """Facts, parts of the environment key, and the probed operators that differ."""
    opening = first_rank(run).opening
    facts = opening.get("environment") or {}
    shown = {**key_parts(facts, str(opening.get("mechanism"))), **flat_facts(facts)}
    if probe:
        shown["numerics"] = {name: (opening.get("probe") or {}).get(name) for name in probe}
    return shown


def _program(run: Run) -> Program:
    first = first_rank(run)
    endings = [events.closing or {} for _, events in sorted(run.ranks.items())]
    exit_code = endings[0].get("exit_code")
    steps = (first.opening.get("settings") or {}).get("steps")
    return Program(
        path=run.path,
        run_id=run.run_id,
        command=tuple(map(str, first.opening.get("command") or ())),
        mode=str(first.opening.get("mode", "")),
        steps=(int(steps[0]), int(steps[1])) if steps else None,
        world_size=run.world_size,
        partial_ranks=tuple(rank for rank, events in sorted(run.ranks.items()) if events.partial),
        unclosed_ranks=tuple(
            rank for rank, events in sorted(run.ranks.items()) if events.closing is None
        ),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        exception=next((e["exception"] for e in endings if e.get("exception")), None),
        interrupted=any(e.get("interrupted") for e in endings),
        stopped=bool(endings[0].get("stopped")),
        problems=tuple(problem for events in run.ranks.values() for problem in events.problems),
    )


def _unpaired(ranks: Sequence[Findings]) -> Unpaired:
    return Unpaired(
        _unpaired_of([rank.baseline for rank in ranks]),
        _unpaired_of([rank.candidate for rank in ranks]),
    )


def _unpaired_of(ranks: Sequence[EventReader]) -> tuple[UnpairedOperator, ...]:
    """Operator calls without counterpart, by operator and module."""
    found: Counter[tuple[str, str]] = Counter()
    for reader in ranks:
        run = reader.run
        alone = np.flatnonzero(~reader.paired & ((run.flags & EventFlag.STATE) == 0))
        numbers, first, counts = np.unique(
            run.boundary[alone], return_index=True, return_counts=True
        )
        for at in np.argsort(first).tolist():
            boundary = run.boundaries[numbers[at]]
            found[boundary.operator, boundary.module] += int(counts[at])
    return tuple(
        UnpairedOperator(op, module, count)
        for (op, module), count in islice(found.items(), MOST_NAMES)
    )


def _notes(
    certificates: Mapping[int, Certificate], findings: Mapping[int, Findings]
) -> tuple[str, ...]:
    notes: list[str] = []
    for rank, certificate in sorted(certificates.items()):
        said = [*certificate.alignment.notes]
        writes: Counter[str] = Counter()
        for side, seq in certificate.unverified:
            reader = getattr(findings[rank], side)
            place = reader.place(seq)
            where = f" at {place.file}:{place.line}" if place.file else ""
            writes[f"only the {side} has {reader.boundary(seq).operator}{where}"] += 1
        for write, count in islice(writes.items(), MOST_WRITES):
            times = f" ({count:,} times)" if count > 1 else ""
            said.append(f"{write}{times}; what it wrote was never verified")
        prefix = f"rank {rank}: " if len(certificates) > 1 else ""
        notes.extend(prefix + note for note in said)
    return tuple(notes)
