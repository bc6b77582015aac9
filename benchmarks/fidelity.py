"""Does capture change what a program computes? PyTorch's OpInfo samples, plain and captured.

    python benchmarks/fidelity.py [--ops GLOBS] [--dtypes float32] [--mechanism native|dispatch]
                                  [--mode trusted|full] [--threads 1] [--json FILE]

Every sample runs forward and backward, and without gradients; in place and into ``out=`` too where
the operator can; and so do the samples that must raise. Outputs, gradients and random states are
compared by their bits, and so are the strides, the exceptions and the warnings. Each operator runs
plain, with fresh memory filled with one pattern and with another, which shows whom uninitialised
memory makes unrepeatable; and captured. Whatever ``native`` changes is a fault of capture. For
``dispatch`` each operator also runs under a dispatch mode that does nothing, which shows what any
mode changes: a fault is what capture changes beyond that.
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
from typing import Any, Final, TypeAlias

import numpy as np
import opinfo
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import opguard
from opguard import environment
from opguard.fingerprint import native
from opguard.model import EventFlag

FACTS: Final = ("architecture", "cpu_capability", "python", "torch", "numpy", "mkl", "onednn")
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
    """Where, which exception and its message, or nothing."""
    outputs: Any
    gradients: Any
    strides: Any
    autograd: Any
    """Of every tensor: how autograd sees it, its version, and the size of its storage."""
    random: bytes
    warned: tuple[str, ...]


@dataclass
class Findings:
    """Deviations by operator: ``{"prod": {"function.gradients": 3}}`` counts samples."""

    unrepeatable: dict[str, dict[str, int]] = field(default_factory=dict)
    """Plain runs that differ from each other."""
    deviations: dict[str, dict[str, int]] = field(default_factory=dict)
    """Captured and plain run differ."""
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    """Captured run and what it is held to differ: the plain run, for ``dispatch`` the empty mode.
    """
    stopped: dict[str, str] = field(default_factory=dict)
    """Capture gave up."""
    operators: int = 0
    samples: int = 0
    events: int = 0
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
            raised = f"{stage} {type(error).__name__}: {error}"
    states = _random_states()
    texts = tuple(f"{w.category.__name__}: {w.message}" for w in warned)

    def outcome() -> Outcome:
        tensors = [t for t in (*outputs, *gradients) if isinstance(t, torch.Tensor)]
        return Outcome(
            raised=raised,
            outputs=tuple(map(opinfo.bits, outputs)),
            gradients=tuple(map(opinfo.bits, gradients)),
            strides=tuple(t.stride() for t in tensors if opinfo.is_plain(t)),
            autograd=tuple(map(_autograd, tensors)),
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


def _autograd(tensor: torch.Tensor) -> tuple[Any, ...]:
    node = type(tensor.grad_fn).__name__
    version = -1 if tensor.is_inference() else tensor._version
    nbytes = tensor.untyped_storage().nbytes() if opinfo.is_plain(tensor) else -1
    return node, tensor.requires_grad, tensor.is_leaf, tensor._is_view(), version, nbytes


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


def examine(
    op: Any, dtype: torch.dtype, captured: Observation, through_a_mode: bool, found: Findings
) -> None:
    """Run ``op`` in every variant and add what differs to ``found``."""
    calls = opinfo.calls(op, dtype)
    if not calls:
        return
    name = opinfo.full_name(op)
    run_all(op, dtype, contextlib.nullcontext, 0)  # what is imported or warned of only once
    first, plain = (run_all(op, dtype, contextlib.nullcontext, fill) for fill in opinfo.FILLS)
    right = run_all(op, dtype, EmptyMode, opinfo.FILLS[1]) if through_a_mode else plain
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
        (found.faults, right, seen, unrepeatable),
    ):
        different = differences(calls, a, b, skipped)
        if different:
            table[name] = different
    found.operators += 1
    found.samples += len(calls)


def capturing(folder: Path, mechanism: Any, mode: Any) -> Observation:
    """Capture into a new run below ``folder`` each time."""
    return lambda: opguard.capture(
        Path(tempfile.mkdtemp(dir=folder)) / "run", mechanism=mechanism, mode=mode
    )


def report(dtype: str, mechanism: str, found: Findings) -> None:
    """Print all tables."""
    print(
        f"\n{dtype}: {found.operators} operators, {found.samples} samples, "
        f"{found.events} events, {found.seconds:.0f} s"
    )
    tables: list[tuple[str, dict[str, dict[str, int]]]] = [
        ("capture changes: faults of capture", found.faults),
        ("not repeatable without capture", found.unrepeatable),
    ]
    if mechanism == "dispatch":
        tables[:1] = [
            ("capture changes (within what any dispatch mode may change)", found.deviations),
            ("capture changes beyond an empty dispatch mode: faults of capture", found.faults),
        ]
    for title, table in tables:
        print(f"\n  {title}: {len(table)} operators")
        grouped: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, kinds in table.items():
            grouped[tuple(kinds)].append(f"{name} ({max(kinds.values())})")
        for what, names in grouped.items():
            print(f"    {', '.join(what)}: {', '.join(names)}")
    print(f"\n  capture stopped: {len(found.stopped)} operators")
    for name, text in found.stopped.items():
        print(f"    {name}: {text}")


def captured_events(folder: Path) -> int:
    """Operator calls in all runs below ``folder``."""
    runs = [opguard.load_run(path) for path in folder.glob("*/run")]
    flags = [rank.flags for run in runs for rank in run.ranks.values()]
    return sum(int(np.count_nonzero(one & EventFlag.STATE == 0)) for one in flags)


def main() -> None:
    """Examine, print, and write JSON where asked; exit 1 if capture is at fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="*", help="comma-separated globs of OpInfo names")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--mode", choices=("trusted", "full"), default="trusted")
    best = "native" if native.available() else "dispatch"
    parser.add_argument("--mechanism", choices=("native", "dispatch"), default=best)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_warn_always(True)
    warnings.simplefilter("ignore")  # those of samples while they are made and read
    print(f"mechanism {args.mechanism}, mode {args.mode}, threads {args.threads}")
    facts = {name: value for name, value in environment.facts().items() if name in FACTS}
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    tables = {}
    for dtype in args.dtypes.split(","):
        found = tables[dtype] = Findings()
        began = time.perf_counter()
        for op in opinfo.operators(args.ops):
            with tempfile.TemporaryDirectory() as folder:
                captured = capturing(Path(folder), args.mechanism, args.mode)
                through_a_mode = args.mechanism == "dispatch"
                examine(op, getattr(torch, dtype), captured, through_a_mode, found)
                found.events += captured_events(Path(folder))
        found.seconds = time.perf_counter() - began
        report(dtype, args.mechanism, found)
    if args.json:
        document = {dtype: asdict(found) for dtype, found in tables.items()}
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    if any(found.stopped or found.faults for found in tables.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    opinfo.restart_without_thread_cache()
    main()
