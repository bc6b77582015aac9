"""Both mechanisms record the same of a program, but for the table of deviations in `parity`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opguard
import parity_calls
import parity_models
import parity_ranks
import parity_training
import parity_values
from native_support import needs_native
from parity import Parity

pytestmark = needs_native

TESTS = Path(__file__).parents[1]
PROGRAMS = {
    f"{module.__name__}.{name}": run
    for module in (parity_models, parity_values)
    for name, run in module.PROGRAMS.items()
}
CASES = [
    case.parent
    for case in sorted((TESTS / "cases").glob("*/case.json"))
    if json.loads(case.read_text()).get("world_size", 1) == 1
]


def both(folder: Path, run: Callable[[], Any], mode: Any = "trusted") -> Parity:
    """The program under each mechanism, from the same random states."""
    ranks = []
    for mechanism in ("native", "dispatch"):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            opguard.capture(folder / mechanism, mechanism=mechanism, mode=mode),
        ):
            warnings.simplefilter("ignore")
            run()
        ranks.append(opguard.load_run(folder / mechanism).ranks[0])
    return Parity(*ranks)


def test_the_programs_are_there() -> None:
    """Importing a module adds its programs."""
    assert parity_calls.program is parity_values.program
    assert parity_training.program is parity_models.program
    assert {"transforms", "hooks", "views_in_place"} <= parity_values.PROGRAMS.keys()
    assert {"lbfgs", "checkpoints", "lstm"} <= parity_models.PROGRAMS.keys()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(tmp_path: Path, name: str) -> None:
    assert both(tmp_path, PROGRAMS[name]).differences == []


@pytest.mark.parametrize("name", ["parity_models.lstm", "parity_values.views_in_place"])
def test_programs_with_every_input_read(tmp_path: Path, name: str) -> None:
    assert both(tmp_path, PROGRAMS[name], mode="full").differences == []


@pytest.mark.parametrize("variant", ["reference", "suspect"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Path, variant: str) -> None:
    script = str(case / "case.py")
    monkeypatch.setattr(sys, "argv", [script, variant])

    def run() -> None:
        with contextlib.suppress(SystemExit):
            runpy.run_path(script, run_name="__main__")

    assert both(tmp_path, run).differences == []


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(TESTS.parent / "examples" / "train_gpt" / "train.py")
    monkeypatch.setattr(sys, "argv", [script, "--steps", "2"])
    parity = both(tmp_path, lambda: runpy.run_path(script, run_name="__main__"))
    assert parity.differences == []
    assert parity.used  # two gradients meet in it


def test_programs_of_several_ranks(tmp_path: Path) -> None:
    script = str(TESTS / "parity_ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, str(tmp_path), str(rank)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "RANK": str(rank),
                 "WORLD_SIZE": str(parity_ranks.WORLD)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(parity_ranks.WORLD)
    ]  # fmt: skip
    for process in ranks:
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error
    for name in parity_ranks.PROGRAMS:
        for rank in range(parity_ranks.WORLD):
            found = [
                opguard.load_run(tmp_path / name / mechanism).ranks[rank]
                for mechanism in ("native", "dispatch")
            ]
            assert Parity(*found).differences == [], (name, rank)
