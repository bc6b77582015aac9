"""A buffer saved for backward is scaled through .data, which autograd does not see."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(168)
    enc, dec = nn.Linear(8, 12), nn.Linear(12, 2)
    opt = torch.optim.SGD([*enc.parameters(), *dec.parameters()], lr=0.1)
    for step in range(3):
        act = torch.tanh(enc(torch.randn(5, 8)))
        loss = dec(act).square().mean()
        shown = act.detach().clone() if variant == "reference" else act.data
        shown.mul_(2.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex(), shown.sum().item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
