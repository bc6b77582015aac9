"""DESIGN section 3: which tensor is which, who wrote it, and what nothing wrote."""

from __future__ import annotations

import copy
import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from captured import capture, unseen
from opguard.fingerprint.tensor import fingerprint


def mix(tensor: torch.Tensor) -> str:
    return f"{fingerprint(tensor).mix64:016x}"


def test_known_inputs_are_not_read_again(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(4)
        (x + 1) * 2

    captured = capture(tmp_path, program)
    assert captured.one("add").inputs["self"]["known"]
    assert captured.one("mul").inputs["self"] == {
        "slot": "self", "dtype": "float32", "shape": [4], "known": True,
        "mix64": mix(torch.full((4,), 2.0)), "producers": [[1, "0"]],
    }  # fmt: skip


def test_full_mode_reads_every_input(tmp_path: Path) -> None:
    captured = capture(tmp_path, lambda: torch.ones(4) + 1, mode="full")
    assert not captured.one("add").inputs["self"]["known"]


def test_a_view_is_known_through_its_value(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.arange(6.0) + 1
        x.view(2, 3).sin()  # the same bytes in the same order
        x.view(2, 3).t().cos()
        x[2:4].tan()

    captured = capture(tmp_path, program)
    known = captured.one("add").outputs["0"]["mix64"]
    assert "via" not in captured.one("sin").inputs["self"]
    for name in ("cos", "tan"):
        record = captured.one(name).inputs["self"]
        assert record["via"]
        assert record["mix64"] == known
        assert record["producers"] == [[captured.one("add").seq, "0"]]


def test_producers_are_all_writers_of_the_span(tmp_path: Path) -> None:
    def program() -> None:
        flat = torch.zeros(8)
        flat[:4].fill_(1)
        flat[4:].fill_(2)
        flat.sin()
        flat[4:].cos()

    captured = capture(tmp_path, program)
    first, second = (event.seq for event in captured.all("fill_"))
    assert captured.one("sin").inputs["self"]["producers"] == [[second, "self!"], [first, "self!"]]
    assert captured.one("cos").inputs["self"]["producers"] == [[second, "self!"]]


def test_a_reused_address_is_another_value(tmp_path: Path) -> None:
    def program() -> None:
        for value in (1.0, 2.0, 3.0):
            x = torch.full((1000,), value)
            (x + 0).sin()
            del x

    captured = capture(tmp_path, program)
    fills = [event.seq for event in captured.all("full")]
    producers = [event.inputs["self"]["producers"] for event in captured.all("add")]
    assert producers == [[[seq, "0"]] for seq in fills]


def test_a_write_that_was_not_captured_makes_a_new_value(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        x.sin()
        with unseen():
            x.add_(1)
        x.cos()

    record = capture(tmp_path, program).one("cos").inputs["self"]
    assert record["producers"] == []
    assert record["mix64"] == mix(torch.full((3,), 2.0))


def test_captured_writes_are_not_taken_for_foreign_ones(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3)
        x.add_(1)
        x.mul_(2)
        x.detach().sub_(1)
        x.data.add_(1)
        x.view(3)[1:].add_(1)
        x.unsqueeze_(0)
        x.sin()

    captured = capture(tmp_path, program)
    assert captured.one("sin").inputs["self"]["producers"]
    assert captured.coverage["foreign_values"] == 0


def test_copies_by_deepcopy_do_not_make_buffers_foreign(tmp_path: Path) -> None:
    layer = torch.nn.BatchNorm1d(3)

    def program() -> None:
        for _ in range(3):
            layer(torch.ones(2, 3) * torch.tensor([1.0, 2.0, 3.0]))
            copy.deepcopy(layer)
            layer.running_mean.copy_(layer.running_var)

    events = capture(tmp_path, program).all("native_batch_norm")
    assert [bool(event.inputs["running_mean"]["producers"]) for event in events[1:]] == [True, True]


def test_a_deepcopy_fills_memory_that_an_event_created(tmp_path: Path) -> None:
    x = torch.ones(3)
    captured = capture(tmp_path, lambda: copy.deepcopy(x).sin())
    fill = captured.one("copy_")
    assert captured.events[fill.outputs["self!"]["producers"][0][0]].name == "empty"
    record = captured.one("sin").inputs["self"]
    assert record["producers"] == [[fill.seq, "self!"]]
    assert record["mix64"] == mix(x)


@pytest.mark.parametrize("share", ["numpy", "from_numpy", "dlpack", "share_memory"])
def test_memory_others_may_write_is_read_each_time(tmp_path: Path, share: str) -> None:
    def program() -> None:
        x = torch.ones(3)
        if share == "from_numpy":
            array = np.ones(3, np.float32)
            x = torch.from_numpy(array)
        elif share == "numpy":
            array = x.numpy()
        elif share == "dlpack":
            array = np.from_dlpack(x)
        else:
            x.share_memory_()
            array = np.ctypeslib.as_array((ctypes.c_float * 3).from_address(x.data_ptr()))
        x.sin()
        if array.flags.writeable:
            array[:] = 5.0
        else:  # what another process or library would do
            (ctypes.c_float * 3).from_address(array.ctypes.data)[:] = [5.0] * 3
        x.cos()

    record = capture(tmp_path, program).one("cos").inputs["self"]
    assert not record["known"]
    assert record["mix64"] == mix(torch.full((3,), 5.0))


def test_empty_is_void_until_it_is_overwritten(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(4)
        x.sin()
        x.fill_(1)
        x.cos()

    captured = capture(tmp_path, program)
    assert captured.one("empty").outputs["0"]["void"]
    assert captured.one("sin").inputs["self"]["void"]
    assert "void" not in captured.one("cos").inputs["self"]


def test_partial_writers_leave_memory_partly_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(4)
        x[torch.tensor([0, 1])] = 1.0
        x.sin()
        x.zero_()
        x.cos()

    captured = capture(tmp_path, program)
    assert captured.one("index_put_").outputs["self!"]["void"]
    assert captured.one("sin").inputs["self"]["void"]
    assert "void" not in captured.one("cos").inputs["self"]


def test_slices_written_one_by_one_clear_the_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(2, 3)
        x[:, 0].fill_(1)
        x[:, 0].sin()  # written, although the rest is void
        x[:, 1:].fill_(2)
        x.cos()

    captured = capture(tmp_path, program)
    assert "void" not in captured.one("sin").inputs["self"]
    assert captured.one("cos").inputs["self"]["mix64"] == mix(torch.tensor([[1.0, 2, 2]] * 2))


def test_bytes_that_resize_adds_are_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(2)
        x.resize_(4)
        x.sin()
        x[:2].cos()

    captured = capture(tmp_path, program)
    assert captured.one("sin").inputs["self"]["void"]
    assert "void" not in captured.one("cos").inputs["self"]


def test_a_freed_storage_is_never_read(tmp_path: Path) -> None:
    x = torch.ones(1000)

    def program() -> None:
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(0)
        torch.ops.aten.is_same_size(x, x)
        x.untyped_storage().resize_(4000)
        x.fill_(3)
        x.sin()

    captured = capture(tmp_path, program)
    assert captured.one("is_same_size").inputs["self"]["reason"] == "freed"
    assert captured.coverage["unfingerprinted"] == {"freed": 2}
    assert captured.one("sin").inputs["self"]["mix64"] == mix(torch.full((1000,), 3.0))


def test_a_storage_freed_and_grown_again_holds_other_bytes(tmp_path: Path) -> None:
    x = torch.ones(8)

    def program() -> None:
        x.sin()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(32)
        x.cos()

    assert capture(tmp_path, program).one("cos").inputs["self"]["void"]


def test_a_value_that_nothing_produced_after_step_0_is_counted(tmp_path: Path) -> None:
    import opguard

    frozen, batches = torch.ones(2), [torch.full((2,), float(i)) for i in range(3)]

    def program() -> None:
        for i, batch in enumerate(batches):
            opguard.step(i)
            batch * frozen

    assert capture(tmp_path, program).coverage["foreign_values"] == 2


def test_rebuilt_storages_are_sources(tmp_path: Path) -> None:
    import pickle

    data = pickle.dumps(torch.arange(3.0))
    captured = capture(tmp_path, lambda: pickle.loads(data).sin())
    record = captured.one("sin").inputs["self"]
    assert "set_" not in captured.names
    assert record["mix64"] == mix(torch.arange(3.0))
    assert "void" not in record
