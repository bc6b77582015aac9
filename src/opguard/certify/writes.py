"""Written storages: writes in another order, and writes of one side that nothing verified."""

from __future__ import annotations

import numpy as np

from opguard.certify.flow import SideFlow, reads
from opguard.certify.joined import Pairs, producer_rows
from opguard.columns import Side, Sides
from opguard.model import I64, Bools


def reordered_pairs(sides: Sides, pairs: Pairs, operators: int) -> Bools:
    """(P,) pairs that write over another pair's write in one run, and under it in the other.

    Of the two, the later one in the candidate. ``operators``: the pairs before the final state.
    Pairs of equal content may be exchanged for one another (two buffers filled with zeros), so an
    order counts only where both runs wrote to one and the same storage.
    """
    flagged = np.zeros(len(pairs.baseline), np.bool_)
    places = {"baseline": pairs.baseline, "candidate": pairs.candidate}
    for name, other in (("baseline", "candidate"), ("candidate", "baseline")):
        side: Side = getattr(sides, name)
        pair = pairs.of_event(name, side.run.event_count)
        writes = np.flatnonzero(side.in_place & side.output)
        under, rows = producer_rows(side, writes)
        over = writes[rows]
        later, earlier = pair[side.record_event[over]], pair[side.record_event[under]]
        crossed = side.in_place[under] & (later >= 0) & (earlier >= 0) & (later != earlier)
        crossed &= (later < operators) & (earlier < operators)
        crossed[crossed] = places[other][earlier[crossed]] > places[other][later[crossed]]
        if crossed.any():
            there: Side = getattr(sides, other)
            groups = storage_groups(there)
            for one, two in zip(later[crossed].tolist(), earlier[crossed].tolist(), strict=True):
                if _share_storage(there, groups, places[other][[one, two]]):
                    flagged[max(one, two)] = True
    return flagged


def _share_storage(side: Side, groups: I64, events: I64) -> bool:
    written = [
        groups[start:end][side.in_place[start:end]]
        for start, end in zip(
            side.run.first_record[events], side.run.first_record[events + 1], strict=True
        )
    ]
    return bool(np.isin(written[0], written[1]).any())


def storage_groups(side: Side) -> I64:
    """(R,) a record that stands for the storage: where known, the output that created it.

    A read belongs to the storage of its producers, a written argument to that of the records it
    wrote over and of the same argument as an input.
    """
    run = side.run
    group = np.arange(run.record_count)
    linked = ~side.output | side.in_place | side.state[side.record_event]
    counts = np.diff(run.first_producer)
    first = np.flatnonzero(linked & (counts > 0))
    group[first] = run.producers[run.first_producer[first]]
    group = _follow(group)
    producers, rows = producer_rows(side, np.flatnonzero(linked & (counts > 1)))
    readers = np.flatnonzero(linked & (counts > 1))[rows]
    inputs, outputs = _written_arguments(side)
    one = np.concatenate([group[readers], group[inputs]])
    two = np.concatenate([group[producers], group[outputs]])
    apart = one != two
    for left, right in zip(one[apart].tolist(), two[apart].tolist(), strict=True):
        low, high = sorted((_root(group, left), _root(group, right)))
        group[high] = low
    return _follow(group)


def _follow(group: I64) -> I64:
    """Pointer jumping: every record to the end of its chain."""
    while True:
        ahead = group[group]
        if np.array_equal(ahead, group):
            return group
        group = ahead


def _root(group: I64, record: int) -> int:
    while group[record] != record:
        record = int(group[record])
    return record


def _written_arguments(side: Side) -> tuple[I64, I64]:
    """Input and output records of arguments that an operator both reads and writes."""
    names = side.run.strings.values("slot")
    ids = {name: number for number, name in enumerate(names)}
    plain = np.array([ids.get(name.removesuffix("!"), -1) for name in names], np.int64)
    plain = np.append(plain, -1)
    outputs = np.flatnonzero(side.in_place & side.output)
    wanted = side.record_event[outputs] * len(plain) + plain[side.run.slot[outputs]]
    inputs = np.flatnonzero(~side.output)
    have = side.record_event[inputs] * len(plain) + side.run.slot[inputs]
    order = np.argsort(have, kind="stable")
    at = np.searchsorted(have[order], wanted)
    at[at == len(have)] = 0
    found = have[order][at] == wanted if len(have) else np.zeros(len(wanted), np.bool_)
    return inputs[order[at[found]]], outputs[found]


def unverified_writes(flow: SideFlow, agreeing: Bools) -> I64:
    """Gap events that wrote into a storage of paired events and that no agreeing pair read after.

    ``agreeing`` (P,) includes the final state. A storage of unknown origin counts as touched.
    """
    side = flow.side
    own = flow.gap & ~side.state
    written = np.flatnonzero(side.in_place & side.output & own[side.record_event])
    if not len(written):
        return np.empty(0, np.int64)
    groups = storage_groups(side)
    created = side.output[groups] & ~side.in_place[groups]
    touched = np.zeros(len(groups), np.bool_)
    touched[groups[~flow.gap[side.record_event]]] = True
    last_read = np.full(len(groups), -1, np.int64)
    producers, events = reads(side)
    paired = flow.pair[events] >= 0
    trusted = np.flatnonzero(paired)[agreeing[flow.pair[events[paired]]]]
    np.maximum.at(last_read, groups[producers[trusted]], events[trusted])
    group = groups[written]
    event = side.record_event[written]
    bad = (touched[group] | ~created[group]) & (last_read[group] <= event)
    return np.unique(event[bad])
