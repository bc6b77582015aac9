"""Both mechanisms record the same of a program, but for the table of deviations in ``parity``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import opguard
import parity_calls
import parity_compiled
import parity_models
import parity_training
import parity_values
from native_support import needs_native
from parity import NEXT_CALL, STOPPED
from parity_runs import both, script

pytestmark = needs_native

TESTS = Path(__file__).parents[1]
PROGRAMS = {
    f"{module.__name__.removeprefix('parity_')}.{name}": run
    for module in (parity_models, parity_values)
    for name, run in module.PROGRAMS.items()
}
READ_ALL = [name for name in PROGRAMS if "-" not in name]
"""Without the optimizers, of which there are many and which are alike."""


def variants(folder: str) -> list[tuple[str, str]]:
    """The cases of one process each."""
    return [
        (f"{folder}/{spec.parent.name}", variant)
        for spec in sorted((TESTS / folder).glob("*/case.json"))
        if json.loads(spec.read_text()).get("world_size", 1) == 1
        for variant in ("reference", "suspect")
    ]


@pytest.fixture(autouse=True)
def restored() -> None:
    """Scripts set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_programs_are_there() -> None:
    """Importing a module adds its programs."""
    assert parity_calls.program is parity_values.program
    assert parity_training.program is parity_models.program
    assert {"values.transforms", "values.hooks", "models.lbfgs", "models.lstm"} <= set(PROGRAMS)
    assert (len(variants("cases")), len(variants("cases_own"))) == (24, 78)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(tmp_path: Path, name: str) -> None:
    assert both(tmp_path, PROGRAMS[name]).differences == []


@pytest.mark.parametrize("name", READ_ALL)
def test_programs_with_every_input_read(tmp_path: Path, name: str) -> None:
    assert both(tmp_path, PROGRAMS[name], mode="full").differences == []


@pytest.mark.parametrize("mode", ["trusted", "full"])
@pytest.mark.parametrize(("case", "variant"), variants("cases"))
def test_cases(tmp_path: Path, case: str, variant: str, mode: str) -> None:
    parity = both(tmp_path, script(TESTS / case / "case.py", variant), mode=mode)
    assert parity.differences == []


@pytest.mark.parametrize(("case", "variant"), variants("cases_own"))
def test_own_cases(tmp_path: Path, case: str, variant: str) -> None:
    assert both(tmp_path, script(TESTS / case / "case.py", variant)).differences == []


def test_the_example(tmp_path: Path) -> None:
    train = TESTS.parent / "examples" / "train_gpt" / "train.py"
    parity = both(tmp_path, script(train, "--steps", "2"))
    assert parity.differences == []
    assert not parity.used & {STOPPED, NEXT_CALL}


@pytest.mark.parametrize("name", parity_compiled.PROGRAMS)
def test_compiled_graphs(tmp_path: Path, name: str) -> None:
    from torch._inductor import config

    if name != "other_backends" and not hasattr(config, "wrap_inductor_compiled_regions"):
        pytest.skip("opaque under a mode")
    # A pool of compiling processes would leave threads in this one, which other tests count.
    with config.patch(compile_threads=1):
        assert both(tmp_path, parity_compiled.PROGRAMS[name]).differences == []


def test_selected_steps(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        for step in range(4):
            opguard.step(step)
            x.add_(1)
            opguard.watch("x", x)
            x.sin()

    assert both(tmp_path, program, steps=(1, 3)).differences == []
