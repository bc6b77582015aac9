"""Whose exception is it: a defect of capture, or the program's own, raised by a signal handler or
a finalizer that the interpreter ran in the middle of our code?"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
import torch

_LIBRARIES: Final = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).resolve().parents[1],
        Path(torch.__file__).resolve().parent,
        Path(np.__file__).resolve().parent,
    )
)
_STANDARD: Final = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"


def raised_by_us(error: BaseException) -> bool:
    """True if every frame that it passed is ours, or of a library that we call."""
    traceback = error.__traceback__
    while traceback is not None:
        if not _is_library(traceback.tb_frame.f_code.co_filename):
            return False
        traceback = traceback.tb_next
    return True


def _is_library(file: str) -> bool:
    if file.startswith(("<frozen ", *_LIBRARIES)):
        return True
    return file.startswith(_STANDARD) and "-packages/" not in file
