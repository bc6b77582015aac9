"""What ``import opguard`` offers. Comparing loads neither torch nor anything that captures."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from opguard.errors import UsageError

if TYPE_CHECKING:
    import torch

    from opguard.capture.session import CaptureSession
    from opguard.model import Mode, Run
    from opguard.policy import Policy
    from opguard.report.result import Result
    from opguard.settings import MechanismChoice

_logger = logging.getLogger("opguard")


def load_run(path: str | Path) -> Run:
    """Read the run in folder ``path``.

    Raises:
        UsageError: there is no such folder, or it holds no run.
        FormatError: a file in it is damaged, or newer than this release reads.
    """
    from opguard.store import run_reader

    return run_reader.load_run(path)


def compare(
    baseline: str | Path | Run,
    candidate: str | Path | Run,
    policy: str | Path | Policy | None = None,
) -> Result:
    """Compare two runs.

    Args:
        baseline: the run accepted as right, or its folder.
        candidate: the run that is judged, or its folder.
        policy: what may differ, or a TOML file that says so; None hides nothing.

    Raises:
        UsageError: a folder is missing or holds no run, or the policy cannot be read.
        FormatError: a file of a run is damaged, or newer than this release reads.
    """
    from opguard.align.aligner import align
    from opguard.certify import certify
    from opguard.columns import join_sides
    from opguard.gate import judge_runs
    from opguard.model import Run
    from opguard.policy import Policy, load_policy
    from opguard.report.assemble import assemble

    path = str(policy) if isinstance(policy, (str, Path)) else None
    rules = load_policy(Path(policy)) if isinstance(policy, (str, Path)) else policy or Policy()
    a, b = (run if isinstance(run, Run) else load_run(run) for run in (baseline, candidate))
    certificates = {}
    for rank in sorted(set(a.ranks) & set(b.ranks)):
        sides = join_sides(a.ranks[rank], b.ranks[rank])
        certificates[rank] = certify(sides, align(sides), rules)
    judgement, ranks = judge_runs(a, b, certificates, rules)
    return assemble(a, b, certificates, judgement, ranks, path)


class OpguardWarning(UserWarning):
    """Capture could not go on; the program does."""


@contextlib.contextmanager
def capture(
    path: str | Path,
    *,
    mode: Mode = "trusted",
    mechanism: MechanismChoice = "auto",
    steps: tuple[int, int] | None = None,
    force: bool = False,
) -> Iterator[None]:
    """Capture every operator call inside the ``with`` block, on all threads, into a run.

    Args:
        path: folder of the run; made where it is missing.
        mode: ``trusted``, ``full`` or ``collectives`` (what is fingerprinted).
        mechanism: ``native``, ``dispatch``, or ``auto``: the C++ recorder where it is built.
        steps: half-open range of the steps to fingerprint; None: all.
        force: empty the folder of another run first.

    Raises:
        UsageError: the folder holds something else, or a capture is already open.
        CaptureError: the folder cannot be written, or the rank is unknown.
        NativeError: the mechanism is ``native``, and the recorder is not there.
    """
    from opguard.capture.session import CaptureSession, Ending
    from opguard.settings import CaptureSettings

    def say(text: str) -> None:
        warnings.warn(text, OpguardWarning, stacklevel=2)

    settings = CaptureSettings(
        output=Path(path), mode=mode, mechanism=mechanism, steps=steps, force=force
    )
    session = CaptureSession(settings, sys.argv, say, note=_logger.warning)
    session.start()
    ending = Ending(exit_code=None, exception="unknown", interrupted=True)
    try:
        yield
        ending = Ending(exit_code=None)
    except BaseException as error:
        ending = Ending(exit_code=None, exception=type(error).__name__, interrupted=True)
        raise
    finally:
        session.stop(ending)


@contextlib.contextmanager
def capture_worker() -> Iterator[None]:
    """In a process that a program under ``opguard run`` spawned: capture it as a rank of that run.

    Call it once the process knows its rank: after ``init_process_group``, or with ``RANK`` and
    ``WORLD_SIZE`` in its environment. Outside ``opguard run`` it does nothing.

    Raises:
        CaptureError: the rank is unknown.
        UsageError: the parent is part of the run itself, since it called operators of its own.
    """
    from opguard.capture.inside import inside
    from opguard.capture.unarmed import unmark

    around = inside()
    if around is None:
        yield
        return
    mode, mechanism = cast("Mode", around.mode), cast("MechanismChoice", around.mechanism)
    with capture(around.output, mode=mode, mechanism=mechanism):
        unmark(around.marks)
        yield


def step(number: int) -> None:
    """Tell the open capture which step the program is in, from 0.

    Without a capture it does nothing, so that it may stay in the program.
    """
    session = _session()
    if session is not None:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 31:
            raise UsageError(f"a step is a whole number from 0, not {number!r}")
        session.set_step(number)


def watch(name: str, tensor: torch.Tensor) -> None:
    """Compare ``tensor`` with the final state; without an open capture it does nothing."""
    session = _session()
    if session is not None:
        session.watch(name, tensor)


def _session() -> CaptureSession | None:
    session_module = sys.modules.get("opguard.capture.session")
    return None if session_module is None else session_module.CaptureSession.active()
