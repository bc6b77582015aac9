"""The error tree. Each error carries the exit code that the command line returns for it."""

from __future__ import annotations


class OpguardError(Exception):
    """Base of everything that OpGuard raises on purpose."""

    exit_code = 70


class UsageError(OpguardError):
    """The request cannot be served as it was made (missing folder, bad policy, …)."""

    exit_code = 2


class FormatError(OpguardError):
    """A stored file is damaged, foreign or newer than this release reads."""

    exit_code = 5


class BaselineError(OpguardError):
    """A stored baseline is damaged, edited or newer than this release reads."""

    exit_code = 5


class CaptureError(OpguardError):
    """Capture could not start or could not go on."""

    exit_code = 6


class NativeError(OpguardError):
    """A native part is missing or failed to load."""

    exit_code = 6
