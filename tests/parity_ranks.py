"""One rank of a program of several, run under each mechanism one after the other:

``python parity_ranks.py FOLDER RANK [CASE …]``, with ``RANK`` and ``WORLD_SIZE`` set as well.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parity_runs import MECHANISMS, recording

WORLD = 2
COMMUNICATION_ONLY = ("collectives", "data_parallel", "views_in_flight")
"""Programs that run in the mode ``collectives``, too."""
PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    """Add ``run`` to ``PROGRAMS``."""
    PROGRAMS[run.__name__] = run
    return run


@program
def collectives() -> None:
    rank = dist.get_rank()
    x = torch.arange(4.0) + rank
    dist.all_reduce(x)
    x.mul_(2)
    dist.broadcast(x, 1)
    dist.reduce(x, 0)
    parts = [torch.empty(4) for _ in range(WORLD)]
    dist.all_gather(parts, x)
    torch.stack(parts).sum()
    whole = torch.empty(8)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(torch.empty(4), whole)
    dist.gather(x, parts if rank == 0 else None, 0)
    dist.scatter(x, parts if rank == 0 else None, 0)
    dist.all_to_all_single(torch.empty(8), whole)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.barrier()
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    x.sum()


@program
def pairs() -> None:
    rank = dist.get_rank()
    x = torch.full((3,), float(rank))
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x + 1, 0)
    y = torch.empty(3)
    works = [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]
    for work in works:
        work.wait()
    (x + y).sum()


@program
def in_flight() -> None:
    x, y = torch.ones(5), torch.ones(6)
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(y, async_op=True)
    torch.ones(3).sin()
    second.wait()
    y.mul_(2)
    first.wait()
    (x.sum() + y.sum()).sqrt()
    works = [dist.all_reduce(t, async_op=True) for t in (x, y)]
    for work in works:
        work.wait()
    x.sum()


@program
def views_in_flight() -> None:
    x = torch.arange(4.0) + dist.get_rank()
    whole = torch.empty(8)
    work = dist.all_gather_into_tensor(whole, x, async_op=True)
    first, second = whole.split(4)
    rows = whole.view(2, 4)
    work.wait()
    (first + second).sum()
    rows.sum()


@program
def sends() -> None:
    x, y = torch.ones(3), torch.zeros(3)
    work = dist.isend(x, 1 - dist.get_rank())
    x.sin()
    dist.recv(y, 1 - dist.get_rank())
    y.cos()
    work.wait()


@program
def waits_for_nothing() -> None:
    """The collective's event is written where its input is overwritten, before its end."""
    functional = torch.ops._c10d_functional
    group = dist.group.WORLD.group_name
    x = torch.ones(4)
    y = functional.all_reduce(x, "sum", group)
    x.add_(1)
    functional.wait_tensor(y)
    (y + 1).sum()


@program
def functional_autograd() -> None:
    import torch.distributed._functional_collectives as funcol

    if dist.get_rank() == 1:
        time.sleep(0.3)
    x = torch.arange(4.0, requires_grad=True)
    funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD).mul(2).sum()


def inner(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y


@program
def inside_an_operator() -> None:
    with torch.library._scoped_library("opguard_ranks", "FRAGMENT") as library:
        library.define("reduces(Tensor x) -> Tensor")
        library.impl("reduces", inner, "CPU")
        torch.ops.opguard_ranks.reduces(torch.ones(3)).sum()


@program
def functional() -> None:
    import torch.distributed._functional_collectives as funcol

    x = torch.arange(4.0)
    y = funcol.all_reduce(x, "sum", dist.group.WORLD)
    (y * 2).sum()
    z = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
    z.sum()
    funcol.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD).add(1)


@program
def data_parallel() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 2))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0005)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step != 1)
        x = torch.randn(6, 4) + dist.get_rank()
        if step == 1:
            with wrapped.no_sync():
                wrapped(x).square().mean().backward()
        wrapped(x).square().mean().backward()
        optimizer.step()


@program
def data_parallel_views() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(wrapped.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


@program
def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


@program
def sharded() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch 2.4 has it elsewhere, and for CUDA alone
        return

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


@program
def tensors_over_ranks() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))
    a = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    b = distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [Replicate()])
    (a @ b).redistribute(mesh, [Replicate()]).to_local().sum()
    (a * 2).full_tensor().sum()


def captured(folder: Path, run: Callable[[str], Any], mode: Any = "trusted") -> None:
    """``run(mechanism)`` under each, from the same random states."""
    for mechanism in MECHANISMS:
        with recording(folder / mechanism, mechanism, mode=mode):
            run(mechanism)


def run_programs(folder: Path, rank: int) -> None:
    """All of ``PROGRAMS``, into ``NAME-MODE/MECHANISM``."""
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    for name, run in PROGRAMS.items():
        captured(folder / f"{name}-trusted", lambda _, run=run: run())
    for name in COMMUNICATION_ONLY:
        captured(folder / f"{name}-collectives", lambda _, n=name: PROGRAMS[n](), "collectives")
    dist.destroy_process_group()


def run_case(folder: Path, case: Path, variant: str) -> None:
    """One variant of a case, which joins a group of its own, into ``CASE-VARIANT/MECHANISM``."""
    name = f"{case.name}-{variant}"

    def run(mechanism: str) -> None:
        os.environ["ZOO_STORE"] = str(folder / f"{name}-{mechanism}.store")
        sys.argv = [str(case / "case.py"), variant]
        runpy.run_path(sys.argv[0], run_name="__main__")

    captured(folder / name, run)


def main() -> None:
    """Run the cases that are named, or else the programs."""
    folder, rank, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    for case in cases:
        for variant in ("reference", "suspect"):
            run_case(folder, Path(case), variant)
    if not cases:
        run_programs(folder, rank)


if __name__ == "__main__":
    main()
