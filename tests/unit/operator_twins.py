"""The same calls and facts, as the mechanism ``dispatch`` and the C++ recorder see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

from torch.utils._python_dispatch import TorchDispatchMode

from opguard.capture import torch_private
from opguard.capture.call import Call, Sorter
from opguard.capture.interning import Interner
from opguard.capture.operators import Kind, Operator, describe, tables
from opguard.fingerprint import native

Calls: TypeAlias = list[tuple[str, str]]
"""Operator and canonical arguments of each event."""
TABLES = tables()


class Listener(TorchDispatchMode):
    """Notes the events that the mechanism ``dispatch`` sees."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.interner = Interner()
        self.sorter = Sorter(self.interner, lambda slot, _: slot)
        self.calls: list[tuple[str, int]] = []
        self.operators: dict[Any, Operator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        if any(map(torch_private.desugars, types)):
            return NotImplemented
        if func not in self.operators:
            self.operators[func] = describe(func, -1)
        operator, kwargs = self.operators[func], kwargs or {}
        if operator.kind is Kind.COMPOSITE:
            with self:
                return func._op_dk(torch_private.ALIAS_DISPATCH_KEY, *args, **kwargs)
        if operator.kind is Kind.EVENT:
            call = Call(operator)
            self.sorter.sort(call, args, kwargs)
            self.calls.append((operator.name, call.arguments))
        return func(*args, **kwargs)

    def result(self) -> Calls:
        return [(name, self.interner.text("arguments", number)) for name, number in self.calls]


def by_python(call: Callable[[], Any]) -> Calls:
    listener = Listener()
    with listener:
        call()
    return listener.result()


def by_native(call: Callable[[], Any]) -> Calls:
    result: Calls = native.module().capture_arguments(call, TABLES)
    return result


def paired(python: Calls, found: Calls) -> list[tuple[str, str, str]]:
    """(operator, Python's text, ours) of the calls of each operator that both saw as often.

    A mode sees what autograd calls around an operator (the clone behind ``abs_``), and we do not.
    """
    sides: tuple[dict[str, list[str]], ...] = (defaultdict(list), defaultdict(list))
    for side, calls in zip(sides, (python, found), strict=True):
        for name, text in calls:
            side[name].append(text)
    return [
        (name, a, b)
        for name in sides[0].keys() & sides[1].keys()
        if len(sides[0][name]) == len(sides[1][name])
        for a, b in zip(sides[0][name], sides[1][name], strict=True)
    ]
