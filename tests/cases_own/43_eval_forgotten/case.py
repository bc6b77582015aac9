"""Validation runs with dropout on: model.eval() is forgotten."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 3)

    def forward(self, x):
        h = F.dropout(torch.relu(self.a(x)), 0.3, self.training)
        return self.b(h)


@torch.no_grad()
def validate(net, x, variant):
    if variant == "reference":
        net.eval()
    score = net(x).square().mean().item()
    net.train()
    return score


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(143)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    held_out = torch.randn(7, 8)
    for step in range(4):
        x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 1:
            print("val", validate(net, held_out, variant).hex())
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
