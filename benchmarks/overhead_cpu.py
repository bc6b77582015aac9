"""What capture costs on the CPU: the example's GPT, plain and under each kind of observation.

    python benchmarks/overhead_cpu.py [--widths 128,512] [--rounds 7] [--json FILE]

Variants take turns within one process, in an order that rotates from round to round, so that
whatever else the machine does meets all of them alike. Each turn opens its observation, takes one
step to warm up, times the next ones, and closes it again; opening and closing are timed apart.
Ratios are medians over medians of the plain program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opguard
from opguard.fingerprint import native

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_gpt"
sys.path.insert(0, str(EXAMPLE))
import train  # noqa: E402 the example is no package

Observation: TypeAlias = Callable[[], AbstractContextManager[Any]]


class EmptyMode(TorchDispatchMode):
    """The least that any Python dispatch mode costs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def captured(folder: Path, mechanism: str, mode: str) -> Observation:
    """Capture into a new folder below ``folder`` each time."""
    return lambda: opguard.capture(
        Path(tempfile.mkdtemp(dir=folder)) / "run", mode=mode, mechanism=mechanism
    )


def mechanisms() -> list[str]:
    """Those that are there, the recorder first."""
    return ["native", "dispatch"] if native.available() else ["dispatch"]


def debug_modes() -> dict[str, Observation]:
    """PyTorch's own DebugMode with tensor hashes, where this release has it."""
    try:
        from torch.utils._debug_mode import DebugMode

        DebugMode.log_tensor_hashes  # noqa: B018 older releases lack it
    except (ImportError, AttributeError):
        return {}

    @contextlib.contextmanager
    def hashing(**options: bool) -> Iterator[None]:
        with DebugMode(**options), DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
            yield

    return {
        "DebugMode, hashes": hashing,
        "DebugMode, hashes, stacks, modules": lambda: hashing(
            record_stack_trace=True, record_nn_module=True
        ),
    }


@dataclass
class Variant:
    """One way to run the same training, with its own model and its times in seconds."""

    name: str
    observe: Observation
    width: int
    batch: tuple[int, int]
    """Sequences in a micro-batch, and bytes in a sequence."""
    steps: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    closing: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = train.GPT(self.width)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        text, sampler = train.load_text(), torch.Generator().manual_seed(0)
        self.batches = [train.next_batch(text, *self.batch, sampler) for _ in range(2)]

    def step(self) -> None:
        """One optimizer step over two micro-batches."""
        train.train_step(self.model, self.optimizer, self.batches)

    def turn(self, steps: int) -> None:
        """Open, warm up, time the steps, close."""
        began = time.perf_counter()
        with self.observe():
            self.opening.append(time.perf_counter() - began)
            self.step()
            for _ in range(steps):
                began = time.perf_counter()
                self.step()
                self.steps.append(time.perf_counter() - began)
            began = time.perf_counter()
        self.closing.append(time.perf_counter() - began)


def measure(width: int, batch: tuple[int, int], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Rows of the table for one width: medians in milliseconds, and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        observations: dict[str, Observation] = {
            "plain": contextlib.nullcontext,
            "empty dispatch mode": EmptyMode,
            **{
                f"{mechanism} {mode}": captured(Path(folder), mechanism, mode)
                for mechanism in mechanisms()
                for mode in ("trusted", "full")
            },
            **debug_modes(),
        }
        variants = [Variant(name, observe, width, batch) for name, observe in observations.items()]
        for variant in variants:
            variant.step()
        for turn in range(rounds):
            first = turn % len(variants)
            for variant in variants[first:] + variants[:first]:
                variant.turn(steps)
    plain = statistics.median(variants[0].steps)
    return [
        {
            "width": width,
            "variant": variant.name,
            "step_ms": statistics.median(variant.steps) * 1e3,
            "ratio": statistics.median(variant.steps) / plain,
            "open_ms": statistics.median(variant.opening) * 1e3,
            "close_ms": statistics.median(variant.closing) * 1e3,
        }
        for variant in variants
    ]


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", default="128,512")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a micro-batch")
    parser.add_argument("--context", type=int, default=64, help="bytes in a sequence")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="timed steps in a turn")
    parser.add_argument("--threads", type=int, help="intra-op threads; default: torch's own")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    facts, rows = machine(), []
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    for width in map(int, args.widths.split(",")):
        print(f"\nwidth {width:<32}  step ms   ratio  open ms  close ms")
        for row in measure(width, (args.batch, args.context), args.rounds, args.steps):
            rows.append(row)
            print(
                f"  {row['variant']:<36} {row['step_ms']:8.1f} {row['ratio']:6.2f}x "
                f"{row['open_ms']:8.1f} {row['close_ms']:9.1f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
