"""Runs a callback right after a module was imported, at once if it already is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader does, then calls back."""

    def __init__(self, inner: importlib.abc.Loader, callback: Callable[[], None]) -> None:
        self._inner = inner
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        if spec is not None:
            # The module is complete, but its import lock is still held: without this, a thread
            # that the callback waits for would wait for that lock.
            spec._initializing = False  # type: ignore[attr-defined]
        self._callback()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._callback)
                return spec
        return None


def when_imported(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback()`` once ``name`` is imported; returns what takes the request back."""
    if name in sys.modules:
        callback()
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)

    def cancel() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return cancel
