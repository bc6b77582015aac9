"""What an event costs under the C++ recorder, in instructions, function by function.

    python benchmarks/recorder_profile.py [--events 20000] [--more 1000] [--output FILE]

Runs the same program under valgrind's callgrind twice, once with some more events, and takes the
difference: what start-up, imports and closing cost falls out. Counted are all threads, the
program's own work included; the same without capture stands beside it. Needs valgrind, which
shows programs a processor without AVX-512.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

PROGRAM = """
import sys, tempfile, contextlib
import torch, opguard
torch.set_num_threads(1)
events, mode = int(sys.argv[1]), sys.argv[2]
layer = torch.nn.Linear(16, 16)
x = torch.ones(4, 16)
plain = contextlib.nullcontext()
with plain if mode == "plain" else opguard.capture(
        tempfile.mkdtemp() + "/run", mode=mode, mechanism="native"):
    for _ in range(events // 12):
        # Twelve: addmm, gelu, mul, mul, add_, sum; ones_like, mul, mul, gelu_backward, mm, sum.
        y = torch.nn.functional.gelu(layer(x)) * 2
        y.mul(0.5).add_(1).sum().backward()
        layer.weight.grad = layer.bias.grad = None
"""
A_TURN = 12
"""Events of one turn of the program's loop."""
_LINE = re.compile(r"^\s*([\d,]+)\s*\([^)]*\)\s+(\S+?):(.*?)(?: \[([^\]]*)\])?$")
PARTS = {
    "opguard": r"/opguard/_C\.",
    "libtorch_cpu": r"libtorch_cpu\.so", "libtorch_python": r"libtorch_python\.so",
    "libc10": r"libc10\.so", "python": r"python3|libpython", "libc": r"libc\.so|libm\.so|ld-linux",
    "numpy": r"numpy", "libstdc++": r"libstdc\+\+",
}  # fmt: skip
"""Objects of the table, by what their paths hold."""


def instructions(events: int, mode: str) -> Counter[tuple[str, str]]:
    """Instructions by (object, function) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out, script = Path(folder, "out"), Path(folder, "program.py")
        script.write_text(PROGRAM)
        command = [
            "valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}",
            sys.executable, script, str(events), mode,
        ]  # fmt: skip
        environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HOME": str(Path.home())}
        # Else the first of the runs might compile what was imported for the first time.
        once = [sys.executable, script, str(A_TURN), mode]
        subprocess.run(once, check=True, env=environment)  # noqa: S603  (the program above)
        subprocess.run(command, check=True, env=environment)  # noqa: S603  (the same)
        annotate = ["callgrind_annotate", "--threshold=100", "--auto=no", str(out)]
        listing = subprocess.run(  # noqa: S603  (callgrind's own listing)
            annotate, check=True, capture_output=True, text=True
        ).stdout
    found: Counter[tuple[str, str]] = Counter()
    for line in listing.splitlines():
        match = _LINE.match(line)
        if match is not None:
            owner = match[4] or ""
            part = next((p for p, pattern in PARTS.items() if re.search(pattern, owner)), "other")
            found[part, match[3]] += int(match[1].replace(",", ""))
    return found


def an_event(events: int, more: int, mode: str) -> dict[tuple[str, str], float]:
    """Instructions that an event costs, by (object, function)."""
    difference = instructions(events + more, mode)
    difference.subtract(instructions(events, mode))
    count = ((events + more) // A_TURN - events // A_TURN) * A_TURN
    return {key: n / count for key, n in difference.items()}


def report(
    plain: dict[tuple[str, str], float], captured: dict[tuple[str, str], float]
) -> list[str]:
    """The table of objects, and the functions that cost most beyond the plain program."""
    lines = ["instructions an event            plain  captured"]
    for part in [*PARTS, "other"]:
        a, b = (
            sum(n for (owner, _), n in counts.items() if owner == part)
            for counts in (plain, captured)
        )
        lines.append(f"  {part:<28} {a:>8,.0f} {b:>9,.0f}")
    lines.append(f"  {'all':<28} {sum(plain.values()):>8,.0f} {sum(captured.values()):>9,.0f}")
    beyond = {key: count - plain.get(key, 0) for key, count in captured.items()}
    most = sorted(beyond.items(), key=lambda entry: entry[1], reverse=True)[:40]
    lines += ["", "functions that cost most beyond the plain program"]
    for (part, name), count in most:
        lines.append(f"  {count:>6,.0f}  {part:<16} {name[:110]}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--more", type=int, default=1_000)
    parser.add_argument("--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    lines = [
        f"callgrind: {args.events + args.more:,} minus {args.events:,} events, trusted; "
        f"torch {torch.__version__}, Python {platform.python_version()}",
        "",
        *report(
            an_event(args.events, args.more, "plain"), an_event(args.events, args.more, "trusted")
        ),
    ]
    print("\n".join(lines))
    if args.output:
        args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
