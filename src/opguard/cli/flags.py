"""Click options made from the table in :mod:`opguard.settings`, and the shared ``--debug``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from opguard.settings import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class State:
    """What holds for the whole command line."""

    debug: bool


def capture_options(function: F) -> F:
    """Every row of the table as an option. Values arrive as text; None: not given."""
    for option in reversed(OPTIONS):
        names = [name for name in (option.short, option.flag, option.field) if name]
        text = option.help + (f" Variable: {option.variable}." if option.variable else "")
        if option.is_switch:
            decorate = click.option(*names, is_flag=True, default=None, help=text)
        else:
            kind = click.Choice(option.choices) if option.choices else click.STRING
            decorate = click.option(*names, type=kind, metavar=option.metavar or None, help=text)
        function = decorate(function)
    return function


def debug_option(function: F) -> F:
    """``--debug``, accepted before and after the verb."""

    def remember(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(State).debug = True  # type: ignore[union-attr] # main() gives it

    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Show a traceback with every error. Variable: OPGUARD_DEBUG.",
    )(function)
