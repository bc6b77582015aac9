"""Weight decay reaches biases and LayerNorm: the parameter groups are not split."""

import sys

import torch
from torch import nn


def groups(net, variant):
    if variant == "suspect":
        return [{"params": list(net.parameters()), "weight_decay": 0.1}]
    decay = [p for p in net.parameters() if p.dim() > 1]
    rest = [p for p in net.parameters() if p.dim() <= 1]
    return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(142)
    net = nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 2))
    opt = torch.optim.AdamW(groups(net, variant), lr=0.01)
    for step in range(2):
        x = torch.randn(5, 8)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
