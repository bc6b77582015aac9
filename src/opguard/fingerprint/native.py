"""Loads the C++ module ``opguard._C``; nobody else does.

It is linked to one build of torch and is never loaded beside another: ``_native_build.json``, which
the build leaves next to it, says which one. What is wrong is a sentence, never a crash.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import platform
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from opguard.errors import NativeError

NAME: Final = "opguard._C"
FACTS: Final = Path(__file__).parents[1] / "_native_build.json"
AGAIN: Final = "install OpGuard again, with pip install --no-build-isolation"


def module() -> ModuleType:
    """The module ``opguard._C``. Imports torch first, to which it is linked.

    Raises:
        NativeError: it was not built, was built for another torch, or does not load.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise NativeError(loaded)
    return loaded


def available() -> bool:
    """Whether :func:`module` returns."""
    return not isinstance(_load(), str)


def why_not() -> str:
    """Why :func:`module` raises, in one sentence; empty where it does not."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else ""


def build_facts() -> dict[str, Any] | None:
    """What the build noted of the module beside this package; None where it left nothing.

    Raises:
        NativeError: the file cannot be read.
    """
    try:
        facts = json.loads(FACTS.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NativeError(f"{FACTS.name} cannot be read ({error}): {AGAIN}") from None
    if not isinstance(facts, dict):
        raise NativeError(f"{FACTS.name} holds no object: {AGAIN}")
    return facts


@functools.cache
def _load() -> ModuleType | str:
    """The module, or why there is none."""
    try:
        reason = _unfit(build_facts())
    except NativeError as error:
        return str(error)
    if reason:
        return reason
    try:
        return importlib.import_module(NAME)
    except ImportError as error:
        return f"{NAME} does not load ({' '.join(str(error).split())}): {AGAIN}"


def _unfit(facts: dict[str, Any] | None) -> str:
    """Why the module must not be loaded; empty if it may be."""
    if facts is None:
        return f"{NAME} is not built"
    python = platform.python_version()
    if importlib.util.find_spec(NAME) is None:
        built_for = facts.get("python")
        if built_for == python:
            return f"{NAME} is not built, though {FACTS.name} is there: {AGAIN}"
        return f"{NAME} was built for Python {built_for}, this is {python}: {AGAIN}"
    try:
        import torch
    except ImportError as error:
        return f"{NAME} needs torch, which cannot be imported ({error})"
    if facts.get("torch") != torch.__version__:
        return (
            f"{NAME} was built for torch {facts.get('torch')}, this is {torch.__version__}: {AGAIN}"
        )
    return ""
