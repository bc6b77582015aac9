"""BatchNorm momentum read the other way round: the running statistics move too far."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(144)
    momentum = 0.1 if variant == "reference" else 0.9
    net = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12, momentum=momentum), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(9, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())
    net.eval()
    with torch.no_grad():
        print("val", net(torch.randn(9, 8)).sum().item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
