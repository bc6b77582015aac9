"""Harmless: activation checkpointing over dropout, with the random state restored."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x):
        if self.variant == "suspect":
            return x + checkpoint(self.body, x, use_reentrant=False)
        return x + self.body(x)


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(181)
    net = nn.Sequential(Layer(variant), Layer(variant), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
