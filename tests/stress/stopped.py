"""A program that swallows, so many times, the exception that is to end it."""

import sys

import torch

net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
swallowed = 0
while True:
    try:
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
    except SystemExit:
        swallowed += 1
        if swallowed > int(sys.argv[1]):
            raise
