"""Adam with L2 in the gradient in place of AdamW's decoupled weight decay."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(151)
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 2))
    kind = torch.optim.AdamW if variant == "reference" else torch.optim.Adam
    opt = kind(net.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(3):
        loss = net(torch.randn(5, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
