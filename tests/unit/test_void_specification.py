"""DESIGN section 3: memory that nothing wrote, memory that others write, and storages that come and
go; what both implementations of values answer. Tensors are float32, 4 bytes an element.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from values_probes import PROBES, Mask, Probe, met, native_probe

from native_support import needs_native
from opguard.capture.values import SWEEP_EVERY
from opguard.errors import NativeError


@pytest.fixture(params=PROBES)
def probe(request: pytest.FixtureRequest) -> Probe:
    made: Probe = request.param()
    return made


def void(probe: Probe, *shape: int) -> torch.Tensor:
    x = met(probe, torch.zeros(shape))
    probe.wrote(x, 0, False)
    probe.leave_void(x, None)
    return x


def mask(shape: list[int], *unset: int) -> Mask:
    return shape, bytes(unset)


def flags(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


# Void


def test_void_until_every_element_was_written(probe: Probe) -> None:
    x = void(probe, 2, 3)
    assert probe.is_void(x)
    assert probe.unset_elements(x[:, 1:]) == mask([2, 2], 1, 1, 1, 1)
    probe.wrote(x[:, 0], 1, False)
    assert not probe.is_void(x[:, 0])  # its span holds void bytes, its elements do not
    assert not probe.is_void(x[:, :1])
    assert probe.is_void(x[0])
    assert probe.unset_elements(x) == mask([2, 3], 0, 1, 1, 0, 1, 1)
    assert probe.unset_elements(x.t()) == mask([3, 2], 0, 0, 1, 1, 1, 1)
    probe.wrote(x[:, 1:], 2, False)
    assert not probe.facts(x)["has_void"]
    assert probe.unset_elements(x) is None


def test_one_write_of_everything_ends_it(probe: Probe) -> None:
    x = void(probe, 2, 3)
    probe.wrote(x.t(), 1, False)
    assert not probe.facts(x)["has_void"]


def test_void_bytes_of_a_large_storage(probe: Probe) -> None:
    # 50,001 bytes: the native map has pages of 16,384. `expected` is the map, byte for byte.
    x = met(probe, torch.zeros(50_001, dtype=torch.uint8))
    expected = np.ones(50_001, np.bool_)
    random = np.random.default_rng(1)

    def view() -> slice:
        first, last = np.sort(random.integers(0, 50_002, 2))
        return slice(int(first), int(last), int(random.choice([1, 1, 2, 9])))

    probe.wrote(x, 0, False)
    probe.leave_void(x, None)
    fixed = [slice(16_384), slice(16_383, 32_769), slice(49_152, 50_001), slice(50_000, 50_001)]
    for record, span in enumerate([*fixed, *(view() for _ in range(150))], 1):
        if record % 3 == 0 and len(x[span]):
            some = random.random(len(x[span])) < random.choice([0.01, 0.5, 1.0])
            expected[span] |= some
            probe.leave_void(x[span], torch.from_numpy(some))
        elif len(x[span]):
            expected[span] = False
            probe.wrote(x[span], record, False)
        assert probe.facts(x)["has_void"] is bool(expected.any())
        for looked_at in (span, view(), slice(None)):
            found = expected[looked_at]
            assert probe.is_void(x[looked_at]) is bool(found.any())
        seen = probe.unset_elements(x)
        assert seen == ((([50_001], expected.tobytes())) if expected.any() else None)
    probe.wrote(x, 999, False)
    assert not probe.facts(x)["has_void"]


def test_a_large_storage_that_shrinks_and_grows(probe: Probe) -> None:
    x = void(probe, 12_000)  # 48,000 bytes
    probe.wrote(x[:9000], 1, False)
    x.untyped_storage().resize_(34_000)
    probe.resized(x)
    x.untyped_storage().resize_(48_000)
    probe.resized(x)
    assert not probe.is_void(x[:8500])
    assert probe.is_void(x[8499:8501])
    probe.wrote(x[8500:], 2, False)
    assert not probe.facts(x)["has_void"]


def test_partial_writes_clear_nothing(probe: Probe) -> None:
    x = void(probe, 4)
    probe.wrote(x, 1, True)
    assert probe.unset_elements(x) == mask([4], 1, 1, 1, 1)


def test_nothing_of_no_elements_is_void(probe: Probe) -> None:
    x = void(probe, 4)
    assert not probe.is_void(x[2:2])
    assert probe.unset_elements(x[2:2]) is None
    probe.wrote(x[2:2], 1, False)
    assert probe.is_void(x)


def test_an_element_is_void_if_one_of_its_bytes_is(probe: Probe) -> None:
    x = void(probe, 3)
    probe.wrote(x.view(torch.uint8)[:7], 1, False)
    assert probe.unset_elements(x) == mask([3], 0, 1, 1)
    probe.wrote(x.view(torch.uint8)[7:], 2, False)
    assert not probe.facts(x)["has_void"]


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "unset"),
    [
        ((2, 3), (0, 1), 1, (0, 1, 0, 0, 1, 0)),  # expanded
        ((3, 2), (1, 0), 2, (1, 1, 0, 0, 1, 1)),
        ((3, 3), (1, 1), 0, (1, 0, 1, 0, 1, 0, 1, 0, 1)),  # overlapping
        ((2, 2), (4, 2), 0, (1, 1, 1, 1)),
        ((2, 2), (4, 2), 1, (0, 0, 0, 0)),
        ((), (), 4, (1,)),
        ((1, 3), (99, 2), 2, (1, 1, 1)),
    ],
)
def test_elements_through_any_strides(
    probe: Probe, shape: tuple[int, ...], strides: tuple[int, ...], offset: int,
    unset: tuple[int, ...],
) -> None:  # fmt: skip
    x = void(probe, 8)
    probe.wrote(x[1::2], 1, False)  # even elements stay void
    view = x.as_strided(shape, strides, offset)
    assert probe.is_void(view) is any(unset)
    assert probe.unset_elements(view) == (mask(list(shape), *unset) if any(unset) else None)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "left"),
    [
        ((2, 3), (0, 1), 1, (1, 0, 0, 0, 1, 1, 1, 1)),
        ((3, 3), (1, 1), 2, (1, 1, 0, 0, 0, 0, 0, 1)),
        ((2, 2), (4, 2), 1, (1, 0, 1, 0, 1, 0, 1, 0)),
        ((2, 2), (2, 4), 0, (0, 1, 0, 1, 0, 1, 0, 1)),
        ((1, 8), (1, 1), 0, None),
    ],
)
def test_writes_through_any_strides(
    probe: Probe, shape: tuple[int, ...], strides: tuple[int, ...], offset: int,
    left: tuple[int, ...] | None,
) -> None:  # fmt: skip
    x = void(probe, 8)
    probe.wrote(x.as_strided(shape, strides, offset), 1, False)
    assert probe.unset_elements(x) == (None if left is None else mask([8], *left))


def test_elements_that_a_copy_left_void(probe: Probe) -> None:
    x = met(probe, torch.zeros(2, 3))
    probe.leave_void(x, flags(True, False, False))  # for each row
    assert probe.unset_elements(x) == mask([2, 3], 1, 0, 0, 1, 0, 0)
    probe.leave_void(x, flags([True], [False]))  # for each column of a row
    assert probe.unset_elements(x) == mask([2, 3], 1, 1, 1, 1, 0, 0)
    probe.wrote(x, 1, False)
    probe.leave_void(x.t(), flags([False, True], [False, False], [True, True]))
    assert probe.unset_elements(x) == mask([2, 3], 0, 0, 1, 1, 0, 1)
    probe.leave_void(x, flags(False).reshape(()))
    assert probe.unset_elements(x) == mask([2, 3], 0, 0, 1, 1, 0, 1)


@needs_native
def test_a_mask_of_another_shape_is_refused() -> None:
    probe = native_probe()
    x = met(probe, torch.zeros(2, 3))
    for wrong in (flags(True, True), torch.ones(1, 2, 3, dtype=torch.bool)):
        with pytest.raises(NativeError):
            probe.leave_void(x, wrong)


def test_a_copy_into_a_view_leaves_the_rest(probe: Probe) -> None:
    x = met(probe, torch.zeros(6))
    probe.leave_void(x[1::2], flags(True, False, True))
    assert probe.unset_elements(x) == mask([6], 0, 1, 0, 0, 0, 1)
    probe.wrote(x[5:], 1, False)
    probe.wrote(x[1:2], 2, False)
    assert not probe.facts(x)["has_void"]


def test_a_buffer_filled_piece_by_piece_from_either_end(probe: Probe) -> None:
    for order in (range(50), range(49, -1, -1)):
        x = void(probe, 50, 3)
        for count, row in enumerate(order):
            assert probe.is_void(x[row])
            assert probe.facts(x)["has_void"]
            probe.wrote(x[row], count, False)
            assert not probe.is_void(x[row])
        assert not probe.facts(x)["has_void"]


# Sizes


def test_bytes_that_resizing_adds_are_void(probe: Probe) -> None:
    x = met(probe, torch.zeros(4))
    probe.wrote(x, 1, False)
    probe.learn(x, 7, 7)
    x.untyped_storage().resize_(24)
    probe.resized(x)
    assert probe.facts(x)["nbytes"] == 24
    assert probe.known(x) is None  # the bytes may have moved
    assert probe.producers(x) == [1]
    assert not probe.is_void(x)
    assert probe.unset_elements(x.as_strided((6,), (1,))) == mask([6], 0, 0, 0, 0, 1, 1)


def test_writers_of_bytes_that_are_gone_go_too(probe: Probe) -> None:
    x = met(probe, torch.zeros(4))
    probe.wrote(x[:3], 1, False)
    probe.wrote(x[3:], 2, False)
    x.untyped_storage().resize_(8)
    probe.create(x)
    x.untyped_storage().resize_(16)
    probe.create(x)
    assert probe.producers(x) == [1]
    assert probe.producers(x[2:]) == []
    assert probe.unset_elements(x) == mask([4], 0, 0, 1, 1)


def test_void_memory_that_is_resized(probe: Probe) -> None:
    x = void(probe, 4)
    x.untyped_storage().resize_(24)
    probe.meet(x)
    wide = x.as_strided((6,), (1,))
    assert probe.unset_elements(wide) == mask([6], 1, 1, 1, 1, 1, 1)
    probe.wrote(wide[:5], 1, False)
    x.untyped_storage().resize_(16)
    probe.meet(x)
    assert not probe.is_void(x)
    x.untyped_storage().resize_(24)
    probe.meet(x)
    assert probe.unset_elements(wide) == mask([6], 0, 0, 0, 0, 1, 1)


def test_freed_and_grown_again(probe: Probe) -> None:
    x = met(probe, torch.zeros(4))
    probe.wrote(x, 1, False)
    x.untyped_storage().resize_(0)
    probe.meet(x)
    assert probe.producers(x) == []
    x.untyped_storage().resize_(16)
    probe.meet(x)
    assert probe.is_void(x)


# Memory that others write


def shared_with_numpy() -> torch.Tensor:
    x = torch.zeros(4)
    x.numpy()
    return x


@pytest.mark.parametrize(
    ("make", "external"),
    [
        (lambda: torch.zeros(4), False),
        (shared_with_numpy, True),
        (lambda: torch.from_numpy(np.zeros(4, np.float32)), True),
        (lambda: torch.frombuffer(bytearray(16), dtype=torch.float32), True),
        (lambda: torch.zeros(4).share_memory_(), True),
    ],
)  # fmt: skip
def test_memory_that_others_write_is_never_known(
    probe: Probe, make: object, external: bool
) -> None:
    assert callable(make)
    x = met(probe, make())
    assert probe.facts(x)["external"] is external
    probe.learn(x, 7, 7)
    assert (probe.known(x) is None) is external
    probe.leave_void(x, None)
    assert probe.is_void(x) is not external


@pytest.mark.parametrize("how", ["numpy", "share", "told"])
@pytest.mark.parametrize("was_void", [False, True])
def test_memory_that_others_write_from_now_on(probe: Probe, how: str, was_void: bool) -> None:
    x = void(probe, 4) if was_void else met(probe, torch.zeros(4))
    probe.wrote(x[:2], 1, False)
    probe.learn(x, 7, 7)
    probe.set_reader(x, 2)
    if how == "numpy":
        x.numpy()
        probe.create(x)
    elif how == "share":
        x.share_memory_()
        probe.create(x)
    else:
        probe.make_external(x)
    assert probe.facts(x)["external"]
    assert probe.known(x) is None
    assert not probe.facts(x)["has_void"]
    assert probe.producers(x) == ([] if was_void else [1])
    assert probe.facts(x)["first_reader"] == (-1 if was_void else 2)


def test_an_output_is_taken_for_its_makers_until_it_is_met(probe: Probe) -> None:
    x = torch.from_numpy(np.zeros(4, np.float32))
    probe.create(x)
    assert not probe.facts(x)["external"]
    probe.create(x)
    assert probe.facts(x)["external"]


def test_memory_that_others_write_grows_without_void(probe: Probe) -> None:
    x = met(probe, torch.zeros(4))
    probe.make_external(x)
    x.untyped_storage().resize_(32)
    probe.meet(x)
    assert not probe.facts(x)["has_void"]


# Storages that come and go


def test_a_reused_address_is_another_value(probe: Probe) -> None:
    for record in range(50):
        x = torch.zeros(1000)
        assert not probe.met(x)
        probe.create(x)
        assert probe.producers(x) == []
        probe.wrote(x, record, False)
        del x


def test_entries_of_dead_storages_are_swept(probe: Probe) -> None:
    kept = met(probe, torch.zeros(1))
    probe.wrote(kept, 1, False)
    gc.collect()
    for _ in range(SWEEP_EVERY):
        probe.create(torch.zeros(1))
    assert probe.swept(SWEEP_EVERY + 1) == SWEEP_EVERY - 1
    assert probe.producers(kept) == [1]


def test_a_rebuilt_storage_inherits_its_creation(probe: Probe) -> None:
    x, y, z = torch.zeros(1), torch.zeros(4), torch.zeros(4)
    probe.rebuilt(x, y)  # x was not met
    assert not probe.met(y)
    met(probe, x, z)
    probe.set_creator(x, 5)
    probe.rebuilt(x, y)
    assert probe.facts(y)["creator"] == 5
    assert probe.producers(y) == []
    probe.rebuilt(x, z)  # z was met
    assert probe.facts(z)["creator"] == -1
