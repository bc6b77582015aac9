"""Arguments that are no tensors, in one canonical text a value (DESIGN section 3)."""

from __future__ import annotations

import json
import marshal
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from opguard.capture import torch_private
from opguard.capture.operators import Operator

NAMED_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def arguments_key(values: list[Any]) -> Any:
    """A dictionary key of raw values that keeps types and bits apart (1, 1.0, True, -0.0).

    marshal writes floats by their bits; format 2 has no back references, so that equal values
    give equal bytes.
    """
    try:
        return marshal.dumps(values, 2)
    except ValueError:
        return marshal.dumps(
            [_name(value) if isinstance(value, NAMED_TYPES) else _plain(value) for value in values],
            2,
        )


def _name(value: Any) -> str:
    return str(value)


def _plain(value: Any) -> Any:
    try:
        marshal.dumps(value, 2)
    except ValueError:
        return "\0" + "\t".join(_text(value))
    return value


def canonical(operator: Operator, given: Iterable[tuple[str, Any]]) -> str:
    """``alpha=1, dim=[0,1]``; what is shown but never compared follows a tab.

    Defaults are filled in from the schema, so that a mechanism that sees the whole stack and one
    that sees only what was passed give the same text.
    """
    values = dict(given)
    compared: list[str] = []
    shown: list[str] = []
    if operator.parameters:
        for parameter in operator.parameters:
            if parameter.name in values:
                value = values[parameter.name]
            elif parameter.holds_tensors:
                continue
            else:
                value = parameter.default
            if parameter.holds_tensors and value is None:
                continue
            _add(parameter.name, value, compared, shown)
    else:
        for name, value in values.items():
            _add(name, value, compared, shown)
    text = ", ".join(compared)
    return f"{text}\t{', '.join(shown)}" if shown else text


def _add(name: str, value: Any, compared: list[str], shown: list[str]) -> None:
    text, extra = _text(value)
    if text:
        compared.append(f"{name}={text}")
    if extra:
        shown.append(f"{name}={extra}")


def _text(value: Any) -> tuple[str, str]:
    """(compared, only shown)."""
    if value is None or isinstance(value, (bool, int)):
        return repr(value), ""
    if isinstance(value, float):
        return _float(value), ""
    if isinstance(value, complex):
        return f"({_float(value.real)},{_float(value.imag)})", ""
    if isinstance(value, str):
        return json.dumps(value), ""
    if isinstance(value, torch.device):
        return value.type, "" if value.index is None else str(value)
    if isinstance(value, Sequence):
        return "[" + ",".join(_text(item)[0] for item in value) + "]", ""
    return _object(value)


def _float(value: float) -> str:
    if value != value:  # noqa: PLR0124  (NaN: the payload counts)
        return f"nan:{struct.pack('>d', value).hex()}"
    return repr(value)


def _object(value: Any) -> tuple[str, str]:
    if isinstance(value, NAMED_TYPES):
        return str(value).removeprefix("torch."), ""
    if isinstance(value, torch.ScriptObject):
        kind = value._type().qualified_name().rpartition(".")[2]
        if kind == "ProcessGroup":
            return "", "<ProcessGroup>"
        if kind == "ReduceOp":
            return torch_private.reduction_name(value), ""
        return f"<{kind}>", ""
    return f"<{type(value).__name__}>", ""
