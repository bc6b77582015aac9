"""Throughput of the CPU fingerprints, beside numpy's sum of the same bytes.

Run ``python benchmarks/fingerprint.py``; medians of interleaved rounds on one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from opguard.fingerprint import fallback
from opguard.fingerprint.stage import Stage, digest_memory

LARGE_BYTES = 64 << 20
ROUNDS = 9
SEGMENTS = {"64 B": (64, 4096), "1 KiB": (1 << 10, 4096), "256 KiB": (256 << 10, 32)}
"""Bytes of a segment, and how many are added: about what two training steps produce."""


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def fill(stage: Stage, address: int, nbytes: int, count: int) -> None:
    """Add ``count`` equal segments."""
    add = stage.add
    for _ in range(count):
        add(address, nbytes)


def main() -> None:
    """Print one line a measurement."""
    torch.set_num_threads(1)
    data = np.random.default_rng(0).integers(0, 256, LARGE_BYTES, dtype=np.uint8)
    address, tensor, words = data.ctypes.data, torch.from_numpy(data), data.view(np.uint64)
    whole: dict[str, Callable[[], object]] = {
        "numpy sum": words.sum,
        "digest_memory, 64 MiB": lambda: digest_memory(address, LARGE_BYTES),
        "digest_memory, odd address": lambda: digest_memory(address + 1, LARGE_BYTES - 1),
        "fallback, 64 MiB": lambda: fallback.digest(tensor),
    }
    stage = Stage()
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, work in whole.items():
            times.setdefault(name, []).append(seconds(work))
        for size, (nbytes, count) in SEGMENTS.items():
            stage.clear()
            adding = seconds(partial(fill, stage, address, nbytes, count))
            times.setdefault(f"Stage.add, {size}", []).append(adding)
            times.setdefault(f"Stage.resolve, {size}", []).append(seconds(stage.resolve))
    print(f"{'':28}{'GB/s':>8}{'ns a segment':>14}")
    for name, values in times.items():
        nbytes, count = SEGMENTS.get(name.split(", ")[-1], (LARGE_BYTES, 1))
        median = statistics.median(values)
        each = f"{median / count * 1e9:14.0f}" if count > 1 else ""
        print(f"{name:28}{nbytes * count / median / 1e9:8.2f}{each}")


if __name__ == "__main__":
    main()
