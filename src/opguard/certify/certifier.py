"""Pairs to certificate: status and class of every pair, roots, prefix, final state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from opguard.certify.classes import (
    CODE,
    Flows,
    Partners,
    classify,
    number_pairs,
    settle_inputs,
)
from opguard.certify.final_state import RANDOM_PREFIX, StatePairs, pair_state
from opguard.certify.flow import SideFlow, side_flow
from opguard.certify.joined import Joined, Outcome, Pairs, join_records, take
from opguard.certify.roots import find_roots
from opguard.certify.tolerated import reached_from
from opguard.certify.writes import reordered_pairs, unverified_writes
from opguard.columns import Side, Sides
from opguard.model import (
    I64,
    U8,
    Alignment,
    Bools,
    Certificate,
    StateComparison,
    StateEntry,
    Status,
)
from opguard.policy import IgnoreRule, Policy


def certify(sides: Sides, alignment: Alignment, policy: Policy) -> Certificate:
    """What ``alignment`` establishes for one rank."""
    work = _compare(sides, alignment, policy.ignore)
    count = len(alignment.baseline)
    status = work.status[:count]
    disagreeing = work.status == Status.DISAGREES
    roots = find_roots(sides, work.pairs, work.joined, work.classes, disagreeing)
    first = np.flatnonzero(status == Status.DISAGREES)
    prefix = int(first[0]) if len(first) else count
    agreeing = work.status == Status.AGREES
    return Certificate(
        rank=sides.candidate.run.rank,
        alignment=alignment,
        status=status,
        classes=work.classes[:count],
        pivot=roots[0] if roots else None,
        roots=roots,
        prefix_pairs=prefix,
        prefix_complete=_complete(sides, work.joined, prefix),
        state=_state_comparison(sides, work, count),
        unverified=tuple(
            (flow_name, int(seq))
            for flow_name in ("baseline", "candidate")
            for seq in _unverified(sides, getattr(work.flows, flow_name), agreeing, policy.ignore)
        ),
        paired_share=(
            _paired_share(sides.baseline, alignment.baseline),
            _paired_share(sides.candidate, alignment.candidate),
        ),
        trailing_share=(
            _trailing_share(sides.baseline, alignment.baseline),
            _trailing_share(sides.candidate, alignment.candidate),
        ),
        counts=_counts(sides, alignment, work),
    )


@dataclass(frozen=True)
class _Work:
    """Everything known of the pairs: P of operators, then those of the final state."""

    pairs: Pairs
    joined: Joined
    flows: Flows
    status: U8
    classes: U8
    state: StatePairs
    never_seeded: Bools
    """(P,) generators that differed before the program began and still do."""


def _compare(sides: Sides, alignment: Alignment, rules: tuple[IgnoreRule, ...]) -> _Work:
    operators = Pairs(alignment.baseline, alignment.candidate)
    joined = join_records(sides, operators)
    partners = Partners.of(sides, joined)
    state = pair_state(sides, partners)
    pairs = Pairs(
        np.concatenate([operators.baseline, state.baseline]),
        np.concatenate([operators.candidate, state.candidate]),
    )
    entries = join_records(sides, Pairs(state.baseline, state.candidate))
    random, never_seeded = _random_entries(sides, pairs)
    entries = replace(entries, pair=entries.pair + len(operators.baseline))
    entries.outcome[never_seeded[entries.pair]] = Outcome.UNKNOWN
    # An entry is compared like an output, and explained like something that was read.
    yes = np.ones(len(entries.pair), np.bool_)
    joined = joined + replace(entries, output=yes) + replace(entries, output=~yes)
    reordered = reordered_pairs(sides, pairs, len(operators.baseline))
    _mark_reordered(sides, joined, reordered)
    _apply_rules(sides, pairs, joined, rules)
    flows = Flows(
        side_flow("baseline", sides, pairs, joined), side_flow("candidate", sides, pairs, joined)
    )
    joined = settle_inputs(sides, joined, flows, partners)
    status = _status(sides, pairs, joined)
    disagreeing = status == Status.DISAGREES
    classes = classify(sides, pairs, joined, flows, partners, disagreeing, reordered)
    classes[random & disagreeing] = CODE["random"]
    _tolerate(sides, pairs, joined, flows, status, classes)
    return _Work(pairs, joined, flows, status, classes, state, never_seeded)


def _some(joined: Joined, mask: Bools, count: int) -> Bools:
    """(count,) pairs with a row in ``mask``."""
    found: Bools = np.bincount(joined.pair[mask], minlength=count) > 0
    return found


def _status(sides: Sides, pairs: Pairs, joined: Joined) -> U8:
    count = len(pairs.baseline)
    status = np.full(count, Status.NOT_COMPARED, np.uint8)
    outputs = joined.output
    status[_some(joined, outputs & (joined.outcome == Outcome.EQUAL), count)] = Status.AGREES
    status[_some(joined, outputs & (joined.outcome == Outcome.IGNORED), count)] = Status.IGNORED
    status[_some(joined, outputs & (joined.outcome == Outcome.DIFFERS), count)] = Status.DISAGREES
    raised = sides.baseline.raised[pairs.baseline] != sides.candidate.raised[pairs.candidate]
    status[raised] = Status.DISAGREES
    return status


def _random_entries(sides: Sides, pairs: Pairs) -> tuple[Bools, Bools]:
    """(P,) pairs of generator states, and which of them differ without the program's doing.

    Those started differently, or nobody knows how, and neither program gave them a seed.
    """
    random = np.zeros(len(pairs.baseline), np.bool_)
    never_seeded = random.copy()
    a, b = sides.baseline, sides.candidate
    at_entry = a.run.opening.get("rng") or {}, b.run.opening.get("rng") or {}
    seeded = {name for side in (a, b) for name in (side.run.closing or {}).get("seeded") or ()}
    for pair in np.flatnonzero(b.state[pairs.candidate]).tolist():
        name = sides.modules[b.module[pairs.candidate[pair]]]
        if name.startswith(RANDOM_PREFIX):
            random[pair] = True
            before = at_entry[0].get(name), at_entry[1].get(name)
            now = (
                a.run.mix64[a.run.first_record[pairs.baseline[pair]]],
                b.run.mix64[b.run.first_record[pairs.candidate[pair]]],
            )
            same_before = before[0] is not None and before[0] == before[1]
            never_seeded[pair] = now[0] != now[1] and not same_before and name not in seeded
    return random, never_seeded


def _mark_reordered(sides: Sides, joined: Joined, reordered: Bools) -> None:
    """What reordered pairs wrote differs, whatever bytes each write left."""
    rows = np.flatnonzero(joined.output & reordered[joined.pair] & (joined.candidate >= 0))
    written = rows[sides.candidate.in_place[joined.candidate[rows]]]
    joined.outcome[written] = Outcome.DIFFERS


def _apply_rules(sides: Sides, pairs: Pairs, joined: Joined, rules: tuple[IgnoreRule, ...]) -> None:
    """Differences that a rule covers become ignored."""
    if not rules:
        return
    a, b = sides.baseline, sides.candidate
    rows = np.flatnonzero(joined.output & (joined.outcome == Outcome.DIFFERS))
    events = pairs.candidate[joined.pair[rows]]
    left, right = joined.baseline[rows], joined.candidate[rows]
    slots = np.where(right >= 0, take(b.slot, right), take(a.slot, left))
    kinds = np.stack([b.operator[events], b.module[events], slots], axis=1)
    distinct, kind = np.unique(kinds, axis=0, return_inverse=True)
    hit = [
        any(
            rule.hits(sides.operators[op], sides.modules[module], sides.slots[slot])
            for rule in rules
        )
        for op, module, slot in distinct.tolist()
    ]
    joined.outcome[rows[np.array(hit, np.bool_)[kind.ravel()]]] = Outcome.IGNORED


def _unverified(
    sides: Sides, flow: SideFlow, agreeing: Bools, rules: tuple[IgnoreRule, ...]
) -> I64:
    """Gap events whose writes nothing verified, but for those that a rule covers."""
    side = flow.side
    found = unverified_writes(flow, agreeing)

    def covered(event: int) -> bool:
        first, end = side.run.first_record[event : event + 2]
        op, module = sides.operators[side.operator[event]], sides.modules[side.module[event]]
        return all(
            any(rule.hits(op, module, sides.slots[side.slot[record]]) for rule in rules)
            for record in range(first, end)
            if side.in_place[record] and side.output[record]
        )

    return np.array([event for event in found.tolist() if not (rules and covered(event))], np.int64)


def _tolerate(
    sides: Sides, pairs: Pairs, joined: Joined, flows: Flows, status: U8, classes: U8
) -> None:
    """Ignored pairs, and what flows from them alone, get class and status of what is hidden."""
    ignored = status == Status.IGNORED
    if not ignored.any():
        return
    a, b = sides.baseline, sides.candidate
    numbers = number_pairs(sides, joined, len(status))
    carried = (status == Status.DISAGREES) & (classes == CODE["propagated"])
    by_number = carried & (a.arguments[pairs.baseline] != b.arguments[pairs.candidate])
    both = flows.baseline, flows.candidate
    real = reached_from((status == Status.DISAGREES) & ~carried, both, numbers, by_number)
    hidden = reached_from(ignored, both, numbers, by_number)
    tolerated = ignored | (carried & hidden & ~real)
    status[tolerated] = Status.IGNORED
    classes[tolerated] = CODE["tolerated"]


def _state_comparison(sides: Sides, work: _Work, operators: int) -> StateComparison:
    def entries(mask: Bools, why: str = "") -> tuple[StateEntry, ...]:
        chosen = operators + np.flatnonzero(mask[operators:])
        return tuple(
            StateEntry(
                sides.modules[sides.candidate.module[work.pairs.candidate[pair]]],
                int(work.pairs.baseline[pair]),
                int(work.pairs.candidate[pair]),
                why,
            )
            for pair in chosen
        )

    compared = (work.status[operators:] != Status.NOT_COMPARED).sum()
    unwritten, unread = _unread(sides, work)
    return StateComparison(
        compared=int(compared),
        differing=entries(work.status == Status.DISAGREES),
        unpaired=work.state.unpaired,
        not_compared=entries(unread, "could not be read")
        + entries(unwritten, "memory that nothing wrote")
        + entries(work.never_seeded, "never seeded, and different from the start")
        + work.state.lone_random,
        unread=int(unread[operators:].sum()),
    )


def _unread(sides: Sides, work: _Work) -> tuple[Bools, Bools]:
    """(P,) pairs with a record that nothing wrote on either side; pairs with another unknown one.

    The latter may hide a difference.
    """
    joined, count = work.joined, len(work.status)
    unknown = joined.output & (joined.outcome == Outcome.UNKNOWN)
    unknown &= ~work.never_seeded[joined.pair]
    unwritten = joined.matched & take(sides.baseline.void, joined.baseline)
    unwritten &= take(sides.candidate.void, joined.candidate)
    unread = _some(joined, unknown & ~unwritten, count)
    return _some(joined, unknown & unwritten, count) & ~unread, unread


def _complete(sides: Sides, joined: Joined, prefix: int) -> bool:
    """Nothing was lost, and every record of the prefix has a fingerprint."""
    rows = np.flatnonzero(joined.pair < prefix)
    for side, records in (
        (sides.baseline, joined.baseline[rows]),
        (sides.candidate, joined.candidate[rows]),
    ):
        if not side.present[records[records >= 0]].all() or lost_events(side):
            return False
    return True


def lost_events(side: Side) -> int:
    """Events that capture had to drop."""
    coverage = (side.run.closing or {}).get("coverage") or {}
    return int(coverage.get("lost_events") or 0)


def _paired_share(side: Side, paired: I64) -> float:
    total = int((~side.state).sum())
    return len(paired) / total if total else 0.0


def _trailing_share(side: Side, paired: I64) -> float:
    """Share of the events after the last paired one that did more than return numbers."""
    own = ~side.state
    total = int(own.sum())
    if not total:
        return 0.0
    last = int(paired.max()) if len(paired) else -1
    weighty = side.count_per_event(side.output & (side.in_place | ~side.number)) > 0
    return int((own & weighty)[last + 1 :].sum()) / total


def _counts(sides: Sides, alignment: Alignment, work: _Work) -> dict[str, int]:
    count = len(alignment.baseline)
    status, joined = work.status[:count], work.joined
    a, b = sides.baseline, sides.candidate
    pairs = work.pairs
    inputs = ~joined.output & (joined.outcome == Outcome.DIFFERS)
    explained = _some(joined, inputs, len(work.status))[:count]
    explained |= a.arguments[alignment.baseline] != b.arguments[alignment.candidate]
    explained &= a.operator[pairs.baseline[:count]] == b.operator[pairs.candidate[:count]]
    void = _some(joined, joined.output & joined.void, len(work.status))[:count]
    return {
        "agreeing": int((status == Status.AGREES).sum()),
        "moved": int(alignment.moved.sum()),
        "void": int(void.sum()),
        "gaps_baseline": int((~a.state).sum()) - count,
        "gaps_candidate": int((~b.state).sum()) - count,
        "ignored": int((work.status == Status.IGNORED).sum()),
        "differing_inputs": int((explained & (status == Status.AGREES)).sum()),
        "not_compared": int((status == Status.NOT_COMPARED).sum()),
        "unfingerprinted": int((~a.present).sum() + (~b.present).sum()),
    }
