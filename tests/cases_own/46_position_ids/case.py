"""Positions counted from the mask start at 1, not at 0."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.variant = variant
        self.tok = nn.Embedding(19, 8)
        self.pos = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 19)

    def forward(self, ids, mask):
        position = mask.cumsum(-1)
        if self.variant == "reference":
            position = position - 1
        position = position.masked_fill(mask == 0, 1)
        h = self.tok(ids) + self.pos(position)
        return self.out(torch.tanh(h))


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(146)
    net = Net(variant)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(3):
        ids = torch.randint(0, 19, (3, 9))
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[1, :4] = 0
        loss = F.cross_entropy(net(ids, mask).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
