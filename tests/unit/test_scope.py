"""What a verdict does not reach, and what is odd about a pair of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from align_builder import CLOSING, OPENING, Rank, run_of

from opguard import api
from opguard.policy import IgnoreRule, Policy
from opguard.report.result import Result, UnpairedOperator
from opguard.report.terminal import render_result

CLAIM = "Everything that was compared is identical, byte by byte."


def rank(stopped: bool = False, number: int = 0, **opening: Any) -> Rank:
    made = Rank(number, opening={**OPENING, **opening}, closing={**CLOSING, "stopped": stopped})
    made.op("mm", {"self": "p"}, {"0": "x"})
    return made


def compared(a: Rank, b: Rank, **more: Any) -> Result:
    left, right = replace(run_of(a), path="/runs/a"), replace(run_of(b), path="/runs/b")
    return api.compare(left, right, **more)


def steps(first: int, end: int) -> dict[str, Any]:
    return {"settings": {"steps": [first, end]}}


@pytest.mark.parametrize(
    ("left", "right", "restriction", "notes"),
    [
        (rank(), rank(), "", ()),
        (rank(**steps(1, 3)), rank(**steps(1, 3)), "Only steps 1 to 2 were fingerprinted.", ()),
        (rank(**steps(4, 5)), rank(**steps(4, 5)), "Only step 4 was fingerprinted.", ()),
        (
            rank(**steps(1, 3)),
            rank(),
            "Only steps 1 to 2 of the baseline were fingerprinted.",
            (
                "the two sides were captured with different --steps: "
                "baseline steps 1 to 2 and candidate all steps",
            ),
        ),
        (
            rank(**steps(1, 3)),
            rank(**steps(0, 1)),
            "Only steps 1 to 2 of the baseline and step 0 of the candidate were fingerprinted.",
            (
                "the two sides were captured with different --steps: "
                "baseline steps 1 to 2 and candidate step 0",
            ),
        ),
        (
            rank(mode="collectives"),
            rank(mode="collectives"),
            "Only communication was fingerprinted.",
            (),
        ),
        (
            rank(stopped=True),
            rank(),
            "Only what came before --stop-after of the baseline was captured.",
            (),
        ),
        (
            rank(mode="full"),
            rank(),
            "",
            ("the two sides were captured in different modes: full and trusted",),
        ),
        (
            rank(command=["a/train.py", "1"]),
            rank(command=["b/train.py", "2"]),
            "",
            (),
        ),
        (
            rank(command=["train.py"]),
            rank(command=["test.py"]),
            "",
            ("the two sides ran different programs: train.py and test.py",),
        ),
    ],
)
def test_what_the_verdict_does_not_reach_stands_beside_it(
    left: Rank, right: Rank, restriction: str, notes: tuple[str, ...]
) -> None:
    result = compared(left, right)
    assert result.verdict == "identical"
    assert result.restrictions == ((restriction,) if restriction else ())
    assert result.reason == f"{CLAIM} {restriction}".strip()
    assert result.notes == notes
    second_paragraph = render_result(result, 120).split("\n\n")[0].splitlines()[1:]
    assert " ".join(second_paragraph) == result.reason


def test_steps_are_in_the_json() -> None:
    result = Result.from_json(compared(rank(**steps(1, 3)), rank()).to_json())
    assert (result.programs.baseline.steps, result.programs.candidate.steps) == ((1, 3), None)


def test_what_the_policy_hides_is_said() -> None:
    ranks = rank(), rank()
    for made, content in zip(ranks, "pq", strict=True):
        made.op("gelu", {"self": "x"}, {"0": content})
    result = compared(*ranks, policy=Policy(ignore=(IgnoreRule("known", op="gelu"),)))
    assert result.reason == f"{CLAIM} Differences that the policy covers are left out."


def test_a_run_compared_with_itself_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    runs = [replace(run_of(rank()), path=str(tmp_path / name)) for name in ("run", "link")]
    assert api.compare(*runs).notes == ("both sides are the same run",)


def test_alike_notes_are_one() -> None:
    ranks = rank(), rank()
    for _ in range(4):
        ranks[1].op("mul_", {"self": "elsewhere"}, {"self!": "y"}, line=31)
    assert compared(*ranks).notes == (
        "only the candidate has mul_ at /home/me/train.py:31 (4 times); "
        "what it wrote was never verified",
    )


def test_unpaired_operators_are_grouped_in_order_of_appearance() -> None:
    ranks = rank(), rank()
    for number in range(2):
        ranks[1].op("relu", {"self": f"r{number}"}, {"0": f"s{number}"}, line=number)
        ranks[1].op("gelu", {"self": f"r{number}"}, {"0": f"t{number}"}, module="")
    unpaired = compared(*ranks).unpaired
    assert unpaired.baseline == ()
    assert unpaired.candidate == (
        UnpairedOperator("relu", "Net.a", 2),
        UnpairedOperator("gelu", "", 2),
    )


def test_threads_that_were_not_captured_are_counted_on_both_sides() -> None:
    ranks = rank(), rank()
    for made, count in zip(ranks, (1, 2), strict=True):
        made.closing = {**CLOSING, "coverage": {"unarmed_threads": count}}
    result = compared(*ranks)
    assert (result.verdict, result.coverage.unarmed_threads) == ("identical", 3)


def test_how_a_program_ended_comes_from_the_rank_that_failed() -> None:
    runs = []
    for _ in range(2):
        ranks = rank(), rank(number=1)
        runs.append(run_of(*ranks))
    failed = rank(number=1)
    failed.closing = {**CLOSING, "interrupted": True, "exception": "ValueError"}
    program = api.compare(runs[0], run_of(rank(), failed)).programs.candidate
    assert (program.exception, program.partial_ranks, program.unclosed_ranks) == (
        "ValueError", (1,), (),
    )  # fmt: skip


def test_what_started_the_program_is_no_part_of_its_stack() -> None:
    launcher = (
        ("/v/lib/python3.11/site-packages/click/core.py", 1, "invoke"),
        ("/v/bin/opguard", 8, "<module>"),
        ("<frozen runpy>", 88, "_run_code"),
    )
    program = (
        ("/v/lib/python3.11/site-packages/click/core.py", 2, "main"),  # a program of click's own
        ("train.py", 3, "<module>"),
    )
    results = []
    for suspect in range(2):
        made = rank()
        made.op("gelu", {"self": "q"}, {"0": f"y{suspect}"}, stack=program + launcher)
        results.append(made)
    pivot = compared(*results).pivot
    assert pivot is not None
    assert pivot.candidate is not None
    assert pivot.candidate.stack == program
