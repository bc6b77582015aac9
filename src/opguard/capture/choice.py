"""Which mechanism captures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from opguard.capture.dispatch import Dispatch
from opguard.capture.mechanism import Mechanism, Session
from opguard.capture.native import Native
from opguard.errors import NativeError, UsageError
from opguard.fingerprint import native
from opguard.settings import CaptureSettings

_DRIVERS: Final = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Device files of NVIDIA's drivers, that of WSL, and AMD's."""
_noted: set[str] = set()


def choose(settings: CaptureSettings, session: Session, note: Callable[[str], None]) -> Mechanism:
    """The mechanism that the settings ask for; ``note`` is told, once a process, why ``auto`` is
    not ``native``.

    Raises:
        NativeError: the recorder is asked for, and is not there.
        UsageError: the settings contradict each other.
    """
    wanted = settings.mechanism
    if wanted == "dispatch":
        if settings.require_native:
            raise UsageError("--require-native and --mechanism dispatch exclude each other")
        return Dispatch(session)
    why_not = native.why_not()
    asked_for = wanted == "native" or settings.require_native
    if not why_not and not asked_for and _has_gpu():
        why_not = "it reads CPU tensors only, and torch may use a GPU"
    if not why_not:
        return Native(session)
    if asked_for:
        flag = "--mechanism native" if wanted == "native" else "--require-native"
        raise NativeError(f"{flag}: {why_not}")
    if why_not not in _noted:
        _noted.add(why_not)
        note(f"capturing by dispatch, not by the C++ recorder: {why_not}")
    return Dispatch(session)


def _has_gpu() -> bool:
    """Whether the program may compute on a GPU. The CUDA runtime is not asked: it would start, and
    then no forked child could use it, nor could the program choose its devices any more."""
    if not torch.backends.cuda.is_built():
        return False
    # The runtime stops at the first entry that names no device.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "all").partition(",")[0].strip()
    hidden = first in ("", "-1", "NoDevFiles")
    return not hidden and any(Path(driver).exists() for driver in _DRIVERS)
