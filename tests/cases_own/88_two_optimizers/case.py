"""Harmless: two independent optimizers step in the other order."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(188)
    left, right = nn.Linear(8, 8), nn.Linear(8, 8)
    opts = [torch.optim.AdamW(left.parameters(), 0.01), torch.optim.AdamW(right.parameters(), 0.02)]
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (torch.tanh(left(x)) * right(x) - x).square().mean()
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts if variant == "reference" else reversed(opts):
            opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
