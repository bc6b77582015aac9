"""From a tensor at an operator's edge to its record: identity, fingerprint, producers."""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum
from typing import Final

import torch

from opguard.capture.geometry import Geometries, Geometry
from opguard.capture.interning import Interner
from opguard.capture.rows import RecordRow, Rows
from opguard.capture.traits import Traits, traits
from opguard.capture.values import NO_RECORD, Known, Storage, Values
from opguard.capture.void import Unset, VoidMap
from opguard.capture.writers import Producers
from opguard.fingerprint import tensor as fingerprints
from opguard.fingerprint.numbers import number_bytes
from opguard.fingerprint.stage import Digest, resolved
from opguard.model import DTYPES, REASON_SHIFT, Mode, Reason, RecordFlag

OUTPUT: Final = int(RecordFlag.OUTPUT)
FRESH: Final = int(RecordFlag.FRESH)
VIA: Final = int(RecordFlag.VIA)
VOID: Final = int(RecordFlag.VOID)
_BYTES: Final = DTYPES.index("bytes")
MOST_ELEMENTS: Final = 4096
"""Elements of a list that have a slot of their own; the others share ``tensors[…]``, in order."""
SHARED: Final = "[…]"
MOST_SLOTS: Final = 60_000
"""Slots after which all new elements share theirs: a slot's id has 16 bits."""
_POSITIONS: Final = re.compile(r"\[(\d+)\]")


class Output(Enum):
    """What makes a tensor an output."""

    RETURNED = "returned"
    ALIAS = "alias"
    """Returned, and its storage is an input's that was not written."""
    DECLARED = "declared"
    """Written as the schema says: its version counter moves."""
    UNDECLARED = "undeclared"


class Reader:
    """Makes record rows; knows every storage. Called under the capture's lock."""

    def __init__(self, interner: Interner, rows: Rows, mode: Mode) -> None:
        self.values = Values()
        self.rows = rows
        self.unfingerprinted: Counter[str] = Counter()
        self._full = mode != "trusted"
        self._tracks = mode != "collectives"
        """Writers are known: without the other operators they are not."""
        self._interner = interner
        self._geometries = Geometries(interner)
        self._part_slots: dict[tuple[int, str], int] = {}
        self._empty = resolved(0, 0)
        self._pass = 0
        self._no_shape = interner.intern("shape", "[]")
        self._no_strides = interner.intern("strides", "[]")

    # Inputs

    def input(
        self, slot: int, tensor: torch.Tensor, kind: Traits
    ) -> tuple[RecordRow, Storage, int]:
        """Record of a plain tensor that is about to be read, its storage, and the storage's key."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        entry = self.values.meet(key, tensor, storage, cpu=kind.cpu)
        geometry = self._geometries.of(tensor, kind.bits)
        producers = entry.producers(geometry) if self._tracks else ()
        if entry.void is not None and entry.is_void(geometry):
            return self._row(slot, geometry, VOID, None, producers), entry, key
        if not self._full:
            known = entry.known.get(geometry.key)
            if known is not None:
                row = (slot, geometry.dtype_code, 0, geometry.shape_id, geometry.strides_id,
                       known.digest, producers)  # fmt: skip
                return row, entry, key
            base = entry.covering(geometry) if entry.known and not kind.bits else None
            if base is not None:
                strides = self._geometries.relative(geometry, base.geometry)
                row = (slot, geometry.dtype_code, VIA, geometry.shape_id, strides, base.digest,
                       producers)  # fmt: skip
                return row, entry, key
        digest = self._digest(tensor, kind, geometry, entry)
        if isinstance(digest, Digest) and not entry.external:
            entry.known[geometry.key] = Known(digest, geometry)
        return self._row(slot, geometry, FRESH, digest, producers), entry, key

    def _digest(
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
        return [(self.sub_slot(slot, suffix), part) for suffix, part in found]

    def sub_slot(self, slot: int, suffix: str) -> int:
        """Slot id of a part: ``tensors`` and ``[3]`` give ``tensors[3]``; ``!`` stays last."""
        key = (slot, suffix)
        found = self._part_slots.get(key)
        if found is None:
            near = _POSITIONS.sub(_shared, suffix)
            if near != suffix:
                return self.sub_slot(slot, near)
            if suffix != SHARED and len(self._part_slots) >= MOST_SLOTS:
                return self.sub_slot(slot, SHARED)
            name = self._interner.text("slot", slot)
            plain = name.removesuffix("!")
            text = plain + suffix + ("!" if plain != name else "")
            found = self._part_slots[key] = self._interner.intern("slot", text)
        return found

    # Outputs

    def output(
        self, slot: int, tensor: torch.Tensor, kind: Traits, record: int, event_start: int, *,
        how: Output = Output.RETURNED, void: Unset = False, partial: bool = False,
    ) -> RecordRow:  # fmt: skip
        """Record of a plain tensor that was just written.

        Args:
            slot: String id.
            tensor: The returned or written tensor.
            kind: Its traits.
            record: Global index that this record will have.
            event_start: Index of the event's first record: what it writes twice, in a list that
                holds a tensor twice, is not listed as its own producer.
            how: What makes it an output.
            void: What the operator left unset: nothing, everything, or some elements.
            partial: The operator may have left elements unwritten.
        """
        storage = tensor.untyped_storage()
        entry = self.values.create(storage._cdata, tensor, storage, cpu=kind.cpu)
        geometry = self._geometries.of(tensor, kind.bits)
        if how is not Output.ALIAS:
            producers = entry.wrote(geometry, record, partial=partial)
            if how is Output.RETURNED:
                entry.creator = record
            elif not producers and entry.creator != NO_RECORD:
                producers = (entry.creator,)
            if how is Output.DECLARED:
                entry.explain(tensor)
            elif how is Output.UNDECLARED:
                # Gloo's threads may write by operators that move it: in torch 2.4 they do.
                entry.explain(tensor, to_come=0)
            if void is not False and not entry.external:  # what others may write is compared
                if void is True:
                    entry.void = VoidMap(entry.nbytes)
                else:
                    entry.leave_void(geometry, void)
        else:
            producers = entry.producers(geometry)
        if producers:
            producers = tuple(p for p in producers if p < event_start and self._tracks)
        if entry.void is not None and entry.is_void(geometry):
            return self._row(slot, geometry, OUTPUT | VOID, None, producers)
        digest = self._digest(tensor, kind, geometry, entry)
        if isinstance(digest, Digest) and not entry.external:
            entry.known[geometry.key] = Known(digest, geometry)
        return self._row(slot, geometry, OUTPUT, digest, producers)

    def unset_elements(self, tensor: torch.Tensor) -> Unset:
        """Which elements of a tensor hold memory that nothing wrote; False: none."""
        kind = traits(tensor)
        entry = self.values.find(tensor) if kind.plain else None
        if entry is None or entry.void is None:
            return False
        geometry = self._geometries.of(tensor, kind.bits)
        return entry.void.elements(
            geometry.start, geometry.itemsize, geometry.shape, geometry.byte_strides
        )

    def begin_pass(self) -> None:
        """A reading of final state begins: it reads each view once, whatever others read."""
        self._pass += 1

    def final(self, slot: int, tensor: torch.Tensor) -> RecordRow | None:
        """Record of a final-state tensor, read afresh; None if this pass read the view already.

        Its producers are the last writers of its bytes, or else the first input that read them.
        """
        kind = traits(tensor)
        storage = tensor.untyped_storage()
        entry = self.values.meet(storage._cdata, tensor, storage, cpu=kind.cpu)
        geometry = self._geometries.of(tensor, kind.bits)
        view = (self._pass, geometry.key)
        if view in entry.final:
            return None
        entry.final = (*(seen for seen in entry.final if seen[0] == self._pass), view)
        producers = entry.producers(geometry) if self._tracks else ()
        if not producers and entry.first_reader != NO_RECORD:
            producers = (entry.first_reader,)
        if entry.void is not None and entry.is_void(geometry):
            return self._row(slot, geometry, OUTPUT | VOID, None, producers)
        digest = self._digest(tensor, kind, geometry, entry)
        return self._row(slot, geometry, OUTPUT, digest, producers)

    def state_records(self, slot: int, value: torch.Tensor | complex | bytes) -> list[RecordRow]:
        """Records of an entry of the final state; none if this pass has read it already."""
        if isinstance(value, bytes):
            return [self.state(slot, value, OUTPUT)]
        if not isinstance(value, torch.Tensor):
            return [self.number(slot, value)]
        parts = self.parts(slot, value)
        if isinstance(parts, Reason):
            return [self.missing(slot, value, OUTPUT, parts)]
        rows = [self.final(part_slot, part) for part_slot, part in parts]
        return [row for row in rows if row is not None]

    def number(self, slot: int, value: complex) -> RecordRow:
        """Record of a returned Python number, by its bits."""
        dtype, data = number_bytes(value)
        return self._bytes(slot, dtype, data, OUTPUT)

    def state(self, slot: int, data: bytes, flags: int) -> RecordRow:
        """Record of plain bytes: a random generator's state."""
        return self._bytes(slot, _BYTES, data, flags)

    def missing(self, slot: int, tensor: torch.Tensor, flags: int, reason: Reason) -> RecordRow:
        """Record of a tensor whose bytes cannot be read."""
        self.unfingerprinted[reason.name.lower()] += 1
        flags |= reason << REASON_SHIFT
        shape = self._interner.intern("shape", str(list(tensor.shape)).replace(" ", ""))
        code = fingerprints.dtype_code(tensor.dtype)
        return slot, code, flags, shape, self._no_strides, None, ()

    def explain(self, tensor: torch.Tensor) -> None:
        """A call that writes no bytes moves the tensor's version counter (``unsqueeze_``)."""
        entry = self.values.find(tensor) if traits(tensor).plain else None
        if entry is not None:
            entry.explain(tensor)

    def bumped(self, writes: list[tuple[int, torch.Tensor]]) -> None:
        """The version counters of what a call is about to write have moved already."""
        for _, tensor in writes:
            entry = self.values.find(tensor) if traits(tensor).plain else None
            if entry is not None:
                entry.version += 1

    def forget(self, tensor: torch.Tensor, *, void: bool = False) -> None:
        """The tensor may have been changed by something that was not captured; with ``void``, or
        not at all, so that memory that nothing wrote stays that."""
        entry = self.values.find(tensor) if traits(tensor).plain else None
        if entry is not None:
            entry.forget(void=void)

    def make_external(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was handed to somebody else."""
        kind = traits(tensor)
        if kind.plain:
            storage = tensor.untyped_storage()
            self.values.meet(storage._cdata, tensor, storage, cpu=kind.cpu).make_external()

    # Rows

    def _row(
        self, slot: int, geometry: Geometry, flags: int, digest: Digest | Reason | None,
        producers: Producers,
    ) -> RecordRow:  # fmt: skip
        if isinstance(digest, Reason):
            self.unfingerprinted[digest.name.lower()] += 1
            flags |= digest << REASON_SHIFT
            digest = None
        return (slot, geometry.dtype_code, flags, geometry.shape_id, geometry.strides_id, digest,
                producers)  # fmt: skip

    def _bytes(self, slot: int, dtype: int, data: bytes, flags: int) -> RecordRow:
        digest = self.rows.digest(data, len(data))
        return slot, dtype, flags, self._no_shape, self._no_strides, digest, ()


def _shared(position: re.Match[str]) -> str:
    """``[…]`` for ``[5000]``, an element that has no slot of its own."""
    return SHARED if int(position[1]) >= MOST_ELEMENTS else position[0]
