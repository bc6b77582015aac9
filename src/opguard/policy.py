"""What may differ: the policy that a comparison is judged by (DESIGN sections 6 and 7a)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from opguard.errors import UsageError

ENVIRONMENT_PARTS: Final = (
    "platform",
    "architecture",
    "torch",
    "device",
    "cpu_capability",
    "devices",
    "mechanism",
    "numerics",
)
"""What ``allow_environment`` may name: the parts of the environment key, and the probe."""


@dataclass(frozen=True)
class IgnoreRule:
    """Hides differences of matching output slots; all three are globs."""

    reason: str
    op: str = "*"
    module: str = "*"
    slot: str = "*"

    def hits(self, op: str, module: str, slot: str) -> bool:
        """True when the rule covers that slot."""
        return (
            fnmatchcase(op, self.op)
            and fnmatchcase(module, self.module)
            and fnmatchcase(slot, self.slot)
        )


@dataclass(frozen=True)
class Floors:
    """Shares of a side's events, from 0 to 1."""

    paired: float = 0.5
    """At least so many are paired, on both sides."""
    trailing: float = 0.01
    """At most so many stand unpaired after the last paired one."""


@dataclass(frozen=True)
class Policy:
    """The defaults hide nothing."""

    strict_structure: bool = False
    """Any gap makes the verdict ``inconclusive``."""
    allow_unpaired_state: bool = False
    """Final-state entries of one side only, or that could not be read, do not matter."""
    allow_environment: tuple[str, ...] = ()
    """Parts of the environment that may differ (``mechanism``, ``numerics``, ``torch``, …)."""
    floors: Floors = field(default_factory=Floors)
    ignore: tuple[IgnoreRule, ...] = ()


def load_policy(path: Path) -> Policy:
    """Read a TOML policy.

    Raises:
        UsageError: the file cannot be read, is no TOML, or holds unknown keys or wrong types.
    """
    try:
        document = _toml().loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"policy {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"policy {path}: {error}") from None
    return parse_policy(document, f"policy {path}")


def parse_policy(document: Mapping[str, Any], where: str) -> Policy:
    """Policy from the tables of a TOML document; ``where`` starts every error message."""
    _check_keys(document, {item.name for item in fields(Policy)}, where)
    allowed = document.get("allow_environment", [])
    if not (isinstance(allowed, list) and all(isinstance(item, str) for item in allowed)):
        raise UsageError(f"{where}: allow_environment is not a list of texts")
    for part in allowed:
        if part not in ENVIRONMENT_PARTS:
            known = ", ".join(ENVIRONMENT_PARTS)
            raise UsageError(
                f"{where}: {part!r} is no part of the environment that makes runs uncomparable "
                f"(those are {known}); other facts are only shown and need no rule"
            )
    rules = document.get("ignore", [])
    if not isinstance(rules, list):
        raise UsageError(f"{where}: ignore is not an array of tables")
    return Policy(
        strict_structure=_flag(document, "strict_structure", where),
        allow_unpaired_state=_flag(document, "allow_unpaired_state", where),
        allow_environment=tuple(allowed),
        floors=_floors(document.get("floors", {}), f"{where}: floors"),
        ignore=tuple(_rule(rule, f"{where}: ignore[{i}]") for i, rule in enumerate(rules)),
    )


def _toml() -> Any:
    """``tomllib``, or ``tomli`` before Python 3.11, which lacks it."""
    try:
        return importlib.import_module("tomllib")
    except ModuleNotFoundError:
        return importlib.import_module("tomli")


def _flag(document: Mapping[str, Any], name: str, where: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"{where}: {name} is not true or false")
    return value


def _floors(table: Any, where: str) -> Floors:
    _check_keys(table, {item.name for item in fields(Floors)}, where)
    for name, value in table.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= 1:
            raise UsageError(f"{where}: {name} is not a number from 0 to 1")
    return Floors(**{name: float(value) for name, value in table.items()})


def _rule(table: Any, where: str) -> IgnoreRule:
    _check_keys(table, {item.name for item in fields(IgnoreRule)}, where)
    for name, value in table.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {name} is not a text")
    if "reason" not in table:
        raise UsageError(f"{where}: a rule needs a reason")
    if len(table) == 1:
        raise UsageError(f"{where}: a rule needs op, module or slot")
    return IgnoreRule(**table)


def _check_keys(table: Any, known: set[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} is not a table")
    unknown = sorted(set(table) - known)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")
