"""The verdict on pairs of small training programs that differ in one thing (DESIGN section 6)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import opguard
from opguard.policy import Policy
from opguard.report.result import Result
from program import TIMEOUT, run_program
from verdict_programs import (
    DIFFERENT,
    EQUAL,
    LOADING,
    PAIRS,
    RANKS,
    STEP,
    SWAPS,
    TOWERS,
    TRAIN,
    edited,
)

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "train_gpt" / "train.py"


def execute(script: Path, text: str) -> None:
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    exec(compile(text, str(script), "exec"), {"__name__": "__main__"})


def run(folder: Path, text: str, script: str = "train.py") -> Path:
    """Run a program in this process under capture; returns the run's folder."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(0)
    with opguard.capture(folder / "run"):
        execute(folder / script, text)
    return folder / "run"


Comparer = Callable[..., Result]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Comparer:
    """``compare(candidate)`` or ``compare(baseline, candidate)``, each text run once."""
    runs: dict[str, Path] = {}

    def run_once(text: str) -> Path:
        if text not in runs:
            runs[text] = run(tmp_path_factory.mktemp("run"), text)
        return runs[text]

    def compared(*texts: str) -> Result:
        baseline, candidate = (TRAIN, *texts)[-2:]
        return opguard.compare(run_once(baseline), run_once(candidate))

    return compared


@pytest.mark.parametrize("name", DIFFERENT)
def test_never_identical(compare: Comparer, name: str) -> None:
    changed = edited(*DIFFERENT[name])
    for pair in ((TRAIN, changed), (changed, TRAIN)):
        result = compare(*pair)
        assert result.verdict in ("diverged", "inconclusive"), (name, result.reasons)


@pytest.mark.parametrize("name", PAIRS)
def test_these_pairs_are_never_identical(compare: Comparer, name: str) -> None:
    for pair in (PAIRS[name], PAIRS[name][::-1]):
        result = compare(*pair)
        assert result.verdict in ("diverged", "inconclusive"), (name, result.reasons)


@pytest.mark.parametrize("name", EQUAL)
def test_identical(compare: Comparer, name: str) -> None:
    changed = edited(*EQUAL[name])
    for pair in ((TRAIN, changed), (changed, TRAIN)):
        result = compare(*pair)
        assert result.verdict == "identical", (name, result.reasons, result.pivot)


def test_parameters_of_one_side_only_are_all_that_an_extra_module_leaves(tmp_path: Path) -> None:
    """GIVEN a second model that is evaluated and changes nothing THEN only its state is open."""
    extra = edited(
        ("def main", "PROBE = nn.Linear(6, 2)\n\ndef main"),
        (STEP, "        with torch.no_grad():\n            PROBE(batches[i])\n" + STEP),
    )
    runs = run(tmp_path / "a", TRAIN), run(tmp_path / "b", extra)
    for pair in (runs, runs[::-1]):
        result = opguard.compare(*pair)
        assert (result.verdict, result.reasons) == ("inconclusive", ("UNPAIRED_STATE",))
        allowed = opguard.compare(*pair, policy=Policy(allow_unpaired_state=True))
        assert allowed.verdict == "identical"


@pytest.mark.parametrize("kind", TOWERS)
def test_towers_in_the_other_order(compare: Comparer, kind: str) -> None:
    first, second = SWAPS[kind].splitlines(keepends=True)
    swapped = edited((SWAPS[kind], second + first), text=TOWERS[kind])
    assert compare(TOWERS[kind], swapped).verdict == "identical"
    assert compare(swapped, TOWERS[kind]).verdict == "identical"


def test_what_two_processes_may_have_different(tmp_path: Path) -> None:
    """Another folder, file name, working directory, hash seed and entropy; two workers each."""
    printed = []
    for name, seed in (("one/a.py", "1"), ("two/deep/b.py", "2")):
        script = tmp_path / name
        script.parent.mkdir(parents=True)
        script.write_text(LOADING)
        where = script.parent if seed == "1" else tmp_path
        done = run_program(
            ["run", "-o", str(tmp_path / seed), os.path.relpath(script, where)],
            cwd=where, env={"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    done = run_program(["compare", str(tmp_path / "1"), str(tmp_path / "2"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("identical", 0), result["reasons"]
    assert result["counts"]["agreeing"] > 50
    assert result["coverage"]["uncaptured_processes"] == 4


def test_a_killed_run_without_a_pivot_is_inconclusive(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        textwrap.dedent("""\
        import sys, time, torch
        x = torch.arange(4.0)
        for i in range(5000):
            x = x * 0.5 + 1
        print("ready", flush=True)
        if len(sys.argv) > 1:
            time.sleep(60)
    """)
    )
    assert run_program(["run", "-o", str(tmp_path / "whole"), str(script)]).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "opguard", "run", "-o", str(tmp_path / "cut"), str(script), "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = tmp_path / "cut" / "rank-00000" / "chunks.jsonl"
        end = time.monotonic() + TIMEOUT
        while not (lines.exists() and lines.read_bytes()) and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
    done = run_program(["compare", str(tmp_path / "whole"), str(tmp_path / "cut"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("inconclusive", 4)
    assert result["reasons"][0] == "PARTIAL"
    assert result["pivot"] is None
    assert result["counts"]["agreeing"] > 1000
    assert "ended before it was closed" in result["reason"]


def run_ranks(folder: Path, text: str, name: str) -> list[str]:
    """Two ranks into ``folder/name``; what each printed."""
    script = folder / "ranks.py"
    script.write_text(text)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "opguard", "run", "-o", str(folder / name), str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2",
                "MEET": str(folder / f"{name}.store"),
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    done = [process.communicate(timeout=TIMEOUT) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], done
    return [out for out, _ in done]


def test_two_healthy_ranks_twice(tmp_path: Path) -> None:
    printed = [run_ranks(tmp_path, RANKS, name) for name in ("a", "b")]
    assert printed[0] == printed[1]
    done = run_program(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("identical", 0), result["reasons"]
    assert [rank["verdict"] for rank in result["ranks"]] == ["identical", "identical"]
    # DDP waits inside C++, so that capture may meet a bucket before its data are known to be there.
    assert set(result["coverage"]["unfingerprinted"]) <= {"in_flight"}


FIDELITY = """\
import contextlib, ctypes, glob, hashlib, io, json, os, random, sys, traceback, warnings
import numpy, torch, opguard
import torch._dynamo, torch.profiler  # here, and not in each child
from torch.optim import optimizer as optimizers

def digest(tensor):
    storage = tensor.untyped_storage()
    return hashlib.sha256(ctypes.string_at(storage.data_ptr(), storage.nbytes())).hexdigest()

def stepped(optimizer, *_):
    for group in optimizer.param_groups:
        for p in group["params"]:
            print(digest(p), None if p.grad is None else digest(p.grad))

def play(path, variant, folder):
    optimizers.register_optimizer_step_post_hook(stepped)
    sys.argv = [path, variant]
    with opguard.capture(folder) if folder else contextlib.nullcontext():
        exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
        torch_state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
        print(torch_state, random.getstate(), numpy.random.get_state()[1].sum())

def forked(path, variant, folder):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        try:
            random.seed(1), numpy.random.seed(1)
            play(path, variant, folder)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    text = open(read).read()
    os.waitpid(child, 0)
    return text

found = {}
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*", "case.py"))):
    for variant in ("reference", "suspect"):
        name = os.path.basename(os.path.dirname(path)) + "-" + variant
        found[name] = [forked(path, variant, f) for f in (None, os.path.join(sys.argv[2], name))]
json.dump(found, open(sys.argv[3], "w"))
"""


def test_capture_changes_no_bit_of_any_case(tmp_path: Path) -> None:
    """Losses, and parameters, gradients at every step, and the random states at the end."""
    script = tmp_path / "fidelity.py"
    script.write_text(FIDELITY)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(TESTS / "cases"), str(tmp_path / "runs"),
         str(tmp_path / "found.json")],
        capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 24
    for name, (plain, captured) in found.items():
        assert "Traceback" not in plain, plain
        assert captured == plain, name
        assert (tmp_path / "runs" / name / "rank-00000" / "close.json").exists()


def test_capture_changes_no_bit_of_the_example(tmp_path: Path) -> None:
    arguments = [str(EXAMPLE), "--steps", "2", "--width", "32"]
    plain = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    captured = run_program(["run", "-o", str(tmp_path / "run"), *arguments])
    assert plain.stdout.count("loss") == 2
    assert (captured.stdout, captured.stderr, captured.returncode) == (plain.stdout, "", 0)
