from __future__ import annotations

import pytest
from align_builder import CLOSING, OPENING, Rank, Value, certificate_of

from opguard.model import Certificate, Reason


def step(rank: Rank, w: Value, name: str, number: int) -> Value:
    written = Value(name, producers=(w.index,))
    return rank.op(
        "add_", {"self": w, "g": f"g{name}"}, {"self!": written}, step=number, phase="optimizer"
    )


def entry(value: Value) -> Value:
    """The state record of a tensor whose last writer is ``value``."""
    return value.but(producers=(value.index,), index=-1)


def summary(certificate: Certificate) -> tuple[int, int, int, int]:
    state = certificate.state
    return state.compared, len(state.differing), len(state.unpaired), len(state.not_compared)


def trained(steps: int, names: str = "ab") -> Rank:
    rank = Rank()
    values = {name: rank.op("randn", {"rng": f"seed {name}"}, {"0": name}) for name in names}
    for number in range(steps):
        for name in names:
            values[name] = step(rank, values[name], f"{name}{number}", number)
    for name in names:
        rank.state(f"net.{name}", entry(values[name]))
    return rank


def test_equal_state_agrees_and_names_do_not_matter() -> None:
    a, b = trained(2), Rank()
    b = trained(2)
    renamed = b.build()
    assert summary(certificate_of(a, b)) == (2, 0, 0, 0)
    assert renamed.event_count == 8


def test_a_forgotten_last_step_differs() -> None:
    certificate = certificate_of(trained(3), trained(2))
    assert summary(certificate) == (2, 2, 0, 0)
    assert [entry.name for entry in certificate.state.differing] == ["net.a", "net.b"]
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "structural"
    assert certificate.pivot.count == 2


def test_a_stray_last_write_differs() -> None:
    a, b = trained(1, "a"), Rank()
    w = b.op("randn", {"rng": "seed a"}, {"0": "a"})
    w = step(b, w, "a0", 0)
    w = b.op(
        "mul_", {"self": w}, {"self!": Value("stray", producers=(w.index,))}, module="", args="0.9"
    )
    b.state("net.a", entry(w))
    certificate = certificate_of(a, b)
    assert summary(certificate) == (1, 1, 0, 0)
    assert certificate.unverified == (("candidate", 2),)


def test_a_write_past_pytorch_is_overwritten() -> None:
    a, b = Rank(), Rank()
    for rank, content in ((a, "w"), (b, "=zeroed")):
        w = rank.op("randn", {"rng": "seed"}, {"0": "w"})
        rank.state("w", entry(w).but(content=content))
    certificate = certificate_of(a, b)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "overwritten"
    assert certificate.prefix_pairs == 1


def test_a_write_past_pytorch_to_what_was_only_read() -> None:
    a, b = Rank(), Rank()
    for rank, content in ((a, "w"), (b, "=zeroed")):
        rank.op("mm", {"weight": "w"}, {"0": "y"})
        rank.state("w", Value(content, producers=(0,)))  # the first record that read it
    certificate = certificate_of(a, b)
    assert summary(certificate) == (1, 1, 0, 0)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "overwritten"


def test_entries_pair_by_their_writers_not_by_place() -> None:
    a, b = Rank(), Rank()
    for rank, order in ((a, "pq"), (b, "qp")):
        values = {name: rank.op("randn", {"rng": name}, {"0": name}) for name in "pq"}
        for name in order:
            rank.state(name, entry(values[name]))
    assert summary(certificate_of(a, b)) == (2, 0, 0, 0)


def test_entries_of_one_writer_pair_by_kind_then_in_order() -> None:
    # Views of one flat storage: equal writers, told apart by shape.
    a, b = Rank(), Rank()
    for rank, order in ((a, "xy"), (b, "yx")):
        flat = rank.op("randn", {"rng": "seed"}, {"0": "flat"})
        shapes = {"x": "[2]", "y": "[3]"}
        for name in order:
            rank.state(name, Value(name, producers=(flat.index,), shape=shapes[name]))
    assert summary(certificate_of(a, b)) == (2, 0, 0, 0)


def test_entries_without_writers_pair_by_position() -> None:
    a, b = Rank(), Rank()
    for rank, other in ((a, "q"), (b, "changed")):
        rank.op("mm", {"self": "x"}, {"0": "y"})
        rank.state("one", "p")
        rank.state("two", other)
    certificate = certificate_of(a, b)
    assert summary(certificate) == (2, 1, 0, 0)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "source"


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        ([".01", ".02"], [".02", ".01"], (3, 0, 0, 0)),  # two optimizers in the other order
        ([".01", ".02"], [".02", ".03"], (3, 1, 0, 0)),
        ([".01", ".02"], [".02", ".02"], (3, 1, 0, 0)),
        ([".01"], [".02"], (2, 1, 0, 0)),
        ([".01", ".02"], [".02"], (2, 0, 1, 0)),
    ],
)
def test_numbers_pair_by_value_before_they_pair_by_position(
    baseline: list[str], candidate: list[str], expected: tuple[int, int, int, int]
) -> None:
    a, b = Rank(), Rank()
    for rank, numbers in ((a, baseline), (b, candidate)):
        rank.op("mm", {"self": "x"}, {"0": "y"})
        for position, number in enumerate(numbers):
            if position == 1:
                rank.state("between", "t")
            rank.state("SGD.lr", Value(number, dtype="python_float", shape="[]"))
        if len(numbers) == 1:
            rank.state("between", "t")
    assert summary(certificate_of(a, b)) == expected


def test_other_shapes_pair_by_content_only() -> None:
    a, b = Rank(), Rank()
    for rank in (a, b):
        rank.op("mm", {"self": "x"}, {"0": "y"})
        rank.state("one", "p")
        rank.state("zero", "=zeros")
    b.state("extra", Value("e", shape="[9]"))
    certificate = certificate_of(a, b)
    # "one" is found by its bytes; zeros are no evidence.
    assert summary(certificate) == (1, 0, 3, 0)
    names = [
        (entry.name, entry.baseline_seq, entry.candidate_seq)
        for entry in certificate.state.unpaired
    ]
    assert names == [("zero", 2, -1), ("zero", -1, 2), ("extra", -1, 3)]


@pytest.mark.parametrize(
    ("baseline", "candidate", "unread", "why"),
    [
        (Value("p", reason=Reason.UNSUPPORTED), Value("q", reason=Reason.UNSUPPORTED), 1, "read"),
        (Value("p"), Value("q", reason=Reason.FREED), 1, "could not be read"),
        (Value("p"), Value("p", void=True), 1, "could not be read"),
        (Value("p", void=True), Value("q", void=True), 0, "memory that nothing wrote"),
    ],
)
def test_void_and_missing_entries_are_not_compared(
    baseline: Value, candidate: Value, unread: int, why: str
) -> None:
    a, b = Rank(), Rank()
    for rank, value in ((a, baseline), (b, candidate)):
        rank.op("mm", {"self": "x"}, {"0": "y"})
        rank.state("one", value)
    certificate = certificate_of(a, b)
    assert summary(certificate) == (0, 0, 0, 1)
    assert certificate.state.unread == unread
    assert why in certificate.state.not_compared[0].why


def test_one_unread_part_of_an_entry_is_enough() -> None:
    # A sparse tensor whose indices agree and whose values nobody could read.
    a, b = Rank(), Rank()
    for rank, content in ((a, "p"), (b, "q")):
        rank.op("mm", {"self": "x"}, {"0": "y"})
        parts = {"0.indices": Value("i"), "0.values": Value(content, reason=Reason.UNSUPPORTED)}
        rank.op("opguard.state", outputs=parts, module="one", phase="other", state=True)
    state = certificate_of(a, b).state
    assert (state.compared, state.unread) == (1, 1)


def with_generators(
    states: dict[str, str], entry_states: dict[str, str], seeded: tuple[str, ...] = ()
) -> Rank:
    rank = Rank(
        opening={**OPENING, "rng": entry_states}, closing={**CLOSING, "seeded": list(seeded)}
    )
    rank.op("mm", {"self": "x"}, {"0": "y"})
    for name, content in states.items():
        rank.state(name, content)
    return rank


def test_generators_pair_by_name() -> None:
    a = with_generators({"rng.python": "s", "rng.torch.cpu": "t"}, {"rng.python": "00"})
    b = with_generators({"rng.torch.cpu": "t", "rng.python": "s"}, {"rng.python": "01"})
    assert summary(certificate_of(a, b)) == (2, 0, 0, 0)


def test_generators_that_were_equal_at_entry_must_end_equal() -> None:
    a = with_generators({"rng.python": "s"}, {"rng.python": "00"})
    b = with_generators({"rng.python": "t"}, {"rng.python": "00"})
    certificate = certificate_of(a, b)
    assert summary(certificate) == (1, 1, 0, 0)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "random"


def test_generators_that_were_never_seeded_are_listed() -> None:
    a = with_generators({"rng.python": "s"}, {"rng.python": "00"})
    b = with_generators({"rng.python": "t"}, {"rng.python": "01"})
    certificate = certificate_of(a, b)
    assert summary(certificate) == (0, 0, 0, 1)
    assert certificate.state.not_compared[0].name == "rng.python"
    assert certificate.pivot is None


@pytest.mark.parametrize("seeded", [(("rng.python",), ()), ((), ("rng.python",))])
def test_generators_that_a_program_seeded_are_compared(
    seeded: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    a = with_generators({"rng.python": "s"}, {"rng.python": "00"}, seeded[0])
    b = with_generators({"rng.python": "t"}, {"rng.python": "01"}, seeded[1])
    certificate = certificate_of(a, b)
    assert summary(certificate) == (1, 1, 0, 0)
    assert certificate.pivot is not None
    assert certificate.pivot.class_name == "random"


def test_seeding_another_generator_says_nothing_of_this_one() -> None:
    a = with_generators({"rng.python": "s"}, {"rng.python": "00"}, ("rng.numpy",))
    b = with_generators({"rng.python": "t"}, {"rng.python": "01"})
    assert summary(certificate_of(a, b)) == (0, 0, 0, 1)


def test_generators_of_one_side_are_listed_and_do_not_matter() -> None:
    a = with_generators({"rng.python": "s"}, {})
    b = with_generators({"rng.python": "s", "rng.numpy": "n"}, {})
    certificate = certificate_of(a, b)
    assert summary(certificate) == (1, 0, 0, 1)
    assert certificate.state.not_compared[0].candidate_seq == 2
