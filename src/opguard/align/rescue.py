"""Rescue: pairs for events that stand elsewhere or go by another operator.

Here, and only here, outputs count: what is paired agrees in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from opguard.align.anchors import Anchored, Chain, longest_increasing
from opguard.align.keys import VARIANTS, Keys
from opguard.align.matching import match_equal, union
from opguard.columns import hash_columns
from opguard.model import I64, U64, Bools


@dataclass(frozen=True)
class Rescued:
    """Pairs besides the chain, in no particular order."""

    baseline: I64
    candidate: I64

    def __add__(self, other: Rescued) -> Rescued:
        return Rescued(
            np.concatenate([self.baseline, other.baseline]),
            np.concatenate([self.candidate, other.candidate]),
        )


def free_events(selected: I64, *taken: I64) -> I64:
    """``selected`` without what is taken, ascending."""
    return np.setdiff1d(selected, np.concatenate(taken), assume_unique=True)


def pair_twins(a: Keys, b: Keys, anchored: Anchored) -> Rescued:
    """Pair the twins that stand off the chain.

    Their outputs agree, or they are sure: then equal inputs gave another output, which must show.
    """
    good = anchored.sure | (
        a.outputs[anchored.baseline_twins] == b.outputs[anchored.candidate_twins]
    )
    return Rescued(anchored.baseline_twins[good], anchored.candidate_twins[good])


def pair_leftovers(
    a: Keys, b: Keys, events: tuple[I64, I64], chain: Chain, taken: Rescued
) -> tuple[Chain, Rescued]:
    """Pair what is left of ``events``, which excludes the final state.

    A pair of the chain whose contents differ gives way if either event has an exact counterpart
    elsewhere. Then equal key, inputs and outputs pair, then equal outputs alone; there a pair of
    the chain gives way if its outputs differ as well.
    """
    every = VARIANTS[0]
    unlike = a.content(every, chain.baseline) != b.content(every, chain.candidate)
    exact = _exact(a, b, *_loosened(events, chain, taken, unlike), every)
    chain = _without(chain, unlike, exact)
    taken = taken + exact
    nothing = np.zeros(len(chain.baseline), np.bool_)
    for parts in VARIANTS[1:]:
        taken = taken + _exact(a, b, *_loosened(events, chain, taken, nothing), parts)
    unlike = a.content(every, chain.baseline) != b.content(every, chain.candidate)
    unlike &= a.outputs[chain.baseline] != b.outputs[chain.candidate]
    results = _by_results(a, b, *_loosened(events, chain, taken, unlike))
    return _without(chain, unlike, results), taken + results


def _loosened(
    events: tuple[I64, I64], chain: Chain, taken: Rescued, loose: Bools
) -> tuple[I64, I64]:
    """Events of either side that are in no pair, or in a pair of the chain that may give way."""
    return (
        union(free_events(events[0], chain.baseline, taken.baseline), chain.baseline[loose]),
        union(free_events(events[1], chain.candidate, taken.candidate), chain.candidate[loose]),
    )


def _without(chain: Chain, loose: Bools, found: Rescued) -> Chain:
    """The chain without the loose pairs of which an event found another partner."""
    broken = loose & (
        np.isin(chain.baseline, found.baseline) | np.isin(chain.candidate, found.candidate)
    )
    return replace(chain, baseline=chain.baseline[~broken], candidate=chain.candidate[~broken])


def _exact(a: Keys, b: Keys, free_a: I64, free_b: I64, parts: tuple[str, ...]) -> Rescued:
    """Pairs that agree in key, inputs, arguments and outputs."""
    free_a, free_b = free_a[_evident(a, free_a)], free_b[_evident(b, free_b)]
    at_a, at_b, _ = match_equal(_whole(a, parts, free_a), _whole(b, parts, free_b), "any")
    return Rescued(free_a[at_a], free_b[at_b])


def _evident(keys: Keys, events: I64) -> Bools:
    evident: Bools = keys.evident[events] | keys.telling[events]
    return evident


def _whole(keys: Keys, parts: tuple[str, ...], events: I64) -> U64:
    return hash_columns(keys.content(parts, events), keys.outputs[events])


def _by_results(a: Keys, b: Keys, free_a: I64, free_b: I64) -> Rescued:
    """Pairs of any two operators whose outputs agree and are found once on each side."""
    free_a, free_b = free_a[a.telling[free_a]], free_b[b.telling[free_b]]
    at_a, at_b, _ = match_equal(a.outputs[free_a], b.outputs[free_b], "unique")
    return Rescued(free_a[at_a], free_b[at_b])


def merge(chain: Chain, rescued: Rescued) -> tuple[I64, I64, Bools]:
    """All pairs in candidate order, and which of them are off the monotone order."""
    order = np.argsort(rescued.candidate, kind="stable")
    baseline, candidate = rescued.baseline[order], rescued.candidate[order]
    moved = np.ones(len(order), np.bool_)
    fitting = np.flatnonzero(chain.fits(baseline, candidate))
    moved[fitting[longest_increasing(baseline[fitting])]] = False
    at = np.searchsorted(chain.candidate, candidate)
    return (
        np.insert(chain.baseline, at, baseline),
        np.insert(chain.candidate, at, candidate),
        np.insert(np.zeros(len(chain.baseline), np.bool_), at, moved),
    )
