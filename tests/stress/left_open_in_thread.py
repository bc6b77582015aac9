"""The interpreter ends while another thread opens and closes captures."""

import atexit
import threading
import time

import torch
from support import capture

ended = threading.Event()


def short():
    number = 0
    while not ended.is_set():
        number += 1
        with capture(f"run-{number}"):
            torch.ones(3).sum()


def end():  # left to run, it would make torch abort, captured or not
    ended.set()
    thread.join()


thread = threading.Thread(target=short, daemon=True)
atexit.register(end)
thread.start()
time.sleep(0.3)
