"""Does capture change what a program computes? PyTorch's OpInfo samples, plain and captured.

    python benchmarks/fidelity.py [--ops GLOBS] [--dtypes float32] [--mode trusted] [--json FILE]

Every sample runs forward and backward, and without gradients; in place and into ``out=`` too where
the operator can; and so do the samples that must raise. Outputs, gradients and random states are
compared by their bits, and so are the strides, the exception type and the warnings. Each operator
runs four times: plain, with fresh memory filled with one pattern and with another, which shows
whom uninitialised memory makes unrepeatable; under a dispatch mode that does nothing, which shows
what any mode changes; and captured. What capture changes beyond that is a fault of capture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import opinfo
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import opguard

Observation: TypeAlias = Callable[[], AbstractContextManager[Any]]


class EmptyMode(TorchDispatchMode):
    """The least that any dispatch mode changes."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """As capture does."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Outcome:
    """What one call did. Fields that differ are the kinds of deviation."""

    raised: str
    """Where and which exception, or nothing."""
    outputs: Any
    gradients: Any
    strides: Any
    random: bytes
    warned: tuple[str, ...]


@dataclass
class Findings:
    """Deviations by operator: ``{"prod": {"function.gradients": 3}}`` counts samples."""

    unrepeatable: dict[str, dict[str, int]] = field(default_factory=dict)
    """Plain runs that differ from each other."""
    deviations: dict[str, dict[str, int]] = field(default_factory=dict)
    """Captured and plain run differ."""
    beyond_a_mode: dict[str, dict[str, int]] = field(default_factory=dict)
    """Captured run and empty mode differ."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Capture gave up."""
    operators: int = 0
    samples: int = 0
    seconds: float = 0.0


def run_call(call: opinfo.Call) -> Callable[[], Outcome]:
    """Run it forward and, where it can, backward; the outcome is read once the mode is gone."""
    opinfo.seed()
    raised, outputs, gradients = "", [], ()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        stage = "forward"
        try:
            outputs = pytree.tree_leaves(call.call())
            stage = "backward"
            gradients = _backward(outputs, call.differentiable)
        except Exception as error:  # noqa: BLE001  (whatever the operator raises is its outcome)
            raised = f"{stage} {type(error).__name__}"
    states = _random_states()
    texts = tuple(f"{w.category.__name__}: {w.message}" for w in warned)

    def outcome() -> Outcome:
        tensors = [t for t in (*outputs, *gradients) if isinstance(t, torch.Tensor)]
        return Outcome(
            raised=raised,
            outputs=tuple(map(opinfo.bits, outputs)),
            gradients=tuple(map(opinfo.bits, gradients)),
            strides=tuple(t.stride() for t in tensors if opinfo.is_plain(t)),
            random=states,
            warned=texts,
        )

    return outcome


def _backward(outputs: list[Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    ends = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not ends or not inputs:
        return ()
    # Gradients that are all ones would hide what is scaled or permuted.
    seeds = [
        torch.randn_like(end) if opinfo.is_plain(end) else torch.ones_like(end) for end in ends
    ]
    return torch.autograd.grad(ends, inputs, seeds, allow_unused=True)


def _random_states() -> bytes:
    numpy_state = np.random.get_state(legacy=False)["state"]
    return b"".join((
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        numpy_state["key"].tobytes(), str(numpy_state["pos"]).encode(),
    ))  # fmt: skip


def run_all(op: Any, dtype: torch.dtype, observe: Observation, fill: int) -> list[Outcome]:
    """All calls for ``op`` under one observation, on samples of their own."""
    calls = opinfo.calls(op, dtype)
    opinfo.fill_fresh_memory(fill)
    try:
        with observe():
            outcomes = [run_call(call) for call in calls]
    finally:
        opinfo.fill_fresh_memory(0)
    return [outcome() for outcome in outcomes]


def differences(
    calls: list[opinfo.Call], a: list[Outcome], b: list[Outcome], skipped: set[int]
) -> dict[str, int]:
    """Number of samples by what differs."""
    found: Counter[str] = Counter()
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        if index not in skipped:
            found.update(f"{calls[index].kind}.{name}" for name in _differing(one, other))
    return dict(sorted(found.items()))


def _differing(one: Outcome, other: Outcome) -> list[str]:
    names = [f.name for f in fields(Outcome) if getattr(one, f.name) != getattr(other, f.name)]
    # What raises in one of the two has no outputs there: that is no second deviation.
    return [name for name in names if name in ("raised", "warned")] if "raised" in names else names


def examine(op: Any, dtype: torch.dtype, captured: Observation, found: Findings) -> None:
    """Run ``op`` in every variant and add what differs to ``found``."""
    calls = opinfo.calls(op, dtype)
    if not calls:
        return
    name = opinfo.full_name(op)
    run_all(op, dtype, contextlib.nullcontext, 0)  # what is imported or warned of only once
    first, plain = (run_all(op, dtype, contextlib.nullcontext, fill) for fill in opinfo.FILLS)
    empty = run_all(op, dtype, EmptyMode, opinfo.FILLS[1])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        seen = run_all(op, dtype, captured, opinfo.FILLS[1])
    said = [w for outcome in seen for w in outcome.warned] + [
        f"{w.category.__name__}: {w.message}" for w in warned
    ]
    stopped = next((text for text in said if text.startswith("OpguardWarning")), None)
    if stopped is not None:
        found.stopped[name] = stopped
    unrepeatable = {i for i, pair in enumerate(zip(first, plain, strict=True)) if _differing(*pair)}
    for table, a, b, skipped in (
        (found.unrepeatable, first, plain, set()),
        (found.deviations, plain, seen, unrepeatable),
        (found.beyond_a_mode, empty, seen, unrepeatable),
    ):
        different = differences(calls, a, b, skipped)
        if different:
            table[name] = different
    found.operators += 1
    found.samples += len(calls)


def capturing(folder: Path, mode: str) -> Observation:
    """Capture into a new run below ``folder`` each time."""
    return lambda: opguard.capture(Path(tempfile.mkdtemp(dir=folder)) / "run", mode=mode)


def report(dtype: str, found: Findings) -> None:
    """Print all tables."""
    print(f"\n{dtype}: {found.operators} operators, {found.samples} samples, {found.seconds:.0f} s")
    for title, table in (
        ("capture changes (within what any dispatch mode may change)", found.deviations),
        ("capture changes beyond an empty dispatch mode: faults of capture", found.beyond_a_mode),
        ("not repeatable without capture", found.unrepeatable),
    ):
        print(f"\n  {title}: {len(table)} operators")
        grouped = defaultdict(list)
        for name, kinds in table.items():
            grouped[tuple(kinds)].append(f"{name} ({max(kinds.values())})")
        for kinds, names in grouped.items():
            print(f"    {', '.join(kinds)}: {', '.join(names)}")
    print(f"\n  capture stopped: {len(found.stopped)} operators")
    for name, text in found.stopped.items():
        print(f"    {name}: {text}")


def main() -> None:
    """Examine, print, and write JSON where asked; exit 1 if capture is at fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="*", help="comma-separated globs of OpInfo names")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--mode", choices=("trusted", "full"), default="trusted")
    parser.add_argument("--mechanism", choices=("dispatch",), default="dispatch")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    warnings.simplefilter("ignore")  # those of samples while they are made and read
    print(f"torch {torch.__version__}, mechanism {args.mechanism}, mode {args.mode}")
    tables = {}
    for dtype in args.dtypes.split(","):
        found = tables[dtype] = Findings()
        began = time.perf_counter()
        for op in opinfo.operators(args.ops):
            with tempfile.TemporaryDirectory() as folder:
                captured = capturing(Path(folder), args.mode)
                examine(op, getattr(torch, dtype), captured, found)
        found.seconds = time.perf_counter() - began
        report(dtype, found)
    if args.json:
        document = {dtype: asdict(found) for dtype, found in tables.items()}
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    if any(found.stopped or found.beyond_a_mode for found in tables.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    opinfo.restart_without_thread_cache()
    main()
