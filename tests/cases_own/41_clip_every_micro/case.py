"""Gradients are clipped after every micro-batch, not once before the step."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(141)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        opt.zero_grad()
        shown = 0.0
        for micro in range(3):
            x = torch.randn(6, 8)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            shown += loss.item()
            if variant == "suspect" or micro == 2:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        print(step, shown.hex())


if __name__ == "__main__":
    run(sys.argv[1])
