"""Where a tensor's elements lie in its storage. Geometries are interned: a training step meets
the same few hundred of them again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from opguard.capture.interning import Interner, json_list
from opguard.fingerprint.tensor import dtype_code

MOST_GEOMETRIES: Final = 1 << 16


class Geometry:
    """Offset, shape, strides and dtype of a tensor, in bytes and as string ids."""

    __slots__ = ("bits", "contiguous", "dense", "dtype_code", "end", "itemsize", "key", "nbytes",
                 "shape", "shape_id", "start", "strides", "strides_id")  # fmt: skip

    def __init__(self, tensor: torch.Tensor, bits: int) -> None:
        """``bits``: conjugate (1) and negative (2) bits."""
        itemsize = self.itemsize = tensor.itemsize
        self.shape = tensor.shape
        self.strides = tensor.stride()
        self.bits = bits
        self.nbytes = tensor.numel() * itemsize
        self.start: int = int(tensor.storage_offset()) * itemsize
        self.contiguous = tensor.is_contiguous()
        self.key: Any
        """Equal for views of one storage with the same bytes in the same order."""
        if self.contiguous or not self.nbytes:
            self.end: int = self.start + self.nbytes
            self.dense = True
            self.key = (tensor.dtype, self.start, self.nbytes, bits)
        else:
            span = itemsize
            for size, stride in zip(self.shape, self.strides, strict=True):
                span += (size - 1) * stride * itemsize
            self.end = self.start + span
            self.dense = _is_dense(self.shape, self.strides)
            self.key = (tensor.dtype, self.start, self.shape, self.strides, bits)
        self.dtype_code = dtype_code(tensor.dtype)
        self.shape_id = -1
        self.strides_id = -1

    @property
    def byte_strides(self) -> list[int]:
        """Strides in bytes."""
        return [stride * self.itemsize for stride in self.strides]

    @property
    def layout(self) -> str:
        """Order of the elements of a value that is not row-major; empty for one that is."""
        return "" if self.contiguous else json_list([list(self.shape), list(self.strides)])


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """The elements fill their span, each in a place of its own."""
    filled = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != filled:
                return False
            filled *= size
    return True


class Geometries:
    """The geometries met so far."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._known: dict[Any, Geometry] = {}
        self._relative: dict[Any, int] = {}

    def of(self, tensor: torch.Tensor, bits: int) -> Geometry:
        """The geometry of a strided tensor."""
        key = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, bits)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_GEOMETRIES:
                self._known.clear()
            found = self._known[key] = Geometry(tensor, bits)
            intern = self._interner.intern
            found.shape_id = intern("shape", json_list(list(found.shape)))
            place = f"@{found.start}" if found.start else ""
            found.strides_id = intern("strides", json_list(list(found.strides)) + place)
        return found

    def relative(self, view: Geometry, base: Geometry) -> int:
        """Strides id of a view that is known through ``base``: with its place in it."""
        key = (view.strides, view.start - base.start, base.nbytes, base.layout)
        found = self._relative.get(key)
        if found is None:
            if len(self._relative) >= MOST_GEOMETRIES:
                self._relative.clear()
            strides, offset, nbytes, layout = key
            text = f"{json_list(list(strides))}|{offset}|{nbytes}|{layout}"
            found = self._relative[key] = self._interner.intern("strides", text)
        return found
