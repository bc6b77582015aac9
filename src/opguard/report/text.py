"""Text for terminals: hostile names made harmless, and one way to lay lines out."""

from __future__ import annotations

import io
import os
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = tuple[str, str]
"""Label and value; rows whose labels are all empty are one column."""

MIN_WIDTH: Final = 40
MAX_WIDTH: Final = 120
"""Lines longer than this are hard to read, however wide the terminal is."""
NAME_LIMIT: Final = 400
"""Characters of one name or argument list that are shown; real ones are shorter."""
INTERRUPT: Final = "KeyboardInterrupt"
"""The exception that is no failure of the program."""
THREADS_BEFORE: Final = "which ran before the capture started"
"""Why threads were not captured."""


def clean(text: str, limit: int = NAME_LIMIT) -> str:
    """``text`` on one line: control, format and surrogate characters escaped, length bounded.

    Format characters are among them because they can reorder what a terminal shows.
    """
    shown = text[:limit]
    if not (shown.isascii() and shown.isprintable()):
        shown = "".join(_escape(character) for character in shown)
    left = len(text) - limit
    return f"{shown}… ({left:,} more characters)" if left > 0 else shown


def _escape(character: str) -> str:
    if unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029":
        return character
    return character.encode("unicode_escape").decode("ascii")


def render(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """The parts below each other, as plain or ANSI text.

    ``width`` is in columns, kept between 40 and 120; a ``Text`` with ``no_wrap`` stays on one
    line whatever its length. Plain text carries no trailing blanks.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(MIN_WIDTH, min(width, MAX_WIDTH)),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def section(title: str, rows: Iterable[Row]) -> Iterator[RenderableType]:
    """A title and its rows; nothing at all without rows."""
    from rich.text import Text

    rows = list(rows)
    if rows:
        yield Text(f"\n{title}", style="bold")
        yield grid(rows)


def grid(rows: Iterable[Row]) -> RenderableType:
    """The rows in aligned columns, indented. Texts are taken as they are, never as markup."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table.grid(padding=(0, 2))
    if any(label for label, _ in rows):
        table.add_column(max_width=48, overflow="fold", style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        cells = (label, value) if len(table.columns) == 2 else (value,)
        table.add_row(*(Text(cell) for cell in cells))
    return Padding(table, (0, 0, 0, 2))


def plural(count: int, noun: str) -> str:
    """``1 event``, ``2,000 events``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clean_path(path: str) -> str:
    """A file's path for people: below the working directory it is relative to it."""
    here = os.getcwd().rstrip("/") + "/"
    return clean(path.removeprefix(here))
