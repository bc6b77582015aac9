"""One branch is detached by mistake: its parameters get no gradient."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        side = torch.tanh(self.b(x))
        if self.variant == "suspect":
            side = side.detach()
        return self.a(x) * side


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(158)
    net = Net(variant)
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
