"""The steps that end a capture: each is done, whatever interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Teardown:
    """Steps in order. A step that is interrupted is done once more, and so may be done twice."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._left: list[Callable[[], None]] = []

    def begin(self, *steps: Callable[[], None]) -> None:
        """What :meth:`finish` has to do."""
        self._left = list(steps)

    def finish(self) -> None:
        """Do what is left; then raise what a step raised, such as a signal handler's exception."""
        interruption: BaseException | None = None
        with self.lock:
            while self._left:
                step = self._left[0]
                for _ in range(2):
                    try:
                        step()
                        break
                    except BaseException as error:  # noqa: BLE001  (raised below)
                        interruption = interruption or error
                if self._left and self._left[0] is step:
                    del self._left[0]
        if interruption is not None:
            raise interruption
