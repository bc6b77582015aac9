"""The only place that writes to standard output and standard error."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping

import click

from opguard.errors import UsageError


def write(text: str) -> None:
    """Print ``text`` as it is and flush it; what the stream cannot encode is escaped.

    Raises:
        BrokenPipeError: the reader is gone; standard output is then connected to nowhere, so
            that the interpreter's own flush at exit stays silent.
        UsageError: the stream cannot take it (disk full, closed).
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard()
        raise
    except OSError as error:
        discard()
        raise UsageError(f"cannot write to standard output: {error.strerror}") from None


def discard() -> None:
    """Connect standard output to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def complain(line: str) -> None:
    """One line on standard error, where somebody reads it."""
    with contextlib.suppress(OSError):
        click.echo(f"opguard: {line}", err=True)


def terminal_width() -> int:
    """Columns of the terminal, ``COLUMNS`` first; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def wants_color(environ: Mapping[str, str]) -> bool:
    """True on a terminal that shows colour, unless ``NO_COLOR`` is set to anything."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()
