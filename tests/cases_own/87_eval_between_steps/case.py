"""Harmless: the suspect evaluates between the steps, dropout off and BatchNorm fixed."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(187)
    net = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    held_out = torch.randn(7, 8)
    for step in range(3):
        x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())
        if variant == "suspect" and step < 2:
            net.eval()
            with torch.no_grad():
                net(held_out).argmax(-1).tolist()
            net.train()


if __name__ == "__main__":
    run(sys.argv[1])
