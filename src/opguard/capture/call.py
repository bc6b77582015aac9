"""One operator call on its way to an event: which of its arguments are read and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.capture.arguments import arguments_key, canonical
from opguard.capture.interning import Interner
from opguard.capture.operators import Operator, Parameter
from opguard.capture.places import Place
from opguard.capture.rows import RecordRow
from opguard.capture.traits import traits
from opguard.capture.values import Storage

TENSOR: Final = 1
SEQUENCE: Final = 2
MOST_ARGUMENTS: Final = 4096
"""Canonical arguments remembered for one operator; a program may pass ever other ones."""
_KINDS: Final[dict[type, int]] = {
    torch.Tensor: TENSOR, torch.nn.Parameter: TENSOR, list: SEQUENCE, tuple: SEQUENCE,
}  # fmt: skip


def kind_of(value: Any) -> int:
    """``TENSOR``, ``SEQUENCE`` or 0, by type."""
    kind = _KINDS.get(value.__class__)
    if kind is None:
        kind = TENSOR if isinstance(value, torch.Tensor) else 0
        _KINDS[value.__class__] = kind
    return kind


class Call:
    """What ``before`` found, kept until the operator has returned."""

    __slots__ = ("arguments", "dataless", "host_ns", "inputs", "operator", "place", "reads", "step",
                 "storages", "thread", "unproduced", "writes")  # fmt: skip

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.reads: list[tuple[int, torch.Tensor]] = []
        """(input slot, tensor) in argument order."""
        self.dataless = False
        """It reads a tensor without data: an event only if it returns one that has them."""
        self.writes: list[tuple[int, torch.Tensor]] = []
        """(output slot ending in ``!``, tensor)."""
        self.inputs: list[RecordRow] = []
        self.unproduced: list[tuple[Storage, int]] = []
        """Storages that no event wrote, and which input read them."""
        self.storages: list[int] = []
        self.arguments = 0
        self.place: Place
        self.step = 0
        self.thread = 0
        self.host_ns = 0


class Sorter:
    """Sorts the arguments of calls into tensors that are read or written, and the rest."""

    def __init__(self, interner: Interner, sub_slot: Callable[[int, str], int]) -> None:
        """``sub_slot(slot id, "[3]")`` gives the slot id of a list's element."""
        self._interner = interner
        self._sub_slot = sub_slot

    def sort(self, call: Call, args: Any, kwargs: Any) -> None:
        """Fill ``reads``, ``writes`` and ``arguments`` of ``call``."""
        operator = call.operator
        parameters = operator.parameters
        if not parameters and (args or kwargs):
            self._sort_unnamed(call, args, kwargs)
            return
        rest: list[Any] = []
        for parameter, value in zip(parameters, args, strict=False):
            if kind_of(value) == TENSOR:
                if parameter.read:
                    call.reads.append((parameter.input_slot, value))
                if parameter.written:
                    call.writes.append((parameter.output_slot, value))
            else:
                self._other(call, parameter, value, rest)
        for name, value in kwargs.items():
            parameter = parameters[operator.by_name[name]]
            if kind_of(value) == TENSOR:
                if parameter.read:
                    call.reads.append((parameter.input_slot, value))
                if parameter.written:
                    call.writes.append((parameter.output_slot, value))
            else:
                self._other(call, parameter, value, rest)
        if operator.switch is not None or operator.from_root:
            self._switch(call, rest)
        self._arguments(call, rest)

    def _other(self, call: Call, parameter: Parameter, value: Any, rest: list[Any]) -> None:
        if not parameter.holds_tensors:
            rest.append(parameter.index)
            rest.append(value)
        elif kind_of(value) == SEQUENCE:
            for suffix, tensor in leaves(value, ""):
                if kind_of(tensor) != TENSOR:
                    continue
                if parameter.read:
                    call.reads.append((self._sub_slot(parameter.input_slot, suffix), tensor))
                if parameter.written:
                    call.writes.append((self._sub_slot(parameter.output_slot, suffix), tensor))
        elif value is not None:  # a number given for a tensor
            rest.append(parameter.index)
            rest.append(value)

    def _sort_unnamed(self, call: Call, args: Any, kwargs: Any) -> None:
        """A higher-order operator: its leaves, by position."""
        rest: list[Any] = []
        unnamed = self._interner.intern("slot", "args")
        for index, value in enumerate(torch_private.flatten((args, kwargs))):
            if kind_of(value) == TENSOR:
                call.reads.append((self._sub_slot(unnamed, f"[{index}]"), value))
            else:
                rest.append(index)
                rest.append(value if isinstance(value, (bool, int, float, str)) else None)
        self._arguments(call, rest)

    def _switch(self, call: Call, rest: list[Any]) -> None:
        """Drop writes that this call does not make."""
        operator = call.operator
        given = {operator.parameters[i].name: v for i, v in zip(rest[::2], rest[1::2], strict=True)}
        if operator.switch is not None:
            if not given.get(operator.switch):
                declared = [p for p in operator.parameters if p.written and p.declared]
                slots = {p.output_slot for p in declared}
                call.writes = [write for write in call.writes if write[0] in slots]
            return
        if torch_private.rank_of_group(given["process_group"]) == given["root_rank"]:
            call.writes = []
        else:
            call.reads = []

    def _arguments(self, call: Call, rest: list[Any]) -> None:
        known = call.operator.arguments
        key = arguments_key(rest) if rest else b""
        found = known.get(key)
        if found is None:
            if len(known) >= MOST_ARGUMENTS:
                known.clear()
            parameters = call.operator.parameters
            given = [
                (parameters[i].name if parameters else f"args[{i}]", value)
                for i, value in zip(rest[::2], rest[1::2], strict=True)
            ]
            text = canonical(call.operator, given)
            found = known[key] = self._interner.intern("arguments", text)
        call.arguments = found


def leaves(value: Any, suffix: str) -> Iterator[tuple[str, Any]]:
    """Items of nested lists and tuples, with their place: ``[0][1]``; the value itself if none."""
    if kind_of(value) != SEQUENCE:
        yield suffix, value
        return
    for position, item in enumerate(value):
        yield from leaves(item, f"{suffix}[{position}]")


def has_data(result: Any) -> bool:
    """It holds a tensor that is no meta or fake one."""
    return any(
        kind_of(value) == TENSOR and not traits(value).dataless for _, value in leaves(result, "")
    )
