"""``opguard compare``: the verdict on two runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from opguard.cli.flags import debug_option
from opguard.cli.output import terminal_width, wants_color, write


@click.command("compare")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What may differ: ignore rules, floors, environment (TOML).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@debug_option
def command(baseline: Path, candidate: Path, policy: Path | None, as_json: bool) -> int:
    """Compare two runs: verdict, first divergent op, exit code.

    Exit code 0: identical. 1: diverged. 2: usage. 3: not comparable. 4: inconclusive.
    5: a file is damaged. 70: a defect of opguard.
    """
    # Deferred, so that --help and usage errors need none of it.
    from opguard.api import compare as compare_runs

    result = compare_runs(baseline, candidate, policy=policy)
    if as_json:
        text = result.to_json()
    else:
        from opguard.report.terminal import render_result

        text = render_result(result, terminal_width(), wants_color(os.environ))
    # A reader that has seen enough (`| head`) does not change the verdict.
    with contextlib.suppress(BrokenPipeError):
        write(text)
    return result.exit_code
