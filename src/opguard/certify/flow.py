"""How differences flow from producers to consumers.

An output that disagrees taints what reads it; one that agrees stops the flow. Gap events, and
outputs that were not compared, are looked through: they carry on what their inputs bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from opguard.certify.joined import Joined, Outcome, Pairs, count_rows, producer_rows
from opguard.columns import Side, Sides
from opguard.model import I64, U8, Bools

SideName: TypeAlias = Literal["baseline", "candidate"]


@dataclass(frozen=True)
class SideFlow:
    """One side. E events, R records."""

    side: Side
    pair: I64
    """(E,) pair of each event, -1 for gap events."""
    outcome: U8
    """(R,) outcome of each record that stands in a pair, else unknown."""
    source: Bools
    """(R,) outputs that differ, and those unknown beside one that differs."""
    through: Bools
    """(R,) outputs that are looked through."""
    tainted: Bools
    """(E,) events that read, also through others, what differs."""
    gap_behind: Bools
    """(E,) events that are gaps or carry on what a gap produced."""

    @property
    def gap(self) -> Bools:
        """(E,) events in no pair."""
        gap: Bools = self.pair < 0
        return gap


def side_flow(name: SideName, sides: Sides, pairs: Pairs, joined: Joined) -> SideFlow:
    """Follow the differences of ``joined`` on one side."""
    side: Side = getattr(sides, name)
    pair = pairs.of_event(name, side.run.event_count)
    outcome = np.zeros(side.run.record_count, np.uint8)
    records = getattr(joined, name)
    rows = np.flatnonzero(records >= 0)
    outcome[records[rows]] = joined.outcome[rows]
    differs = (outcome >= Outcome.DIFFERS) & side.output
    beside = side.count_per_event(differs)[side.record_event] > 0
    source = (outcome >= Outcome.DIFFERS) | (beside & side.output & (outcome == Outcome.UNKNOWN))
    through = (outcome == Outcome.UNKNOWN) & ~source
    producers, consumers = reads(side)
    tainted = np.zeros(side.run.event_count, np.bool_)
    tainted[consumers[source[producers]]] = True
    gap_behind = (pair < 0) & ~side.state
    carried = through[producers]
    origins, targets = side.record_event[producers[carried]], consumers[carried]
    gap_behind = spread(gap_behind, origins, targets)
    return SideFlow(
        side, pair, outcome, source, through, spread(tainted, origins, targets), gap_behind
    )


def reads(side: Side) -> tuple[I64, I64]:
    """Producer record and reading event of every read, in order of the reading event."""
    reading = np.flatnonzero(~side.output | side.state[side.record_event])
    producers, rows = producer_rows(side, reading)
    return producers, side.record_event[reading[rows]]


def spread(mark: Bools, origins: I64, targets: I64) -> Bools:
    """``mark`` of events carried along ``origins[k] -> targets[k]``, sorted by target.

    Producers precede their readers, so one pass reaches everything.
    """
    marked = bytearray(mark.astype(np.uint8).tobytes())
    for origin, target in zip(origins.tolist(), targets.tolist(), strict=True):
        if marked[origin]:
            marked[target] = 1
    return np.frombuffer(bytes(marked), np.bool_)


@dataclass(frozen=True)
class ReadFacts:
    """What is known of the producers of n input records on one side."""

    count: I64
    """(n,) producers."""
    differing: Bools
    """(n,) some producer differs, or carries on what differs."""
    clean_gap: Bools
    """(n,) some producer is, or comes through, a gap event that reads nothing that differs."""
    any_gap: Bools
    """(n,)"""
    all_agree: Bools
    """(n,) every producer stands in a pair and agrees."""


def read_facts(flow: SideFlow, records: I64) -> ReadFacts:
    """Facts of ``records``; -1 has no producers."""
    known = np.flatnonzero(records >= 0)
    producers, rows = producer_rows(flow.side, records[known])
    rows = known[rows]
    events = flow.side.record_event[producers]
    through = flow.through[producers]
    tainted = flow.source[producers] | (through & flow.tainted[events])
    behind = through & flow.gap_behind[events]
    total = len(records)
    count = np.bincount(rows, minlength=total)
    agree = flow.outcome[producers] == Outcome.EQUAL
    return ReadFacts(
        count=count,
        differing=count_rows(rows, tainted, total) > 0,
        clean_gap=count_rows(rows, behind & ~tainted, total) > 0,
        any_gap=count_rows(rows, behind, total) > 0,
        all_agree=count_rows(rows, agree, total) == count,
    )
