"""After a restart the momentum of the checkpoint is not loaded."""

import io
import sys

import torch
from torch import nn


def build():
    net = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 2))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net, opt, steps):
    for step in range(steps):
        loss = net(torch.randn(5, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(165)
    net, opt = build()
    train(net, opt, 2)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    net, opt = build()
    net.load_state_dict(saved["net"])
    if variant == "reference":
        opt.load_state_dict(saved["opt"])
    train(net, opt, 2)


if __name__ == "__main__":
    run(sys.argv[1])
