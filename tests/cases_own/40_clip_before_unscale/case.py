"""Gradients are clipped while they still carry the loss scale."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(140)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        x = torch.randn(6, 8)
        loss = (net(x) - x.mean(1, keepdim=True)).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        if variant == "reference":
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
