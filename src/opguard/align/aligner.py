"""Aligns one rank of two runs: anchors, windows, dynamic programming, rescue."""

from __future__ import annotations

import numpy as np

from opguard.align.anchors import content_anchors, key_anchors
from opguard.align.banded import align_windows
from opguard.align.keys import LARGEST_WINDOW, Keys, features
from opguard.align.rescue import free_events, merge, pair_leftovers, pair_twins
from opguard.align.windows import Windows, cut_large, plainly_parallel, windows_between
from opguard.columns import Sides, spans
from opguard.model import I64, Alignment


def align(sides: Sides) -> Alignment:
    """Pairs and gaps of all events but the final state, in candidate order."""
    a, b = Keys(sides.baseline, sides.modules), Keys(sides.candidate, sides.modules)
    events = np.flatnonzero(~a.side.state), np.flatnonzero(~b.side.state)
    anchored = content_anchors(a, b, *events)
    free_a = free_events(events[0], anchored.chain.baseline, anchored.baseline_twins)
    free_b = free_events(events[1], anchored.chain.candidate, anchored.candidate_twins)
    chain = key_anchors(a, b, free_a, free_b, anchored.chain)
    free_a = free_events(free_a, chain.baseline)
    free_b = free_events(free_b, chain.candidate)
    windows, cut = cut_large(windows_between(chain, free_a, free_b))
    pairs_a, pairs_b = _solve(a, b, free_a, free_b, windows)
    chain = chain.extended(pairs_a, pairs_b)
    chain, rescued = pair_leftovers(a, b, events, chain, pair_twins(a, b, anchored))
    notes = (
        (
            f"stretches of more than {LARGEST_WINDOW} events without anchor, cut by position: "
            f"{cut}; pairs near the cuts may be missing",
        )
        if cut
        else ()
    )
    return Alignment(*merge(chain, rescued), notes)


def _solve(a: Keys, b: Keys, free_a: I64, free_b: I64, windows: Windows) -> tuple[I64, I64]:
    """Pairs inside the windows, as event positions, ascending."""
    features_a, features_b = features(a, free_a, 0), features(b, free_b, 1)
    parallel = plainly_parallel(windows, features_a, features_b)
    plain, rest = windows.select(parallel), windows.select(~parallel)
    i, j = align_windows(rest, features_a, features_b)
    i = np.concatenate([i, spans(plain.start_a, plain.length_a)])
    j = np.concatenate([j, spans(plain.start_b, plain.length_b)])
    order = np.argsort(i)
    return free_a[i[order]], free_b[j[order]]
