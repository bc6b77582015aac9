"""Harmless: vmap in place of a loop over the samples."""

import sys

import torch
from torch import nn


def smooth(row):
    return torch.tanh(row) * 0.5 + row


def each(rows, variant):
    if variant == "suspect":
        return torch.vmap(smooth)(rows)
    return torch.stack([smooth(row) for row in rows])


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(185)
    net, out = nn.Linear(8, 12), nn.Linear(12, 2)
    opt = torch.optim.SGD([*net.parameters(), *out.parameters()], lr=0.1)
    for step in range(3):
        loss = out(each(net(torch.randn(3, 8)), variant)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
