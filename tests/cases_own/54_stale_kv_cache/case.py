"""The key-value cache of one prompt is still there when the next one starts."""

import sys

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.past = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.past is not None:
            k, v = torch.cat([self.past[0], k]), torch.cat([self.past[1], v])
        self.past = k, v
        return self.out((q @ k.t()).softmax(-1) @ v)


@torch.no_grad()
def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(154)
    net = Decoder().eval()
    for prompt in range(2):
        if variant == "reference":
            net.past = None
        x = torch.randn(1, 8)
        for _ in range(4):
            x = net(x)
        print(prompt, x.sum().item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
