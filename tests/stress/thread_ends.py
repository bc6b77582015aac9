"""Operators called by what C++ destroys last of a thread."""

import ctypes
import time

import torch
from support import TIMEOUT, capture, in_threads, nothing_left, run_of

libc = ctypes.CDLL(None)
destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
rounds = []


@destructor
def ends(turn):
    torch.zeros(7)
    if turn == 1:  # and once more, after all other destructors had their turn
        libc.pthread_setspecific(key, ctypes.c_void_p(2))
    rounds.append(turn)


key = ctypes.c_uint()
assert libc.pthread_key_create(ctypes.byref(key), ends) == 0


def run():
    torch.ones(3)
    assert libc.pthread_setspecific(key, ctypes.c_void_p(1)) == 0


with capture("run"):
    for _ in range(50):
        in_threads(run)
    until = time.monotonic() + TIMEOUT  # threads are joined before they have ended
    while len(rounds) < 100 and time.monotonic() < until:
        time.sleep(0.01)
assert run_of("run").names.count("ones") == 50
assert sorted(rounds) == [1] * 50 + [2] * 50, rounds
zeros = run_of("run").names.count("zeros")
assert zeros == 100, zeros
nothing_left()

print("ok")
