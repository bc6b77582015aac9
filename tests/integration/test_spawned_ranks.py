"""Ranks that a captured program spawns: captured as ranks of its run, or found out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import opguard
from captured import read, run_source
from native_support import OLDEST

SOURCE = """
    import contextlib, os, sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import opguard

    def worker(rank, port, how):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        dist.init_process_group("gloo", rank=rank, world_size=2)
        with opguard.capture_worker() if how == "armed" else contextlib.nullcontext():
            x = torch.full((4,), float(rank + 1))
            dist.all_reduce(x)
            x.sin()
        dist.destroy_process_group()

    if __name__ == "__main__":
        port, how, start = sys.argv[1:]
        if how == "unarmed":
            torch.ones(2).sin()
        mp.start_processes(worker, (port, how), nprocs=2, start_method=start)
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_armed_ranks_make_up_the_run(tmp_path: Path) -> None:
    done = run_source(tmp_path, SOURCE, free_port(), "armed", "spawn")
    assert done.returncode == 0, done.stderr
    ranks = read(tmp_path / "run")
    assert [rank.header["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [event.op for event in rank.events] == [
            "aten.full.default", "c10d.allreduce_.default", "aten.sin.default",
        ]  # fmt: skip
        reduced = rank.events[1]
        assert f"reduce_op={'<ReduceOp>' if OLDEST else 'SUM'}" in reduced.arguments
        assert rank.events[2].inputs["self"]["producers"] == [[1, "tensors[0]!"]]
        assert rank.coverage["uncaptured_ranks"] == 0
    outputs = {rank.events[1].outputs["tensors[0]!"]["mix64"] for rank in ranks}
    assert len(outputs) == 1


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_unarmed_ranks_are_found_out(tmp_path: Path, start: str) -> None:
    done = run_source(tmp_path, SOURCE, free_port(), "unarmed", start)
    assert done.returncode == 0, done.stderr
    (rank,) = read(tmp_path / "run")
    assert rank.coverage["uncaptured_ranks"] == 2
    result = opguard.compare(tmp_path / "run", tmp_path / "run")
    assert (result.verdict, result.reason_code) == ("inconclusive", "UNCAPTURED_RANK")
