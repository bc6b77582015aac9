"""OpGuard names the first operator at which two PyTorch runs stop being bit-identical.

Importing it loads the standard library alone; what it offers is loaded on first use.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opguard._version import __version__

if TYPE_CHECKING:
    from opguard.api import capture, capture_worker, compare, load_run, step, watch

__all__ = ["__version__", "capture", "capture_worker", "compare", "load_run", "step", "watch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opguard import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__


class _Opguard(ModuleType):
    """Keeps the name ``capture`` for the function.

    The import system binds a subpackage to its name in the parent, so that the first import of
    ``opguard.capture.session`` would turn ``opguard.capture(...)`` into a call of a module.
    """

    @property
    def capture(self) -> Any:
        return __getattr__("capture")

    @capture.setter
    def capture(self, package: ModuleType) -> None:
        """Ignored; the package stays in ``sys.modules``, where ``from`` imports find it."""


sys.modules[__name__].__class__ = _Opguard
