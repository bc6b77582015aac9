"""Two ranks: the gathered column shards are joined in the wrong order."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn


def join():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["ZOO_STORE"], world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return rank, world


def run(variant):
    torch.set_num_threads(1)
    rank, world = join()
    torch.manual_seed(161 + rank)
    shard, head = nn.Linear(8, 6), nn.Linear(12, 3)
    for step in range(2):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        mine = shard(x).detach()
        parts = [torch.empty(5, 6) for _ in range(world)]
        dist.all_gather(parts, mine)
        if variant == "suspect":
            parts.reverse()
        y = head(torch.cat(parts, 1))
        print(step, y.sum().item().hex())
    dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1])
