"""Which records wrote the bytes of one storage."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import Final, NamedTuple

Producers = tuple[int, ...]

MOST_SCATTERED: Final = 1024
"""Scattered writes that may stand beside each other. A ring buffer or a cache, of which each
strided write leaves the former ones in place, has ever more: of these the older half then counts
as one, by the newest of them."""
MOST_PRODUCERS: Final = 1024
"""Listed of one tensor: the newest."""


class _Write(NamedTuple):
    start: int
    end: int
    record: int


class Writers:
    """Later writes have higher record numbers."""

    __slots__ = ("_dense", "_last", "_merged", "_scattered")

    def __init__(self) -> None:
        self._dense: list[_Write] = []
        """What is left of dense writes, side by side in order of place: a data set that is filled
        row by row has hundreds of thousands."""
        self._scattered: list[_Write] = []
        """Newest last; each newer than the dense ones it meets."""
        self._merged = False
        self._last: tuple[int, int, Producers] | None = None
        """The last answer: a whole that was filled in pieces is read again and again."""

    def over(self, start: int, end: int) -> Producers:
        """Records that may have written bytes of the span, newest first, each once."""
        if self._last is not None and self._last[:2] == (start, end):
            return self._last[2]
        first, last = self._range(start, end)
        if last - first == 1 and not self._scattered:
            return (self._dense[first].record,)
        found = {write.record for write in self._dense[first:last]}
        found.update(w.record for w in self._scattered if w.start < end and start < w.end)
        producers = tuple(itertools.islice(sorted(found, reverse=True), MOST_PRODUCERS))
        self._last = (start, end, producers)
        return producers

    def lists_all(self, start: int, end: int) -> bool:
        """False where :meth:`over` names some writers for others, or leaves them out."""
        many = len(self._dense) + len(self._scattered) >= MOST_PRODUCERS
        return not self._merged and not (many and len(self.over(start, end)) == MOST_PRODUCERS)

    def add(self, start: int, end: int, record: int, *, scattered: bool) -> None:
        """A write of the bytes from ``start`` to ``end``, of which there are some; ``scattered``:
        some of them may have been left as they were."""
        self._last = None
        written = _Write(start, end, record)
        if scattered:
            self._scattered.append(written)
        else:
            self._uncover(start, end, written)
        if len(self._scattered) > MOST_SCATTERED:
            self._merge()

    def cut(self, end: int) -> None:
        """The storage has no bytes from ``end`` on any more."""
        self._last = None
        last = max([write.end for write in (*self._dense, *self._scattered)], default=end)
        self._uncover(end, max(last, end))

    def _range(self, start: int, end: int) -> tuple[int, int]:
        """Positions of the dense writes that meet the span."""
        first = bisect_right(self._dense, start, key=lambda write: write.end)
        last = first
        while last < len(self._dense) and self._dense[last].start < end:
            last += 1
        return first, last

    def _uncover(self, start: int, end: int, written: _Write | None = None) -> None:
        first, last = self._range(start, end)
        met = self._dense[first:last]
        before = [w._replace(end=start) for w in met if w.start < start]
        after = [w._replace(start=end) for w in met if end < w.end]
        self._dense[first:last] = [*before, *([written] if written else ()), *after]
        if self._scattered:
            left: list[_Write] = []
            for write in self._scattered:
                if write.start < start:
                    left.append(write._replace(end=min(write.end, start)))
                if end < write.end:
                    left.append(write._replace(start=max(write.start, end)))
            self._scattered = left
            self._merged = self._merged and bool(left)

    def _merge(self) -> None:
        """The older half of the scattered writes counts as one."""
        half = len(self._scattered) // 2
        older = self._scattered[:half]
        start, end = min(w.start for w in older), max(w.end for w in older)
        self._scattered[:half] = [_Write(start, end, older[-1].record)]
        self._merged = True
