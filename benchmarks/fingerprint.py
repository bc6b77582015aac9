"""Throughput of the CPU fingerprints: numpy's, beside a sum of the same bytes, and the recorder's.

Run ``python benchmarks/fingerprint.py``; medians of interleaved rounds on one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np
import torch

from opguard.fingerprint import fallback, native
from opguard.fingerprint.stage import Stage, digest_memory
from opguard.fingerprint.tensor import fingerprint
from opguard.model import U8

LARGE_BYTES = 64 << 20
ROUNDS = 9
SEGMENTS = {"64 B": (64, 4096), "1 KiB": (1 << 10, 4096), "256 KiB": (256 << 10, 32)}
"""Bytes of a segment, and how many are added: about what two training steps produce."""
SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": LARGE_BYTES}
SIDES = (256, 1024, 4096)
"""Rows and columns of a float32 matrix that is read transposed."""
BATCH_BYTES = 4 << 20
"""Small buffers are read again and again, until this many bytes were read."""
MOST_CALLS = 4096

Measured = tuple[int, Callable[[], object], Callable[[], object]]
"""Bytes, and how numpy and the C++ module read them."""


def seconds(work: Callable[[], object], calls: int = 1) -> float:
    """Wall time of one of ``calls`` calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


def fill(stage: Stage, address: int, nbytes: int, count: int) -> None:
    """Add ``count`` equal segments."""
    add = stage.add
    for _ in range(count):
        add(address, nbytes)


def in_numpy(data: U8) -> None:
    """Print one line a measurement: throughput, and the time of a segment where it is small."""
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


def works(module: ModuleType, data: U8) -> dict[str, Measured]:
    """What is measured, by name."""
    found: dict[str, Measured] = {}
    address = data.ctypes.data
    for name, nbytes in {"nothing": 0, **SIZES}.items():
        found[name] = (
            nbytes,
            partial(digest_memory, address, nbytes),
            partial(module.fingerprint_bytes, data[:nbytes]),
        )
    for side in SIDES:
        nbytes = side * side * 4
        turned = torch.from_numpy(data[:nbytes]).view(torch.float32).view(side, side).t()
        found[f"float32 {side}², transposed"] = (
            nbytes, partial(fingerprint, turned), partial(module.fingerprint_tensor, turned)
        )  # fmt: skip
    return found


def in_native(module: ModuleType, data: U8) -> None:
    """Print GB/s of the C++ module by vector code, less the time of a call from Python."""
    codes: list[str] = module.vector_codes()
    best = module.vector_code()
    measured = works(module, data)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, (nbytes, reference, work) in measured.items():
            calls = min(MOST_CALLS, max(1, BATCH_BYTES // max(nbytes, 1)))
            few = max(1, calls // 16)  # numpy takes microseconds a call
            times.setdefault((name, "numpy"), []).append(seconds(reference, few))
            for code in codes:
                module.use_vector_code(code)
                times.setdefault((name, code), []).append(seconds(work, calls))
    module.use_vector_code(best)
    columns = ["numpy", *codes]
    print(f"\n{'C++, GB/s':28}" + "".join(f"{column:>10}" for column in columns))
    empty = {column: statistics.median(times[("nothing", column)]) for column in columns}
    for name, (nbytes, _, _) in measured.items():
        if not nbytes:
            continue
        medians = [statistics.median(times[(name, column)]) - empty[column] for column in columns]
        print(f"{name:28}" + "".join(f"{nbytes / median / 1e9:10.2f}" for median in medians))
    print(f"{'ns of a call':28}" + "".join(f"{empty[column] * 1e9:10.0f}" for column in columns))


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    data = np.random.default_rng(0).integers(0, 256, LARGE_BYTES, dtype=np.uint8)
    in_numpy(data)
    if native.available():
        in_native(native.module(), data)
    else:
        print(f"\nC++ fingerprints: not measured, {native.why_not()}")


if __name__ == "__main__":
    main()
