"""Both mechanisms record the same of programs of several ranks: Gloo, DDP, FSDP, DTensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import opguard
import parity_ranks
from captured import read
from native_support import needs_native
from parity import Parity
from parity_runs import MECHANISMS

pytestmark = [
    needs_native,
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
]

TESTS = Path(__file__).parents[1]
CASES = [
    case.parent
    for case in sorted((TESTS / "cases_own").glob("*/case.json"))
    if json.loads(case.read_text()).get("world_size", 1) > 1
]


def run_ranks(folder: Path, *cases: Path) -> list[str]:
    """Names of the runs of both ranks."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", TESTS / "parity_ranks.py", folder, str(rank), *cases],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(parity_ranks.WORLD)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(parity_ranks.WORLD)
    ]  # fmt: skip
    for process in processes:
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error
        assert "capture stopped" not in error
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def differences(folder: Path, name: str) -> list[str]:
    runs = [opguard.load_run(folder / name / mechanism) for mechanism in MECHANISMS]
    return [
        f"{name}, rank {rank}: {difference}"
        for rank in range(parity_ranks.WORLD)
        for difference in Parity(*(run.ranks[rank] for run in runs)).differences
    ]


def test_programs(tmp_path: Path) -> None:
    names = run_ranks(tmp_path)
    assert len(names) == len(parity_ranks.PROGRAMS) + len(parity_ranks.COMMUNICATION_ONLY)
    assert [d for name in names for d in differences(tmp_path, name)] == []
    for name in MECHANISMS:
        assert_nothing_in_flight(tmp_path / "views_in_flight-trusted" / name)
        assert_nothing_in_flight(tmp_path / "views_in_flight-collectives" / name)
        for rank in read(tmp_path / "waits_for_nothing-trusted" / name):
            assert rank.one("add").inputs["self"]["mix64"] == "d5eeedf9f78903ac"  # of 2, 2, 2, 2
        for rank in read(tmp_path / "functional_autograd-trusted" / name):
            (gathered,) = rank.one("all_gather_into_tensor").outputs.values()
            assert gathered["mix64"] == "cdfe28f15852bd48"  # of 0, 1, 2, 3, twice
        for rank in read(tmp_path / "sends-trusted" / name):
            assert rank.names.index("send") < rank.names.index("sin")


def assert_nothing_in_flight(run: Path) -> None:
    """Views of a buffer do not end the collective that fills it."""
    gathered = "db98632d77b89156"  # of 0, 1, 2, 3, 1, 2, 3, 4, by the reference
    for rank in read(run):
        (output,) = rank.one("_allgather_base_").outputs.values()
        assert output["mix64"] == gathered, output
        assert rank.coverage["unfingerprinted"] == {}


def test_cases(tmp_path: Path) -> None:
    names = run_ranks(tmp_path, *CASES)
    assert len(names) == 2 * len(CASES) == 10
    assert [d for name in names for d in differences(tmp_path, name)] == []
