"""Harmless: modules renamed, nested deeper and registered in another order."""

import sys

import torch
from torch import nn


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.last = nn.Linear(12, 8)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        first, norm, last = nn.Linear(8, 12), nn.LayerNorm(12), nn.Linear(12, 8)
        self.z_out = last
        self.encoder = nn.ModuleDict({"proj": first, "ln": norm})

    def forward(self, x):
        h = self.encoder["ln"](self.encoder["proj"](x))
        return self.z_out(torch.relu(h))


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(183)
    net = Flat() if variant == "reference" else Nested()
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(3):
        x = torch.randn(5, 8)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
