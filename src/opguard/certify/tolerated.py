"""Which disagreements flow from ignored differences only."""

from __future__ import annotations

import numpy as np

from opguard.certify.flow import SideFlow, reads
from opguard.certify.joined import Outcome
from opguard.model import I64, Bools


def reached_from(
    seeds: Bools, flows: tuple[SideFlow, SideFlow], numbers: Bools, by_number: Bools
) -> Bools:
    """(P,) pairs that differences starting at ``seeds`` reach, seeds included.

    Both sides' reads count, through gap events and outputs that were not compared too. Returned
    numbers that disagree (``numbers``) reach every pair whose arguments differ (``by_number``).
    What an ignore rule covers carries nothing on, unless its own pair is a seed.
    """
    nodes = len(seeds) + 1
    number_node = len(seeds)
    edges = [
        (np.flatnonzero(numbers), np.full(int(numbers.sum()), number_node)),
        (np.full(int(by_number.sum()), number_node), np.flatnonzero(by_number)),
    ]
    for flow in flows:
        node = np.where(flow.pair >= 0, flow.pair, nodes + np.arange(len(flow.pair)))
        nodes += len(flow.pair)
        edges.append(_edges(flow, node, seeds))
    reached = bytearray(nodes)
    for seed in np.flatnonzero(seeds).tolist():
        reached[seed] = 1
    listed = [
        list(zip(origins.tolist(), targets.tolist(), strict=True)) for origins, targets in edges
    ]
    before = -1
    while before != sum(reached):  # what flows against the order of one side needs another round
        before = sum(reached)
        for pairs in listed:
            for origin, target in pairs:
                if reached[origin]:
                    reached[target] = 1
    found: Bools = np.frombuffer(bytes(reached[: len(seeds)]), np.uint8) != 0
    return found


def _edges(flow: SideFlow, node: I64, seeds: Bools) -> tuple[I64, I64]:
    producers, events = reads(flow.side)
    pair = flow.pair[flow.side.record_event[producers]]
    stopped = (flow.outcome[producers] == Outcome.IGNORED) & ~seeds[pair]
    carried = (flow.source[producers] | flow.through[producers]) & ~stopped
    producers, events = producers[carried], events[carried]
    return node[flow.side.record_event[producers]], node[events]
