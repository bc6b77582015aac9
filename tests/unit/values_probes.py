"""One way to ask both implementations of values what they know: Python's and the C++ recorder's."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pytest
import torch

from native_support import needs_native
from opguard.capture.geometry import Geometries, Geometry
from opguard.capture.interning import Interner
from opguard.capture.traits import traits
from opguard.capture.values import Known, Storage, Values
from opguard.capture.void import VoidMap
from opguard.fingerprint import native
from opguard.fingerprint.stage import Digest, resolved

Record = int
Mask = tuple[list[int], bytes]
"""Shape and row-major bytes, 1: nothing wrote the element."""


class Probe(Protocol):
    """Questions that both answer alike. A tensor stands for its storage and its geometry."""

    def meet(self, tensor: torch.Tensor) -> None: ...
    def create(self, tensor: torch.Tensor) -> None: ...
    def met(self, tensor: torch.Tensor) -> bool: ...
    def rebuilt(self, tensor: torch.Tensor, other: torch.Tensor) -> None: ...
    def resized(self, tensor: torch.Tensor) -> None: ...
    def forget_all(self) -> None: ...
    def swept(self, entered: int) -> int: ...
    def producers(self, tensor: torch.Tensor) -> list[Record]: ...
    def wrote(self, tensor: torch.Tensor, record: Record, partial: bool) -> list[Record]: ...
    def begins(self, tensor: torch.Tensor) -> None: ...
    def ended(self, tensor: torch.Tensor) -> None: ...
    def forget(self, tensor: torch.Tensor, keep_void: bool) -> None: ...
    def reread(self, tensor: torch.Tensor) -> None: ...
    def make_external(self, tensor: torch.Tensor) -> None: ...
    def learn(self, tensor: torch.Tensor, mix64: int, xor32: int) -> None: ...
    def known(self, tensor: torch.Tensor) -> tuple[int, int] | None: ...
    def covering(self, tensor: torch.Tensor) -> tuple[tuple[int, int], str] | None: ...
    def is_void(self, tensor: torch.Tensor) -> bool: ...
    def leave_void(self, tensor: torch.Tensor, mask: torch.Tensor | None) -> None: ...
    def unset_elements(self, tensor: torch.Tensor) -> Mask | None: ...
    def facts(self, tensor: torch.Tensor) -> dict[str, Any]: ...
    def set_reader(self, tensor: torch.Tensor, record: Record) -> None: ...
    def set_creator(self, tensor: torch.Tensor, record: Record) -> None: ...
    def geometry(self, tensor: torch.Tensor) -> dict[str, Any]: ...
    def value_key(self, tensor: torch.Tensor) -> Any: ...
    def relative(self, view: torch.Tensor, base: torch.Tensor) -> str: ...


class PythonProbe:
    """``opguard.capture.values``, called as ``opguard.capture.reader`` calls it."""

    def __init__(self) -> None:
        self._interner = Interner()
        self._geometries = Geometries(self._interner)
        self._values = Values()

    def _of(self, tensor: torch.Tensor) -> Geometry:
        return self._geometries.of(tensor, traits(tensor).bits)

    def _entry(self, tensor: torch.Tensor) -> Storage:
        entry = self._values.find(tensor)
        assert entry is not None
        return entry

    def meet(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._values.meet(storage._cdata, tensor, storage, cpu=True)

    def create(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._values.create(storage._cdata, tensor, storage, cpu=True)

    def met(self, tensor: torch.Tensor) -> bool:
        return self._values.find(tensor) is not None

    def rebuilt(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        self._values.rebuilt(tensor, other.untyped_storage())

    def resized(self, tensor: torch.Tensor) -> None:
        self._values.resized(tensor.untyped_storage())

    def forget_all(self) -> None:
        self._values.forget_all()

    def swept(self, entered: int) -> int:
        return entered - len(self._values._storages)

    def producers(self, tensor: torch.Tensor) -> list[Record]:
        return list(self._entry(tensor).producers(self._of(tensor)))

    def wrote(self, tensor: torch.Tensor, record: Record, partial: bool) -> list[Record]:
        return list(self._entry(tensor).wrote(self._of(tensor), record, partial=partial))

    def begins(self, tensor: torch.Tensor) -> None:
        # A dispatch mode runs below autograd: the counter moves after it.
        self._entry(tensor).explain(tensor)

    def ended(self, tensor: torch.Tensor) -> None:
        pass

    def forget(self, tensor: torch.Tensor, keep_void: bool) -> None:
        self._entry(tensor).forget(void=keep_void)

    def reread(self, tensor: torch.Tensor) -> None:
        self._values.reread([tensor.untyped_storage()._cdata])

    def make_external(self, tensor: torch.Tensor) -> None:
        self._entry(tensor).make_external()

    def learn(self, tensor: torch.Tensor, mix64: int, xor32: int) -> None:
        entry = self._entry(tensor)
        if not entry.external:
            geometry = self._of(tensor)
            entry.known[geometry.key] = Known(resolved(mix64, xor32), geometry)

    def known(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        known = self._entry(tensor).known.get(self._of(tensor).key)
        return None if known is None else _fields(known.digest)

    def covering(self, tensor: torch.Tensor) -> tuple[tuple[int, int], str] | None:
        geometry = self._of(tensor)
        base = self._entry(tensor).covering(geometry)
        if base is None:
            return None
        relative = self._geometries.relative(geometry, base.geometry)
        return _fields(base.digest), self._interner.text("strides", relative)

    def is_void(self, tensor: torch.Tensor) -> bool:
        return self._entry(tensor).is_void(self._of(tensor))

    def leave_void(self, tensor: torch.Tensor, mask: torch.Tensor | None) -> None:
        entry = self._entry(tensor)
        if entry.external:
            return
        if mask is None:
            entry.void = VoidMap(entry.nbytes)
        else:
            entry.leave_void(self._of(tensor), mask.numpy())

    def unset_elements(self, tensor: torch.Tensor) -> Mask | None:
        entry, of = self._entry(tensor), self._of(tensor)
        if entry.void is None:
            return None
        mask = entry.void.elements(of.start, of.itemsize, of.shape, of.byte_strides)
        return (list(mask.shape), mask.tobytes()) if isinstance(mask, np.ndarray) else None

    def facts(self, tensor: torch.Tensor) -> dict[str, Any]:
        entry = self._entry(tensor)
        return {
            "nbytes": entry.nbytes,
            "external": entry.external,
            "has_void": entry.void is not None,
            "first_reader": entry.first_reader,
            "creator": entry.creator,
        }

    def set_reader(self, tensor: torch.Tensor, record: Record) -> None:
        self._entry(tensor).first_reader = record

    def set_creator(self, tensor: torch.Tensor, record: Record) -> None:
        self._entry(tensor).creator = record

    def geometry(self, tensor: torch.Tensor) -> dict[str, Any]:
        of = self._of(tensor)
        names = "start", "end", "nbytes", "itemsize", "contiguous", "dense", "bits", "dtype_code"
        texts = {
            "shape": self._interner.text("shape", of.shape_id),
            "strides": self._interner.text("strides", of.strides_id),
            "layout": of.layout,
        }
        return {name: getattr(of, name) for name in names} | texts

    def value_key(self, tensor: torch.Tensor) -> Any:
        return self._of(tensor).key

    def relative(self, view: torch.Tensor, base: torch.Tensor) -> str:
        found = self._geometries.relative(self._of(view), self._of(base))
        return self._interner.text("strides", found)


def _fields(digest: Digest) -> tuple[int, int]:
    return digest.mix64, digest.xor32


def native_probe() -> Probe:
    """``csrc/recorder/values``."""

    class NativeProbe(native.module().ValuesProbe):  # type: ignore[misc]
        def begins(self, tensor: torch.Tensor) -> None:
            pass

        def ended(self, tensor: torch.Tensor) -> None:
            # The end callback runs once autograd has moved the counter.
            self.explain(tensor)

        def swept(self, _entered: int) -> int:
            return int(self.drop())

    probe: Probe = NativeProbe()
    return probe


PROBES = [
    pytest.param(PythonProbe, id="python"),
    pytest.param(native_probe, id="native", marks=needs_native),
]


def met(probe: Probe, *tensors: torch.Tensor) -> torch.Tensor:
    """The first tensor; all of them were met."""
    for tensor in tensors:
        probe.meet(tensor)
    return tensors[0]
