"""The logits pass through bfloat16 on their way to the loss."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(166)
    net = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        logits = net(x)
        if variant == "suspect":
            logits = logits.bfloat16().float()
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
