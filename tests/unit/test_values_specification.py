"""DESIGN section 3, values and void: what both implementations answer, rule by rule.

Expected numbers are computed by hand. Tensors are float32, 4 bytes an element, unless said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from values_probes import PROBES, Probe, met

from opguard.capture.values import NO_RECORD
from opguard.model import DTYPES

PLAIN_DTYPES = [
    name
    for name in DTYPES[1 : DTYPES.index("python_bool")]
    if not name.startswith(("qint", "quint"))
]


@pytest.fixture(params=PROBES)
def probe(request: pytest.FixtureRequest) -> Probe:
    made: Probe = request.param()
    return made


# Geometry


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: x, {"start": 0, "end": 48, "nbytes": 48, "dense": True, "contiguous": True,
                       "shape": "[3,4]", "strides": "[4,1]", "layout": ""}),
        (lambda x: x[1:, ::2], {"start": 16, "end": 44, "nbytes": 16, "dense": False,
                                "contiguous": False, "shape": "[2,2]", "strides": "[4,2]@16",
                                "layout": "[[2,2],[4,2]]"}),
        (lambda x: x.t(), {"start": 0, "end": 48, "dense": True, "contiguous": False,
                           "strides": "[1,4]", "layout": "[[4,3],[1,4]]"}),
        (lambda x: x[:, :1].expand(3, 5), {"start": 0, "end": 36, "nbytes": 60, "dense": False,
                                           "strides": "[4,0]"}),
        (lambda x: x[2:, 4:], {"start": 48, "end": 48, "nbytes": 0, "dense": True,
                               "contiguous": True, "shape": "[1,0]", "strides": "[4,1]@48"}),
        (lambda x: x[1, 2], {"start": 24, "end": 28, "nbytes": 4, "dense": True, "shape": "[]",
                             "strides": "[]@24"}),
        (lambda x: x.as_strided((3, 3), (1, 1), 1), {"start": 4, "end": 24, "nbytes": 36,
                                                     "dense": False}),
    ],
)  # fmt: skip
def test_geometry(probe: Probe, make: Any, expected: dict[str, Any]) -> None:
    facts = probe.geometry(make(torch.zeros(3, 4)))
    assert {name: facts[name] for name in expected} == expected
    assert facts["itemsize"] == 4
    assert facts["dtype_code"] == DTYPES.index("float32")
    assert facts["bits"] == 0


def test_bits_of_lazy_views(probe: Probe) -> None:
    x = torch.zeros(2, dtype=torch.complex64)
    assert [probe.geometry(view)["bits"] for view in (x, x.conj(), x.conj().imag)] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_dtype_codes(probe: Probe, name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    assert probe.geometry(torch.empty(0, dtype=dtype))["dtype_code"] == DTYPES.index(name)


def test_one_value_in_two_shapes_has_one_key(probe: Probe) -> None:
    x = torch.zeros(2, 3)
    same = [x, x.view(6), x.view(3, 2), x[None], torch.zeros(6)]
    others = [x.t(), x[:1], x.view(6)[1:], x.view(torch.int32), x[:, ::2], x.t()[None]]
    assert len({str(probe.value_key(view)) for view in same}) == 1
    assert len({str(probe.value_key(view)) for view in [x, *others]}) == 1 + len(others)


def test_relative_geometry(probe: Probe) -> None:
    x = torch.zeros(3, 4)
    assert probe.relative(x[1:, ::2], x) == "[4,2]|16|48|"
    assert probe.relative(x[1], x[1:]) == "[1]|0|32|"
    assert probe.relative(x[1], x.t()) == "[1]|16|48|[[4,3],[1,4]]"


def test_many_geometries_are_told_apart(probe: Probe) -> None:
    x = torch.zeros(4000)
    for _ in range(2):
        assert all(probe.geometry(x[i : i + 3])["start"] == 4 * i for i in range(3000))


# Writers


def test_nothing_is_known_of_what_was_not_met(probe: Probe) -> None:
    x, y = torch.zeros(2), torch.zeros(2)
    probe.meet(x)
    assert probe.met(x.view(2, 1))
    assert not probe.met(y)
    assert probe.facts(x) == {
        "nbytes": 8, "external": False, "has_void": False,
        "first_reader": NO_RECORD, "creator": NO_RECORD,
    }  # fmt: skip


def test_producers_are_the_writers_of_the_span_newest_first(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    assert probe.wrote(x, 1, False) == []
    assert probe.wrote(x[:4], 2, False) == [1]
    assert probe.wrote(x[2:6], 3, False) == [2, 1]
    assert probe.producers(x) == [3, 2, 1]
    assert probe.producers(x[:2]) == [2]
    assert probe.producers(x[4:]) == [3, 1]
    assert probe.producers(x[6:]) == [1]
    assert probe.producers(x[::3]) == [3, 2, 1]  # its span, not its elements
    assert probe.wrote(x, 4, False) == [3, 2, 1]
    assert probe.producers(x) == [4]


def test_a_write_inside_another_leaves_both_ends_of_it(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    probe.wrote(x[3:5], 2, False)
    assert [probe.producers(part) for part in (x, x[:3], x[3:5], x[5:])] == [
        [2, 1], [1], [2], [1],
    ]  # fmt: skip


@pytest.mark.parametrize("partial", [False, True])
def test_strided_and_partial_writes_keep_what_they_may_not_have_overwritten(
    probe: Probe, partial: bool
) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    assert probe.wrote(x if partial else x[::2], 2, partial) == [1]
    assert probe.producers(x) == [2, 1]


def test_a_write_of_nothing_writes_nothing(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    assert probe.wrote(x[8:], 2, False) == []
    assert probe.producers(x) == [1]
    assert probe.producers(x[8:]) == []


def test_the_older_half_of_very_many_strided_writes_counts_as_one(probe: Probe) -> None:
    # A cache of 2,000 places in 3 rows: each write leaves the others in place.
    x = met(probe, torch.zeros(3, 2000))
    probe.wrote(x, 0, False)
    probe.learn(x, 7, 1)
    for place in range(1023):
        probe.wrote(x[:, place], 1 + place, False)
    assert probe.producers(x) == [*range(1023, 0, -1), 0]
    probe.learn(x, 8, 2)
    assert probe.covering(x[1:]) is None  # it may have more producers than are listed
    assert probe.covering(x[0, :3]) == ((8, 2), "[1]|0|24000|")  # 3 of its bytes' writers
    for place in (1023, 1024):
        probe.wrote(x[:, place], 1 + place, False)
    # 1,025 of them: those of records 1 to 512 count as one that ends where theirs end.
    assert probe.producers(x) == [*range(1025, 511, -1), 0]
    assert probe.producers(x[2, 600:]) == [*range(1025, 600, -1), 0]
    assert probe.producers(x[0, :1]) == [512, 0]
    probe.learn(x, 9, 3)
    assert probe.known(x) == (9, 3)
    assert probe.covering(x[0, :3]) is None
    probe.wrote(x, 2000, False)
    probe.learn(x, 10, 4)
    assert probe.producers(x) == [2000]
    assert probe.covering(x[0, :3]) == ((10, 4), "[1]|0|24000|")


def test_very_many_dense_writes_stay_apart_and_the_newest_are_listed(probe: Probe) -> None:
    x = met(probe, torch.zeros(2000, 2))
    for row in range(2000):
        probe.wrote(x[row], row, False)
    probe.learn(x, 7, 1)
    assert probe.producers(x) == list(range(1999, 975, -1))
    assert probe.producers(x[5:8]) == [7, 6, 5]
    assert probe.covering(x[5:8]) == ((7, 1), "[2,1]|40|16000|")
    assert probe.covering(x[5:1500]) is None


# Fingerprints that are known


def test_a_value_is_known_until_it_is_written(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.learn(x, 7, 1)
    probe.learn(x[:2], 8, 2)
    probe.learn(x[::2], 9, 3)
    assert probe.known(x.view(2, 4)) == (7, 1)
    probe.learn(x.view(4, 2), 10, 4)  # replaces
    assert [probe.known(view) for view in (x, x[:2], x[::2], x[1:3])] == [
        (10, 4), (8, 2), (9, 3), None,
    ]  # fmt: skip
    probe.wrote(x[5:6], 1, False)
    assert [probe.known(view) for view in (x, x[:2], x[::2])] == [None, (8, 2), None]


def test_a_view_is_known_through_the_first_dense_value_that_holds_it(probe: Probe) -> None:
    x = met(probe, torch.zeros(8, dtype=torch.complex64))
    probe.learn(x[::2], 1, 1)  # not dense
    probe.learn(x.conj(), 2, 2)  # its bytes are not those of the storage
    assert probe.covering(x[2:4]) is None
    probe.learn(x[2:], 3, 3)
    probe.learn(x, 4, 4)
    assert probe.covering(x[2:4]) == ((3, 3), "[1]|0|48|")
    assert probe.covering(x[1:4]) == ((4, 4), "[1]|8|64|")
    probe.learn(x[2:], 5, 5)  # keeps its place
    assert probe.covering(x[2:4]) == ((5, 5), "[1]|0|48|")
    probe.wrote(x[7:], 1, False)
    probe.learn(x, 6, 6)
    probe.learn(x[2:], 7, 7)
    assert probe.covering(x[2:4]) == ((6, 6), "[1]|16|64|")


def test_samples_of_a_data_set_are_known_one_by_one(probe: Probe) -> None:
    data = met(probe, torch.zeros(500, 4))
    for i in range(500):
        assert probe.known(data[i]) is None
        assert probe.covering(data[i]) is None
        probe.learn(data[i], i, i)
    assert all(probe.known(data[i]) == (i, i) for i in range(500))
    assert probe.covering(data[7, 1:3]) == ((7, 7), "[1]|4|16|")
    assert probe.covering(data[7:9]) is None
    probe.learn(data, 1000, 0)
    assert probe.covering(data[7:9]) == ((1000, 0), "[4,1]|112|8000|")
    assert probe.covering(data[7, 1:3]) == ((7, 7), "[1]|4|16|")
    probe.wrote(data[3:5], 1, False)
    found = [i for i in range(500) if probe.known(data[i]) is None]
    assert found == [3, 4]
    assert probe.known(data) is None
    probe.wrote(data, 2, False)
    assert all(probe.known(data[i]) is None for i in range(500))


def test_reading_again_keeps_the_writers(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    probe.learn(x, 7, 7)
    probe.reread(x)
    assert probe.known(x) is None
    assert probe.producers(x) == [1]


# Writes that were not captured


def test_a_counter_that_moved_shows_a_foreign_write(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    probe.set_reader(x, 2)
    probe.set_creator(x, 1)
    probe.learn(x, 7, 7)
    x[:2].add_(1)
    assert probe.known(x) == (7, 7)  # noticed when the value is next met
    probe.meet(x)
    assert probe.known(x) is None
    assert probe.producers(x) == []
    assert probe.facts(x)["first_reader"] == NO_RECORD
    assert probe.facts(x)["creator"] == 1


def test_a_counter_that_a_captured_call_moved_shows_nothing(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    for record, view in enumerate((x, x[:4], x.detach(), x.data, x.view(2, 4))):
        probe.begins(view)
        view.add_(1)
        probe.ended(view)
        probe.wrote(view, record, False)
        probe.learn(x, record, 0)
        probe.meet(x)
        assert probe.known(x) == (record, 0)


def test_a_tensor_that_was_given_the_storage_brings_a_counter_of_its_own(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    probe.learn(x, 7, 7)
    y = torch.zeros(8)
    for _ in range(5):
        y.add_(1)
    y.set_(x)
    probe.meet(y)
    assert probe.known(x) is None  # read again, to be safe
    assert probe.producers(x) == [1]
    probe.learn(x, 8, 8)
    y.add_(1)  # now it is covered
    probe.meet(y)
    assert probe.producers(x) == []


def test_only_the_last_holders_of_a_storage_are_covered(probe: Probe) -> None:
    x = met(probe, torch.zeros(8))
    others = []
    for count in range(8):
        others.append(torch.zeros(8))
        for _ in range(count + 1):
            others[-1].add_(1)
        others[-1].set_(x)
        probe.meet(others[-1])
    probe.wrote(x, 1, False)
    for _ in range(12):
        x.add_(1)  # the ninth to come: its counter is not remembered
    probe.meet(x)
    assert probe.producers(x) == [1]
    for _ in range(12):
        others[1].add_(1)
    probe.meet(others[1])
    assert probe.producers(x) == []


def test_a_view_is_covered_by_its_base(probe: Probe) -> None:
    x = torch.zeros(8)
    views = x.view(2, 4), x[:2]
    met(probe, views[0])
    probe.wrote(x, 1, False)
    x.add_(1)
    probe.meet(views[1])
    assert probe.producers(x) == []


def test_a_captured_write_covers_its_tensor(probe: Probe) -> None:
    x, y = met(probe, torch.zeros(8)), torch.zeros(8)
    y.set_(x)
    probe.begins(y)
    y.add_(1)
    probe.ended(y)
    probe.wrote(y, 1, False)
    y.add_(1)
    probe.meet(y)
    assert probe.producers(x) == []


def test_inference_tensors_have_no_counter(probe: Probe) -> None:
    with torch.inference_mode():
        x = met(probe, torch.zeros(8))
        probe.learn(x, 7, 7)
        x.add_(1)
        probe.meet(x)
        probe.begins(x)
        x.add_(1)
        probe.ended(x)
        probe.meet(x)
    assert probe.known(x) == (7, 7)


@pytest.mark.parametrize("keep_void", [False, True])
def test_forgotten_values_have_no_producer(probe: Probe, keep_void: bool) -> None:
    x = met(probe, torch.zeros(8))
    probe.wrote(x, 1, False)
    probe.learn(x, 7, 7)
    probe.set_reader(x, 2)
    probe.set_creator(x, 1)
    probe.leave_void(x, None)
    probe.forget(x, keep_void)
    assert probe.producers(x) == []
    assert probe.known(x) is None
    assert probe.is_void(x) is keep_void
    assert probe.facts(x)["first_reader"] == NO_RECORD
    assert probe.facts(x)["creator"] == 1


def test_everything_can_be_forgotten(probe: Probe) -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    met(probe, x, y)
    probe.forget_all()
    assert not probe.met(x)
    assert not probe.met(y)
    probe.meet(x)
    assert probe.met(x)
