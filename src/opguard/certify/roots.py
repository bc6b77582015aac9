"""The roots of a divergence, alike ones listed once."""

from __future__ import annotations

import re

import numpy as np

from opguard.certify.classes import CODE
from opguard.certify.joined import Joined, Outcome, Pairs
from opguard.columns import Side, Sides, hash_columns
from opguard.frames import user_frame
from opguard.model import CLASSES, I64, NONE_ID, U8, Bools, Root

_CARRIED = ("", "tolerated", "propagated")


def find_roots(
    sides: Sides, pairs: Pairs, joined: Joined, classes: U8, disagreeing: Bools
) -> tuple[Root, ...]:
    """Roots in candidate order, those of one class, operator and line once, with their count.

    Where every disagreement seems carried on, the first of them stands for a root.
    """
    carried = np.isin(classes, [CODE[name] for name in _CARRIED])
    starts = np.flatnonzero(disagreeing & ~carried)
    if not len(starts):
        starts = np.flatnonzero(disagreeing)[:1]
    events = pairs.candidate[starts]
    lines = _line_ids(sides.candidate)[sides.candidate.run.boundary[events]]
    alike = hash_columns(classes[starts], sides.candidate.operator[events], lines)
    _, first, counts = np.unique(alike, return_index=True, return_counts=True)
    order = np.argsort(first)
    chosen = starts[first[order]]
    rows = joined.select(np.flatnonzero(np.isin(joined.pair, chosen)))
    return tuple(
        _root(sides, pairs, rows, int(pair), CLASSES[classes[pair]], int(count))
        for pair, count in zip(chosen, counts[order], strict=True)
    )


def _line_ids(side: Side) -> I64:
    """(boundaries,) equal where the user's line is."""
    known: dict[tuple[str, int], int] = {}
    frames = (user_frame(boundary.stack) for boundary in side.run.boundaries)
    return np.array([known.setdefault(f[:2], len(known)) for f in frames], np.int64)


def _root(
    sides: Sides, pairs: Pairs, joined: Joined, pair: int, class_name: str, count: int
) -> Root:
    rows = joined.select(joined.pair == pair)
    differing = rows.select(rows.output & (rows.outcome == Outcome.DIFFERS))
    slots = [
        sides.slots[sides.candidate.slot[right] if right >= 0 else sides.baseline.slot[left]]
        for left, right in zip(differing.baseline, differing.candidate, strict=True)
    ]
    note = ""
    if class_name in ("origin", "origin?") and _strides_differ(sides, rows):
        note = "strides differ"
    return Root(
        class_name=class_name,
        baseline_seq=int(pairs.baseline[pair]),
        candidate_seq=int(pairs.candidate[pair]),
        slots=tuple(slots),
        count=count,
        note=note,
    )


_PLACE = re.compile(r"[|@]")


def _strides_differ(sides: Sides, rows: Joined) -> bool:
    """Some input was read in another memory layout."""
    inputs = rows.select(~rows.output & rows.matched)
    return _layouts(sides.baseline, inputs.baseline) != _layouts(sides.candidate, inputs.candidate)


def _layouts(side: Side, records: I64) -> list[str]:
    """Strides of ``records``, without the place that views carry behind them."""
    texts = side.run.strings.values("strides")
    numbers = side.run.strides[records].tolist()
    return ["" if n == NONE_ID else _PLACE.split(texts[n])[0] for n in numbers]
