"""Adam's eps is 1e-6 where the recipe says 1e-8."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(152)
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 2))
    eps = 1e-8 if variant == "reference" else 1e-6
    opt = torch.optim.AdamW(net.parameters(), lr=0.01, eps=eps)
    for step in range(3):
        loss = net(torch.randn(5, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
