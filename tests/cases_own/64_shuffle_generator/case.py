"""The loader shuffles with a generator of another seed."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(164)
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 6), torch.randint(0, 3, (16,)))
    order = torch.Generator().manual_seed(1 if variant == "reference" else 2)
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=order)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
