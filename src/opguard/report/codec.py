"""Frozen dataclasses to plain JSON values and back, checked by their type hints.

The JSON name of a field is its own, or ``metadata["json"]`` where that is a Python keyword.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar

from opguard.errors import FormatError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Plain dicts, lists and scalars of a dataclass; mappings are sorted by key."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_json_name(f): encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(value[key]) for key in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], text: str, schema: int) -> T:
    """Build ``cls`` from JSON text.

    Raises:
        FormatError: no JSON, another schema, or a field that is missing or of another type.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise FormatError(f"result is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise FormatError("result is not a JSON object")
    if document.get("schema") != schema:
        found = document.get("schema")
        raise FormatError(f"result has schema {found!r}, this release reads {schema}")
    built: T = _build(cls, document, "result")
    return built


def _json_name(item: Field[Any]) -> str:
    return str(item.metadata.get("json", item.name))


def _build(kind: Any, value: Any, where: str) -> Any:
    """``value`` as ``kind``; ``where`` is the path that an error names."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _build(next(k for k in arguments if k is not types.NoneType), value, where)
    if origin is Literal:
        _require(value in arguments, where, f"one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _build_tuple(arguments, value, where)
    if origin is not None:
        _require(isinstance(value, dict), where, "an object")
        return {key: _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    _require(type(value) is kind, where, f"a JSON {kind.__name__}")
    return value


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object")
    hints = typing.get_type_hints(kind)
    known = {}
    for item in fields(kind):
        name = _json_name(item)
        if name in value:
            known[item.name] = _build(hints[item.name], value[name], f"{where}.{name}")
        else:
            optional = item.default is not MISSING or item.default_factory is not MISSING
            _require(optional, f"{where}.{name}", "present")
    return kind(**known)


def _build_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _require(isinstance(value, list), where, "an array")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    _require(len(value) == len(arguments), where, f"an array of {len(arguments)}")
    return tuple(
        _build(kind, item, f"{where}[{i}]")
        for i, (kind, item) in enumerate(zip(arguments, value, strict=True))
    )


def _require(condition: bool, where: str, expected: str) -> None:
    if not condition:
        raise FormatError(f"{where} is not {expected}")
