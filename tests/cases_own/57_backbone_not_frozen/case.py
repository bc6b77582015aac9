"""The backbone that should be frozen is trained too."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(157)
    backbone = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12))
    head = nn.Linear(12, 3)
    backbone.requires_grad_(variant == "suspect")
    trained = [p for p in [*backbone.parameters(), *head.parameters()] if p.requires_grad]
    opt = torch.optim.SGD(trained, lr=0.1)
    for step in range(3):
        x, y = torch.randn(5, 8), torch.randint(0, 3, (5,))
        loss = F.cross_entropy(head(torch.tanh(backbone(x))), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
