"""Harmless: a function goes through torch.jit.script."""

import sys
import warnings

import torch
from torch import nn


def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * y + x


@torch.no_grad()
def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(186)
    warnings.simplefilter("ignore")
    mix = torch.jit.script(gate) if variant == "suspect" else gate
    a, b, out = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
    x = torch.randn(5, 8)
    for step in range(4):
        x = out(mix(a(x), b(x))) + x
        print(step, x.sum().item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
