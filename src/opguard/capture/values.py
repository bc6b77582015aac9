"""Which tensor is which: storages, who wrote them, and what is known of their bytes.

A value is a storage, the captured writes to it, and a geometry. A storage is identified by the
address of its StorageImpl while a weak reference is held: the struct then stays allocated, so
that a reused address is never the old value. All methods are called under the capture's lock.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.capture.void import VoidMap
from opguard.fingerprint.stage import Digest

NO_RECORD: Final = -1
SWEEP_EVERY: Final = 8192
"""Storages met between two sweeps for those that no tensor holds any more."""

Producers = tuple[int, ...]


class Geometry:
    """Where a tensor's elements lie in its storage, in bytes, and the key of that view."""

    __slots__ = ("contiguous", "dense", "end", "itemsize", "key", "nbytes", "shape", "start",
                 "strides")  # fmt: skip

    def __init__(self, tensor: torch.Tensor, bits: int) -> None:
        """``bits``: conjugate and negative bits, part of the key."""
        itemsize = self.itemsize = tensor.itemsize
        shape = self.shape = tensor.shape
        strides = self.strides = tensor.stride()
        self.nbytes = nbytes = tensor.numel() * itemsize
        start = self.start = tensor.storage_offset() * itemsize
        self.contiguous = contiguous = tensor.is_contiguous()
        if contiguous or not nbytes:
            self.end = start + nbytes
            self.dense = True
            # Shape is left out: a reshape has the same bytes in the same order.
            self.key: Any = (tensor.dtype, start, nbytes, bits)
        else:
            span = itemsize
            for size, stride in zip(shape, strides, strict=True):
                span += (size - 1) * stride * itemsize
            self.end = start + span
            self.dense = span == nbytes
            self.key = (tensor.dtype, start, shape, strides, bits)


class Known:
    """A value whose bytes have a fingerprint."""

    __slots__ = ("dense", "digest", "end", "layout", "start")

    def __init__(self, digest: Digest, geometry: Geometry, bits: int) -> None:
        self.digest = digest
        self.start = geometry.start
        self.end = geometry.end
        self.dense = geometry.dense and not bits
        self.layout = None if geometry.contiguous else (geometry.shape, geometry.strides)


class Storage:
    """What capture knows of one storage."""

    __slots__ = ("external", "final", "first_reader", "known", "nbytes", "produced", "version", "void",
                 "weak", "writers", "writes")  # fmt: skip

    def __init__(self, weak: int, nbytes: int, version: int) -> None:
        self.weak = weak
        self.nbytes = nbytes
        self.version = version
        """Highest version counter met: views share one, ``.data`` starts another."""
        self.writes = 0
        """Captured writes since the counter was met."""
        self.writers: list[tuple[int, int, int]] = []
        """(start, end, record), newest first."""
        self.known: dict[Any, Known] = {}
        self.void: VoidMap | None = None
        self.external = False
        """Others may write it without a trace: never known again."""
        self.produced = False
        self.first_reader = NO_RECORD
        self.final: tuple[Any, ...] = ()
        """Views of it that the final state holds already."""


class Values:
    """All storages that capture has met and that are still alive."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._sweep_at = SWEEP_EVERY

    def __len__(self) -> int:
        return len(self._storages)

    def find(self, storage: torch.UntypedStorage) -> Storage | None:
        """The entry, if the storage was met before."""
        return self._storages.get(torch_private.storage_key(storage))

    def meet(self, tensor: torch.Tensor, storage: torch.UntypedStorage, *, cpu: bool) -> Storage:
        """The entry of an input, brought up to date with what happened outside capture."""
        key = torch_private.storage_key(storage)
        entry = self._storages.get(key)
        if entry is None:
            entry = self._enter(key, storage, _version(tensor))
            entry.external = _is_external(storage, cpu=cpu)
            return entry
        if not entry.external and _is_external(storage, cpu=cpu):
            self._external(entry)
        nbytes = storage.nbytes()
        if nbytes != entry.nbytes:
            self._resized(entry, nbytes)
        version = _version(tensor)
        if version > entry.version:
            if version - entry.version > entry.writes:
                _forget(entry)
            entry.version = version
            entry.writes = 0
        elif version == entry.version:
            entry.writes = 0
        return entry

    def create(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Storage:
        """The entry of an output; new for almost every one."""
        key = torch_private.storage_key(storage)
        entry = self._storages.get(key)
        if entry is None:
            entry = self._enter(key, storage, _version(tensor))
        elif storage.nbytes() != entry.nbytes:
            self._resized(entry, storage.nbytes())
        return entry

    def _enter(self, key: int, storage: torch.UntypedStorage, version: int) -> Storage:
        if len(self._storages) >= self._sweep_at:
            self._sweep()
        entry = Storage(torch_private.weak_storage(storage), storage.nbytes(), version)
        self._storages[key] = entry
        return entry

    @staticmethod
    def _external(entry: Storage) -> None:
        entry.external = True
        entry.known.clear()

    @staticmethod
    def _resized(entry: Storage, nbytes: int) -> None:
        """``storage.resize_`` happened: added bytes are void, old ones may have moved."""
        entry.known.clear()
        if nbytes < entry.nbytes:
            entry.writers = [w for w in entry.writers if w[1] <= nbytes]
            entry.void = None
        else:
            entry.void = VoidMap(nbytes, entry.nbytes)
        entry.nbytes = nbytes

    def _sweep(self) -> None:
        dead = [
            key
            for key, entry in self._storages.items()
            if torch_private.weak_storage_expired(entry.weak)
        ]
        for key in dead:
            torch_private.drop_weak_storage(self._storages.pop(key).weak)
        self._sweep_at = len(self._storages) + SWEEP_EVERY

    def mark_external(self, tensor: torch.Tensor) -> None:
        """The memory was handed to somebody else (``__dlpack__``)."""
        storage = tensor.untyped_storage()
        self._external(self.meet(tensor, storage, cpu=True))

    def forget(self, tensor: torch.Tensor) -> None:
        """What is known of the tensor's bytes no longer holds."""
        entry = self.find(tensor.untyped_storage())
        if entry is not None:
            _forget(entry)

    def reread(self, key: int) -> None:
        """The storage may have been written: its bytes are read again, its writers stay."""
        self._storages[key].known.clear()

    def forget_all(self) -> None:
        """After a stretch that was not captured, or an opaque region: nothing is known."""
        for entry in self._storages.values():
            torch_private.drop_weak_storage(entry.weak)
        self._storages.clear()

    @staticmethod
    def producers(entry: Storage, geometry: Geometry) -> Producers:
        """Records whose bytes the tensor may read, newest first."""
        writers = entry.writers
        if not writers:
            return ()
        start, end = geometry.start, geometry.end
        if len(writers) == 1:
            first = writers[0]
            return (first[2],) if first[0] < end and start < first[1] else ()
        found = [w[2] for w in writers if w[0] < end and start < w[1]]
        return tuple(dict.fromkeys(found))

    @staticmethod
    def wrote(
        entry: Storage, geometry: Geometry, record: int, *, partial: bool = False
    ) -> Producers:
        """A captured write; returns the records whose bytes it overwrote, newest first.

        ``partial``: elements of the tensor may have kept their old bytes.
        """
        start, end = geometry.start, geometry.end
        entry.writes += 1
        entry.produced = True
        if start == end:
            return ()
        before: Producers = ()
        if entry.writers:
            before = Values.producers(entry, geometry)
            if geometry.dense and not partial:
                kept = [w for w in entry.writers if w[0] < start or w[1] > end]
            elif len(entry.writers) > MOST_WRITERS:
                kept = [w for w in entry.writers if w[:2] != (start, end)]
            else:
                kept = entry.writers
            entry.writers = [(start, end, record), *kept]
        else:
            entry.writers.append((start, end, record))
        if entry.known:
            overlapping = [
                key
                for key, known in entry.known.items()
                if known.start < end and start < known.end
            ]
            for key in overlapping:
                del entry.known[key]
        if entry.void is not None and not partial and _clears(entry.void, geometry):
            entry.void = None
        return before

    @staticmethod
    def is_void(entry: Storage, geometry: Geometry) -> bool:
        """True when the tensor overlaps memory that nothing wrote."""
        return entry.void is not None and entry.void.overlaps(
            geometry.start, geometry.end, geometry.itemsize, geometry.shape,
            [stride * geometry.itemsize for stride in geometry.strides],
        )  # fmt: skip


MOST_WRITERS: Final = 1024
"""Strided writes (a ring buffer, a cache) keep their predecessors; past this many, those of the
same span are dropped."""


def _clears(void: VoidMap, geometry: Geometry) -> bool:
    return void.written(
        geometry.start, geometry.end, geometry.itemsize, geometry.shape,
        [stride * geometry.itemsize for stride in geometry.strides],
    )  # fmt: skip


def _forget(entry: Storage) -> None:
    """Written by somebody whom capture did not see: a new value without producer."""
    entry.known.clear()
    entry.writers = []
    entry.void = None
    entry.produced = False
    entry.first_reader = NO_RECORD


def _is_external(storage: torch.UntypedStorage, *, cpu: bool) -> bool:
    """Others may write the memory: numpy shares it, or another process. Every CUDA storage says
    that it is shared."""
    return not storage.resizable() or (cpu and storage.is_shared())


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors have no counter, and asking raises.
    return 0 if tensor.is_inference() else tensor._version
