"""``opguard run``: a program under capture.

Nothing here, nor what it imports on top, loads torch, numpy or rich: the program must find the
interpreter as ``python`` would have given it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from opguard.cli.flags import capture_options, debug_option
from opguard.cli.output import complain
from opguard.errors import UsageError
from opguard.settings import Target, new_run_folder, resolve
from opguard.store.launch import resolve_rank


@click.command(
    "run",
    # Parsing ends at SCRIPT: what follows belongs to the program, --help included.
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@capture_options
@debug_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(script: str, args: tuple[str, ...], is_module: bool, **given: str | bool | None) -> int:
    """Run a program and store fingerprints of every operator.

    The program's arguments, output and exit code stay what they are without opguard. Under
    torchrun every rank writes into the same folder.
    """
    settings = resolve(given, os.environ)
    unnamed = settings.output is None
    if unnamed:
        settings = replace(settings, output=_own_folder())

    from opguard.capture.launch import run_program

    code = run_program(settings, Target(script, is_module, args), complain)
    if unnamed:
        complain(f"run stored in {settings.output}")
    return code


def _own_folder() -> Path:
    """A new folder; the ranks of one job could not agree on its name."""
    _, world_size = resolve_rank(os.environ)
    if world_size > 1:
        raise UsageError(f"{world_size} ranks have to share a folder: name it with -o DIR")
    return new_run_folder()
