"""Proves the tables of ``opguard.capture.operators`` on PyTorch's OpInfo samples.

    python benchmarks/void_tables.py [--ops GLOBS] [--dtypes float32] [--json FILE]

* ``UNSET_OUTPUTS``: everything runs captured twice, fresh memory filled with another pattern each
  time. An operator whose inputs agree and whose output differs leaves some of it unset.
* ``PARTIAL_WRITERS``: in-place operators run on tensors filled with several patterns. An operator
  that leaves the same element alone each time may leave elements unwritten. So does one that
  multiplies by one: what is listed is to be judged by reading.
* ``UNDECLARED_WRITES``: every argument of every operator call is read before and after. One that
  changed and is not known to be written belongs in the table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import opinfo
import torch
from fidelity import run_call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import opguard
from opguard.capture import operators

PATTERNS: Final = (1.37, -2.9, 1e9, -1e9, 3.0)
Table = dict[str, Counter[str]]


class WatchWrites(TorchDispatchMode):
    """Compares the bytes of arguments before and after every operator call."""

    def __init__(self) -> None:
        super().__init__()
        self.undeclared: Counter[str] = Counter()
        self.unchanged: list[tuple[str, torch.Tensor]] = []
        """In-place calls in order: operator, and which elements of the argument stayed."""
        self._described: dict[Any, operators.Operator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator call."""
        kwargs = kwargs or {}
        if func not in self._described:
            self._described[func] = operators.describe(func, 0)
        operator = self._described[func]
        held = list(_tensors(operator, args, kwargs))
        with _disable_current_modes():
            before = [_elements(tensor) for _, tensor in held]
        result = func(*args, **kwargs)
        with _disable_current_modes():
            written = {tensor.untyped_storage()._cdata for p, tensor in held if p.written}
            for (parameter, tensor), old in zip(held, before, strict=True):
                new = _elements(tensor)
                if old.shape != new.shape or not tensor.numel():
                    continue
                stayed = (old == new).all(1)
                if not parameter.written:
                    if bool(stayed.all()) or tensor.untyped_storage()._cdata in written:
                        continue
                    self.undeclared[f"{operator.schema_name} {parameter.name}"] += 1
                elif parameter.declared and parameter.read:
                    self.unchanged.append((operator.schema_name, stayed))
        return result


def _tensors(
    operator: operators.Operator, args: Any, kwargs: Any
) -> Iterator[tuple[operators.Parameter, torch.Tensor]]:
    given = list(zip(operator.parameters, args, strict=False))
    given += [(operator.parameters[operator.by_name[name]], v) for name, v in kwargs.items()]
    for parameter, value in given:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and opinfo.is_plain(leaf) and not _wrapped(leaf):
                yield parameter, leaf


def _wrapped(tensor: torch.Tensor) -> bool:
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) or bool(
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """(elements, bytes of each), copied."""
    data = torch.frombuffer(bytearray(opinfo.logical_bytes(tensor) or b"\0"), dtype=torch.uint8)
    return data.view(max(tensor.numel(), 1), -1)


def unset_outputs(op: Any, dtype: torch.dtype, folder: Path, found: Table) -> None:
    """Outputs that depend on what fresh memory holds."""
    operators.UNSET_OUTPUTS.clear()  # else what is in it would not be compared
    for fill in opinfo.FILLS:
        calls = opinfo.calls(op, dtype, ("function", "inplace", "out"))
        with opguard.capture(folder / f"{fill}", mode="full"):
            for call in calls:
                opinfo.fill_fresh_memory(fill)
                run_call(call)
                opinfo.fill_fresh_memory(0)
    first, second = (folder / f"{fill}" for fill in opinfo.FILLS)
    for root in opguard.compare(first, second).roots:
        name, _, _overload = root.op.rpartition(".")
        found[f"{name} [{','.join(root.slots)}] {root.class_name}"][opinfo.full_name(op)] += (
            root.count
        )


def undeclared_writes(op: Any, dtype: torch.dtype, found: Table) -> int:
    """Arguments that change although nothing says so. Returns the number of samples."""
    calls = opinfo.calls(op, dtype, ("function", "inplace", "out"))
    with WatchWrites() as watch:
        for call in calls:
            run_call(call)
    for name, count in watch.undeclared.items():
        found[name][opinfo.full_name(op)] += count
    return len(calls)


def partial_writers(op: Any, dtype: torch.dtype, found: Table) -> None:
    """In-place operators that leave elements alone whatever these hold."""
    stayed: dict[tuple[int, int], tuple[str, torch.Tensor]] = {}
    for pattern in PATTERNS:
        for call in opinfo.calls(op, dtype, ("inplace",)):
            _fill(call.inputs[0], pattern)
            with WatchWrites() as watch:
                run_call(call)
            for position, (name, unchanged) in enumerate(watch.unchanged):
                key = (call.number, position)
                _, before = stayed.get(key, (name, unchanged))
                both = before & unchanged if before.shape == unchanged.shape else unchanged
                stayed[key] = (name, both)
    for name, unchanged in stayed.values():
        if bool(unchanged.any()):
            found[name][opinfo.full_name(op)] += 1


def _fill(tensor: torch.Tensor, pattern: float) -> None:
    if opinfo.is_plain(tensor):
        with torch.no_grad():
            value = pattern if tensor.is_floating_point() or tensor.is_complex() else int(pattern)
            tensor.fill_(bool(value > 0) if tensor.dtype is torch.bool else value)


def examine(ops: list[Any], dtype: torch.dtype) -> dict[str, Any]:
    """All three tables for one dtype."""
    tables: dict[str, Table] = {
        name: defaultdict(Counter) for name in ("unset outputs", "partial writers", "undeclared")
    }
    failed, samples, began = {}, 0, time.perf_counter()
    for op in ops:
        with tempfile.TemporaryDirectory() as folder:
            try:
                samples += undeclared_writes(op, dtype, tables["undeclared"])
                partial_writers(op, dtype, tables["partial writers"])
                unset_outputs(op, dtype, Path(folder), tables["unset outputs"])
            except Exception as error:  # noqa: BLE001  (the others are still worth a look)
                failed[opinfo.full_name(op)] = f"{type(error).__name__}: {error}"
    return {
        "samples": samples,
        "seconds": time.perf_counter() - began,
        **{name: {key: dict(ops) for key, ops in table.items()} for name, table in tables.items()},
        "failed": failed,
    }


IN_TABLE: Final = {
    "unset outputs": {
        f"{name.replace('::', '.')} [{index}] origin"
        for name, outputs in operators.UNSET_OUTPUTS.items()
        for index in outputs
    },
    "partial writers": {f"aten::{name}" for name in operators.PARTIAL_WRITERS},
    "undeclared": set[str](),
}


def report(dtype: str, tables: dict[str, Any]) -> None:
    """Print what is in no table yet, and what the samples did prove."""
    print(f"\n{dtype}: {tables['samples']} samples, {tables['seconds']:.0f} s")
    for title, known in IN_TABLE.items():
        print(f"\n  {title}:")
        for key, ops in sorted(tables[title].items()):
            print(f"    {key}{' (in the table)' if key in known else ''}: {ops}")
    for name, text in tables["failed"].items():
        print(f"  failed: {name}: {text}")


def main() -> None:
    """Examine, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="*", help="comma-separated globs of OpInfo names")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = {}
    for dtype in args.dtypes.split(","):
        result[dtype] = examine(opinfo.operators(args.ops), getattr(torch, dtype))
        report(dtype, result[dtype])
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    opinfo.restart_without_thread_cache()
    main()
