"""What a run says of itself before its first event: ``open.json``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from opguard import environment
from opguard.capture.random_state import process_states
from opguard.fingerprint import spec
from opguard.model import FINGERPRINT_VERSION
from opguard.settings import CaptureSettings
from opguard.store.environment_key import environment_key
from opguard.store.launch import resolve_rank


def describe_opening(
    settings: CaptureSettings, command: Sequence[str], mechanism: str
) -> dict[str, Any]:
    """Environment, probe, command, settings and the random states at entry."""
    facts = environment.facts()
    return {
        "fingerprint_version": FINGERPRINT_VERSION,
        "environment": facts,
        "environment_key": environment_key(facts, mechanism),
        "probe": environment.numerics_probe(),
        "command": environment.mask_command(command),
        "mode": settings.mode,
        "mechanism": mechanism,
        "settings": {
            "steps": settings.steps,
            "stop_after": settings.stop_after,
            "watch": settings.watch,
        },
        "rng": {
            name: f"{spec.mix64(np.frombuffer(data, np.uint8)):016x}"
            for name, data in process_states()
        },
    }


def rank_of_process() -> tuple[int, int]:
    """(rank, world size): of the process group, else of the environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return resolve_rank(os.environ)
