"""The cases with a known first divergence, judged by their own score.py, in trusted mode."""

import argparse
import filecmp
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from native_support import OLDEST

CASES = Path(__file__).parents[1] / "cases"
ORIGINAL = Path(__file__).parents[3] / "shared" / "cases"
OWN = CASES.with_name("cases_own")
OWN_HERE = (42, 44, 48, 54, 55, 60, 62, 68, 70, 80, 81, 82, 85, 88, 91)
"""Those of our own cases that run with every change, some of each kind; ``make cases`` runs all."""
OPGUARD = [sys.executable, "-m", "opguard"]


def load_score():
    spec = importlib.util.spec_from_file_location("score", CASES / "score.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


score = load_score()


@pytest.mark.parametrize(
    "case",
    sorted(p.parent for p in CASES.glob("*/case.json"))
    + sorted(p for number in OWN_HERE for p in OWN.glob(f"{number}_*")),
    ids=lambda p: p.name,
)
def test_case(case, tmp_path):
    if OLDEST and case.name == "42_decay_on_norm":
        pytest.skip("AdamW multiplies by 1 where nothing decays: another argument comes first")
    spec = json.loads((case / "case.json").read_text())
    args = argparse.Namespace(mode="trusted", mechanism=None)
    for variant in ("reference", "suspect"):
        world = spec.get("world_size", 1)
        for done in score.run_variant(OPGUARD, case, variant, tmp_path / variant, args, world):
            assert done.returncode == spec.get("exit", {}).get(variant, 0), done.stderr
    done = subprocess.run(
        [*OPGUARD, "compare", str(tmp_path / "reference"), str(tmp_path / "suspect"), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    result = json.loads(done.stdout)
    assert done.returncode == result["exit_code"], result
    grade, said = score.judge(case, spec, result)
    assert grade == "right", said


def test_all_cases_are_there():
    assert len(list(CASES.glob("*/case.json"))) == 12
    assert all(len(list(OWN.glob(f"{number}_*/case.json"))) == 1 for number in OWN_HERE)


@pytest.mark.skipif(not ORIGINAL.is_dir(), reason="the original cases are not beside this tree")
def test_the_copy_is_like_the_original():
    names = {
        str(path.relative_to(folder))
        for folder in (CASES, ORIGINAL)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    _, mismatch, errors = filecmp.cmpfiles(CASES, ORIGINAL, names, shallow=False)
    assert (mismatch, errors) == ([], [])
