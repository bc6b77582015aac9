"""Tensor records of paired events, side by side, slot by slot.

J rows; a row that only one side has holds -1 for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from opguard.align.matching import union
from opguard.columns import Side, Sides, hash_columns, spans
from opguard.model import I64, U8, U64, Bools

T = TypeVar("T", bound=np.generic)


class Outcome(IntEnum):
    """What the comparison of two records says."""

    UNKNOWN = 0
    """Void or without fingerprint on one side, or in no pair."""
    EQUAL = 1
    DIFFERS = 2
    IGNORED = 3
    """It differs, and a policy rule covers the slot."""


@dataclass(frozen=True)
class Pairs:
    """Paired events: P of operators in candidate order, then those of the final state."""

    baseline: I64
    candidate: I64

    def of_event(self, side: str, count: int) -> I64:
        """(count,) the pair of each event of a side, -1 for none."""
        table = np.full(count, -1, np.int64)
        table[getattr(self, side)] = np.arange(len(self.baseline))
        return table


@dataclass(frozen=True)
class Joined:
    """Rows of paired records."""

    pair: I64
    baseline: I64
    candidate: I64
    output: Bools
    outcome: U8
    void: Bools
    """Rows that are not compared because one side overlaps unwritten memory."""

    @property
    def matched(self) -> Bools:
        """(J,) rows that both sides have."""
        both: Bools = (self.baseline >= 0) & (self.candidate >= 0)
        return both

    def select(self, which: Bools | I64) -> Joined:
        """Some of the rows."""
        return Joined(
            self.pair[which],
            self.baseline[which],
            self.candidate[which],
            self.output[which],
            self.outcome[which],
            self.void[which],
        )

    def __add__(self, other: Joined) -> Joined:
        return Joined(
            np.concatenate([self.pair, other.pair]),
            np.concatenate([self.baseline, other.baseline]),
            np.concatenate([self.candidate, other.candidate]),
            np.concatenate([self.output, other.output]),
            np.concatenate([self.outcome, other.outcome]),
            np.concatenate([self.void, other.void]),
        )


def join_records(sides: Sides, pairs: Pairs) -> Joined:
    """Match the records of each pair by direction and slot, and compare what can be compared.

    Pairs of two operators compare results only: outputs by position, inputs not at all.
    """
    a, b = sides.baseline, sides.candidate
    by_results = a.operator[pairs.baseline] != b.operator[pairs.candidate]
    records_a, keys_a = _keyed(sides, a, pairs.baseline, by_results)
    records_b, keys_b = _keyed(sides, b, pairs.candidate, by_results)
    if np.array_equal(keys_a, keys_b):
        keys, left, right = keys_a, records_a, records_b
    else:
        keys, at_a, at_b = _outer_join(keys_a, keys_b)
        left = np.where(at_a >= 0, take(records_a, at_a), -1)
        right = np.where(at_b >= 0, take(records_b, at_b), -1)
    owner = keys // (2 * _slot_count(sides))
    output = keys // _slot_count(sides) % 2 == 1
    outcome, void = _compare(a, b, left, right)
    return Joined(owner, left, right, output, outcome, void)


def _slot_count(sides: Sides) -> int:
    # Room for the positions of outputs that are compared by position, and for repeated slots.
    most = max(
        (int(np.diff(side.run.first_record).max(initial=0)) for side in _both(sides)), default=0
    )
    return len(sides.slots) * (most + 1) + most + 1


def _both(sides: Sides) -> tuple[Side, Side]:
    return sides.baseline, sides.candidate


def _keyed(sides: Sides, side: Side, events: I64, by_results: Bools) -> tuple[I64, I64]:
    """Records of ``events`` and a key of each, ascending: pair, direction, slot."""
    starts = side.run.first_record[events]
    counts = side.run.first_record[events + 1] - starts
    records = spans(starts, counts)
    pair = np.repeat(np.arange(len(events)), counts)
    output = side.output[records]
    if by_results.any():
        kept = output | ~by_results[pair]
        records, pair, output = records[kept], pair[kept], output[kept]
    room = _slot_count(sides)
    slot = side.slot[records].astype(np.int64)
    positions = by_results[pair]
    if positions.any():
        slot[positions] = len(sides.slots) + _rank(pair[positions])
    keys = (2 * pair + output) * room + slot
    if (keys[1:] > keys[:-1]).all():
        return records, keys
    order = np.argsort(keys, kind="stable")
    records, keys = records[order], keys[order]
    if (keys[1:] == keys[:-1]).any():  # a slot twice in one event: the k-th meets the k-th
        keys = keys + len(sides.slots) * _rank(keys)
        order = np.argsort(keys, kind="stable")
        records, keys = records[order], keys[order]
    return records, keys


def _rank(groups: I64) -> I64:
    """Position of each row within its run of equal neighbours."""
    first = np.ones(len(groups), np.bool_)
    first[1:] = groups[1:] != groups[:-1]
    starts = np.flatnonzero(first)
    rank: I64 = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
    return rank


def _outer_join(keys_a: I64, keys_b: I64) -> tuple[I64, I64, I64]:
    """All keys, ascending, and where each stands in either list (-1: nowhere)."""
    keys = union(keys_a, keys_b)
    places = []
    for side in (keys_a, keys_b):
        at = np.searchsorted(side, keys)
        at[at == len(side)] = 0
        found = side[at] == keys if len(side) else np.zeros(len(keys), np.bool_)
        places.append(np.where(found, at, -1))
    return keys, places[0], places[1]


def _compare(a: Side, b: Side, left: I64, right: I64) -> tuple[U8, Bools]:
    """Outcome of each row by dtype, shape and fingerprint, and whether it is void."""
    has_a, has_b = left >= 0, right >= 0
    both = has_a & has_b
    void = (has_a & take(a.void, left)) | (has_b & take(b.void, right))
    known = (~has_a | take(a.readable, left)) & (~has_b | take(b.readable, right))
    via_a, via_b = take(a.via, left), take(b.via, right)
    same_kind = take(a.run.dtype, left) == take(b.run.dtype, right)
    same_kind &= take(a.shape, left) == take(b.shape, right)
    same_form = ~via_a | (take(a.strides, left) == take(b.strides, right))
    same_form &= via_a == via_b
    same_bytes = take(a.run.mix64, left) == take(b.run.mix64, right)
    outcome = np.full(len(left), Outcome.UNKNOWN, np.uint8)
    comparable = both & known & same_form
    outcome[comparable & same_bytes] = Outcome.EQUAL
    outcome[comparable & ~same_bytes] = Outcome.DIFFERS
    outcome[both & ~void & ~same_kind] = Outcome.DIFFERS
    outcome[~both & known] = Outcome.DIFFERS
    return outcome, void


def take(column: npt.NDArray[T], rows: I64) -> npt.NDArray[T]:
    """``column[rows]``; where a row is -1 something meaningless, even of an empty column."""
    return column[rows] if len(column) else np.zeros(len(rows), column.dtype)


def producer_rows(side: Side, records: I64) -> tuple[I64, I64]:
    """All producers of ``records``, and the row of ``records`` each belongs to."""
    starts = side.run.first_producer[records]
    counts = side.run.first_producer[records + 1] - starts
    rows = np.repeat(np.arange(len(records)), counts)
    return side.run.producers[spans(starts, counts)], rows


def count_rows(rows: I64, mask: Bools, count: int) -> I64:
    """(count,) how many entries of each row are in ``mask``."""
    counts: I64 = np.bincount(rows[mask], minlength=count)
    return counts


def producer_sums(producers: I64, rows: I64, count: int) -> U64:
    """(count,) hash of each row's set of producers."""
    total = np.zeros(len(producers) + 1, np.uint64)
    np.cumsum(hash_columns(producers), out=total[1:])
    ends = np.searchsorted(rows, np.arange(count), side="right")
    starts = np.searchsorted(rows, np.arange(count), side="left")
    sums: U64 = total[ends] - total[starts]
    return sums
