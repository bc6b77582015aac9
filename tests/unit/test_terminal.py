import dataclasses

import pytest

from opguard.model import CLASSES
from opguard.report.explain import EXPLANATIONS
from opguard.report.result import (
    AgreeingPair,
    CertifiedPrefix,
    Commands,
    Counts,
    Coverage,
    Environment,
    FinalState,
    Finding,
    GapEvent,
    Place,
    Program,
    Programs,
    Result,
    SideTexts,
    StateName,
    TensorDifference,
    Unpaired,
    UnpairedOperator,
)
from opguard.report.terminal import render_result

HOSTILE = "evil\x1b[2J\n::error::[bold]x[/bold]\u202e"


def place(line, seq=0):
    return Place(seq, 12, "model.py", line, "forward", (("train.py", 88, "main"),))


PIVOT = Finding(
    class_name="argument",
    op="aten.native_layer_norm.default",
    module="GPT.blocks.1.ln1",
    phase="forward",
    step=3,
    rank=0,
    occurrence=12,
    slots=("0", "2"),
    arguments=SideTexts("normalized_shape=[128], eps=1e-05", "normalized_shape=[128], eps=1e-06"),
    baseline=place(31, 412),
    candidate=place(33, 415),
    tensors=(
        TensorDifference(
            "0", "float32", (4, 64, 128), ("0" * 16, "1" * 16), (0, 3), "float32", (4, 64, 128)
        ),
        TensorDifference("2", "float32", (1,), ("0" * 16, "1" * 16), values=("0.123", "0.124")),
    ),
)
DIVERGED = Result(
    verdict="diverged",
    exit_code=1,
    reason_code="PIVOT",
    reasons=("PIVOT",),
    reason="411 pairs agree, then aten.native_layer_norm.default differs.",
    pivot=PIVOT,
    roots=(PIVOT,),
    certified_prefix=CertifiedPrefix(411, complete=True),
    counts=Counts(baseline_events=4310, candidate_events=4312, paired=4310, agreeing=411),
    final_state=FinalState(compared=61, differing=40),
)
IDENTICAL = Result(
    verdict="identical",
    exit_code=0,
    reason_code="IDENTICAL",
    reasons=("IDENTICAL",),
    reason="Everything that was compared agrees.",
    counts=Counts(baseline_events=10, candidate_events=10, paired=10, agreeing=10),
    final_state=FinalState(compared=3),
)


def lines(result, width=80):
    return render_result(result, width).splitlines()


def section(result, title):
    """The rows below a title, as lists of words."""
    report = lines(result)
    assert title in report, f"no section {title!r}"
    start = report.index(title) + 1
    end = next((i for i in range(start, len(report)) if not report[i]), len(report))
    return [line.split() for line in report[start:end]]


def test_verdict_comes_first_and_the_pivot_line_is_exact():
    report = lines(DIVERGED)
    assert report[0] == "opguard: diverged (PIVOT, exit code 1)"
    assert report[1] == DIVERGED.reason
    assert report[3] == "first divergent op: aten.native_layer_norm.default"


def test_the_users_own_lines_come_before_everything_else_of_the_pivot():
    report = lines(DIVERGED)
    assert report[4].split() == ["baseline", "line", "model.py:31", "in", "forward"]
    assert report[5].split() == ["candidate", "line", "model.py:33", "in", "forward"]


def test_one_line_is_shown_once():
    same = dataclasses.replace(PIVOT, baseline=place(33))
    report = lines(dataclasses.replace(DIVERGED, pivot=same))
    assert report[4].split() == ["line", "model.py:33", "in", "forward"]
    assert sum("model.py" in line for line in report) == 1


def test_an_unknown_line_is_said():
    blind = dataclasses.replace(PIVOT, baseline=Place(1, 0), candidate=Place(1, 0))
    assert lines(dataclasses.replace(DIVERGED, pivot=blind))[4].split() == ["line", "not", "known"]


def test_arguments_results_and_values_are_shown():
    assert section(DIVERGED, "Arguments") == [
        ["baseline", "normalized_shape=[128],", "eps=1e-05"],
        ["candidate", "normalized_shape=[128],", "eps=1e-06"],
    ]
    assert section(DIVERGED, "Results that differ") == [
        ["0", "float32[4,64,128],", "in", "part", "1,", "4", "of", "8", "equal", "parts"],
        ["2", "float32[1]"],
        ["baseline", "0.123"],
        ["candidate", "0.124"],
    ]


@pytest.mark.parametrize("class_name", sorted(EXPLANATIONS))
def test_each_class_is_explained_with_an_advice(class_name):
    result = dataclasses.replace(DIVERGED, pivot=dataclasses.replace(PIVOT, class_name=class_name))
    text = " ".join(" ".join(row) for row in section(result, "What it means"))
    assert text == " ".join(EXPLANATIONS[class_name])


def test_every_class_that_can_be_a_root_has_an_explanation():
    assert set(EXPLANATIONS) == set(CLASSES) - {"", "tolerated", "propagated"}


def test_a_tensor_that_differs_in_every_region_is_said_so():
    tensor = TensorDifference("0", "int8", (99999,), ("0" * 16, "1" * 16), tuple(range(8)))
    result = dataclasses.replace(DIVERGED, pivot=dataclasses.replace(PIVOT, tensors=(tensor,)))
    assert section(result, "Results that differ") == [["0", "int8[99999],", "all", "over"]]


def test_random_states_that_were_never_seeded_are_said_to_be_left_out():
    entries = tuple(StateName(rank, "rng.numpy", "rng.numpy", "never seeded") for rank in (0, 1))
    entries += (StateName(0, "net.w", "net.w", "could not be read"),)
    state = FinalState(1, 0, 0, 5, not_compared_entries=entries)
    rows = section(dataclasses.replace(IDENTICAL, final_state=state), "Final state")
    assert [" ".join(row) for row in rows[1:]] == [
        "not compared rng.numpy: never seeded",
        "not compared net.w: could not be read",
        "not compared and 2 more",
    ]


def test_dtype_and_shape_changes_name_both_sides():
    tensor = TensorDifference("0", "float64", (3,), ("0" * 16, "1" * 16), (), "float32", (2, 2))
    result = dataclasses.replace(DIVERGED, pivot=dataclasses.replace(PIVOT, tensors=(tensor,)))
    words = " ".join(section(result, "Results that differ")[0])
    assert words == "0 float32[2,2] in the baseline, float64[3] in the candidate"


@pytest.mark.parametrize(
    ("mix64", "side"), [((None, "1" * 16), "candidate"), (("0" * 16, None), "baseline")]
)
def test_a_slot_of_one_side_is_said_to_be_that(mix64, side):
    tensor = TensorDifference("1", "float32", (2,), mix64)
    result = dataclasses.replace(DIVERGED, pivot=dataclasses.replace(PIVOT, tensors=(tensor,)))
    words = section(result, "Results that differ")[0]
    assert words == ["1", "float32[2],", "only", "in", "the", side]


def test_final_state_alone_names_no_operator():
    entry = dataclasses.replace(
        PIVOT, op="opguard.state", class_name="", slots=("GPT.head.weight",)
    )
    result = dataclasses.replace(
        DIVERGED,
        reason_code="STATE",
        pivot=entry,
        roots=(entry,),
        final_state=FinalState(
            compared=3,
            differing=1,
            unpaired=1,
            differing_entries=(StateName(0, "GPT.head.weight", "GPT.head.weight"),),
            unpaired_entries=(StateName(0, "gone", ""),),
        ),
    )
    text = render_result(result)
    assert "first divergent op" not in text
    assert "no operator that was compared diverged; the final state differs" in text
    assert section(result, "Final state") == [
        ["compared", "3,", "of", "which", "1", "differ"],
        ["differing", "GPT.head.weight"],
        ["no", "partner", "gone"],
    ]


def test_a_single_root_is_not_repeated_and_several_are_grouped():
    assert "Divergences that start on their own" not in lines(DIVERGED)
    other = dataclasses.replace(PIVOT, op="aten.addmm.default", class_name="origin", count=40)
    rows = section(
        dataclasses.replace(DIVERGED, roots=(PIVOT, other)), "Divergences that start on their own"
    )
    text = " ".join(" ".join(row) for row in rows)
    assert "argument aten.native_layer_norm.default" in text
    assert "origin aten.addmm.default" in text
    assert "(40 times)" in text


def test_long_lists_are_cut_and_the_rest_counted():
    roots = (PIVOT,) * 20
    tensors = PIVOT.tensors[:1] * 9
    result = dataclasses.replace(
        DIVERGED, roots=roots, pivot=dataclasses.replace(PIVOT, tensors=tensors)
    )
    assert section(result, "Divergences that start on their own")[-1] == ["and", "12", "more"]
    assert section(result, "Results that differ")[-1] == ["and", "3", "more"]


def test_gaps_and_neighbours_are_listed():
    gap = GapEvent("candidate", "aten.mul.Tensor", "GPT", "forward", 3, place(7))
    pair = AgreeingPair("aten.addmm.default", "GPT.mlp", "forward", 3, 1, 5, 6, "model.py", 20)
    result = dataclasses.replace(
        DIVERGED, pivot=dataclasses.replace(PIVOT, gaps=(gap,)), agreed_before=(pair,)
    )
    words = ["candidate", "aten.mul.Tensor", "in", "GPT", "model.py:7", "in", "forward"]
    assert section(result, "Ran on one side only, and leads here") == [words]
    words = ["step", "3", "aten.addmm.default", "in", "GPT.mlp", "model.py:20"]
    assert section(result, "Agreed just before") == [words]


def test_identical_claims_no_more_than_was_compared():
    assert lines(IDENTICAL)[0] == "opguard: identical (IDENTICAL, exit code 0)"
    assert section(IDENTICAL, "Compared") == [
        ["operators", "10", "baseline,", "10", "candidate"],
        ["paired", "10,", "of", "which", "10", "agree"],
        ["certified", "prefix", "0", "pairs", "without", "a", "difference"],
    ]
    assert section(IDENTICAL, "Not covered") == [["device", "kernels", "not", "observed"]]


def test_the_mechanism_is_named():
    same = dataclasses.replace(IDENTICAL, mechanism=SideTexts("native", "native"))
    assert section(same, "Compared")[0] == ["captured", "by", "native"]
    other = dataclasses.replace(IDENTICAL, mechanism=SideTexts("native", "dispatch"))
    assert section(other, "Compared")[0][3:] == ["(baseline),", "dispatch", "(candidate)"]


def test_whatever_was_not_compared_is_said():
    result = dataclasses.replace(
        IDENTICAL,
        counts=dataclasses.replace(
            IDENTICAL.counts, not_compared=4, void=5, unverified=6, gaps_baseline=7, ignored=8
        ),
        certified_prefix=CertifiedPrefix(9, complete=False),
        coverage=Coverage(
            unfingerprinted={"freed": 2},
            opaque_regions=("compiled.graph",),
            foreign_values=3,
            lost_events=10,
            uncaptured_processes=11,
            uncaptured_ranks=12,
            unarmed_threads=13,
        ),
    )
    report = render_result(result, width=120).split("Compared\n")[1].split("\n\n")[0]
    compared = [" ".join(line.split()) for line in report.splitlines()]
    assert compared[2:] == [
        "certified prefix 9 pairs without a difference, but parts of them could not be compared",
        "only in baseline 7",
        "hidden by policy 8",
    ]
    report = render_result(result, width=120).split("Not covered\n")[1].splitlines()
    assert [" ".join(line.split()) for line in report] == [
        "pairs with nothing to compare 4",
        "pairs with unwritten memory 5",
        "unverified in-place writes 6",
        "tensors freed 2",
        "values of unknown origin 3",
        "lost events 10",
        "processes not captured 11",
        "ranks not captured 12",
        "threads not captured 13, which ran before the capture started",
        "opaque regions compiled.graph",
        "device kernels not observed",
    ]


def test_how_the_runs_ended_is_said():
    programs = Programs(
        Program(
            partial_ranks=(0, 1, 2),
            unclosed_ranks=(0, 2),
            interrupted=True,
            problems=("chunk 3 was ignored",),
        ),
        Program(stopped=True, exception="ValueError", interrupted=True, partial_ranks=(0,)),
    )
    rows = [" ".join(row) for row in section(
        dataclasses.replace(DIVERGED, programs=programs), "Runs"
    )]  # fmt: skip
    assert rows == [
        "baseline partial: rank 0, 2 was not closed; only what had been stored was",
        "compared",
        "baseline partial: the program was interrupted",
        "baseline chunk 3 was ignored",
        "candidate ended by --stop-after; what follows was not captured",
        "candidate partial: it ended with ValueError",
    ]


def test_environment_differences_name_both_values():
    result = dataclasses.replace(
        IDENTICAL,
        environment=Environment({"OMP_NUM_THREADS": 1}, {}, ("OMP_NUM_THREADS",)),
    )
    assert section(result, "Environment differs") == [["OMP_NUM_THREADS", "1", "→", "not", "set"]]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_fit_except_those_that_are_copied(width):
    command = "opguard run -o out " + "train.py " * 30
    result = dataclasses.replace(DIVERGED, commands=Commands(reproduce=command))
    report = lines(result, width)
    whole = [line for line in report if line.startswith(("first divergent op", "reproduce"))]
    assert len(whole) == 2
    assert max(len(line) for line in report if line not in whole) <= width
    assert whole[1] == "reproduce: " + command.rstrip()


def test_hostile_names_are_neutralised_everywhere():
    nasty = dataclasses.replace(
        PIVOT,
        op=HOSTILE,
        module=HOSTILE + "m" * 10_000,
        slots=(HOSTILE,),
        arguments=SideTexts(HOSTILE, HOSTILE + "2"),
        note=HOSTILE,
        baseline=Place(0, 0, HOSTILE, 1, HOSTILE),
        tensors=(TensorDifference(HOSTILE, HOSTILE, (1,), ("0", "1"), values=(HOSTILE, HOSTILE)),),
        gaps=(GapEvent("baseline", HOSTILE, HOSTILE, HOSTILE, 0, Place(0, 0, HOSTILE, 1)),),
    )
    result = dataclasses.replace(
        DIVERGED,
        reason=HOSTILE,
        pivot=nasty,
        roots=(nasty, nasty),
        notes=(HOSTILE,),
        environment=Environment({HOSTILE: HOSTILE}, {}, (HOSTILE,)),
        programs=Programs(Program(exception=HOSTILE, problems=(HOSTILE,)), Program()),
        commands=Commands(HOSTILE, HOSTILE),
        coverage=Coverage({HOSTILE: 1}, (HOSTILE,) * 9),
        final_state=FinalState(1, 1, differing_entries=(StateName(0, HOSTILE, HOSTILE),)),
        agreed_before=(AgreeingPair(HOSTILE, HOSTILE, HOSTILE, 0, 0, 0, 0, HOSTILE, 1),),
    )
    text = render_result(result)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("::error") for line in text.splitlines())
    assert "[bold]x[/bold]" in text
    assert len(text) < 20_000


def test_colour_only_where_asked():
    assert "\x1b[" in render_result(DIVERGED, color=True)
    assert "\x1b" not in render_result(DIVERGED)


def test_the_same_result_gives_the_same_text():
    assert render_result(DIVERGED) == render_result(Result.from_json(DIVERGED.to_json()))


def test_another_environment_leads_where_an_operator_gave_another_result():
    environment = Environment(
        {"intra_op_threads": 2}, {"intra_op_threads": 1}, ("intra_op_threads",)
    )
    lead = (
        "The two runs ran in different environments: intra_op_threads 2 against 1: "
        "thread counts change bits."
    )
    for class_name, leads in (("origin", True), ("origin?", True), ("argument", False)):
        pivot = dataclasses.replace(PIVOT, class_name=class_name)
        result = dataclasses.replace(DIVERGED, pivot=pivot, environment=environment)
        text = " ".join(" ".join(row) for row in section(result, "What it means"))
        assert text == " ".join([lead] * leads + list(EXPLANATIONS[class_name]))


def test_five_unpaired_operators_of_a_side_are_listed():
    operators = tuple(UnpairedOperator(f"op{i}", "net" * (i == 0), 1 + i) for i in range(7))
    result = dataclasses.replace(DIVERGED, unpaired=Unpaired((operators[0],), operators[1:]))
    assert [" ".join(row) for row in section(result, "Ran on one side only")] == [
        "baseline op0 in net",
        *(f"candidate op{i} ({i + 1} times)" for i in range(1, 6)),
        "candidate and others",
    ]
    assert "Ran on one side only" not in lines(DIVERGED)
