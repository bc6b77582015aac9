"""The program ``opguard``: finds the verb, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from opguard._version import __version__
from opguard.cli.flags import State, debug_option
from opguard.cli.output import complain, write
from opguard.errors import OpguardError, UsageError

DEFECT: Final = 70
"""Never 1: any Python crash exits 1, and 1 means *diverged* here."""
INTERRUPTED: Final = 130
READER_GONE: Final = 141

VERBS: Final = {
    "run": "Run a program and store fingerprints of every operator.",
    "compare": "Compare two runs: verdict, first divergent op, exit code.",
    "show": "Tell what a run holds.",
    "dump": "Print a run as JSON lines.",
}


class LazyGroup(click.Group):
    """Imports a verb's module only when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which they are used."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of ``opguard.cli.<verb>``."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"opguard.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 narrows what import_module returns
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, without importing any verb."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=LazyGroup,
    # Nothing asked for is a usage error of one line; help was not asked for.
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="opguard %(version)s")
@debug_option
def group() -> None:
    """Find the first operator at which two PyTorch runs stop being bit-identical."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; ``arguments`` default to ``sys.argv[1:]``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    state = State(debug=os.environ.get("OPGUARD_DEBUG", "0") not in ("", "0"))
    try:
        return _invoke(words, state)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return READER_GONE
    except KeyboardInterrupt:
        return _fail(words, state, "interrupted", INTERRUPTED)
    except click.ClickException as error:
        return _fail(words, state, _usage_text(error), UsageError.exit_code)
    except OpguardError as error:
        return _fail(words, state, str(error), error.exit_code)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(words, state, f"{error.strerror or error}{where}", UsageError.exit_code)
    except Exception as error:  # noqa: BLE001 a defect must exit 70 and not 1
        text = f"internal error, please report it: {type(error).__name__}: {error}"
        return _fail(words, state, text + ("" if state.debug else " (--debug shows more)"), DEFECT)


def _invoke(words: list[str], state: State) -> int:
    with group.make_context("opguard", words, obj=state) as context:
        code = group.invoke(context)
    return code if isinstance(code, int) else 0


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text} (see {context.command_path} --help)" if context is not None else text


def _fail(words: Sequence[str], state: State, text: str, code: int) -> int:
    from opguard.report.text import clean

    if state.debug:
        traceback.print_exc()
    complain("error: " + clean(text, 2000))
    verb = [word for word in words if word != "--debug"][:1]
    if verb == ["compare"] and "--json" in words:
        # The promise of --json holds for arguments that could not be parsed as well.
        try:
            write(json.dumps({"error": text, "exit_code": code}) + "\n")
        except (BrokenPipeError, OpguardError):
            return code
    return code
