"""What tests of the C++ recorder need."""

from __future__ import annotations

import os

import pytest
import torch

from opguard.fingerprint import native

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
"""As ``(2, 13)``."""
OLDEST = RELEASE == (2, 4)
"""The oldest release lacks some of what tests use, and its Python code calls other operators."""

# Where a build was asked for, a missing recorder is no reason to skip.
_ASKED_FOR = os.environ.get("OPGUARD_TRACING_BUILD", "0") != "0"

needs_native = pytest.mark.skipif(
    not native.available() and not _ASKED_FOR, reason=native.why_not() or "never skipped"
)
