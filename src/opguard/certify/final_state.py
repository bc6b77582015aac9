"""Pairs the entries of the final state (DESIGN section 3); names are shown, never compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opguard.align.matching import match_equal
from opguard.certify.classes import Partners
from opguard.certify.joined import producer_rows
from opguard.columns import Side, Sides, hash_columns, spans
from opguard.model import I64, U64, Bools, StateEntry

RANDOM_PREFIX = "rng."


@dataclass(frozen=True)
class StatePairs:
    """Paired entries as event positions, and what has no partner."""

    baseline: I64
    candidate: I64
    unpaired: tuple[StateEntry, ...]
    lone_random: tuple[StateEntry, ...]
    """Generators that one side alone has."""


def pair_state(sides: Sides, partners: Partners) -> StatePairs:
    """Random generators pair by name; the rest by writers, then by position, then by content.

    Numbers pair by name and value before they pair by position: of two optimizers, say, either
    may come first, and what a number was used for shows in the operators.
    """
    a, b = _Entries.of(sides, sides.baseline), _Entries.of(sides, sides.candidate)
    named_a, named_b = a.events[a.random], b.events[b.random]
    at_a, at_b, _ = match_equal(
        hash_columns(sides.baseline.module[named_a]),
        hash_columns(sides.candidate.module[named_b]),
        "unique",
    )
    found = [(named_a[at_a], named_b[at_b])]
    lone_a, lone_b = np.delete(named_a, at_a), np.delete(named_b, at_b)
    left_a, left_b = a.events[~a.random], b.events[~b.random]
    for match in (_by_writers, _by_number, _by_position, _by_content):
        at_a, at_b = match(sides, partners, left_a, left_b)
        found.append((left_a[at_a], left_b[at_b]))
        left_a, left_b = np.delete(left_a, at_a), np.delete(left_b, at_b)
    baseline = np.concatenate([pair[0] for pair in found])
    candidate = np.concatenate([pair[1] for pair in found])
    order = np.argsort(candidate, kind="stable")
    return StatePairs(
        baseline[order],
        candidate[order],
        _lone(sides, left_a, left_b),
        _lone(sides, lone_a, lone_b, "only one side has it"),
    )


def _lone(sides: Sides, baseline: I64, candidate: I64, why: str = "") -> tuple[StateEntry, ...]:
    def name(side: Side, event: int) -> str:
        return str(sides.modules[side.module[event]])

    return tuple(
        StateEntry(name(sides.baseline, event), event, -1, why) for event in baseline.tolist()
    ) + tuple(
        StateEntry(name(sides.candidate, event), -1, event, why) for event in candidate.tolist()
    )


@dataclass(frozen=True)
class _Entries:
    events: I64
    random: Bools

    @classmethod
    def of(cls, sides: Sides, side: Side) -> _Entries:
        events = np.flatnonzero(side.state)
        random = np.array([name.startswith(RANDOM_PREFIX) for name in sides.modules], np.bool_)
        return cls(events, random[side.module[events]])


def _kinds(side: Side, events: I64) -> U64:
    """Hash of dtypes and shapes of each entry's records."""
    kinds = side.per_event(hash_columns(side.run.dtype, side.shape))[events]
    return hash_columns(kinds, side.run.first_record[events + 1] - side.run.first_record[events])


def _by_writers(sides: Sides, partners: Partners, left_a: I64, left_b: I64) -> tuple[I64, I64]:
    """Entries whose last writers, or first readers, are partners; equal kinds first."""
    writers_a = _writers(sides.baseline, left_a, partners.of_baseline, 0)
    writers_b = _writers(sides.candidate, left_b, None, 1)
    at_a, at_b, _ = match_equal(
        hash_columns(writers_a, _kinds(sides.baseline, left_a)),
        hash_columns(writers_b, _kinds(sides.candidate, left_b)),
        "any",
    )
    rest_a = np.delete(np.arange(len(left_a)), at_a)
    rest_b = np.delete(np.arange(len(left_b)), at_b)
    more_a, more_b, _ = match_equal(writers_a[rest_a], writers_b[rest_b], "any")
    return np.concatenate([at_a, rest_a[more_a]]), np.concatenate([at_b, rest_b[more_b]])


def _writers(side: Side, events: I64, partner: I64 | None, filler: int) -> U64:
    """(n,) hash of each entry's producers in the candidate's records.

    An entry without producers, or with one that has no partner, gets a value that meets no other
    side's: ``filler`` and its own position.
    """
    starts = side.run.first_record[events]
    counts = side.run.first_record[events + 1] - starts
    records = spans(starts, counts)
    owner = np.repeat(np.arange(len(events)), counts)
    producers, rows = producer_rows(side, records)
    entry = owner[rows]
    if partner is not None:
        producers = partner[producers]
    total = np.bincount(entry, minlength=len(events))
    known = np.bincount(entry[producers >= 0], minlength=len(events))
    sums = np.zeros(len(events), np.uint64)
    np.add.at(sums, entry, hash_columns(producers))
    alone = hash_columns(np.arange(len(events)), np.full(len(events), filler))
    return np.where((total > 0) & (known == total), hash_columns(sums, total), alone)


def _by_number(sides: Sides, _partners: Partners, left_a: I64, left_b: I64) -> tuple[I64, I64]:
    """Python numbers of one name and value."""
    keep_a, keep_b = (
        np.flatnonzero(_is_number(side, left))
        for side, left in ((sides.baseline, left_a), (sides.candidate, left_b))
    )
    keys_a, keys_b = (
        hash_columns(side.module[events], side.per_event(side.content)[events])
        for side, events in ((sides.baseline, left_a[keep_a]), (sides.candidate, left_b[keep_b]))
    )
    at_a, at_b, _ = match_equal(keys_a, keys_b, "any")
    return keep_a[at_a], keep_b[at_b]


def _is_number(side: Side, events: I64) -> Bools:
    every = side.count_per_event(side.number) == np.diff(side.run.first_record)
    numbers: Bools = every[events]
    return numbers


def _by_position(sides: Sides, _partners: Partners, left_a: I64, left_b: I64) -> tuple[I64, I64]:
    """Tensors, and numbers, in order, each if their kinds are the same sequence."""
    found_a, found_b = [], []
    numbers_a = _is_number(sides.baseline, left_a)
    numbers_b = _is_number(sides.candidate, left_b)
    for wanted in (False, True):
        at_a, at_b = np.flatnonzero(numbers_a == wanted), np.flatnonzero(numbers_b == wanted)
        if np.array_equal(
            _kinds(sides.baseline, left_a[at_a]), _kinds(sides.candidate, left_b[at_b])
        ):
            found_a.append(at_a)
            found_b.append(at_b)
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *found_a]), np.concatenate([nothing, *found_b])


def _by_content(sides: Sides, _partners: Partners, left_a: I64, left_b: I64) -> tuple[I64, I64]:
    """Entries whose bytes are equal and are evidence."""
    keep_a, keep_b = _telling(sides.baseline, left_a), _telling(sides.candidate, left_b)
    at_a, at_b, _ = match_equal(
        sides.baseline.per_event(sides.baseline.content)[left_a[keep_a]],
        sides.candidate.per_event(sides.candidate.content)[left_b[keep_b]],
        "any",
    )
    return keep_a[at_a], keep_b[at_b]


def _telling(side: Side, events: I64) -> I64:
    evident = side.readable & ~side.weak
    every = side.count_per_event(evident) == np.diff(side.run.first_record)
    return np.flatnonzero(every[events])
