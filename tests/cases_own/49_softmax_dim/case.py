"""The router's softmax runs over the tokens, not over the experts."""

import sys

import torch
from torch import nn


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(149)
    router, experts = nn.Linear(8, 4), nn.Linear(8, 4 * 8)
    opt = torch.optim.SGD([*router.parameters(), *experts.parameters()], lr=0.1)
    dim = -1 if variant == "reference" else 0
    for step in range(3):
        x = torch.randn(4, 8)
        gate = router(x).softmax(dim)
        y = (experts(x).view(4, 4, 8) * gate.unsqueeze(-1)).sum(1)
        loss = (y - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
