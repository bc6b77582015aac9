"""Finding equal values in two columns."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from opguard.columns import spans
from opguard.model import I64, U64, Bools

Repeats: TypeAlias = Literal["unique", "balanced", "any"]


def match_equal(baseline: U64, candidate: U64, repeats: Repeats) -> tuple[I64, I64, Bools]:
    """Positions of equal values, ascending in the candidate, and which of them are unique.

    ``unique`` matches values that occur once on each side, ``balanced`` also those that are
    equally frequent, ``any`` all: the k-th with the k-th, as far as both sides have them.
    """
    order_a, values_a, start_a, count_a = distinct(baseline)
    order_b, values_b, start_b, count_b = distinct(candidate)
    common_a = np.flatnonzero(among(values_a, values_b))
    common_b = np.searchsorted(values_b, values_a[common_a])
    counts, counts_b = count_a[common_a], count_b[common_b]
    once = (counts == 1) & (counts_b == 1)
    good = {"unique": once, "balanced": counts == counts_b, "any": counts > 0}[repeats]
    counts, once = np.minimum(counts, counts_b)[good], once[good]
    matched_a = order_a[spans(start_a[common_a[good]], counts)]
    matched_b = order_b[spans(start_b[common_b[good]], counts)]
    sequence = np.argsort(matched_b, kind="stable")
    return matched_a[sequence], matched_b[sequence], np.repeat(once, counts)[sequence]


def distinct(values: U64) -> tuple[I64, U64, I64, I64]:
    """Stable sorting order; the distinct values, where each starts in it, and how often it is."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    return order, ordered[starts], starts, np.diff(np.append(starts, len(ordered)))


def union(first: I64, second: I64) -> I64:
    """The distinct values of both, ascending."""
    values = np.concatenate([first, second])
    # np.unique hashes since NumPy 2.3, ten times slower on values that are sorted in two runs.
    values.sort(kind="stable")
    keep = np.ones(len(values), np.bool_)
    keep[1:] = values[1:] != values[:-1]
    return values[keep]


def among(values: U64, table: U64) -> Bools:
    """(n,) which of ``values`` are in ``table``."""
    if not len(table):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(table)
    at = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: Bools = ordered[at] == values
    return found
