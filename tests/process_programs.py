"""Programs with threads, forks, ranks and compiled functions."""

from __future__ import annotations

FORKING = """
    import os, sys, threading, time
    import torch
    from torch.utils.data import DataLoader

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return torch.full((2,), float(i)) * 2

    def busy():
        x = torch.ones(50_000)
        while not stop.is_set():
            x.add(1)

    def forked():
        child = os.fork()
        if child == 0:
            y = x + 1
            for _ in range(9000):  # more than the writer's queue would hold
                y = y + 1
            os._exit(int(y[0]) % 200)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    x = torch.arange(3.0)
    stop = threading.Event()
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    print([forked() for _ in range(4)])
    stop.set()
    for thread in threads:
        thread.join()
    print([batch.sum().item() for batch in DataLoader(Data(), batch_size=3, num_workers=2)])
    x.sin()
"""


COLLECTIVES = """
    import os, sys, torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2
    )
    me = torch.full((2,), rank + 1.0)
    dist.all_reduce(me)                                   # 3, 3
    dist.broadcast(me, src=1)
    parts = [torch.empty(2), torch.empty(2)]
    dist.all_gather(parts, me + rank)
    whole = torch.empty(4)
    dist.all_gather_into_tensor(whole, me + rank)
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
    else:
        got = torch.empty(1)
        dist.recv(got, 0)
        got.cos()
    work = dist.all_reduce(whole, async_op=True)
    other = torch.ones(1).neg()                           # meanwhile
    work.wait()
    whole.sin()
    pieces = torch.empty(2)
    dist.reduce_scatter_tensor(pieces, whole)
    pieces.tan()
    summed = funcol.all_reduce(me, "sum", dist.group.WORLD)
    (summed * 2).abs()
    dist.barrier()
    dist.destroy_process_group()
"""


STEPS = """
    import torch
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(5):
        opt.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
        print(i, flush=True)
"""


COMPILED = """
    import sys
    import torch

    @torch.compile(fullgraph=True)
    def function(x, y):
        return (x @ y).relu().sum(0), x + 1

    for _ in range(3):
        a = torch.arange(6.0).reshape(2, 3) + 1
        b = torch.ones(3, 2)
        first, second = function(a, b)
        first.sin()
    from torch._dynamo.utils import counters
    print(counters["stats"]["unique_graphs"], first.tolist(), second.sum().item())
"""
