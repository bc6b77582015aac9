"""Harmless: whole numbers summed in another order, and a matrix product split in two."""

import sys

import torch
from torch import nn


def total(x, variant):
    if variant == "reference":
        return x.sum()
    return x.sum(0).flip(0).sum()


def product(x, w, variant):
    if variant == "reference":
        return x @ w
    return x[:, :4] @ w[:4] + x[:, 4:] @ w[4:]


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(191)
    w = nn.Parameter(torch.randint(-3, 4, (8, 8)).float())
    opt = torch.optim.SGD([w], lr=1.0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))
    side = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(3):
        x = torch.randint(-3, 4, (5, 8)).float()
        y = product(x, w, variant)
        loss = total(y, variant)
        opt.zero_grad()
        loss.backward()
        opt.step()
        other = net(x).square().mean()
        side.zero_grad()
        other.backward()
        side.step()
        print(step, loss.item().hex(), other.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
