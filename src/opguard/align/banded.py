"""Banded monotone dynamic programming over many windows at once.

Rows run over the longer side of a window, so that the band moves by 0 or 1 columns a row. All
windows of a batch advance one row together; H[i][j] is the best score of the first i row events
and the first j column events, and every cell takes

    H[i][j] = max(H[i-1][j-1] + score(i, j), H[i-1][j] + GAP, H[i][j-1] + GAP)

The third term runs along a row; as the gap is linear it is a running maximum of H - j * GAP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from opguard.align.keys import BAND, GAP, Features, pair_scores
from opguard.align.windows import Windows
from opguard.model import I32, I64, U8, Bools

_NEVER: Final = np.int32(-(1 << 29))
"""Far below every score, and far above the smallest int32."""
_CELLS: Final = 1 << 26
"""Cells of a batch: one byte each for the way back."""
_BLOCK: Final = 1 << 17
"""Cells that are scored together: the index columns of so many stay in the cache."""

_PAIR, _SKIP_ROW, _SKIP_COLUMN = 0, 1, 2


def align_windows(windows: Windows, a: Features, b: Features) -> tuple[I64, I64]:
    """Pairs ``(i, j)`` of positions in ``a`` and ``b``, in no particular order."""
    found_a, found_b = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    rows = np.maximum(windows.length_a, windows.length_b)
    size = np.ceil(np.log2(np.maximum(rows, 2))).astype(np.int64)
    tall = windows.length_a >= windows.length_b
    for exponent in np.unique(size):
        half = min(BAND, 1 << int(exponent))
        most = max(1, _CELLS // ((1 << int(exponent)) * (2 * half + 1)))
        for baseline_rows in (True, False):
            chosen = np.flatnonzero((size == exponent) & (tall == baseline_rows))
            for begin in range(0, len(chosen), most):
                batch = windows.select(chosen[begin : begin + most])
                pairs_a, pairs_b = _Batch.of(batch, a, b, baseline_rows, half).solve()
                found_a.append(pairs_a)
                found_b.append(pairs_b)
    return np.concatenate(found_a), np.concatenate(found_b)


@dataclass(frozen=True)
class _Batch:
    """W windows of similar length."""

    a: Features
    b: Features
    row_start: I64
    rows: I64
    column_start: I64
    columns: I64
    baseline_rows: bool
    half: int

    @classmethod
    def of(
        cls, windows: Windows, a: Features, b: Features, baseline_rows: bool, half: int
    ) -> _Batch:
        first = (windows.start_a, windows.length_a)
        second = (windows.start_b, windows.length_b)
        rows, columns = (first, second) if baseline_rows else (second, first)
        return cls(a, b, *rows, *columns, baseline_rows, half)

    def low(self, row: int) -> I64:
        """(W,) column of the band's first cell."""
        return row * self.columns // self.rows - self.half

    def solve(self) -> tuple[I64, I64]:
        """Pairs as positions in ``a`` and ``b``."""
        count, width, most = len(self.rows), 2 * self.half + 1, int(self.rows.max())
        ways = np.empty((most + 1, count, width), np.uint8)
        offsets = np.arange(width)
        ramp = (GAP * offsets).astype(np.int32)
        column = self.low(0)[:, None] + offsets
        best = np.where(self._inside(column), GAP * column, _NEVER).astype(np.int32)
        ways[0] = _SKIP_COLUMN
        block = max(1, _BLOCK // (count * width))
        scores: npt.NDArray[np.int32] = np.empty(0, np.int32)
        for row in range(1, most + 1):
            if (row - 1) % block == 0:
                scores = self._scores(row, min(block, most + 1 - row))
            shift = (self.low(row) - self.low(row - 1)) == 1
            diagonal, above = _shifted(best, shift)
            diagonal = diagonal + scores[(row - 1) % block]
            above = above + np.int32(GAP)
            entered = np.maximum(diagonal, above)
            entered[~self._inside(self.low(row)[:, None] + offsets)] = _NEVER
            best = np.maximum.accumulate(entered - ramp, axis=1) + ramp
            ways[row] = self._way(best, diagonal, above)
        return self._trace(ways)

    def _inside(self, column: I64) -> Bools:
        inside: Bools = (column >= 0) & (column <= self.columns[:, None])
        return inside

    def _scores(self, first_row: int, count: int) -> I32:
        """(count, W, width) scores of the cells of rows ``first_row``…; never for no pair."""
        row = np.arange(first_row, first_row + count)[:, None]
        low = row * self.columns // self.rows - self.half
        column = low[:, :, None] + np.arange(2 * self.half + 1)
        possible = (column >= 1) & (column <= self.columns[:, None])
        possible &= (row <= self.rows)[:, :, None]
        at_row = np.minimum(self.row_start + row, self.row_start + self.rows) - 1
        at_column = self.column_start[:, None] + np.clip(column, 1, self.columns[:, None]) - 1
        row_side, column_side = (self.a, self.b) if self.baseline_rows else (self.b, self.a)
        possible &= row_side.operator[at_row][:, :, None] == column_side.operator[at_column]
        cells = np.flatnonzero(possible)
        i = at_row.ravel()[cells // possible.shape[2]]
        j = at_column.ravel()[cells]
        if not self.baseline_rows:
            i, j = j, i
        scores = np.full(possible.shape, _NEVER, np.int32)
        scores.ravel()[cells] = pair_scores(self.a, self.b, i, j)
        return scores

    def _way(self, best: I32, diagonal: I32, above: I32) -> U8:
        """(W, width) how each cell was reached; ties: pair, then a baseline event left out."""
        way = np.full(best.shape, _SKIP_COLUMN, np.uint8)
        if self.baseline_rows:
            way[best == above] = _SKIP_ROW
        else:
            way.fill(_SKIP_ROW)
            way[:, 1:][best[:, 1:] == best[:, :-1] + GAP] = _SKIP_COLUMN
        way[best == diagonal] = _PAIR
        return way

    def _trace(self, ways: U8) -> tuple[I64, I64]:
        """Walk back from the far corner of every window."""
        found_row, found_column = [], []
        window = np.arange(len(self.rows))
        row, column = self.rows.copy(), self.columns.copy()
        while len(window):
            low = row * self.columns[window] // self.rows[window] - self.half
            way = ways[row, window, column - low]
            paired = way == _PAIR
            found_row.append((self.row_start[window] + row - 1)[paired])
            found_column.append((self.column_start[window] + column - 1)[paired])
            row = row - (way != _SKIP_COLUMN)
            column = column - (way != _SKIP_ROW)
            open_ = (row > 0) & (column > 0)
            window, row, column = window[open_], row[open_], column[open_]
        rows, columns = np.concatenate(found_row), np.concatenate(found_column)
        return (rows, columns) if self.baseline_rows else (columns, rows)


def _shifted(best: I32, shift: Bools) -> tuple[I32, I32]:
    """The previous row under the cells of the next: one column back, and the same column."""
    padded = np.full((best.shape[0], best.shape[1] + 2), _NEVER, np.int32)
    padded[:, 1:-1] = best
    moved = shift[:, None]
    return (
        np.where(moved, padded[:, 1:-1], padded[:, :-2]),
        np.where(moved, padded[:, 2:], padded[:, 1:-1]),
    )
