"""Turns one operator call into one event: what every Python mechanism shares.

``before`` reads the inputs, ``after`` the outputs, both under one lock. Tensors are copied to a
stage at that moment and hashed later on the writer thread.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.capture.call import TENSOR, Call, Sorter, has_data, kind_of, leaves
from opguard.capture.callsite import CallSites
from opguard.capture.collectives import Collectives, storage_keys
from opguard.capture.interning import Interner
from opguard.capture.modules import Program
from opguard.capture.operators import Operator, describe, state_operator
from opguard.capture.places import Locator
from opguard.capture.random_state import generator_state
from opguard.capture.reader import FRESH, OUTPUT, Output, Reader
from opguard.capture.rows import RecordRow, Rows, StagePool
from opguard.capture.traits import traits
from opguard.capture.values import NO_RECORD
from opguard.capture.views import are_views, is_plain_view
from opguard.capture.void import Unset
from opguard.model import STATE_OPERATOR, EventFlag, Mode, Reason

_RAISED: Final = int(EventFlag.RAISED)
_RETURNS: Final = 64
_THREADS: Final = 0xFFFF
"""Threads past 65,536 get the numbers of earlier ones: the column has 16 bits."""


class Recorder:
    """Everything one capture knows; the rows that are not handed over yet."""

    def __init__(
        self, interner: Interner, program: Program, mode: Mode, submit: Callable[[Rows], None],
        first_event: Callable[[], None],
    ) -> None:  # fmt: skip
        self.lock = threading.RLock()
        self.interner = interner
        self.program = program
        self.sites = CallSites(interner)
        self.locator = Locator(program, self.sites)
        self._pool = StagePool()
        self._rows = Rows(self._pool)
        self.reader = Reader(interner, self._rows, mode)
        self._sorter = Sorter(interner, self.reader.sub_slot)
        self.collectives = Collectives()
        self._submit = submit
        self._first_event = first_event
        self._operators: dict[Any, Operator] = {}
        self._boundaries: dict[tuple[int, int, int, int], int] = {}
        self._returns = [interner.intern("slot", str(i)) for i in range(_RETURNS)]
        self._rng_slot = interner.intern("slot", "rng")
        self._state_operator = state_operator(interner.intern("operator", STATE_OPERATOR))
        self._no_arguments = interner.intern("arguments", "")
        self.events = 0
        self.foreign_values = 0
        self.lost_events = 0
        """Calls that something of the program's own interrupted while they were recorded."""

    def operator(self, func: Any) -> Operator:
        """Facts about an overload."""
        found = self._operators.get(func)
        if found is None:
            found = describe(func, -1)
            found.operator_id = self.interner.intern("operator", found.name)
            for parameter in found.parameters:
                parameter.input_slot = self.interner.intern("slot", parameter.name)
                parameter.output_slot = self.interner.intern("slot", f"{parameter.name}!")
            self._operators[func] = found
        return found

    # One call

    def before(
        self, operator: Operator, args: Any, kwargs: Any, frame: FrameType | None
    ) -> Call | None:
        """Read the inputs. None: the call writes tensors without data and makes no event."""
        call = Call(operator)
        self._sorter.sort(call, args, kwargs)
        if call.writes and traits(call.writes[0][1]).dataless:
            return None
        here = self.program.places.here
        call.thread = here.ordinal & _THREADS
        call.step = self.program.step
        call.host_ns = time.time_ns()
        with self.lock:
            call.place = self.locator.locate(here, frame)
            if operator.waits:  # what it waits for is not read before
                call.storages = storage_keys(tensor for _, tensor in call.reads)
                return call
            if self.collectives.pending:
                self.collectives.touch(call)
            if operator.bumps_first:
                self.reader.bumped(call.writes)
            for slot, tensor in call.reads:
                kind = traits(tensor)
                if kind.plain:
                    self._read(call, slot, tensor, kind)
                elif kind.wrapper:
                    return None
                elif kind.dataless:
                    call.dataless = True
                else:
                    self._read_parts(call, slot, tensor)
            if operator.random:
                self._read_generator(call, args, kwargs)
        return call

    def _read(self, call: Call, slot: int, tensor: torch.Tensor, kind: Any) -> None:
        row, entry, key = self.reader.input(slot, tensor, kind)
        if not row[6]:
            call.unproduced.append((entry, len(call.inputs)))
        call.storages.append(key)
        call.inputs.append(row)

    def _read_parts(self, call: Call, slot: int, tensor: torch.Tensor) -> None:
        parts = self.reader.parts(slot, tensor)
        if isinstance(parts, Reason):
            call.inputs.append(self.reader.missing(slot, tensor, FRESH, parts))
            return
        for part_slot, part in parts:
            self._read(call, part_slot, part, traits(part))

    def _read_generator(self, call: Call, args: Any, kwargs: Any) -> None:
        position = call.operator.by_name.get("generator")
        generator = kwargs.get("generator")
        if generator is None and position is not None and position < len(args):
            generator = args[position]
        if generator is not None:
            device = generator.device
        elif call.reads or call.writes:
            device = (call.reads or call.writes)[0][1].device
        else:
            device = torch.device(kwargs.get("device") or "cpu")
        if device.type in ("cpu", "cuda"):
            state = generator_state(generator, device)
            call.inputs.append(self.reader.state(self._rng_slot, state, FRESH))

    def after(self, call: Call, result: Any) -> None:
        """Read the outputs and write the event, unless the call was a pure view."""
        if call.dataless and not has_data(result):
            return
        operator = call.operator
        with self.lock:
            if operator.waits:
                self.reader.values.reread(call.storages)
                self.collectives.arrived(call.storages)
            elif operator.collective:
                self.collectives.called(call, result, self._finish)
            elif (
                call.writes
                or operator.is_never_view
                or not are_views(result, call.storages, self._parts)
            ):
                self._finish(call, result)

    def raised(self, call: Call) -> None:
        """The operator raised: the event has inputs only, and what it may have written is new."""
        with self.lock:
            for _, tensor in call.writes:
                self.reader.forget(tensor, void=True)
            self._note_silent_writes(call)
            if not call.dataless:
                self._emit(call, [], _RAISED)

    def is_plain_view(self, args: Any, result: Any, frame: FrameType | None) -> bool:
        """A declared view that is one: see :func:`opguard.capture.views.is_plain_view`."""
        found = is_plain_view(args, result)
        if found:
            self.locator.note_view(self.program.places.here, frame)
        return found

    def _parts(self, tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]] | Reason:
        return self.reader.parts(self._rng_slot, tensor)

    def _finish(self, call: Call, result: Any, *, ready: bool = True) -> None:
        outputs: list[RecordRow] = []
        try:
            for slot, tensor in call.writes:
                self._write(call, outputs, slot, tensor, ready=ready)
            if result is not None:
                self._return_all(call, outputs, result, ready=ready)
            self._note_silent_writes(call)
            self._emit(call, outputs, 0)
        except BaseException:  # a signal's: storages name records that were not written
            self.reader.values.forget_all()
            raise

    def _note_silent_writes(self, call: Call) -> None:
        """A compiled graph may write its inputs."""
        if not call.operator.parameters:
            self.reader.values.may_be_written(call.storages)

    def _return_all(
        self, call: Call, outputs: list[RecordRow], result: Any, *, ready: bool
    ) -> None:
        returned_writes = call.operator.returned_writes
        if kind_of(result) == TENSOR:
            if not returned_writes or not returned_writes[0]:
                self._return(call, outputs, self._returns[0], result, 0, ready=ready)
            return
        several = isinstance(result, tuple) or (
            isinstance(result, list) and len(returned_writes) != 1
        )
        for index, value in enumerate(result if several else (result,)):
            if index < len(returned_writes) and returned_writes[index]:
                continue
            base = self._returns[min(index, _RETURNS - 1)]
            for suffix, item in leaves(value, ""):
                slot = self.reader.sub_slot(base, suffix) if suffix else base
                if kind_of(item) == TENSOR:
                    self._return(call, outputs, slot, item, index, ready=ready)
                elif isinstance(item, (bool, int, float, complex)):
                    outputs.append(self.reader.number(slot, item))

    def _return(
        self, call: Call, outputs: list[RecordRow], slot: int, tensor: torch.Tensor, index: int,
        *, ready: bool,
    ) -> None:  # fmt: skip
        operator = call.operator
        void = operator.void or index in operator.unset_outputs
        returned = index not in operator.written_returns
        self._write(call, outputs, slot, tensor, returned=returned, void=void, ready=ready)

    def _write(
        self, call: Call, outputs: list[RecordRow], slot: int, tensor: torch.Tensor, *,
        returned: bool = False, void: Unset = False, ready: bool = True,
    ) -> None:  # fmt: skip
        kind = traits(tensor)
        if kind.plain and ready:
            if call.operator.copies:
                void = self.reader.unset_elements(call.reads[-1][1])
            start = self._rows.first_record + len(self._rows.records)
            record = start + len(call.inputs) + len(outputs)
            outputs.append(self.reader.output(
                slot, tensor, kind, record, start,
                how=self._how(call, tensor, returned=returned),
                void=void, partial=call.operator.partial,
            ))  # fmt: skip
        elif not ready:
            self.reader.forget(tensor)
            outputs.append(self.reader.missing(slot, tensor, OUTPUT, Reason.IN_FLIGHT))
        elif not kind.dataless:
            parts = self.reader.parts(slot, tensor)
            if isinstance(parts, Reason):
                outputs.append(self.reader.missing(slot, tensor, OUTPUT, parts))
                return
            for part_slot, part in parts:
                self._write(call, outputs, part_slot, part, returned=returned, void=void)

    @staticmethod
    def _how(call: Call, tensor: torch.Tensor, *, returned: bool) -> Output:
        if not returned:
            return Output.DECLARED if call.operator.bumps_last else Output.UNDECLARED
        aliases = torch_private.storage_key(tensor.untyped_storage()) in call.storages
        return Output.ALIAS if aliases else Output.RETURNED

    # Collectives

    def touch(self, operator: Operator, args: Any, kwargs: Any) -> None:
        """A call that is not captured may still touch what a collective has in flight."""
        self._sorter.sort(call := Call(operator), args, kwargs)
        with self.lock:
            self.collectives.touch(call)

    def waits(self, work: Any, how: str) -> None:
        """``work.wait()`` ``begins``, ``returned`` or ``raised`` in the program."""
        with self.lock:
            if how == "begins":
                self.collectives.waiting(work)
            else:
                self.collectives.waited(work, arrived=how == "returned")

    # Rows

    def boundary(self, operator: int, module: int, phase: int, stack: int) -> int:
        """String id of a boundary."""
        key = (operator, module, phase, stack)
        found = self._boundaries.get(key)
        if found is None:
            found = self.interner.intern("boundary", json.dumps(key, separators=(",", ":")))
            self._boundaries[key] = found
        return found

    def _emit(self, call: Call, outputs: list[RecordRow], flags: int) -> None:
        module, phase, stack = call.place
        boundary = self.boundary(call.operator.operator_id, module, phase, stack)
        rows = self._rows
        position = len(rows.records)
        start = rows.first_record + position
        records = call.inputs + outputs
        rows.events.append((
            boundary, call.step, call.thread, 0, call.host_ns, call.arguments, flags,
            position,
        ))  # fmt: skip
        rows.records.extend(records)
        self.events = rows.first_event + len(rows.events)
        for entry, index in call.unproduced:
            if entry.first_reader == NO_RECORD:
                entry.first_reader = start + index
            if call.step and records[index][2] & FRESH:
                self.foreign_values += 1
        if self.events == 1:
            self._first_event()
        if rows.full:
            self._submit(self.take_rows())

    def emit_state(self, entries: Iterator[tuple[str, Any]]) -> None:
        """Entries of the final state: (name, tensor, number or bytes). Each tensor once."""
        with torch_private.disabled_modes(), self.lock:
            for name, value in entries:
                call = Call(self._state_operator)
                call.host_ns = time.time_ns()
                call.step = self.program.step
                call.thread = self.program.places.here.ordinal & _THREADS
                call.arguments = self._no_arguments
                call.place = (self.interner.intern("module", name), 0, -1)
                records = self.reader.state_records(self._returns[0], value)
                if records:
                    self._emit(call, records, int(EventFlag.STATE))

    def begin_state_pass(self) -> None:
        """A reading of final state begins: what an earlier one read is read again."""
        with self.lock:
            self.reader.begin_pass()

    def close(self) -> None:
        """The capture is over: gives back what is held of the program's storages."""
        with self.lock:
            self.reader.values.forget_all()

    def flush(self) -> None:
        """Hand over everything that is waiting."""
        with self.lock:
            self._submit(self.take_rows())

    def rebuilds(self, args: Any) -> None:
        """``set_`` is about to be called."""
        with self.lock:
            if len(args) > 1 and isinstance(args[1], torch.UntypedStorage):
                self.reader.values.rebuilt(args[0], args[1])

    def passed(self, args: Any) -> None:
        """A call that makes no event changed its first argument's metadata."""
        with self.lock:
            if args and kind_of(args[0]) == TENSOR:
                self.reader.explain(args[0])

    def forget_values(self) -> None:
        """Something ran that was not captured: nothing is known any more."""
        with self.lock:
            self.reader.values.forget_all()

    def storage_resized(self, storage: torch.UntypedStorage) -> None:
        """``storage.resize_`` returned: to nothing and back, no operator would see it."""
        with self.lock:
            self.reader.values.resized(storage)

    def exported(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was handed to somebody else."""
        with self.lock:
            self.reader.make_external(tensor)

    def take_rows(self) -> Rows:
        """Hand over what is waiting and start anew. Called under the lock."""
        rows = self._rows
        empty = Rows(
            self._pool, rows.first_event + len(rows.events), rows.first_record + len(rows.records)
        )
        rows.strings += self.interner.drain()
        self._rows = self.reader.rows = empty
        return rows

    def take_waiting(self) -> Rows | None:
        """The same for the writer's idle hook; None if nothing is waiting."""
        with self.lock:
            return self.take_rows() if self._rows.events else None
