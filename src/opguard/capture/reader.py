"""From a tensor at an operator's edge to its record: identity, fingerprint, producers."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any, Final

import torch

from opguard.capture.interning import Interner, json_list
from opguard.capture.rows import RecordRow, Rows
from opguard.capture.traits import Traits, traits
from opguard.capture.values import NO_RECORD, Geometry, Known, Producers, Storage, Values
from opguard.capture.void import VoidMap
from opguard.fingerprint import tensor as fingerprints
from opguard.fingerprint.stage import Digest, resolved
from opguard.model import DTYPES, REASON_SHIFT, Reason, RecordFlag

OUTPUT: Final = int(RecordFlag.OUTPUT)
FRESH: Final = int(RecordFlag.FRESH)
VIA: Final = int(RecordFlag.VIA)
VOID: Final = int(RecordFlag.VOID)
_BYTES: Final = DTYPES.index("bytes")
_NUMBERS: Final = {
    bool: DTYPES.index("python_bool"),
    int: DTYPES.index("python_int"),
    float: DTYPES.index("python_float"),
    complex: DTYPES.index("python_complex"),
}
_UINT64: Final = (1 << 64) - 1


class Reader:
    """Makes record rows; knows every storage. Called under the capture's lock."""

    def __init__(self, interner: Interner, rows: Rows, *, full: bool) -> None:
        self.values = Values()
        self.rows = rows
        self.full = full
        self.unfingerprinted: Counter[str] = Counter()
        self._interner = interner
        self._shapes: dict[Any, int] = {}
        self._strides: dict[Any, int] = {}
        self._slots: dict[tuple[int, str], int] = {}
        self._dtypes: dict[torch.dtype, int] = {}
        self._empty = resolved(0, 0)

    # Inputs

    def input(
        self, slot: int, tensor: torch.Tensor, kind: Traits
    ) -> tuple[RecordRow, Storage, Any]:
        """Record of a plain tensor that is about to be read, its storage, and the storage's key."""
        storage = tensor.untyped_storage()
        entry = self.values.meet(tensor, storage, cpu=kind.cpu)
        geometry = Geometry(tensor, kind.bits)
        digest: Digest | Reason | None = None
        strides: Any = geometry.strides
        flags = 0
        if entry.void is not None and Values.is_void(entry, geometry):
            flags = VOID
        else:
            known = None if self.full else entry.known.get(geometry.key)
            if known is not None:
                digest = known.digest
            else:
                base = None if self.full or kind.bits else _covering(entry, geometry)
                if base is not None:
                    digest = base.digest
                    flags = VIA
                    strides = (geometry.strides, geometry.start - base.start,
                               base.end - base.start, base.layout)  # fmt: skip
                else:
                    flags = FRESH
                    digest = self.digest(tensor, kind, geometry, entry)
                    if isinstance(digest, Digest) and not entry.external:
                        entry.known[geometry.key] = Known(digest, geometry, kind.bits)
        producers = Values.producers(entry, geometry)
        row = self._row(slot, tensor, geometry, flags, digest, producers, strides)
        return row, entry, storage._cdata

    def digest(
        self, tensor: torch.Tensor, kind: Traits, geometry: Geometry, entry: Storage
    ) -> Digest | Reason:
        """Fingerprint of a plain tensor's logical bytes, or why there is none."""
        nbytes = geometry.nbytes
        if not nbytes:
            return self._empty
        if entry.nbytes < geometry.end:
            return Reason.FREED
        if kind.cpu:
            if not geometry.contiguous or kind.bits:
                address, nbytes, _alive = fingerprints.dense_bytes(tensor)
                return self.rows.digest(address, nbytes)
            address = tensor.data_ptr()
            return self.rows.digest(address, nbytes) if address else Reason.FREED
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return Reason.CAPTURING
        return fingerprints.fingerprint(tensor)

    def parts(self, slot: int, tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]] | Reason:
        """Slot and plain tensor of each component of a sparse, nested or quantized tensor."""
        found = fingerprints.components(tensor)
        if isinstance(found, Reason):
            return found
        name = self._interner.text("slot", slot)
        return [(self._part_slot(slot, name, suffix), part) for suffix, part in found]

    def _part_slot(self, slot: int, name: str, suffix: str) -> int:
        key = (slot, suffix)
        if key not in self._slots:
            plain = name.removesuffix("!")
            self._slots[key] = self._interner.intern(
                "slot", plain + suffix + ("!" if plain != name else "")
            )
        return self._slots[key]

    # Outputs

    def output(
        self, slot: int, tensor: torch.Tensor, kind: Traits, record: int, event_start: int, *,
        void: bool = False, partial: bool = False, written: bool = True,
    ) -> RecordRow:  # fmt: skip
        """Record of a plain tensor that was just written.

        Args:
            slot: String id.
            tensor: The returned or written tensor.
            kind: Its traits.
            record: Global index that this record will have.
            event_start: Index of the event's first record: what it writes twice, in a list that
                holds a tensor twice, is not listed as its own producer.
            void: The operator left the bytes unset.
            partial: The operator may have left elements unwritten.
            written: False for an alias that was returned without a write.
        """
        storage = tensor.untyped_storage()
        entry = self.values.create(tensor, storage)
        geometry = Geometry(tensor, kind.bits)
        producers: Producers = ()
        if written:
            before = Values.wrote(entry, geometry, record, partial=partial)
            producers = tuple(p for p in before if p < event_start)
            if void:
                entry.void = VoidMap(entry.nbytes)
        else:
            producers = Values.producers(entry, geometry)
        flags = OUTPUT
        digest: Digest | Reason | None = None
        if entry.void is not None and Values.is_void(entry, geometry):
            flags |= VOID
        else:
            digest = self.digest(tensor, kind, geometry, entry)
            if isinstance(digest, Digest) and not entry.external:
                entry.known[geometry.key] = Known(digest, geometry, kind.bits)
        return self._row(slot, tensor, geometry, flags, digest, producers, geometry.strides)

    def final(self, slot: int, tensor: torch.Tensor) -> RecordRow | None:
        """Record of a final-state tensor, read afresh; None if the same view was read already.

        Its producers are the last writers of its bytes, or else the first input that read them.
        """
        kind = traits(tensor)
        storage = tensor.untyped_storage()
        entry = self.values.meet(tensor, storage, cpu=kind.cpu)
        geometry = Geometry(tensor, kind.bits)
        if geometry.key in entry.final:
            return None
        entry.final += (geometry.key,)
        producers = Values.producers(entry, geometry)
        if not producers and entry.first_reader != NO_RECORD:
            producers = (entry.first_reader,)
        flags, digest = OUTPUT, None
        if entry.void is not None and Values.is_void(entry, geometry):
            flags |= VOID
        else:
            digest = self.digest(tensor, kind, geometry, entry)
        return self._row(slot, tensor, geometry, flags, digest, producers, geometry.strides)

    def number(self, slot: int, value: complex) -> RecordRow:
        """Record of a returned Python number, by its bits."""
        if isinstance(value, (bool, int)):
            data = bytes([value]) if isinstance(value, bool) else _integer(value)
        elif isinstance(value, float):
            data = struct.pack("<d", value)
        else:
            data = struct.pack("<dd", value.real, value.imag)
        return self._bytes(slot, _NUMBERS[type(value)], data, OUTPUT)

    def state(self, slot: int, data: bytes, flags: int) -> RecordRow:
        """Record of plain bytes: a random generator's state."""
        return self._bytes(slot, _BYTES, data, flags)

    def missing(self, slot: int, tensor: torch.Tensor, flags: int, reason: Reason) -> RecordRow:
        """Record of a tensor whose bytes cannot be read."""
        self.unfingerprinted[reason.name.lower()] += 1
        return (slot, fingerprints.dtype_code(tensor.dtype), flags | reason << REASON_SHIFT,
                self._shape(tuple(tensor.shape)), self._stride_text(()), None, ())  # fmt: skip

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor may have been changed by something that was not captured."""
        if traits(tensor).plain:
            self.values.forget(tensor)

    # Rows

    def _row(
        self, slot: int, tensor: torch.Tensor, geometry: Geometry, flags: int,
        digest: Digest | Reason | None, producers: Producers, strides: Any,
    ) -> RecordRow:  # fmt: skip
        if isinstance(digest, Reason):
            self.unfingerprinted[digest.name.lower()] += 1
            flags |= digest << REASON_SHIFT
            digest = None
        shape = self._shapes.get(geometry.shape)
        if shape is None:
            shape = self._shape(geometry.shape)
        stride = self._strides.get(strides)
        if stride is None:
            stride = self._stride_text(strides)
        code = self._dtypes.get(tensor.dtype)
        if code is None:
            code = self._dtypes[tensor.dtype] = fingerprints.dtype_code(tensor.dtype)
        return slot, code, flags, shape, stride, digest, producers

    def _bytes(self, slot: int, dtype: int, data: bytes, flags: int) -> RecordRow:
        digest = self.rows.digest(data, len(data))
        return slot, dtype, flags, self._shape(()), self._stride_text(()), digest, ()

    def _shape(self, shape: Any) -> int:
        found = self._shapes.get(shape)
        if found is None:
            found = self._interner.intern("shape", json_list(list(shape)))
            self._shapes[shape] = found
        return found

    def _stride_text(self, strides: Any) -> int:
        found = self._strides.get(strides)
        if found is None:
            if len(strides) == 4 and isinstance(strides[0], tuple):  # noqa: PLR2004  (via)
                own, offset, nbytes, layout = strides
                base = "" if layout is None else json_list([list(part) for part in layout])
                text = f"{json_list(list(own))}|{offset}|{nbytes}|{base}"
            else:
                text = json_list(list(strides))
            found = self._strides[strides] = self._interner.intern("strides", text)
        return found


def _covering(entry: Storage, geometry: Geometry) -> Known | None:
    """A known dense value that holds every byte of the view."""
    for known in entry.known.values():
        if known.dense and known.start <= geometry.start and geometry.end <= known.end:
            return known
    return None


def _integer(value: int) -> bytes:
    return struct.pack("<Q", value & _UINT64)
