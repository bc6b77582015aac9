"""Random programs: harmless changes are no divergence, and a planted fault is the pivot."""

from __future__ import annotations

from dataclasses import dataclass

from align_builder import Rank, Value, certificate_of
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.model import Certificate, Status


@dataclass(frozen=True)
class Call:
    """One operator call on tensors named by small numbers."""

    reads: tuple[int, ...]
    result: int
    in_place: bool
    overwrites: bool
    """In place, without reading what was there."""
    op: str
    module: str
    argument: str

    @property
    def touches(self) -> set[int]:
        return {*self.reads, self.result}


NAMES = 6
CALLS = st.lists(
    st.builds(
        Call,
        reads=st.lists(st.integers(0, NAMES - 1), min_size=0, max_size=2).map(tuple),
        result=st.integers(0, NAMES - 1),
        in_place=st.booleans(),
        overwrites=st.booleans(),
        op=st.sampled_from(["mul", "add"]),
        module=st.sampled_from(["", "Net.a"]),
        argument=st.sampled_from(["", "2"]),
    ),
    min_size=1,
    max_size=14,
)


def run(calls: list[Call], fault: int = -1, log: tuple[int, ...] = ()) -> Rank:
    """Execute: contents follow from operator, argument and what is read.

    ``fault`` is the call whose result is wrong; after the calls in ``log`` their result is also
    reduced to a number, which nothing uses.
    """
    rank = Rank()
    tensors = [rank.op("randn", {"rng": f"seed {i}"}, {"0": f"t{i}"}) for i in range(NAMES)]
    for number, call in enumerate(calls):
        inputs = {f"in{i}": tensors[name] for i, name in enumerate(call.reads)}
        target = tensors[call.result]
        if call.in_place and not call.overwrites:
            inputs["self"] = target
        content = f"{call.op}({call.argument};{','.join(v.content for v in inputs.values())})"
        content += "!" if number == fault else ""
        made = Value(content, producers=(target.index,)) if call.in_place else Value(content)
        slot = "self!" if call.in_place else "0"
        # As in PyTorch, an operator's name says whether and what it writes: mul, mul_, mul_out_.
        name = (
            call.op
            + ("_out" if call.overwrites and call.in_place else "")
            + ("_" if call.in_place else "")
        )
        tensors[call.result] = rank.op(
            name, inputs, {slot: made}, module=call.module, args=call.argument, line=number
        )
        if number in log:
            # An operator that the program uses too, so that it could be taken for another call.
            mean = rank.op("mul", {"self": tensors[call.result]}, {"0": content + "mean"})
            number_out = Value(content + "number", dtype="python_float", shape="[]")
            rank.op("item", {"self": mean}, {"0": number_out})
    for i, tensor in enumerate(tensors):
        rank.state(f"t{i}", tensor.but(producers=(tensor.index,), index=-1))
    return rank


def shuffled(calls: list[Call], choices: list[int]) -> list[Call]:
    """Another order in which every call still finds the same values."""
    waiting, order = list(calls), []
    for choice in [*choices, *[0] * len(calls)]:
        ready = [
            call
            for i, call in enumerate(waiting)
            if not any(
                call.result in earlier.touches or earlier.result in call.touches
                for earlier in waiting[:i]
            )
        ]
        if not ready:
            break
        chosen = ready[choice % len(ready)]
        order.append(chosen)
        waiting.remove(chosen)
    return order


def assert_clean(certificate: Certificate) -> None:
    assert certificate.pivot is None
    assert certificate.unverified == ()
    assert certificate.state.differing == ()
    assert certificate.state.unpaired == ()
    assert (certificate.status == Status.AGREES).all()


@settings(deadline=None)
@given(CALLS, st.sets(st.integers(0, 13)))
def test_logging_is_no_divergence(calls: list[Call], log: set[int]) -> None:
    certificate = certificate_of(run(calls), run(calls, log=tuple(log)))
    assert_clean(certificate)
    assert len(certificate.status) == NAMES + len(calls)


@settings(deadline=None, max_examples=300)
@given(CALLS, st.lists(st.integers(0, 7), max_size=14), st.sets(st.integers(0, 13)))
def test_another_order_is_no_divergence(
    calls: list[Call], choices: list[int], log: set[int]
) -> None:
    assert_clean(certificate_of(run(calls), run(shuffled(calls, choices), log=tuple(log))))


@settings(deadline=None, max_examples=200)
@given(CALLS, st.data())
def test_a_planted_fault_is_the_pivot(calls: list[Call], data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, len(calls) - 1))
    certificate = certificate_of(run(calls), run(calls, fault=fault))
    assert certificate.pivot is not None
    assert certificate.pivot.candidate_seq == NAMES + fault
    assert certificate.pivot.class_name == "origin"
    assert certificate.prefix_pairs == NAMES + fault
    assert [root.class_name for root in certificate.roots] == ["origin"]


@settings(deadline=None)
@given(CALLS, st.data())
def test_a_missing_call_never_passes(calls: list[Call], data: st.DataObject) -> None:
    missing = data.draw(st.integers(0, len(calls) - 1))
    without = [call for number, call in enumerate(calls) if number != missing]
    baseline, candidate = run(calls), run(without)
    certificate = certificate_of(baseline, candidate)
    ends = [rank.build().mix64[-NAMES:].tolist() for rank in (baseline, candidate)]
    if ends[0] != ends[1]:
        assert certificate.pivot is not None
    if certificate.pivot is not None:
        assert certificate.pivot.class_name not in ("origin", "origin?", "random", "overwritten")
