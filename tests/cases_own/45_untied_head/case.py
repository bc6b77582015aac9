"""The output projection is a copy of the embedding: the weights are no longer tied."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class TinyLM(nn.Module):
    def __init__(self, variant):
        super().__init__()
        self.emb = nn.Embedding(19, 8)
        self.ff = nn.Linear(8, 8)
        self.head = nn.Linear(8, 19, bias=False)
        tied = self.emb.weight
        self.head.weight = tied if variant == "reference" else nn.Parameter(tied.detach().clone())

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(h + torch.tanh(self.ff(h)))


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(145)
    net = TinyLM(variant)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(3):
        ids = torch.randint(0, 19, (4, 7))
        loss = F.cross_entropy(net(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
