#!/usr/bin/env python3
"""Finds the first differing operator of a case without OpGuard.

    python truth.py CASE [RANK]

A dispatch mode hashes the inputs and results of every operator with sha256; ``difflib`` pairs the
two variants' calls, first by operator and inputs, then by operator alone in what is left between.
Prints the calls of one side only up to the first pair whose results differ, and that pair.
"""

import difflib
import hashlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

FILLS = ("fill_", "zero_", "copy_", "uniform_", "normal_", "bernoulli_", "random_")
"""Operators that do not read what they write over."""


def record(path, variant, out):
    """Run one variant in this process and write one JSON line per operator call."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    def digest(value):
        if not isinstance(value, torch.Tensor):
            return repr(value)
        raw = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        data = bytes(raw.view(torch.uint8).tolist()) if raw.numel() else b""
        head = f"{value.dtype}{tuple(value.shape)}".encode()
        return hashlib.sha256(head + data).hexdigest()[:16]

    def is_view(result, args):
        if not isinstance(result, torch.Tensor):
            return False
        storages = [
            v.untyped_storage()._cdata for v in tree_flatten(args)[0] if isinstance(v, torch.Tensor)
        ]
        return result.untyped_storage()._cdata in storages

    lines = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            skip = 1 if func.overloadpacket._qualified_op_name.endswith(FILLS) else 0
            read = tree_flatten((args[skip:], kwargs))[0]
            line = {"op": str(func), "in": [digest(v) for v in read], "out": ["raised"]}
            lines.append(line)
            result = func(*args, **kwargs)
            if "empty" in str(func):
                line["out"] = ["unset"]
                return result
            named = dict(
                zip((a.name for a in func._schema.arguments), args, strict=False), **kwargs
            )
            written = [
                named[a.name]
                for a in func._schema.arguments
                if a.alias_info is not None and a.alias_info.is_write and a.name in named
            ]
            if func.namespace == "c10d" or "batch_norm" in str(func):
                written.extend(args)
            flat = tree_flatten((result, written))[0]
            if not written and is_view(result, args):
                lines.remove(line)
                return result
            kept = (torch.Tensor, int, float, bool)
            line["out"] = [digest(v) for v in flat if isinstance(v, kept)]
            return result

    sys.argv = [path, variant]
    try:
        with Recorder():
            runpy.run_path(path, run_name="__main__")
    finally:
        pathlib.Path(out).write_text("".join(json.dumps(line) + "\n" for line in lines))


def runs(case, rank):
    """The recorded calls of both variants on one rank."""
    spec_file = case / "case.json"
    spec = json.loads(spec_file.read_text()) if spec_file.exists() else {}
    world = spec.get("world_size", 2 if "import torch.distributed" in source(case) else 1)
    found = []
    with tempfile.TemporaryDirectory() as tmp:
        for variant in ("reference", "suspect"):
            store = f"{tmp}/{variant}.store"
            procs = []
            for number in range(world):
                env = dict(
                    os.environ,
                    RANK=str(number),
                    LOCAL_RANK=str(number),
                    WORLD_SIZE=str(world),
                    ZOO_STORE=store,
                )
                command = [
                    sys.executable,
                    __file__,
                    "--record",
                    str(case / "case.py"),
                    variant,
                    f"{tmp}/{variant}.{number}",
                ]
                procs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
            printed = [proc.communicate(timeout=120)[0] for proc in procs]
            print(variant, "printed", printed[rank].split()[-1:])
            text = pathlib.Path(f"{tmp}/{variant}.{rank}").read_text()
            found.append([json.loads(line) for line in text.splitlines()])
    return found


def source(case):
    return (case / "case.py").read_text()


def pair(one, two):
    """Pairs of positions: by operator and inputs, then by operator between those."""
    keys = [[(c["op"], *c["in"]) for c in side] for side in (one, two)]
    anchors = difflib.SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    pairs, last = [], (0, 0)
    for start_a, start_b, size in anchors:
        names = [
            [c["op"] for c in side[begin:end]]
            for side, begin, end in ((one, last[0], start_a), (two, last[1], start_b))
        ]
        for a, b, n in difflib.SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
            pairs += [(last[0] + a + k, last[1] + b + k) for k in range(n)]
        pairs += [(start_a + k, start_b + k) for k in range(size)]
        last = start_a + size, start_b + size
    return pairs


def show(side, calls, position):
    call = calls[position]
    occurrence = sum(c["op"] == call["op"] for c in calls[:position])
    print(f"  {side:9} {call['op']}#{occurrence} (call {position})")


def main(case, rank):
    one, two = runs(case, rank)
    pairs = pair(one, two)
    print(f"{case.name}: {len(one)} and {len(two)} calls, {len(pairs)} paired")
    at = [0, 0]
    for a, b in pairs:
        for position in range(at[0], a):
            show("reference", one, position)
        for position in range(at[1], b):
            show("suspect", two, position)
        at = [a + 1, b + 1]
        if one[a]["out"] != two[b]["out"]:
            equal = "equal" if one[a]["in"] == two[b]["in"] else "different"
            print(f"FIRST, with {equal} inputs:")
            show("reference", one, a)
            show("suspect", two, b)
            return
    print("every pair agrees")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(*sys.argv[2:])
    else:
        main(pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if sys.argv[2:] else 0)
