"""zero_grad() is missing: the gradients of all steps add up."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(156)
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        loss = net(torch.randn(5, 8)).square().mean()
        if variant == "reference":
            opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
