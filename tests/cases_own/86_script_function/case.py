"""Harmless: a function goes through torch.jit.script."""

import sys

import warnings

import torch
from torch import nn


def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * y + x


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(186)
    warnings.simplefilter("ignore")
    mix = torch.jit.script(gate) if variant == "suspect" else gate
    a, b = nn.Linear(8, 12), nn.Linear(8, 12)
    opt = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = mix(a(x), b(x)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())

if __name__ == "__main__":
    run(sys.argv[1])
