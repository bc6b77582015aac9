"""A disk that is full or slow, and rows that cannot be built or carried."""

import time
import warnings

from support import calls, capture, in_threads, nothing_left, work

import opguard
from opguard.capture import native as mechanism
from opguard.store import rank_files


def limited(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with capture(name):
            in_threads(lambda: calls(60_000), lambda: calls(60_000))
    nothing_left()
    return [str(warning.message) for warning in caught]


# The disk is full: the program goes on.
real = rank_files.RankFiles.publish
room = [3]


def full(self, pending):
    room[0] -= 1
    if room[0] < 0:
        raise OSError(28, "No space left on device")
    real(self, pending)


rank_files.RankFiles.publish = full
(message,) = limited("full")
assert "No space left" in message, message
assert not (work / "full" / "rank-00000" / "close.json").exists()


# It is slow: threads wait, and nothing is lost.
def slow(self, pending):
    time.sleep(0.05)
    real(self, pending)


rank_files.RankFiles.publish = slow
assert limited("slow") == []
run = opguard.load_run(work / "slow")
rank_files.RankFiles.publish = real
assert len(run.ranks[0].boundary) >= 120_002

# Rows cannot be built.
build = mechanism.Rows.build


def broken(self):
    raise ZeroDivisionError("mine")


mechanism.Rows.build = broken
(message,) = limited("broken")
assert "ZeroDivisionError" in message, message
mechanism.Rows.build = build


# The thread that carries them dies.
def dies(self, block, room):
    raise MemoryError


init = mechanism.Rows.__init__
mechanism.Rows.__init__ = dies
(message,) = limited("dies")
mechanism.Rows.__init__ = init

print("ok")
