"""The steps that end a capture: each is done, whatever interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_MOST_TRIES: Final = 2
_STARTS_WITHIN: Final = 5.0
"""Seconds after which a thread that was asked for does not come any more."""


class Teardown:
    """Steps in order. A step that is interrupted is done once more, and so may be done twice."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._left: list[Callable[[], None]] | None = None
        self._tries = 0

    @property
    def begun(self) -> bool:
        """Whether the capture has come to its end."""
        return self._left is not None

    def begin(self, *steps: Callable[[], None]) -> None:
        """What :meth:`finish` has to do."""
        self._left = list(steps)

    def finish(self) -> None:
        """Do what is left; then raise what a step raised, such as a signal handler's exception."""
        interruption: BaseException | None = None
        with self.lock:
            while self._left:
                try:
                    self._do_next(self._left)
                except BaseException as error:  # noqa: BLE001  (raised below)
                    interruption = interruption or error
        if interruption is not None:
            raise interruption

    def _do_next(self, left: list[Callable[[], None]]) -> None:
        step = left[0]
        self._tries += 1
        if self._tries <= _MOST_TRIES:
            step()
        if left and left[0] is step:  # a signal handler may have come to the end meanwhile
            self._tries = 0
            del left[0]


def apart(step: Callable[[], None]) -> None:
    """Do it on a thread of its own, where no signal handler of the program can raise half-way."""
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  (raised below)
            raised.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="opguard-apart")
    try:
        thread.start()
        thread.join()
    except BaseException as error:  # a signal handler's, while this thread waits
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            raise
        if not done.wait(_STARTS_WITHIN) and thread.ident is not None:
            done.wait()
        raise
    if raised:
        raise raised[0]
