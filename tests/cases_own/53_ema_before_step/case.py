"""The moving average is updated before the optimizer step, not after it."""

import sys

import torch
from torch import nn


@torch.no_grad()
def follow(shadow, net):
    for average, p in zip(shadow, net.parameters(), strict=True):
        average.lerp_(p, 0.1)


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(153)
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 2))
    shadow = [p.detach() * 0.5 for p in net.parameters()]
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss = net(torch.randn(5, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        if variant == "suspect":
            follow(shadow, net)
        opt.step()
        if variant == "reference":
            follow(shadow, net)
        print(step, loss.item().hex())
    print("ema", sum(s.double().sum() for s in shadow).item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
