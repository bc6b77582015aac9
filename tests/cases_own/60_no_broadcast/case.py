"""Two ranks: rank 1 keeps its own initial weights, the broadcast is forgotten."""

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
    torch.manual_seed(160 + rank)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1))
    if variant == "reference":
        for p in net.parameters():
            dist.broadcast(p.detach(), 0)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        x = torch.randn(5, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        opt.step()
        print(step, loss.item().hex())
    dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1])
