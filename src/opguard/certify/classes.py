"""The class of each disagreeing pair: DESIGN section 6's table, the first rule that applies.

Rules about inputs look at the inputs that differ, or, where none is known to differ, at those
that could not be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from opguard.align.matching import among
from opguard.certify.flow import ReadFacts, SideFlow, read_facts
from opguard.certify.joined import Joined, Outcome, Pairs, producer_rows, producer_sums, take
from opguard.columns import Side, Sides
from opguard.model import CLASSES, I64, U8, U64, Bools

_COPIES = frozenset({"aten.clone.default", "aten._to_copy.default", "aten.contiguous.default"})
"""Operators whose output has the logical bytes of their first input, dtype and shape given."""

CODE = {name: code for code, name in enumerate(CLASSES)}


@dataclass(frozen=True)
class Partners:
    """Which record of the candidate each record of the baseline is paired with."""

    of_baseline: I64
    """(R baseline,) -1 for none."""

    @classmethod
    def of(cls, sides: Sides, joined: Joined) -> Partners:
        """Partners from the rows that both sides have."""
        table = np.full(sides.baseline.run.record_count, -1, np.int64)
        matched = joined.matched
        table[joined.baseline[matched]] = joined.candidate[matched]
        return cls(table)

    def same_producers(self, sides: Sides, baseline: I64, candidate: I64) -> Bools:
        """(n,) both records have producers, and they are each other's partners."""
        total = len(baseline)
        sums: list[U64] = []
        counts: list[I64] = []
        for side, records in ((sides.baseline, baseline), (sides.candidate, candidate)):
            known = np.flatnonzero(records >= 0)
            producers, rows = producer_rows(side, records[known])
            if side is sides.baseline:
                producers = self.of_baseline[producers]
            sums.append(producer_sums(producers, known[rows], total))
            counts.append(np.bincount(known[rows], minlength=total))
        # A producer without partner hashes as -1, which is no record of the candidate.
        same: Bools = (sums[0] == sums[1]) & (counts[0] == counts[1]) & (counts[0] > 0)
        return same


@dataclass(frozen=True)
class Flows:
    """Both sides' flows."""

    baseline: SideFlow
    candidate: SideFlow


def settle_inputs(sides: Sides, joined: Joined, flows: Flows, partners: Partners) -> Joined:
    """Inputs whose bytes cannot be compared agree where all producers are partners and agree.

    So do those that are equal once a copy on one side is looked through.
    """
    open_ = np.flatnonzero(
        ~joined.output & (joined.outcome == Outcome.UNKNOWN) & ~joined.void & joined.matched
    )
    left, right = joined.baseline[open_], joined.candidate[open_]
    agrees = partners.same_producers(sides, left, right)
    agrees &= read_facts(flows.baseline, left).all_agree
    agrees &= read_facts(flows.candidate, right).all_agree
    agrees |= _equal_views(sides, _before_copy(sides, sides.baseline, left), right)
    agrees |= _equal_views(sides, left, _before_copy(sides, sides.candidate, right))
    outcome = joined.outcome.copy()
    outcome[open_[agrees]] = Outcome.EQUAL
    return replace(joined, outcome=outcome)


def _before_copy(sides: Sides, side: Side, records: I64) -> I64:
    """(n,) what a copy read to make each record, the record itself where no copy made it.

    In trusted mode the copy of a view is plain and the view is not: one side's ``contiguous()``
    would make an input incomparable.
    """
    run = side.run
    result: I64 = records.copy()
    single = np.flatnonzero(run.first_producer[records + 1] - run.first_producer[records] == 1)
    event = side.record_event[run.producers[run.first_producer[records[single]]]]
    copies = np.array([name in _COPIES for name in sides.operators], np.bool_)
    copied = copies[side.operator[event]]
    single, event = single[copied], event[copied]
    read = run.first_record[event]
    same = ~side.output[read] & ~side.via[records[single]]
    same &= run.dtype[read] == run.dtype[records[single]]
    same &= side.shape[read] == side.shape[records[single]]
    result[single[same]] = read[same]
    return result


def _equal_views(sides: Sides, left: I64, right: I64) -> Bools:
    """(n,) records that see equal values through equal geometry."""
    a, b = sides.baseline, sides.candidate
    equal: Bools = a.via[left] & b.via[right] & a.readable[left] & b.readable[right]
    equal &= a.strides[left] == b.strides[right]
    equal &= a.content[left] == b.content[right]
    equal &= a.run.mix64[left] == b.run.mix64[right]
    return equal


def classify(
    sides: Sides,
    pairs: Pairs,
    joined: Joined,
    flows: Flows,
    partners: Partners,
    disagreeing: Bools,
    reordered: Bools,
) -> U8:
    """(P,) class codes; 0 where a pair does not disagree."""
    facts = _PairFacts.of(sides, pairs, joined, disagreeing)
    rows = _telling_inputs(sides, joined, disagreeing)
    left, right = rows.baseline, rows.candidate
    a, b = read_facts(flows.baseline, left), read_facts(flows.candidate, right)
    differs = rows.outcome == Outcome.DIFFERS
    same = partners.same_producers(sides, left, right)
    another = ~same | ~_same_view(sides, left, right)
    found = _found_elsewhere(sides, rows, a, b)
    unproduced = ((a.count == 0) & (b.count == 0)) | (
        ((a.count == 0) | (b.count == 0)) & _settled(a, b) & ~found
    )
    rules = {
        "source": differs & rows.matched & unproduced,
        "structural": a.clean_gap | b.clean_gap,
        "rewired": differs & another & _settled(a, b) & (a.count + b.count > 0),
        "overwritten": differs & ~another & a.all_agree & b.all_agree,
        "propagated": a.differing | b.differing,
    }
    count = len(disagreeing)
    applies = {
        name: np.bincount(rows.pair[holds], minlength=count) > 0 for name, holds in rules.items()
    }
    applies |= {
        "raised": facts.raised,
        "uninitialised": facts.void,
        "reordered": reordered,
        "argument": facts.argument & ~facts.after_number,
        "random": facts.random,
        "origin": facts.inputs_agree & facts.fresh,
        "origin?": (facts.inputs_agree & ~facts.fresh) | facts.unread,
    }
    classes = np.full(count, CODE["unexplained"], np.uint8)
    for name in reversed(CLASSES):
        if name in applies:
            classes[applies[name]] = CODE[name]
    by_number = facts.argument & facts.after_number & (classes > CODE["argument"])
    classes[by_number] = CODE["propagated"]
    return np.where(disagreeing, classes, 0).astype(np.uint8)


def _same_view(sides: Sides, left: I64, right: I64) -> Bools:
    """(n,) both records look at their storage through the same geometry."""
    a, b = sides.baseline, sides.candidate
    same: Bools = take(a.run.dtype, left) == take(b.run.dtype, right)
    same &= take(a.shape, left) == take(b.shape, right)
    same &= take(a.strides, left) == take(b.strides, right)
    return same


def _settled(a: ReadFacts, b: ReadFacts) -> Bools:
    """(n,) no gap among the producers of either side, and all of them agree."""
    settled: Bools = ~a.any_gap & ~b.any_gap & a.all_agree & b.all_agree
    return settled


def _telling_inputs(sides: Sides, joined: Joined, disagreeing: Bools) -> Joined:
    """Tensors read by disagreeing pairs: those that differ, else those that are unknown."""
    inputs = joined.select(
        np.flatnonzero(
            ~joined.output & disagreeing[joined.pair] & (joined.outcome != Outcome.EQUAL)
        )
    )
    inputs = inputs.select(~_random(sides, inputs))
    differs = inputs.outcome == Outcome.DIFFERS
    some = np.bincount(inputs.pair[differs], minlength=len(disagreeing)) > 0
    return inputs.select(differs | ~some[inputs.pair])


def _found_elsewhere(sides: Sides, rows: Joined, a: ReadFacts, b: ReadFacts) -> Bools:
    """(n,) one side's record has no producer, but its bytes are found on the other side."""
    found = np.zeros(len(rows.pair), np.bool_)
    for side, other, records, facts in (
        (sides.baseline, sides.candidate, rows.baseline, a),
        (sides.candidate, sides.baseline, rows.candidate, b),
    ):
        asked = np.flatnonzero((facts.count == 0) & (a.count + b.count > 0) & (records >= 0))
        if len(asked):
            evident = side.readable & ~side.weak
            asked = asked[evident[records[asked]]]
            there = other.content[other.readable & ~other.weak]
            found[asked] = among(side.content[records[asked]], there)
    return found


def number_pairs(sides: Sides, joined: Joined, count: int) -> Bools:
    """(count,) pairs that returned a number which differs, ignored or not."""
    rows = np.flatnonzero(joined.output & (joined.outcome >= Outcome.DIFFERS) & joined.matched)
    found = np.zeros(count, np.bool_)
    found[joined.pair[rows[sides.candidate.number[joined.candidate[rows]]]]] = True
    return found


def _random(sides: Sides, rows: Joined) -> Bools:
    """(n,) rows that hold a generator's state."""
    random: Bools = ((rows.baseline >= 0) & take(sides.baseline.rng, rows.baseline)) | (
        (rows.candidate >= 0) & take(sides.candidate.rng, rows.candidate)
    )
    return random


@dataclass(frozen=True)
class _PairFacts:
    """(P,) facts of pairs that need no producer."""

    raised: Bools
    void: Bools
    argument: Bools
    after_number: Bools
    """A number-returning event disagreed earlier in the candidate."""
    random: Bools
    inputs_agree: Bools
    fresh: Bools
    """Every input was read for its event on both sides."""
    unread: Bools
    """No input differs, and those that could not be compared are known views, not missing."""

    @classmethod
    def of(cls, sides: Sides, pairs: Pairs, joined: Joined, disagreeing: Bools) -> _PairFacts:
        a, b = sides.baseline, sides.candidate
        count = len(disagreeing)
        inputs = joined.select(np.flatnonzero(~joined.output & disagreeing[joined.pair]))
        rng = _random(sides, inputs)
        has_a, has_b = inputs.baseline >= 0, inputs.candidate >= 0
        stale = (has_a & ~take(a.fresh, inputs.baseline)) | (
            has_b & ~take(b.fresh, inputs.candidate)
        )
        differs = inputs.outcome == Outcome.DIFFERS
        unknown = inputs.outcome == Outcome.UNKNOWN
        known = (~has_a | take(a.readable, inputs.baseline)) & (
            ~has_b | take(b.readable, inputs.candidate)
        )
        arguments = a.arguments[pairs.baseline] != b.arguments[pairs.candidate]
        numbers = number_pairs(sides, joined, count)
        first_number = int(numbers.argmax()) if numbers.any() else count

        def some(mask: Bools) -> Bools:
            found: Bools = np.bincount(inputs.pair[mask], minlength=count) > 0
            return found

        return cls(
            raised=a.raised[pairs.baseline] != b.raised[pairs.candidate],
            void=some(inputs.void),
            argument=arguments | some(~inputs.matched & differs & ~rng),
            after_number=np.arange(count) > first_number,
            random=some(rng & inputs.matched & differs),
            inputs_agree=~some(~rng & (inputs.outcome != Outcome.EQUAL)),
            fresh=~some(stale & ~rng),
            unread=~some(~rng & differs) & ~some(~rng & unknown & ~known) & some(~rng & unknown),
        )
