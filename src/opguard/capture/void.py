"""Which bytes of a storage nothing has written yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Unset: TypeAlias = "bool | np.ndarray"
"""Which elements of a tensor nothing wrote: all, none, or a mask in its shape."""


class VoidMap:
    """Void bytes of one storage: the whole of it, or an exact map once a part was written.

    The map has one byte per storage byte and lives only while some of them are void.
    """

    __slots__ = ("_map", "nbytes")

    def __init__(self, nbytes: int, first: int = 0) -> None:
        """All bytes from ``first`` on are void."""
        self.nbytes = nbytes
        self._map: np.ndarray | None = None
        if first:
            self._map = np.ones(nbytes, np.bool_)
            self._map[:first] = False

    def _view(
        self, start: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]
    ) -> np.ndarray:
        """The map seen through a tensor's geometry; ``strides`` in bytes."""
        if self._map is None:
            self._map = np.ones(self.nbytes, np.bool_)
        return np.lib.stride_tricks.as_strided(
            self._map[start:], (*shape, itemsize), (*strides, 1), writeable=True
        )

    def overlaps(
        self, start: int, end: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]
    ) -> bool:
        """True when the tensor reads a void byte. ``start``, ``end``: its span in bytes."""
        if start == end:
            return False
        if self._map is None:
            return True
        if not self._map[start:end].any():
            return False
        return bool(self._view(start, itemsize, shape, strides).any())

    def elements(
        self, start: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Unset:
        """Which elements of the tensor hold a void byte, in its shape; False: none."""
        if not _numel(shape):
            return False
        void = np.asarray(self._view(start, itemsize, shape, strides).any(-1))
        return void if void.any() else False

    def resize(self, nbytes: int) -> None:
        """The storage has ``nbytes`` bytes now; those added are void."""
        if self._map is not None:
            kept = self._map[:nbytes]
            self._map = np.ones(nbytes, np.bool_)
            self._map[: len(kept)] = kept
        self.nbytes = nbytes

    def leave(
        self, start: int, itemsize: int, shape: Sequence[int], strides: Sequence[int],
        unset: np.ndarray,
    ) -> None:  # fmt: skip
        """Make elements of the tensor void; ``unset`` broadcasts to its shape."""
        view = self._view(start, itemsize, shape, strides)
        view |= unset[..., np.newaxis]

    def written(
        self, start: int, end: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]
    ) -> bool:
        """Every element of the tensor was written. True when nothing is void any more."""
        if start == end:
            return False
        self._view(start, itemsize, shape, strides)[...] = False
        return self._map is not None and not self._map.any()


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
