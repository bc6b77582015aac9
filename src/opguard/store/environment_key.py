"""What makes two environments comparable, and where two of them differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class EnvironmentDifference(NamedTuple):
    """Where two environments differ; names in order."""

    key: tuple[str, ...]
    """Parts of the environment key: any of them makes two sides uncomparable."""
    probe: tuple[str, ...]
    """Operators of the numerics probe, of those that both sides ran."""
    facts: tuple[str, ...]
    """Other facts, named as in :func:`flat_facts`; they are only shown."""


def key_parts(facts: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    """The parts of the environment key by name, in the order in which the key spells them.

    Args:
        facts: what ``environment.facts`` returned.
        mechanism: ``native`` or ``dispatch``.
    """
    device = str(facts.get("device", "cpu"))
    parts = {name: str(facts.get(name, "unknown")) for name in ("platform", "architecture")}
    parts["torch"] = "torch" + str(facts.get("torch", "unknown"))
    parts["device"] = device
    if device == "cpu":
        parts["cpu_capability"] = str(facts.get("cpu_capability", "unknown"))
    else:
        devices = (facts.get(device) or {}).get("devices", [])
        kinds = sorted({"sm" + str(entry.get("sm", "unknown")) for entry in devices})
        parts["devices"] = f"{len(devices)}x" + "_".join(kinds)
    parts["mechanism"] = mechanism
    return parts


def environment_key(facts: Mapping[str, Any], mechanism: str) -> str:
    """The key as a file name: ``linux-x86_64-torch2.13.0_cpu-cpu-AVX512-dispatch``."""
    return "-".join(_UNSAFE.sub("_", part) for part in key_parts(facts, mechanism).values())


def flat_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without the level of ``variables``: a variable stands under its own name."""
    flat = {name: value for name, value in facts.items() if name != "variables"}
    return flat | dict(facts.get("variables") or {})


def compare_environments(a: Mapping[str, Any], b: Mapping[str, Any]) -> EnvironmentDifference:
    """Compare two sides.

    Args:
        a: ``environment``, ``probe`` and ``mechanism`` of one side, as in ``open.json``.
        b: those of the other.
    """
    facts_a, facts_b = (side.get("environment") or {} for side in (a, b))
    probe_a, probe_b = (side.get("probe") or {} for side in (a, b))
    parts_a, parts_b = (
        key_parts(facts, str(side.get("mechanism"))) for facts, side in ((facts_a, a), (facts_b, b))
    )
    flat_a, flat_b = flat_facts(facts_a), flat_facts(facts_b)
    key = _differing(parts_a, parts_b)
    return EnvironmentDifference(
        key=key,
        probe=tuple(n for n in probe_a if n in probe_b and probe_a[n] != probe_b[n]),
        facts=tuple(n for n in _differing(flat_a, flat_b) if n not in parts_a | parts_b),
    )


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Names, in the order of ``a`` and then ``b``, whose values differ or are on one side only."""
    missing = object()
    return tuple(n for n in {**a, **b} if a.get(n, missing) != b.get(n, missing))
