"""Anchors: events that are the same on both sides beyond doubt, and their order.

Content anchors agree in key, input fingerprints and arguments; key anchors are unique by key.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from opguard.align.keys import GAP, VARIANTS, Keys, features, pair_scores
from opguard.align.matching import distinct, match_equal
from opguard.model import I64, U64, Bools


@dataclass(frozen=True)
class Chain:
    """Pairs of event positions, both ascending."""

    baseline: I64
    candidate: I64

    def fits(self, baseline: I64, candidate: I64) -> Bools:
        """Which pairs cross no pair of the chain."""
        fit: Bools = np.searchsorted(self.baseline, baseline) == np.searchsorted(
            self.candidate, candidate
        )
        return fit

    def extended(self, baseline: I64, candidate: I64) -> Chain:
        """The chain with more pairs, which must cross neither it nor each other."""
        at = np.searchsorted(self.baseline, baseline)
        return Chain(
            np.insert(self.baseline, at, baseline), np.insert(self.candidate, at, candidate)
        )


@dataclass(frozen=True)
class Anchored:
    """The monotone chain, and twins that stand off it.

    Twins are equal in content, so neither may be paired with anything else before the rescue.
    """

    chain: Chain
    baseline_twins: I64
    candidate_twins: I64
    sure: Bools
    """Twins that are unique in all parts of the key, by bytes that are evidence."""


def empty_chain() -> Chain:
    """No pairs."""
    return Chain(np.empty(0, np.int64), np.empty(0, np.int64))


def longest_increasing(values: I64) -> I64:
    """Positions of a longest increasing subsequence of distinct values (patience sorting).

    A value above all before it and below all after it is in every such sequence, so only the
    stretches between those are searched: O(n) where the order is nearly kept.
    """
    if not len(values):
        return np.empty(0, np.int64)
    above = np.maximum.accumulate(values) == values
    below = np.minimum.accumulate(values[::-1])[::-1] == values
    settled = above & below
    chosen = settled.copy()
    loose = np.flatnonzero(~settled)
    breaks = np.flatnonzero(np.diff(loose) > 1) + 1
    for stretch in np.split(loose, breaks) if len(loose) else ():
        chosen[stretch[_patience(values[stretch].tolist())]] = True
    return np.flatnonzero(chosen)


def _patience(values: list[int]) -> list[int]:
    tops: list[int] = []
    at_top: list[int] = []
    previous: list[int] = []
    for position, value in enumerate(values):
        pile = bisect_left(tops, value)
        if pile == len(tops):
            tops.append(value)
            at_top.append(position)
        else:
            tops[pile] = value
            at_top[pile] = position
        previous.append(at_top[pile - 1] if pile else -1)
    chosen = []
    position = at_top[-1]
    while position >= 0:
        chosen.append(position)
        position = previous[position]
    return chosen[::-1]


def content_anchors(a: Keys, b: Keys, events_a: I64, events_b: I64) -> Anchored:
    """Anchor ``events_a`` and ``events_b`` (ascending positions) by content.

    First events with evident inputs by each variant of the key; then, between those, events
    that have none (``zeros``, ``full``), by all parts of the key.
    """
    chain = empty_chain()
    twins: list[tuple[I64, I64, Bools]] = []
    passes = [(parts, True) for parts in VARIANTS] + [(VARIANTS[0], False)]
    for number, (parts, evident) in enumerate(passes):
        pool_a = events_a[a.evident[events_a] == evident]
        pool_b = events_b[b.evident[events_b] == evident]
        at_a, at_b, unique = match_equal(
            a.content(parts, pool_a),
            b.content(parts, pool_b),
            "balanced" if parts == VARIANTS[0] else "unique",
        )
        found_a, found_b = pool_a[at_a], pool_b[at_b]
        on_chain = np.zeros(len(found_a), np.bool_)
        fitting = np.flatnonzero(chain.fits(found_a, found_b))
        on_chain[fitting[longest_increasing(found_a[fitting])]] = True
        chain = chain.extended(found_a[on_chain], found_b[on_chain])
        off = ~on_chain
        twins.append((found_a[off], found_b[off], unique[off] & (number == 0)))
        events_a = np.setdiff1d(events_a, found_a, assume_unique=True)
        events_b = np.setdiff1d(events_b, found_b, assume_unique=True)
    return Anchored(
        chain,
        np.concatenate([twin[0] for twin in twins]),
        np.concatenate([twin[1] for twin in twins]),
        np.concatenate([twin[2] for twin in twins]),
    )


def key_anchors(a: Keys, b: Keys, events_a: I64, events_b: I64, chain: Chain) -> Chain:
    """``chain`` extended by events whose key is unique in their run.

    ``events_a`` and ``events_b`` are those still free. A key without module path never anchors:
    such events are told apart by nothing but their place. Nor does a pair that scores no better
    than two gaps, since neither its inputs nor its arguments agree.
    """
    for parts in VARIANTS:
        if "module" not in parts:
            continue
        at_a, at_b, _ = match_equal(
            _unique_keys(a, parts, events_a, 0), _unique_keys(b, parts, events_b, 1), "unique"
        )
        found_a, found_b = events_a[at_a], events_b[at_b]
        fit = chain.fits(found_a, found_b)
        found_a, found_b = found_a[fit], found_b[fit]
        likely = _likely(a, b, found_a, found_b)
        found_a, found_b = found_a[likely], found_b[likely]
        kept = longest_increasing(found_a)
        chain = chain.extended(found_a[kept], found_b[kept])
        events_a = np.setdiff1d(events_a, found_a[kept], assume_unique=True)
        events_b = np.setdiff1d(events_b, found_b[kept], assume_unique=True)
    return chain


def _likely(a: Keys, b: Keys, found_a: I64, found_b: I64) -> Bools:
    rows = np.arange(len(found_a))
    likely: Bools = (
        pair_scores(features(a, found_a, 0), features(b, found_b, 1), rows, rows) > 2 * GAP
    )
    return likely


def _unique_keys(keys: Keys, parts: tuple[str, ...], events: I64, filler: int) -> U64:
    """Keys of ``events``; ``filler``, another one on each side, where a key must not anchor."""
    every = keys.key(parts, np.arange(keys.side.run.event_count))
    order, _, starts, counts = distinct(every)
    unique = np.zeros(len(every), np.bool_)
    unique[order[starts[counts == 1]]] = True
    unique &= ~keys.without_module
    return np.where(unique[events], every[events], np.uint64(filler))
