"""Harmless: gradients are filled with zeros where the reference drops them."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(189)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (net(x) - x[:, :2]).square().mean()
        opt.zero_grad(set_to_none=variant == "reference")
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
