"""Runs a program under both mechanisms, in this process, and compares what they recorded."""

from __future__ import annotations

import contextlib
import io
import random
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import opguard
from opguard.api import OpguardWarning
from parity import Parity

MECHANISMS = ("native", "dispatch")


@contextlib.contextmanager
def recording(folder: Path, mechanism: Any, **options: Any) -> Iterator[None]:
    """Capture that starts from the same random states each time."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        opguard.capture(folder, mechanism=mechanism, **options),
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", OpguardWarning)
        yield


def captured(folder: Path, mechanism: Any, run: Callable[[], Any], **options: Any) -> Any:
    """Events of ``run()``."""
    with recording(folder, mechanism, **options):
        run()
    return opguard.load_run(folder).ranks[0]


def both(folder: Path, run: Callable[[], Any], **options: Any) -> Parity:
    """The program under each mechanism."""
    return Parity(*(captured(folder / name, name, run, **options) for name in MECHANISMS))


def script(path: Path, *arguments: str) -> Callable[[], None]:
    """A script of its own, run to its end: case 70 dies of an IndexError."""

    def run() -> None:
        with (
            mock.patch.object(sys, "argv", [str(path), *arguments]),
            contextlib.suppress(SystemExit, IndexError),
        ):
            runpy.run_path(str(path), run_name="__main__")

    return run
