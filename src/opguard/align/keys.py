"""What identifies an event for alignment, and every constant of the alignment.

Outputs are no part of it: they decide nothing before the rescue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from opguard.columns import Side, hash_columns, spans
from opguard.model import I32, I64, U8, U64, Bools

SCALE: Final = 20
"""Scores are integers: DESIGN's weights times 20. With at most 4 tokens, all shares are whole."""
MATCH: Final = 20
SHAPES_DIFFER: Final = -12
MODULE_DIFFERS: Final = -5
PHASE_DIFFERS: Final = -10
STEP_DIFFERS: Final = -5
INPUTS_AGREE: Final = 60
"""Times the share of agreeing inputs. One agreeing list is worth more than two bare matches."""
ARGUMENTS_DIFFER: Final = -5
NOTHING_AGREES: Final = -30
"""Inputs and arguments all differ: worse than two gaps."""
GAP: Final = -6

BAND: Final = 64
"""Cells on each side of the straight line between a window's corners."""
LARGEST_WINDOW: Final = 4096
TOKENS: Final = 4
"""Inputs of an event are folded into so many tokens (the fifth joins the first)."""

VARIANTS: Final = (
    ("phase", "operator", "module", "shapes", "step"),
    ("operator", "module", "shapes", "step"),
    ("phase", "operator", "shapes", "step"),
    ("phase", "operator", "module", "shapes"),
)
"""Parts of the key in the order in which they are tried: all, then one left out."""


@dataclass(frozen=True)
class Keys:
    """Keys of all events of one side. E events."""

    side: Side
    modules: tuple[str, ...]
    """Texts of the module ids."""

    @cached_property
    def shapes(self) -> U64:
        """(E,) hash of the outputs' slots, dtypes and shapes."""
        side = self.side
        each = hash_columns(side.slot, side.run.dtype, side.shape)
        each[~side.output] = 0
        return side.per_event(each)

    @cached_property
    def sizes(self) -> U64:
        """(E,) hash of the outputs' slots and shapes: what ``shapes`` is without dtypes."""
        side = self.side
        each = hash_columns(side.slot, side.shape)
        each[~side.output] = 0
        return side.per_event(each)

    @cached_property
    def inputs(self) -> U64:
        """(E,) hash of the inputs' slots, dtypes, shapes and bytes."""
        side = self.side
        each = hash_columns(side.slot, side.content)
        each[side.output] = 0
        return hash_columns(side.per_event(each), self.input_count)

    @cached_property
    def outputs(self) -> U64:
        """(E,) hash of the outputs' dtypes, shapes and bytes, whatever their slots."""
        each = self.side.content.copy()
        each[~self.side.output] = 0
        return self.side.per_event(each)

    @cached_property
    def input_count(self) -> I64:
        """(E,)"""
        return self.side.count_per_event(~self.side.output)

    @cached_property
    def evident(self) -> Bools:
        """(E,) events with an input whose bytes are evidence of correspondence."""
        side = self.side
        found: Bools = side.count_per_event(~side.output & side.readable & ~side.weak) > 0
        return found

    @cached_property
    def telling(self) -> Bools:
        """(E,) events with an output whose bytes are evidence of correspondence."""
        side = self.side
        found: Bools = side.count_per_event(side.output & side.readable & ~side.weak) > 0
        return found

    @cached_property
    def without_module(self) -> Bools:
        """(E,) events outside every module."""
        empty = [name == "" for name in self.modules]
        return np.array(empty, np.bool_)[self.side.module]

    def key(self, parts: tuple[str, ...], events: I64) -> U64:
        """(n,) hash of the named parts of the key of each of ``events``."""
        columns: dict[str, npt.NDArray[np.generic]] = {
            "phase": self.side.phase,
            "operator": self.side.operator,
            "module": self.side.module,
            "shapes": self.shapes,
            "step": self.side.run.step,
        }
        return hash_columns(*(columns[part][events] for part in parts))

    def content(self, parts: tuple[str, ...], events: I64) -> U64:
        """(n,) hash of key, inputs and arguments: what decides an event's outputs."""
        return hash_columns(
            self.key(parts, events), self.inputs[events], self.side.arguments[events]
        )


@dataclass(frozen=True)
class Features:
    """What scores a pair, for n selected events of one side."""

    operator: I32
    module: I32
    phase: U8
    step: I32
    arguments: I32
    shapes: U64
    sizes: U64
    tokens: U64
    """(n, TOKENS) hashes of the inputs; beyond ``token_count`` a value that equals no other."""
    token_count: I32
    same: U64
    """(n,) hash of module, phase, step, shapes and arguments: all that lowers a score."""


def features(keys: Keys, events: I64, filler: int) -> Features:
    """Features of ``events``; ``filler`` must differ between the two sides."""
    side = keys.side
    starts = side.run.first_record[events]
    records = spans(starts, side.run.first_record[events + 1] - starts)
    owner = np.repeat(
        np.arange(len(events), dtype=np.int64), side.run.first_record[events + 1] - starts
    )
    is_input = ~side.output[records]
    records, owner = records[is_input], owner[is_input]
    counts = np.bincount(owner, minlength=len(events))
    position = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = np.full((len(events), TOKENS), filler, np.uint64)
    each = hash_columns(side.slot[records], side.content[records])
    # Neighbours share a token: of two lists of tensors one may differ and the other agree.
    size = np.ones(len(events), np.int64)
    many = counts > TOKENS
    size[many] = 1 << np.ceil(np.log2(counts[many] / TOKENS)).astype(np.int64)
    bucket = position // size[owner]
    first = position % size[owner] == 0
    tokens[owner[first], bucket[first]] = each[first]
    np.add.at(tokens, (owner[~first], bucket[~first]), each[~first])
    columns = (side.module, side.phase, side.run.step, keys.shapes, side.arguments)
    return Features(
        operator=side.operator[events],
        module=side.module[events],
        phase=side.phase[events],
        step=side.run.step[events],
        arguments=side.arguments[events],
        shapes=keys.shapes[events],
        sizes=keys.sizes[events],
        tokens=tokens,
        token_count=(-(-counts // size)).astype(np.int32),
        same=hash_columns(*(column[events] for column in columns)),
    )


def pair_scores(a: Features, b: Features, i: I64, j: I64) -> I32:
    """(n,) scores of pairing ``a[i]`` with ``b[j]``, whose operators are equal."""
    most = np.maximum(a.token_count[i], b.token_count[j])
    agreeing = np.zeros(len(i), np.int32)
    for column in range(TOKENS):
        agreeing += a.tokens[i, column] == b.tokens[j, column]
    scores = MATCH + INPUTS_AGREE * agreeing // np.maximum(most, 1)
    other = np.flatnonzero(a.same[i] != b.same[j])
    i, j = i[other], j[other]
    lost = SHAPES_DIFFER * (a.shapes[i] != b.shapes[j]).astype(np.int32)
    lost += MODULE_DIFFERS * (a.module[i] != b.module[j])
    lost += PHASE_DIFFERS * (a.phase[i] != b.phase[j])
    lost += STEP_DIFFERS * (a.step[i] != b.step[j])
    arguments = a.arguments[i] != b.arguments[j]
    lost += ARGUMENTS_DIFFER * arguments
    # A tanh of one row is no counterpart of the tanh of all rows: with other sizes, too, nothing
    # agrees, whatever the arguments. Another dtype alone is the same call under autocast.
    unlike = arguments | (a.sizes[i] != b.sizes[j])
    lost += NOTHING_AGREES * (unlike & (agreeing[other] == 0) & (most[other] > 0))
    scores[other] += lost
    return scores.astype(np.int32)
