"""The loss is computed inside the autocast region."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(169)
    net, proj = nn.Linear(8, 12), nn.Linear(12, 4)
    opt = torch.optim.SGD([*net.parameters(), *proj.parameters()], lr=0.1)
    for step in range(3):
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(net(x))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant == "suspect"):
            loss = F.cross_entropy(proj(h.float()), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
