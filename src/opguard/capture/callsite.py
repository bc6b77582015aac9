"""Where in the program an operator was called: the Python frames, interned.

A stack is looked up by the identities of its code objects and instructions; only a new one is
turned into file, line and function. Code objects are kept, so that an identity is never reused.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from opguard.capture.interning import Interner

MOST_FRAMES: Final = 24
_PACKAGE: Final = str(Path(__file__).resolve().parent.parent)


class CallSites:
    """Interns Python stacks of this process."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._stacks: dict[tuple[int, ...], int] = {}
        self._frames: dict[tuple[int, int], int | None] = {}
        self._codes: list[CodeType] = []
        self._home = str(Path.home())

    def of(self, frame: FrameType | None) -> int:
        """Stack id of ``frame`` and its callers, innermost first; at most 24 are kept."""
        key: list[int] = []
        add = key.append
        walked = frame
        left = MOST_FRAMES
        while walked is not None and left:
            add(id(walked.f_code))
            add(walked.f_lasti)
            walked = walked.f_back
            left -= 1
        found = self._stacks.get(tuple(key))
        return self._enter(frame, tuple(key)) if found is None else found

    def _enter(self, frame: FrameType | None, key: tuple[int, ...]) -> int:
        frames: list[int] = []
        walked = frame
        for _ in range(MOST_FRAMES):
            if walked is None:
                break
            found = self._frame(walked)
            if found is not None:
                frames.append(found)
            walked = walked.f_back
        value = json.dumps(frames, separators=(",", ":"))
        stack = self._stacks[key] = self._interner.intern("stack", value)
        return stack

    def _frame(self, frame: FrameType) -> int | None:
        """Frame id; None for our own frames, which are no part of the program."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        if key not in self._frames:
            self._codes.append(code)
            self._frames[key] = self._describe(code, frame.f_lineno)
        return self._frames[key]

    def _describe(self, code: CodeType, line: int | None) -> int | None:
        file = code.co_filename
        if file.startswith(_PACKAGE):
            return None
        if file.startswith(self._home + "/"):
            file = "~" + file[len(self._home) :]
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 has it
        value = json.dumps([file, line or 0, name], separators=(",", ":"))
        return self._interner.intern("frame", value)
