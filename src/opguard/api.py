"""What ``import opguard`` offers. Comparing loads neither torch nor anything that captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opguard.model import Run
    from opguard.policy import Policy
    from opguard.report.result import Result


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
