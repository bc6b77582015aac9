"""The interpreter ends with a capture open while threads call operators."""

import atexit
import threading
import time

import torch
from support import capture

ended = threading.Event()


def busy():
    while not ended.is_set():
        torch.ones(200, requires_grad=True).mul(2).sum().backward()


def end():  # after the capture's end; left to run, they would make torch abort, captured or not
    time.sleep(0.05)
    ended.set()
    for thread in threads:
        thread.join()


threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
atexit.register(end)
session = capture("run")
session.__enter__()
for thread in threads:
    thread.start()
time.sleep(0.2)
