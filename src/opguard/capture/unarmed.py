"""Finds ranks that ran without capture, so that a verdict never covers what was not seen.

Standard library only: it also runs in spawned children that have not imported torch yet. A child
that joins a process group of several ranks leaves a mark; :func:`opguard.capture_worker` in that
child takes it away again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from opguard.capture.imports import when_imported

_MODULE: Final = "torch.distributed.distributed_c10d"
_HELPER: Final = "_new_process_group_helper"
"""What every way to make a process group calls; where torch lacks it, nothing is found."""


class Marks:
    """The folder of marks of one capture."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="opguard-ranks-"))

    def count(self) -> int:
        """Processes that joined a group of several ranks and were not captured."""
        with contextlib.suppress(OSError):  # somebody cleaned up the temporary files
            return sum(1 for _ in self.folder.iterdir())
        return 0

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class ObservedTarget:
    """A spawned process's target that looks out for process groups before it starts."""

    def __init__(self, target: Callable[..., Any], folder: Path) -> None:
        self._target = target
        self._folder = folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In the child: run the target."""
        watch_this_process(self._folder)
        return self._target(*args, **kwargs)


def watch_this_process(folder: Path) -> None:
    """Leave a mark in ``folder`` when this process joins a group of several ranks."""

    def wrap() -> None:
        module = sys.modules[_MODULE]
        original = getattr(module, _HELPER, None)
        if original is None:
            return

        def observed(group_size: int, *args: Any, **kwargs: Any) -> Any:
            if group_size > 1:
                with contextlib.suppress(OSError):  # the capture is over, and its folder gone
                    _mark(folder).touch()
            return original(group_size, *args, **kwargs)

        setattr(module, _HELPER, observed)

    when_imported(_MODULE, wrap)


def unmark(folder: Path) -> None:
    """This process is captured after all."""
    with contextlib.suppress(OSError):
        _mark(folder).unlink()


def _mark(folder: Path) -> Path:
    return folder / str(os.getpid())
