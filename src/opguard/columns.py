"""One rank of two runs as columns that share their ids.

String ids of a run are its own. Here operators, modules, arguments, slots, shapes and strides
of both sides get common ids, so that everything after works on integer columns only.
E events, R records; 64-bit row hashes are for searching, never for saying that bytes are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from opguard.model import (
    DTYPES,
    I32,
    I64,
    NONE_ID,
    PHASES,
    REASON_SHIFT,
    U8,
    U64,
    Bools,
    EventFlag,
    RankEvents,
    RecordFlag,
    StringKind,
)

_M: Final = np.uint64(0xD6E8FEB86659FD93)
_K: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_NUMBER_CODES: Final = tuple(i for i, name in enumerate(DTYPES) if name.startswith("python_"))


@dataclass(frozen=True)
class Side:
    """One rank of one run. Ids are common to both sides."""

    run: RankEvents
    operator: I32
    """(E,)"""
    module: I32
    phase: U8
    arguments: I32
    """(E,) ids of what is compared of the arguments: the text before a tab."""
    slot: I32
    """(R,)"""
    shape: I32
    strides: I32
    record_event: I64
    """(R,) position of the event that a record belongs to."""
    in_place: Bools
    """(R,) written arguments (slot ends in ``!``)."""
    rng: Bools
    """(R,) inputs that hold a generator's state."""

    @cached_property
    def state(self) -> Bools:
        """(E,) final-state entries."""
        return _has(self.run.flags, EventFlag.STATE)

    @cached_property
    def raised(self) -> Bools:
        """(E,) calls that ended in an exception."""
        return _has(self.run.flags, EventFlag.RAISED)

    @cached_property
    def output(self) -> Bools:
        """(R,) outputs."""
        return _has(self.run.record_flags, RecordFlag.OUTPUT)

    @cached_property
    def void(self) -> Bools:
        """(R,) records that overlap unwritten memory."""
        return _has(self.run.record_flags, RecordFlag.VOID)

    @cached_property
    def via(self) -> Bools:
        """(R,) records whose ``mix64`` is that of the value they are a view of."""
        return _has(self.run.record_flags, RecordFlag.VIA)

    @cached_property
    def fresh(self) -> Bools:
        """(R,) inputs that were read for their event."""
        return _has(self.run.record_flags, RecordFlag.FRESH)

    @cached_property
    def present(self) -> Bools:
        """(R,) records with a fingerprint."""
        return ~_has(self.run.record_flags, 0xF << REASON_SHIFT)

    @cached_property
    def number(self) -> Bools:
        """(R,) returned Python numbers."""
        return np.isin(self.run.dtype, _NUMBER_CODES)

    @cached_property
    def producer_owner(self) -> I64:
        """(P,) the record that each entry of ``producers`` belongs to."""
        counts = np.diff(self.run.first_producer)
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    @cached_property
    def readable(self) -> Bools:
        """(R,) records whose bytes are known and written."""
        return self.present & ~self.void

    @cached_property
    def weak(self) -> Bools:
        """(R,) records whose content is no evidence of correspondence.

        Bytes that are all equal leave an ``xor32`` whose bytes are 0 or one and the same value.
        """
        octets = self.run.xor32[:, None] >> np.array([0, 8, 16, 24], np.uint32) & np.uint32(0xFF)
        largest = octets.max(axis=1, initial=0)
        equal: Bools = ((octets == 0) | (octets == largest[:, None])).all(axis=1)
        return equal

    @cached_property
    def content(self) -> U64:
        """(R,) hash of dtype, shape and bytes; of dtype and shape alone where bytes are unknown."""
        value = np.where(self.readable, self.run.mix64, np.uint64(0))
        geometry = np.where(self.via, self.strides + 1, 0)
        return hash_columns(self.run.dtype, self.shape, value, geometry)

    def per_event(self, values: U64) -> U64:
        """(E,) sums modulo 2^64 of a record column."""
        total: U64 = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(values, out=total[1:])
        return total[self.run.first_record[1:]] - total[self.run.first_record[:-1]]

    def count_per_event(self, mask: Bools) -> I64:
        """(E,) number of records in ``mask``."""
        total = np.zeros(len(mask) + 1, np.int64)
        np.cumsum(mask, out=total[1:])
        counts: I64 = total[self.run.first_record[1:]] - total[self.run.first_record[:-1]]
        return counts


@dataclass(frozen=True)
class Sides:
    """Both sides of one rank, and the texts behind the common ids."""

    baseline: Side
    candidate: Side
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    slots: tuple[str, ...]


@dataclass
class _Ids:
    """Numbers texts in order of first use."""

    known: dict[str, int] = field(default_factory=dict)

    def of(self, texts: Iterable[str]) -> I32:
        known = self.known
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


def join_sides(baseline: RankEvents, candidate: RankEvents) -> Sides:
    """Columns of both sides on common ids."""
    ids = {kind: _Ids() for kind in ("operator", "module", "arguments", "slot", "shape", "strides")}
    sides = [_side(run, ids) for run in (baseline, candidate)]
    texts = {kind: tuple(numbering.known) for kind, numbering in ids.items()}
    return Sides(sides[0], sides[1], texts["operator"], texts["module"], texts["slot"])


def _side(run: RankEvents, ids: dict[str, _Ids]) -> Side:
    boundary = run.boundary.astype(np.int64)
    operators = ids["operator"].of(b.operator for b in run.boundaries)
    modules = ids["module"].of(b.module for b in run.boundaries)
    phases = np.array([PHASES.index(b.phase) for b in run.boundaries], np.uint8)
    slots = run.strings.values("slot")
    written = np.array([slot.endswith("!") for slot in slots], np.bool_)
    is_rng = np.array([slot == "rng" for slot in slots], np.bool_)
    compared = ids["arguments"].of(
        text.partition("\t")[0] for text in ("", *run.strings.values("arguments"))
    )
    return Side(
        run=run,
        operator=operators[boundary],
        module=modules[boundary],
        phase=phases[boundary],
        arguments=compared[np.where(run.arguments == NONE_ID, -1, run.arguments.astype(int)) + 1],
        slot=ids["slot"].of(slots)[run.slot],
        shape=_common(run, "shape", run.shape, ids),
        strides=_common(run, "strides", run.strides, ids),
        record_event=np.repeat(
            np.arange(run.event_count, dtype=np.int64), np.diff(run.first_record)
        ),
        in_place=written[run.slot],
        rng=is_rng[run.slot] & ((run.record_flags & RecordFlag.OUTPUT) == 0),
    )


def _common(
    run: RankEvents, kind: StringKind, column: npt.NDArray[np.uint32], ids: dict[str, _Ids]
) -> I32:
    """Common ids of a string column; -1 for "none"."""
    table = np.append(ids[kind].of(run.strings.values(kind)), np.int32(-1))
    return table[np.where(column == NONE_ID, len(table) - 1, column.astype(np.int64))]


def _has(column: U8, bits: int) -> Bools:
    found: Bools = (column & np.uint8(bits)) != 0
    return found


def scramble(values: U64) -> U64:
    """A bijection of 64-bit words (the one of fingerprints, DESIGN section 4)."""
    mixed: U64 = values ^ (values >> _HALF)
    mixed *= _M
    mixed ^= mixed >> _HALF
    mixed *= _M
    mixed ^= mixed >> _HALF
    return mixed


def hash_columns(*columns: npt.NDArray[np.generic]) -> U64:
    """One hash a row over columns of equal length."""
    result = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        result += _K
        result ^= column.astype(np.uint64)
        result = scramble(result)
    return result


def spans(starts: I64, counts: I64) -> I64:
    """``starts[0], starts[0] + 1, … (counts[0] of them), starts[1], …``"""
    ends = np.cumsum(counts)
    offsets: I64 = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    offsets += np.repeat(starts - (ends - counts), counts)
    return offsets
