"""What capture tells of memory in odd states: unset, shared, resized, handed on, in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opguard
from captured import capture, read, run_source, unseen
from opguard.capture import reader
from opguard.capture.geometry import Geometry
from opguard.capture.interning import Interner
from opguard.capture.reader import OUTPUT, VOID, Reader
from opguard.capture.recorder import Recorder
from opguard.capture.rows import Rows, StagePool
from opguard.capture.traits import traits
from opguard.fingerprint.tensor import fingerprint
from opguard.model import DTYPES

Program = Callable[[], Any]


def mix(tensor: torch.Tensor) -> str:
    return f"{fingerprint(tensor).mix64:016x}"


def verdict(
    folder: Path, first: Callable[[], Any], second: Callable[[], Any], **options: Any
) -> Any:
    """Comparison of two captured programs."""
    capture(folder / "a", first, **options)
    capture(folder / "b", second, **options)
    return opguard.compare(folder / "a", folder / "b")


def litter(value: float) -> None:
    """Freed memory that ``torch.empty`` gets next."""
    with unseen():
        kept = [torch.full((size,), value + i) for i in range(50) for size in (64, 1024, 16384)]
        del kept


# Void


@pytest.mark.parametrize("mode", ["trusted", "full"])
def test_two_equal_trainings_of_an_lstm_are_identical(tmp_path: Path, mode: str) -> None:
    def program(value: float) -> None:
        torch.manual_seed(0)
        litter(value)
        model = torch.nn.LSTM(8, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(5, 3, 8))[0].sum().backward()
            optimizer.step()

    result = verdict(tmp_path, lambda: program(1.0), lambda: program(7.0), mode=mode)
    assert result.verdict == "identical"
    events = read(tmp_path / "a")[0].events
    forward = [event for event in events if event.name == "mkldnn_rnn_layer"]
    assert forward, "another kernel ran: the test says nothing"
    assert all(event.outputs["3"]["void"] for event in forward)
    assert not any("void" in event.outputs[slot] for event in forward for slot in "012")
    backward = next(event for event in events if event.name == "mkldnn_rnn_layer_backward")
    assert backward.inputs["workspace"]["void"]


def test_memory_filled_through_numpy_is_compared(tmp_path: Path) -> None:
    def program(value: float) -> None:
        w = torch.empty(100)
        w.numpy()[:] = value
        w.clone()

    result = verdict(tmp_path, lambda: program(1.0), lambda: program(5.0))
    assert result.verdict == "diverged"
    record = read(tmp_path / "b")[0].events[1].inputs["self"]
    assert "void" not in record
    assert record["mix64"] == mix(torch.full((100,), 5.0))


def test_an_operator_that_raises_leaves_void_memory_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(64)
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(3))
        x.clone()

    assert capture(tmp_path, program).one("clone").inputs["self"]["void"]


def test_a_resized_storage_keeps_what_was_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(8)
        x[:4].fill_(1)
        x.untyped_storage().resize_(64)
        x[:4].sin()
        x[4:].cos()
        x.untyped_storage().resize_(24)
        x[:4].tan()
        x[4:6].exp()
        x.untyped_storage().resize_(16)
        x[:4].neg()

    captured = capture(tmp_path, program)
    void = {e.name: "void" in e.inputs["self"] for e in captured.events[2:]}
    assert void == {"sin": False, "cos": True, "tan": False, "exp": True, "neg": False}
    fill = captured.one("fill_").seq
    assert captured.one("neg").inputs["self"]["producers"] == [[fill, "self!"]]


def test_a_storage_freed_and_allocated_again_holds_what_nothing_wrote() -> None:
    interner = Interner()
    memory = Reader(interner, Rows(StagePool()), "trusted")
    x = torch.ones(64)
    memory.output(0, x, traits(x), 0, 0)
    storage = x.untyped_storage()
    for nbytes in (0, 256):
        storage.resize_(nbytes)
        memory.values.resized(storage)
    row, _, _ = memory.input(0, x, traits(x))
    assert row[2:] == (VOID, row[3], row[4], None, ())


def test_overlapping_memory_with_holes_is_not_dense() -> None:
    x = torch.arange(10.0)
    overlapping = x[::3][:, None].expand(4, 4)[:2, :2]
    assert not Geometry(overlapping, 0).dense
    assert not Geometry(x.as_strided((2, 2), (1, 1)), 0).dense
    assert not Geometry(x[::2], 0).dense
    assert Geometry(x[:6].view(2, 3).t(), 0).dense
    assert Geometry(x[:8].view(2, 2, 2).permute(2, 0, 1), 0).dense
    assert Geometry(x[:6].view(2, 3)[:, None].transpose(0, 2), 0).dense


def test_a_hole_in_an_overlapping_value_is_not_known_through_it(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.arange(10.0) + 1
        x.numpy  # noqa: B018
        odd = x.as_strided((2, 2), (3, 0))
        with unseen():
            x.add_(1)
        odd.sin()
        x[1:3].cos()

    assert "via" not in capture(tmp_path, program).one("cos").inputs["self"]


# Storages that are handed on


def test_memory_given_to_a_parameter_stays_void(tmp_path: Path) -> None:
    def program(value: float) -> None:
        p = torch.nn.Parameter(torch.ones(64))
        with torch.no_grad():
            p.add_(1)
        litter(value)
        p.data = torch.empty(64)
        p.detach().clone()

    assert verdict(tmp_path, lambda: program(1.0), lambda: program(99.0)).verdict == "identical"
    assert read(tmp_path / "b")[0].events[-1].inputs["self"]["void"]


def test_converting_a_model_keeps_who_wrote_its_parameters(tmp_path: Path) -> None:
    def program() -> None:
        model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.mul_(2)
        model.double()(torch.ones(1, 2, dtype=torch.float64))

    captured = capture(tmp_path, program)
    weight, bias = (event.seq for event in captured.all("_to_copy"))
    inputs = captured.one("addmm").inputs
    assert inputs["mat2"]["producers"] == [[weight, "0"]]
    assert inputs["self"]["producers"] == [[bias, "0"]]
    assert captured.coverage["foreign_values"] == 0


def test_a_foreign_write_after_a_conversion_is_still_seen(tmp_path: Path) -> None:
    def program() -> None:
        p = torch.nn.Parameter(torch.ones(3))
        with torch.no_grad():
            p.add_(1)
        p.data = torch.full((3,), 2.0)
        p.sin()
        with unseen(), torch.no_grad():
            p.add_(1)
        p.cos()

    captured = capture(tmp_path, program)
    assert captured.one("sin").inputs["self"]["producers"]
    record = captured.one("cos").inputs["self"]
    assert record["producers"] == []
    assert record["mix64"] == mix(torch.full((3,), 3.0))


def test_memory_made_for_meta_tensors_is_void(tmp_path: Path) -> None:
    def program(value: float) -> None:
        with torch.device("meta"):
            layer = torch.nn.Linear(8, 8)
            layer.register_buffer("mask", torch.empty(64))
        litter(value)
        layer.to_empty(device="cpu")
        with torch.no_grad():
            layer.weight.fill_(1)
            layer.bias.zero_()
        layer(torch.ones(1, 8))
        opguard.watch("mask", layer.mask)

    assert verdict(tmp_path, lambda: program(1.0), lambda: program(99.0)).verdict == "identical"
    captured = read(tmp_path / "a")[0]
    made = captured.all("empty_like")
    assert [event.outputs["0"]["shape"] for event in made] == [[8, 8], [8], [64]]
    assert all(event.inputs == {} and event.outputs["0"]["void"] for event in made)


def test_calls_on_meta_tensors_alone_make_no_event(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3, device="meta")
        (x + torch.ones((), device="meta")).mul_(2).sum()
        with pytest.raises(NotImplementedError):
            x.cpu()
        torch.vmap(torch.sin)(torch.ones(2, 3))

    assert capture(tmp_path, program).names == ["ones", "sin"]


# Many, odd, interrupted


def test_subclasses_of_numbers_have_the_bits_of_the_number() -> None:
    class Count(int):
        pass

    rows = Rows(StagePool())
    numbers = Reader(Interner(), rows, "trusted")
    for value, dtype, same in [
        (np.float64(0.5), "python_float", 0.5),
        (Count(3), "python_int", 3),
        (True, "python_bool", True),
        (np.complex128(1j), "python_complex", 1j),
    ]:
        row, plain = numbers.number(0, value), numbers.number(0, same)
        rows._stage.resolve()
        assert row[:3] == (0, DTYPES.index(dtype), OUTPUT)
        assert row[5] is not None
        assert plain[5] is not None
        assert row[5].small == plain[5].small


@pytest.mark.mechanism("dispatch", reason="the limit is lowered in Python")
def test_long_lists_share_slots_and_are_compared_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_ELEMENTS", 3)
    tensors = [torch.tensor(float(i)) for i in range(6)]

    def program(changed: int) -> Callable[[], Any]:
        return lambda: torch.stack([x + (i == changed) for i, x in enumerate(tensors)])

    assert verdict(tmp_path / "1", program(9), program(9)).verdict == "identical"
    stack = read(tmp_path / "1" / "a")[0].events[-1]
    assert list(stack.inputs) == ["tensors[0]", "tensors[1]", "tensors[2]", "tensors[…]"]
    other = lambda: torch.stack([*tensors[:4], tensors[5], tensors[4]])  # noqa: E731
    one = lambda: torch.stack(tensors)  # noqa: E731
    assert verdict(tmp_path / "2", one, other).verdict == "diverged"


def test_more_tensors_than_slots_can_name(tmp_path: Path) -> None:
    tensors = [torch.zeros(())] * 70_000
    captured = capture(tmp_path, lambda: torch.stack(tensors))
    assert captured.one("stack").outputs["0"]["shape"] == [70_000]
    assert len(captured.one("stack").inputs) == reader.MOST_ELEMENTS + 1


@pytest.mark.mechanism("dispatch", reason="no Python runs in the recorder")
@pytest.mark.parametrize("name", ["before", "output", "extend"])
def test_links_stay_right_when_a_signal_handler_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Out of the middle of an event, wherever that is."""
    owner = {"before": Recorder, "output": Reader, "extend": Recorder}[name]
    method = "boundary" if name == "extend" else name
    original = getattr(owner, method)
    interrupted = []

    def interrupt(self: Any, *args: Any, **options: Any) -> Any:
        result = original(self, *args, **options)
        if len(interrupted) == 2:
            interrupted.append(True)
            raise KeyboardInterrupt
        interrupted.append(False)
        return result

    monkeypatch.setattr(owner, method, interrupt)

    def program() -> None:
        x = torch.ones(8)
        done = 0
        while done < 5:
            try:
                x = (x + 1) * 0.3
                done += 1
            except KeyboardInterrupt:
                x.sin()

    captured = capture(tmp_path, program)
    assert interrupted.count(True) == 1
    links = 0
    for event in captured.events:
        for record in event.inputs.values():
            for seq, slot in record["producers"]:
                links += 1
                assert captured.events[seq].outputs[slot]["mix64"] == record["mix64"]
    assert links > 5


def test_a_tensor_read_in_one_pass_of_final_state_is_read_again_in_the_next() -> None:
    interner = Interner()
    slot = interner.intern("slot", "0")
    state = Reader(interner, Rows(StagePool()), "trusted")
    x = torch.ones(3)
    state.begin_pass()
    assert len(state.state_records(slot, x)) == 1
    assert state.state_records(slot, x.view(3)) == []
    state.begin_pass()
    assert len(state.state_records(slot, x)) == 1


# Collectives


def test_reading_the_input_of_a_collective_does_not_end_it(tmp_path: Path) -> None:
    source = """
        import tempfile, torch, torch.distributed as dist
        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        x, out = torch.ones(4), [torch.empty(4)]
        work = dist.all_gather(out, x, async_op=True)
        x.sum()
        work.wait()
        out[0].sin()
        work = dist.all_reduce(x, async_op=True)
        x.cos()
        work.wait()
        dist.destroy_process_group()
    """
    run_source(tmp_path, source)
    captured = read(tmp_path / "run")[0]
    names = captured.names
    assert names.index("sum") < names.index("allgather_") < names.index("sin")
    gathered = captured.one("allgather_").outputs["output_tensors[0][0]!"]
    assert gathered["mix64"] == mix(torch.ones(4))
    assert captured.one("sin").inputs["self"]["producers"]
    assert names.index("allreduce_") < names.index("cos")
