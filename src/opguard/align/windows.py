"""Windows: what lies unpaired between two neighbouring anchors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opguard.align.anchors import Chain
from opguard.align.keys import (
    GAP,
    INPUTS_AGREE,
    LARGEST_WINDOW,
    MATCH,
    TOKENS,
    Features,
    pair_scores,
)
from opguard.align.matching import among
from opguard.columns import hash_columns, spans
from opguard.model import I32, I64, Bools


@dataclass(frozen=True)
class Windows:
    """W windows: ``[start, end)`` positions in the lists of free events of both sides."""

    start_a: I64
    end_a: I64
    start_b: I64
    end_b: I64

    @property
    def length_a(self) -> I64:
        """(W,)"""
        return self.end_a - self.start_a

    @property
    def length_b(self) -> I64:
        """(W,)"""
        return self.end_b - self.start_b

    def select(self, which: Bools | I64) -> Windows:
        """Some of them."""
        return Windows(
            self.start_a[which], self.end_a[which], self.start_b[which], self.end_b[which]
        )


def windows_between(chain: Chain, free_a: I64, free_b: I64) -> Windows:
    """The windows of ``chain`` that hold free events (ascending positions) of both sides."""
    cuts_a = np.searchsorted(free_a, chain.baseline)
    cuts_b = np.searchsorted(free_b, chain.candidate)
    windows = Windows(
        np.concatenate([[0], cuts_a]),
        np.concatenate([cuts_a, [len(free_a)]]),
        np.concatenate([[0], cuts_b]),
        np.concatenate([cuts_b, [len(free_b)]]),
    )
    return windows.select((windows.length_a > 0) & (windows.length_b > 0))


def cut_large(windows: Windows) -> tuple[Windows, int]:
    """Cut windows of more than ``LARGEST_WINDOW`` events by position; how many were cut."""
    longest = np.maximum(windows.length_a, windows.length_b)
    pieces = -(-longest // LARGEST_WINDOW)
    owner = np.repeat(np.arange(len(pieces)), pieces)
    number = spans(np.zeros(len(pieces), np.int64), pieces)
    parts = pieces[owner]
    cut = Windows(
        windows.start_a[owner] + windows.length_a[owner] * number // parts,
        windows.start_a[owner] + windows.length_a[owner] * (number + 1) // parts,
        windows.start_b[owner] + windows.length_b[owner] * number // parts,
        windows.start_b[owner] + windows.length_b[owner] * (number + 1) // parts,
    )
    return cut.select((cut.length_a > 0) & (cut.length_b > 0)), int((pieces > 1).sum())


def plainly_parallel(windows: Windows, a: Features, b: Features) -> Bools:
    """(W,) windows whose only best alignment pairs the k-th event with the k-th.

    Both sides have n events. ``best[k]`` bounds the score of any pair with the k-th baseline
    event: no pair agrees in a token that the other side's window lacks for that operator. Any
    other alignment leaves at least one baseline event and one candidate event unpaired, so it
    scores at most ``sum(best) - min(best) + 2 * GAP``; if the parallel one scores more, it is
    the answer of the dynamic programming.
    """
    result = np.zeros(len(windows.start_a), np.bool_)
    equal = np.flatnonzero(windows.length_a == windows.length_b)
    if not len(equal):
        return result
    chosen = windows.select(equal)
    owner = np.repeat(np.arange(len(equal)), chosen.length_a)
    i, j = spans(chosen.start_a, chosen.length_a), spans(chosen.start_b, chosen.length_b)
    same_operator = a.operator[i] == b.operator[j]
    scores = np.where(same_operator, pair_scores(a, b, i, j), 2 * GAP)
    best = _best_scores(a, b, i, j, owner)
    starts = np.cumsum(chosen.length_a) - chosen.length_a
    lost = np.add.reduceat(best - scores, starts)
    smallest = np.minimum.reduceat(best, starts)
    parallel = (lost < smallest - 2 * GAP) & np.logical_and.reduceat(same_operator, starts)
    result[equal[parallel]] = True
    return result


def _best_scores(a: Features, b: Features, i: I64, j: I64, owner: I64) -> I32:
    """(n,) bound of the score of a pair of ``a[i]`` with any ``b[j]`` of the same window."""
    reachable = np.zeros(len(i), np.int32)
    for column in range(TOKENS):
        mine = hash_columns(owner, a.operator[i], a.tokens[i, column])
        theirs = hash_columns(owner, b.operator[j], b.tokens[j, column])
        reachable += among(mine, theirs)
    bound = MATCH + INPUTS_AGREE * reachable // np.maximum(a.token_count[i], 1)
    return bound.astype(np.int32)
