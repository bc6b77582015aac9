"""Harmless: deepcopy, save and load of model and optimizer in the middle of training."""

import copy
import io
import sys

import torch
from torch import nn


def through_file(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file)


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(184)
    net = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.SiLU(), nn.Linear(12, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    best = []
    for step in range(4):
        if variant == "suspect" and step == 2:
            net.load_state_dict(through_file(net.state_dict()))
            opt.load_state_dict(through_file(opt.state_dict()))
            best.append(copy.deepcopy(net))
        loss = net(torch.randn(5, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
