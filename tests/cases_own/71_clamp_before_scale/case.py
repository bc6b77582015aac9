"""Two in-place operators on the gradient change places: clamped before it is unscaled."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(171)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        (loss * 64).backward()
        for p in net.parameters():
            if variant == "suspect":
                p.grad.clamp_(-0.1, 0.1)
            p.grad.mul_(1 / 64)
            if variant == "reference":
                p.grad.clamp_(-0.1, 0.1)
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
