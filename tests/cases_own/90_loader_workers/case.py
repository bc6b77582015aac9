"""Harmless: batches come from a worker process."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(190)
    net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(12, 6), torch.randint(0, 3, (12,)))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=variant == "suspect")
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
