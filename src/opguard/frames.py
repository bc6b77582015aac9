"""Which stack frame is the user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

Frame: TypeAlias = tuple[str, int, str]
"""(file, line, function)"""

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/"
    r"|(^|/)lib(64)?/python3(\.\d+)?/"
    r"|^<frozen "
    r"|(^|/)torch/(_\w+|autograd|distributed|fx|nn|optim|utils|cuda|random)(/|\.py$)"
    r"|(^|/)opguard/(capture|cli|store|fingerprint|report|align|certify|tools)/"
    r"|(^|/)opguard/(api|__main__|__init__)\.py$"
)


def user_frame(stack: Sequence[Frame]) -> Frame:
    """The innermost frame that belongs to no library, else the innermost, else ``("", 0, "")``."""
    for frame in stack:
        if not _LIBRARY.search(frame[0].replace("\\", "/")):
            return frame
    return stack[0] if stack else ("", 0, "")
