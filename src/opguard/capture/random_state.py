"""State of random generators, read without changing it."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator

import torch

from opguard.capture import torch_private
from opguard.fingerprint import spec


def generator_state(generator: torch.Generator | None, device: torch.device) -> bytes:
    """State of the generator that an operator on ``device`` draws from.

    CPU: all its bytes. CUDA: seed and offset, which the host knows without waiting.
    """
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = generator or torch.cuda.default_generators[index]
        return struct.pack("<QQ", generator.initial_seed() & spec.MASK64, generator.get_offset())
    generator = generator or torch.default_generator
    with torch_private.disabled_modes():  # a fake tensor mode would refuse to read it
        return bytes(generator.get_state().numpy().tobytes())


def process_states() -> Iterator[tuple[str, bytes]]:
    """Name and state of every generator of the process: torch, Python, NumPy if imported."""
    yield "rng.torch.cpu", generator_state(None, torch.device("cpu"))
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            yield f"rng.cuda.{index}", generator_state(None, torch.device("cuda", index))
    version, internal, gauss = random.getstate()
    words = struct.pack(f"<{len(internal)}Q", *internal)
    yield "rng.python", struct.pack("<q", version) + words + repr(gauss).encode()
    if "numpy.random" in sys.modules:
        state = sys.modules["numpy.random"].get_state(legacy=False)
        inner = state["state"]
        keys = inner["key"].tobytes() if "key" in inner else repr(sorted(inner.items())).encode()
        rest = (inner.get("pos"), state.get("has_gauss"), state.get("gauss"))
        yield "rng.numpy", keys + repr(rest).encode()
