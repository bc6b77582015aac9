from __future__ import annotations

from align_builder import Rank, Value, certificate_of

from opguard.certify.writes import storage_groups
from opguard.columns import join_sides


def written(rank: Rank, over: Value, content: str, op: str = "mul_", reads: bool = True) -> Value:
    """An in-place write over ``over``."""
    inputs = {"self": over} if reads else {}
    return rank.op(op, inputs, {"self!": Value(content, producers=(over.index,))}, module="")


def groups_of(rank: Rank) -> list[int]:
    sides = join_sides(rank.build(), Rank().build())
    return storage_groups(sides.baseline).tolist()  # type: ignore[no-any-return]


def test_a_storage_is_its_creator_its_writes_and_its_reads() -> None:
    rank = Rank()
    x = rank.op("randn", {}, {"0": "x"})  # record 0
    y = rank.op("randn", {}, {"0": "y"})  # record 1
    x = written(rank, x, "x'")  # reads 0 as record 2, writes record 3
    rank.op("mm", {"self": x, "other": y}, {"0": "z"})  # records 4, 5, 6
    assert groups_of(rank) == [0, 1, 0, 0, 0, 1, 6]


def test_writes_to_several_parts_are_one_storage() -> None:
    rank = Rank()
    one = rank.op("copy_", {}, {"self!": "p"})  # of unknown origin
    two = rank.op("copy_", {}, {"self!": "q"})
    both = Value("pq", producers=(two.index, one.index))
    rank.op("mm", {"self": both}, {"0": "z"})
    assert groups_of(rank) == [0, 0, 0, 3]


def test_an_argument_that_is_read_and_written_is_one_storage() -> None:
    rank = Rank()
    rank.op("add_", {"self": "source", "other": "o"}, {"self!": "sum"})
    assert groups_of(rank) == [0, 1, 0]


def with_gap(use: str) -> tuple[tuple[str, int], ...]:
    """Unverified writes where the candidate alone writes into ``x``; ``use`` says what follows."""
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("randn", {"rng": "seed"}, {"0": "x"})
        rank.op("exp", {"self": x}, {"0": "xx"})
        if suspect:
            x = written(rank, x, "x")  # leaves the bytes as they were
        if use == "read":
            rank.op("relu", {"self": x}, {"0": "y"})
        if use == "read, differing":
            rank.op("relu", {"self": x}, {"0": f"y{suspect}"})
        if use == "state":
            rank.state("x", x.but(producers=(x.index,)))
        rank.op("mm", {"self": "p"}, {"0": "q"})
    return certificate_of(*ranks).unverified


def test_a_gap_write_is_unverified_until_an_agreeing_pair_reads() -> None:
    assert with_gap("nothing") == (("candidate", 2),)
    assert with_gap("read, differing") == (("candidate", 2),)
    assert with_gap("read") == ()
    assert with_gap("state") == ()


def test_a_read_before_the_write_verifies_nothing() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("randn", {"rng": "seed"}, {"0": "x"})
        rank.op("relu", {"self": x}, {"0": "y"})
        if not suspect:
            written(rank, x, "x")
    assert certificate_of(*ranks).unverified == (("baseline", 2),)


def test_what_gap_events_made_and_use_alone_needs_no_check() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        rank.op("mm", {"self": "p"}, {"0": "q"})
        if suspect:
            total = rank.op("zeros", {}, {"0": "=zeros"})
            written(rank, total, "sum", op="add_")
    assert certificate_of(*ranks).unverified == ()


def test_a_storage_of_unknown_origin_counts_as_touched() -> None:
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        rank.op("mm", {"self": "p"}, {"0": "q"})
        if suspect:
            rank.op("add_", {"self": "source"}, {"self!": "sum"})
    assert certificate_of(*ranks).unverified == (("candidate", 1),)


def test_order_counts_across_ordinary_in_place_operators() -> None:
    # The same two writes with other bytes in between: what is read differs, and the root is found.
    ranks = Rank(), Rank()
    for suspect, rank in enumerate(ranks):
        x = rank.op("randn", {"rng": "seed"}, {"0": "x"})
        names = ("fill", "copy_") if suspect else ("copy_", "fill")
        for name in names:
            x = rank.op(name, {"src": name}, {"self!": Value(name, producers=(x.index,))})
        rank.op("relu", {"self": x}, {"0": x.content * 2})
    certificate = certificate_of(*ranks)
    assert [root.class_name for root in certificate.roots] == ["reordered"]
