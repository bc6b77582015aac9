"""One of two ranks: reductions overlap the backward pass, whose hooks call operators."""

import os
import sys

import torch
import torch.distributed as dist
from support import capture, nothing_left
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)


def halved(state, bucket):  # runs operators on a thread of Gloo
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].div_(2))


seen = []
with capture("run"):
    for hook in (None, allreduce_hook, halved):
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.01)
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for _ in range(5):
            opt.zero_grad()
            ddp(torch.ones(2, 64) * (rank + 1)).sum().backward()
            opt.step()
    dist.barrier()
assert len(seen) == 3 * 5 * 8
dist.destroy_process_group()
nothing_left()
