"""The residual is an alias, and the in-place scale after it changes both."""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        residual = h
        h = h.mul(0.5) if self.variant == "reference" else h.mul_(0.5)
        return torch.tanh(self.b(h)) + residual


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(155)
    net = nn.Sequential(Block(variant), Block(variant))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
