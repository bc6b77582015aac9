"""Which tensor is which: storages, who wrote them, and what is known of their bytes.

A value is a storage, the captured writes to it, and a geometry. A storage is identified by the
address of its StorageImpl while a weak reference is held: the struct then stays allocated, so
that a reused address is never the old value. All methods are called under the capture's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from opguard.capture import torch_private
from opguard.capture.geometry import Geometry
from opguard.capture.void import VoidMap
from opguard.capture.writers import Producers, Writers
from opguard.fingerprint.stage import Digest

NO_RECORD: Final = -1
SWEEP_EVERY: Final = 64
"""Storages met between two sweeps for those that no tensor holds any more, or an eighth of those
alive where that is more. What an entry keeps of a dead one splits memory that was freed: with
8,192 of them a chain of 4 MiB temporaries took up 2 MiB more with each call."""
MOST_HOLDERS: Final = 8
"""Tensors remembered for a storage: a parameter, its ``.data`` and the like."""


class Known(NamedTuple):
    """A value whose bytes have a fingerprint."""

    digest: Digest
    geometry: Geometry


class Storage:
    """What capture knows of one storage."""

    __slots__ = ("creator", "external", "final", "first_reader", "holders", "known", "nbytes",
                 "version", "void", "weak", "writers")  # fmt: skip

    def __init__(self, weak: int, nbytes: int, version: int) -> None:
        self.weak = weak
        self.nbytes = nbytes
        self.version = version
        """Highest version counter that captured writes explain. Views share a counter, ``.data``
        and ``set_`` start others, which may be lower."""
        self.holders: tuple[int, ...] = ()
        """Tensors (a view's base for the view) that were read or written with it, by address,
        newest first: their counters are covered by ``version``."""
        self.writers = Writers()
        self.known: dict[Any, Known] = {}
        self.void: VoidMap | None = None
        self.external = False
        """Others may write it without a trace: never known again."""
        self.first_reader = NO_RECORD
        self.creator = NO_RECORD
        """Returned tensor that brought it into being; see also :meth:`Values.rebuilt`."""
        self.final: tuple[tuple[int, Any], ...] = ()
        """(pass, key): views of it that a reading of final state has read."""

    def is_void(self, geometry: Geometry) -> bool:
        """True when the tensor overlaps memory that nothing wrote."""
        return self.void is not None and self.void.overlaps(
            geometry.start, geometry.end, geometry.itemsize, geometry.shape, geometry.byte_strides
        )

    def covering(self, geometry: Geometry) -> Known | None:
        """A known dense value that holds every byte of the view; None also where ``producers``, by
        which the view is to be judged, do not list all of them."""
        if not self.writers.lists_all(geometry.start, geometry.end):
            return None
        for known in self.known.values():
            base = known.geometry
            if (
                base.dense
                and not base.bits
                and base.start <= geometry.start
                and geometry.end <= base.end
            ):
                return known
        return None

    def producers(self, geometry: Geometry) -> Producers:
        """Records whose bytes the tensor may read, newest first."""
        return self.writers.over(geometry.start, geometry.end)

    def wrote(self, geometry: Geometry, record: int, *, partial: bool = False) -> Producers:
        """A captured write; returns the records whose bytes it overwrote, newest first.

        ``partial``: elements of the tensor may have kept their old bytes.
        """
        start, end = geometry.start, geometry.end
        if start == end:
            return ()
        before = self.producers(geometry)
        self.writers.add(start, end, record, scattered=partial or not geometry.dense)
        if self.known:
            self._drop_known(start, end)
        if self.void is not None and not partial and self._clears(self.void, geometry):
            self.void = None
        return before

    def leave_void(self, geometry: Geometry, unset: np.ndarray) -> None:
        """Elements of the tensor that was just written hold what nothing wrote."""
        if self.void is None:
            self.void = VoidMap(self.nbytes, self.nbytes)
        self.void.leave(
            geometry.start, geometry.itemsize, geometry.shape, geometry.byte_strides, unset
        )

    def _drop_known(self, start: int, end: int) -> None:
        for key in [
            key
            for key, known in self.known.items()
            if known.geometry.start < end and start < known.geometry.end
        ]:
            del self.known[key]

    @staticmethod
    def _clears(void: VoidMap, geometry: Geometry) -> bool:
        if geometry.dense and geometry.nbytes == void.nbytes:
            return True
        return void.written(
            geometry.start, geometry.end, geometry.itemsize, geometry.shape, geometry.byte_strides
        )

    def make_external(self) -> None:
        """Its bytes are read each time from now on. Nobody tells which of those that were void get
        written: they count as all written, by somebody whom capture does not see."""
        self.external = True
        self.known.clear()
        if self.void is not None:
            self.forget(void=False)

    def forget(self, *, void: bool) -> None:
        """Written by somebody whom capture did not see: a new value without producer.

        ``void``: nothing may have been written at all; what was void stays it.
        """
        self.known.clear()
        self.writers = Writers()
        self.first_reader = NO_RECORD
        if not void:
            self.void = None

    def resized(self, nbytes: int) -> None:
        """``storage.resize_`` happened: added bytes are void, old ones may have moved."""
        self.known.clear()
        if nbytes < self.nbytes:
            self.writers.cut(nbytes)
        if self.void is not None:
            self.void.resize(nbytes)
        elif nbytes > self.nbytes and not self.external:
            self.void = VoidMap(nbytes, self.nbytes)
        self.nbytes = nbytes

    def explain(self, tensor: torch.Tensor, to_come: int = 1) -> None:
        """A captured call has moved the tensor's counter, or does so ``to_come`` times, once it
        has returned to autograd."""
        self.version = max(self.version, _version(tensor) + to_come)
        self._hold(_holder(tensor))

    def moved(self, tensor: torch.Tensor, version: int) -> None:
        """The tensor's counter stands where no captured write has brought it.

        A counter that was covered shows that somebody wrote. Another one belongs to a tensor that
        was given the storage (``parameter.data = …``, ``module.double()``), and shows what its
        earlier storages went through: the bytes are read again, to be safe.
        """
        holder = _holder(tensor)
        if holder in self.holders:
            self.forget(void=False)
        else:
            self.known.clear()
        self.version = version
        self._hold(holder)

    def _hold(self, holder: int) -> None:
        if self.holders[:1] != (holder,):
            others = [other for other in self.holders if other != holder]
            self.holders = (holder, *others[: MOST_HOLDERS - 1])


class Values:
    """All storages that capture has met and that are still alive."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._sweep_at = SWEEP_EVERY

    def meet(
        self, key: int, tensor: torch.Tensor, storage: torch.UntypedStorage, *, cpu: bool
    ) -> Storage:
        """The entry of an input, brought up to date with what happened outside capture."""
        entry = self._storages.get(key)
        if entry is None:
            entry = self._enter(key, tensor, storage)
            entry.external = _is_external(storage, cpu=cpu)
            entry.holders = (_holder(tensor),)
            return entry
        if not entry.external and _is_external(storage, cpu=cpu):
            entry.make_external()
        nbytes = storage.nbytes()
        if nbytes != entry.nbytes:
            entry.resized(nbytes)
        version = _version(tensor)
        if version > entry.version:
            entry.moved(tensor, version)
        elif not entry.holders:
            entry.holders = (_holder(tensor),)
        return entry

    def create(
        self, key: int, tensor: torch.Tensor, storage: torch.UntypedStorage, *, cpu: bool
    ) -> Storage:
        """The entry of an output; new for almost every one."""
        entry = self._storages.get(key)
        if entry is None:
            return self._enter(key, tensor, storage)
        if not entry.external and _is_external(storage, cpu=cpu):
            entry.make_external()
        nbytes = storage.nbytes()
        if nbytes != entry.nbytes:
            entry.resized(nbytes)
        return entry

    def rebuilt(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        """``tensor.set_(storage)`` is about to give a tensor a storage that no event created.

        ``deepcopy`` makes its copies like that. The record that created the tensor then stands
        for the storage's creation, so that filling it is no write into memory of unknown origin.
        """
        key = torch_private.storage_key(storage)
        before = self.find(tensor)
        if key not in self._storages and before is not None:
            self._enter(key, tensor, storage).creator = before.creator

    def _enter(self, key: int, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Storage:
        if len(self._storages) >= self._sweep_at:
            self._sweep()
        entry = Storage(torch_private.weak_storage(storage), storage.nbytes(), _version(tensor))
        self._storages[key] = entry
        return entry

    def _sweep(self) -> None:
        dead = [
            key
            for key, entry in self._storages.items()
            if torch_private.weak_storage_expired(entry.weak)
        ]
        for key in dead:
            torch_private.drop_weak_storage(self._storages.pop(key).weak)
        self._sweep_at = len(self._storages) + max(SWEEP_EVERY, len(self._storages) // 8)

    def find(self, tensor: torch.Tensor) -> Storage | None:
        """The entry of a tensor's storage, if it was met before."""
        return self._storages.get(torch_private.storage_key(tensor.untyped_storage()))

    def resized(self, storage: torch.UntypedStorage) -> None:
        """``storage.resize_`` was called outside of operators."""
        entry = self._storages.get(torch_private.storage_key(storage))
        if entry is not None and storage.nbytes() != entry.nbytes:
            entry.resized(storage.nbytes())

    def reread(self, keys: Iterable[int]) -> None:
        """The bytes of these storages are read again; the writers stay."""
        for key in keys:
            entry = self._storages.get(key)
            if entry is not None:
                entry.known.clear()

    def may_be_written(self, keys: Iterable[int]) -> None:
        """A compiled graph may have written these storages silently: their bytes are read again,
        the writers stay, and what was void counts as written."""
        self.reread(keys)
        for key in keys:
            entry = self._storages.get(key)
            if entry is not None:
                entry.void = None

    def forget_all(self) -> None:
        """After a stretch that was not captured, or an opaque region: nothing is known."""
        for entry in self._storages.values():
            torch_private.drop_weak_storage(entry.weak)
        self._storages.clear()


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have no counter
        return 0


def _holder(tensor: torch.Tensor) -> int:
    """The tensor whose counter this is: itself or its base, by address."""
    base = tensor._base
    address: int = (tensor if base is None else base)._cdata
    return address


def _is_external(storage: torch.UntypedStorage, *, cpu: bool) -> bool:
    """Others may write the memory: numpy shares it, or another process. Every CUDA storage says
    that it is shared."""
    return not storage.resizable() or (cpu and storage.is_shared())
