from __future__ import annotations

import json
from dataclasses import replace

import pytest
from align_builder import CLOSING, OPENING, Rank, Value, digest, run_of

from opguard import api
from opguard.errors import FormatError
from opguard.report.result import (
    Counts,
    Finding,
    GapEvent,
    Place,
    Result,
    SideTexts,
    TensorDifference,
)


def diverged() -> Result:
    """A comparison with every part filled."""
    ranks = []
    for suspect in (False, True):
        mark = "'" if suspect else ""
        rank = Rank(
            opening={**OPENING, "command": ["train.py", "--x"], "mode": "full"},
            closing={
                **CLOSING,
                "exit_code": 3 if suspect else 0,
                "exception": "ValueError: no" if suspect else None,
                "coverage": {"unfingerprinted": {"freed": 2}, "opaque_regions": ["compiled.f"]},
            },
        )
        x = rank.op("mm", {"self": "p"}, {"0": "x"}, line=11)
        if not suspect:
            x = rank.op("mul", {"self": x, "s": "s"}, {"0": "x2"}, line=12)
        rank.op("gelu", {"self": "r"}, {"0": "g"}, line=13)
        rank.op(
            "gelu",
            {"self": x, "w": "w"},
            {
                "0": Value(
                    "y" + mark, shape="[1]", small=bytes([0, 0, 128, 63 + suspect]),
                    regions=(1, 2, 3, 4, 5, 6, 7, 8 + suspect),
                )
            },
            step=2, line=14, args=f"a={suspect}\tgroup=0",
        )  # fmt: skip
        rank.state("w", "w" + mark)
        ranks.append(rank)
    return api.compare(run_of(ranks[0]), run_of(ranks[1]))


def test_the_pivot_in_full() -> None:
    pivot = diverged().pivot
    assert pivot is not None
    (output,) = pivot.tensors
    stack = (("/home/me/train.py", 14, "run"),)
    assert replace(pivot, tensors=(), inputs=()) == Finding(
        class_name="argument",
        op="gelu",
        module="Net.a",
        phase="forward",
        step=2,
        rank=0,
        occurrence=1,
        slots=("0",),
        arguments=SideTexts("a=False group=0", "a=True group=0"),
        baseline=Place(3, 1, "/home/me/train.py", 14, "run", stack),
        candidate=Place(2, 1, "/home/me/train.py", 14, "run", stack),
    )
    assert replace(output, mix64=(None, None)) == TensorDifference(
        slot="0",
        dtype="float32",
        shape=(1,),
        mix64=(None, None),
        regions_differ=(7,),
        baseline_dtype="float32",
        baseline_shape=(1,),
        values=("1.0", "4.0"),
    )
    assert output.mix64 == tuple(f"{digest(content)[0]:016x}" for content in ("y", "y'"))
    assert [tensor.slot for tensor in pivot.inputs] == ["self"]


def test_what_agreed_before_and_how_the_programs_ended() -> None:
    result = diverged()
    assert [(pair.op, pair.candidate_seq, pair.line) for pair in result.agreed_before] == [
        ("mm", 0, 11), ("gelu", 1, 13),
    ]  # fmt: skip
    program = result.programs.candidate
    assert (program.exit_code, program.exception) == (3, "ValueError: no")
    assert (program.command, program.mode, program.path) == (("train.py", "--x"), "full", "/runs/x")
    assert result.coverage.unfingerprinted == {"freed": 4}
    assert result.coverage.opaque_regions == ("compiled.f",)
    assert result.counts == Counts(
        baseline_events=4, candidate_events=3, paired=3, agreeing=2, gaps_baseline=1
    )
    assert result.final_state.differing == 1
    assert result.final_state.differing_entries[0].baseline == "w"
    assert result.commands.reproduce == "opguard compare /runs/x /runs/x"


def test_structural_pivots_name_the_events_of_one_side() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        if not suspect:
            x = rank.op("mul", {"self": x, "s": "s"}, {"0": "x2"}, line=21, module="Net.scale")
            x = rank.op("exp", {"self": x}, {"0": "x3"}, line=22)
        rank.op("relu", {"self": x, "o": "o"}, {"0": f"y{suspect}"})
    pivot = api.compare(run_of(ranks[0]), run_of(ranks[1])).pivot
    assert pivot is not None
    assert [(gap.side, gap.op, gap.module, gap.place.line) for gap in pivot.gaps] == [
        ("baseline", "exp", "Net.a", 22), ("baseline", "mul", "Net.scale", 21),
    ]  # fmt: skip
    assert isinstance(pivot.gaps[0], GapEvent)


def test_structural_pivots_whose_inputs_cannot_be_compared() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("mm", {"self": "p"}, {"0": "x"})
        if suspect:
            x = rank.op("exp", {"self": x}, {"0": "x2"}, line=22)
        seen = x.but(via=True, fresh=False, strides=f"[1]|{suspect}")
        rank.op("relu", {"self": seen, "o": "o"}, {"0": f"y{suspect}"})
    pivot = api.compare(run_of(ranks[0]), run_of(ranks[1])).pivot
    assert pivot is not None
    assert (pivot.class_name, pivot.inputs) == ("structural", ())
    assert [(gap.side, gap.op) for gap in pivot.gaps] == [("candidate", "exp")]


def test_json_round_trip_is_exact() -> None:
    result = diverged()
    text = result.to_json()
    assert Result.from_json(text) == result
    assert Result.from_json(text).to_json() == text


def test_json_has_the_fields_of_the_design() -> None:
    document = json.loads(diverged().to_json())
    assert next(iter(document)) == "schema"
    assert document["schema"] == 1
    names = "verdict exit_code reason_code reasons reason mechanism pivot roots certified_prefix \
        counts final_state coverage ranks environment commands"
    assert set(names.split()) <= set(document)
    names = "class op module phase step rank occurrence slots arguments baseline candidate tensors"
    assert set(names.split()) <= set(document["pivot"])
    assert set(document["roots"][0]) == set(document["pivot"])
    names = "seq occurrence file line function stack"
    assert set(document["pivot"]["baseline"]) == set(names.split())
    assert {"slot", "dtype", "shape", "mix64", "regions_differ"} <= set(
        document["pivot"]["tensors"][0]
    )
    names = "baseline_events candidate_events paired agreeing moved void gaps_baseline \
        gaps_candidate ignored"
    assert set(names.split()) <= set(document["counts"])
    names = "unfingerprinted opaque_regions foreign_values lost_events uncaptured_processes kernels"
    assert set(names.split()) <= set(document["coverage"])
    assert document["coverage"]["kernels"] == {"baseline": None, "candidate": None}
    assert document["certified_prefix"] == {"pairs": 2, "complete": True}
    assert {"reproduce", "accept"} == set(document["commands"])


def test_json_holds_any_text() -> None:
    result = replace(diverged(), reason="\ud800 \x00 \u2028 </script>")
    text = result.to_json()
    assert text.isascii()
    assert Result.from_json(text).reason == result.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("verdict"), "result.verdict is not present"),
        (lambda d: d.update(verdict="fine"), "result.verdict is not one of"),
        (lambda d: d.update(exit_code="1"), "result.exit_code is not a JSON int"),
        (lambda d: d.update(exit_code=True), "result.exit_code is not a JSON int"),
        (lambda d: d.update(reasons="PIVOT"), "result.reasons is not an array"),
        (lambda d: d["pivot"].pop("class"), "result.pivot.class is not present"),
        (lambda d: d["pivot"]["baseline"].update(seq=1.5), "result.pivot.baseline.seq is not"),
        (
            lambda d: d["pivot"]["tensors"][0].update(mix64=["0"]),
            r"tensors\[0\].mix64 is not an array of 2",
        ),
        (lambda d: d.update(coverage=[]), "result.coverage is not an object"),
        (lambda d: d["coverage"].update(unfingerprinted=3), "unfingerprinted is not an object"),
        (lambda d: d.update(schema=2), "schema 2, this release reads 1"),
    ],
)
def test_wrong_documents_name_the_field(change, message: str) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(diverged().to_json())
    change(document)
    with pytest.raises(FormatError, match=message):
        Result.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_other_texts_are_no_result(text: str) -> None:
    with pytest.raises(FormatError, match="result is not"):
        Result.from_json(text)


def test_unknown_fields_are_of_a_later_release() -> None:
    document = json.loads(diverged().to_json())
    document["added"] = document["pivot"]["added"] = 1
    assert Result.from_json(json.dumps(document)) == diverged()
