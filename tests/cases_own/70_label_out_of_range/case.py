"""One label is out of range: the loss raises, the program ends with exit code 1."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(170)
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        if variant == "suspect" and step == 2:
            y[3] = 4
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
