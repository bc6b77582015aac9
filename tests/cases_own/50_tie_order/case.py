"""Tokens of one expert are dispatched from the last to the first: ties break the other way."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def order_of(expert, variant):
    if variant == "reference":
        return expert.sort(stable=True).indices
    return len(expert) - 1 - expert.flip(0).sort(stable=True).indices


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(150)
    head = nn.Linear(6, 3)
    opt = torch.optim.SGD(head.parameters(), lr=0.3)
    for step in range(3):
        x, expert, y = torch.randn(12, 6), torch.randint(0, 3, (12,)), torch.randint(0, 3, (12,))
        rows = x[order_of(expert, variant)]
        loss = F.cross_entropy(head(rows), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
