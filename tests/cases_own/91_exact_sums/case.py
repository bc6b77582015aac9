"""Harmless: whole numbers summed in another order, and a matrix product split in two."""

import sys

import torch
from torch import nn


def total(x, variant):
    if variant == "reference":
        return x.sum()
    return x.sum(0).flip(0).sum()


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(191)
    w = nn.Parameter(torch.randint(-3, 4, (8, 8)).float())
    opt = torch.optim.SGD([w], lr=1.0)
    for step in range(3):
        x = torch.randint(-3, 4, (5, 8)).float()
        if variant == "reference":
            y = x @ w
        else:
            y = x[:, :4] @ w[:4] + x[:, 4:] @ w[4:]
        loss = total(y, variant)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())

if __name__ == "__main__":
    run(sys.argv[1])
