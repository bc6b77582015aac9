"""Harmless: metrics under no_grad, noise from a generator of its own, gradient norms, hooks."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def report(net, x, logits, y, gen):
    with torch.no_grad():
        noisy = net(x + 0.1 * torch.randn(x.shape, generator=gen))
        hits = (logits.argmax(-1) == y).float().mean().item()
        norms = [p.grad.norm().item() for p in net.parameters()]
    return hits, (noisy - logits).abs().max().item(), sum(norms)


def run(variant):
    torch.set_num_threads(1)
    torch.manual_seed(180)
    net = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    seen = []
    gen = torch.Generator().manual_seed(3)
    if variant == "suspect":
        for p in net.parameters():
            p.register_hook(lambda grad: seen.append(grad.abs().max().item()))
    for step in range(3):
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        if variant == "suspect":
            net.eval()
            seen.extend(report(net, x, logits, y, gen))
            net.train()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    run(sys.argv[1])
