"""DESIGN section 3: module path, phase, step, call site and the final state."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import opguard
from captured import Captured, capture
from opguard.fingerprint.tensor import fingerprint


def mix(tensor: torch.Tensor) -> str:
    return f"{fingerprint(tensor).mix64:016x}"


class Block(nn.Module):
    """A linear layer, checkpointed or not."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "plain":
            return torch.tanh(self.inner(x))
        return checkpoint(self.body, x, use_reentrant=self.how == "reentrant")

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


class Net(nn.Module):
    """Two blocks."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(how), Block(how)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def train(model: nn.Module, steps: int = 1, **options: object) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
        optimizer.step()
    return optimizer


def places(captured: Captured, name: str) -> list[tuple[str, str]]:
    return [(event.phase, event.module) for event in captured.all(name)]


def test_paths_and_phases_of_a_training_step(tmp_path: Path) -> None:
    model = Net()
    captured = capture(tmp_path, lambda: train(model))
    assert places(captured, "addmm") == [
        ("forward", "Net.blocks.0.inner"), ("forward", "Net.blocks.1.inner"),
    ]  # fmt: skip
    assert places(captured, "tanh_backward") == [
        ("backward", "Net.blocks.1"), ("backward", "Net.blocks.0"),
    ]  # fmt: skip
    assert ("backward", "Net.blocks.1.inner") in places(captured, "mm")
    assert {event.phase for event in captured.all("addcdiv_")} == {"optimizer"}
    assert captured.all("sum")[0].phase == "other"


def test_backward_events_have_the_line_of_their_forward_call(tmp_path: Path) -> None:
    captured = capture(tmp_path, lambda: train(Net()))
    lines, first = inspect.getsourcelines(Block.forward)
    line = first + next(i for i, text in enumerate(lines) if "tanh" in text)
    assert {event.line for event in captured.all("tanh_backward")} == {line}


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant"])
def test_recomputation_is_a_phase_of_its_own(tmp_path: Path, how: str) -> None:
    captured = capture(tmp_path, lambda: train(Net(how)))
    assert places(captured, "addmm") == [
        ("forward", "Net.blocks.0.inner"), ("forward", "Net.blocks.1.inner"),
        ("recompute", "Linear"), ("recompute", "Linear"),
    ]  # fmt: skip
    assert [event.phase for event in captured.all("tanh_backward")] == ["backward"] * 2


def test_a_checkpointed_function_is_recomputed_too(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)

    def program() -> None:
        for reentrant in (True, False):
            checkpoint(lambda v: v.sin().cos(), x, use_reentrant=reentrant).sum().backward()

    captured = capture(tmp_path, program)
    phases = [event.phase for event in captured.all("sin")]
    # The backward of cos calls sin, too.
    assert phases.count("recompute") == 2
    assert phases.count("other") == 2


def test_gradient_accumulation_has_the_parameters_name(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)

    def program() -> None:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()

    captured = capture(tmp_path, program)
    assert {event.module for event in captured.all("add_")} == {"Linear.weight", "Linear.bias"}


def test_wrappers_are_left_out_of_paths(tmp_path: Path) -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager", disable=True)
    captured = capture(tmp_path, lambda: compiled(torch.ones(2, 3)))
    assert [module for _, module in places(captured, "addmm")] == [
        "Net.blocks.0.inner", "Net.blocks.1.inner",
    ]  # fmt: skip


def test_an_exception_leaves_the_module_stack_clean(tmp_path: Path) -> None:
    model = Net()

    def program() -> None:
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 4))
        torch.ones(1).sin()

    event = capture(tmp_path, program).one("sin")
    assert (event.phase, event.module) == ("other", "")


def test_an_exception_in_a_step_does_not_stop_the_count(tmp_path: Path) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def program() -> None:
        def broken() -> float:
            raise ValueError("stop")

        with pytest.raises(ValueError, match="stop"):
            optimizer.step(broken)
        torch.ones(1).cos()
        optimizer.step()
        torch.ones(1).sin()

    captured = capture(tmp_path, program)
    assert captured.one("cos").phase == "other"
    assert captured.one("sin").step == 1


def test_steps_are_counted_by_the_first_optimizer(tmp_path: Path) -> None:
    def program() -> None:
        first, second = (torch.optim.SGD([torch.ones(1)], lr=0.1) for _ in range(2))
        for _ in range(2):
            first.step()
            second.step()
            torch.ones(1).sin()

    assert [event.step for event in capture(tmp_path, program).all("sin")] == [1, 2]


def test_the_program_may_count_its_steps_itself(tmp_path: Path) -> None:
    def program() -> None:
        optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        for i in (5, 6):
            opguard.step(i)
            optimizer.step()
            torch.ones(1).sin()

    assert [event.step for event in capture(tmp_path, program).all("sin")] == [5, 6]


def test_selected_steps_only(tmp_path: Path) -> None:
    x = torch.ones(1)

    def program() -> None:
        y = x + 0
        for i in range(4):
            opguard.step(i)
            y = y + 1

    captured = capture(tmp_path, program, steps=(1, 3))
    assert [event.step for event in captured.events] == [1, 2]
    # What happened before is not known: the first input is a source.
    assert [bool(e.inputs["self"]["producers"]) for e in captured.events] == [False, True]


@pytest.mark.parametrize("how", ["for-loop", "foreach", "fused"])
def test_each_kind_of_optimizer(tmp_path: Path, how: str) -> None:
    model = Net()
    options = {} if how == "for-loop" else {how: True}
    captured = capture(tmp_path, lambda: train(model, 2, **options))
    written = [e for e in captured.events if e.phase == "optimizer" and e.step == 1]
    slot = {"for-loop": "self!", "foreach": "self[0]!", "fused": "self[0]!"}[how]
    name = {"for-loop": "addcdiv_", "foreach": "_foreach_addcdiv_", "fused": "_fused_adam_"}[how]
    last = [event for event in written if event.name == name]
    weight = model.blocks[0].inner.weight
    assert last[0].outputs[slot]["mix64"] == mix(weight)


def test_the_final_state_is_read_though_the_program_let_go(tmp_path: Path) -> None:
    kept = {}

    def program() -> None:
        model = Net()
        optimizer = train(model, 2)
        weight = model.blocks[0].inner.weight
        kept["weight"], kept["grad"] = weight.detach().clone(), weight.grad.clone()
        kept["exp_avg"] = optimizer.state[weight]["exp_avg"].clone()

    captured = capture(tmp_path, program)
    state = {event.module: event.outputs for event in captured.state}
    name = "Net.blocks.0.inner.weight"
    assert state[name]["0"]["mix64"] == mix(kept["weight"])
    assert state[f"{name}.grad"]["0"]["mix64"] == mix(kept["grad"])
    assert state[f"Adam.{name}.exp_avg"]["0"]["mix64"] == mix(kept["exp_avg"])
    assert {"rng.torch.cpu", "rng.python", "rng.numpy"} <= set(state)
    seq, slot = state[name]["0"]["producers"][0]
    writer = next(event for event in captured.events if event.seq == seq)
    assert (writer.name, slot) == ("addcdiv_", "self!")


def test_each_tensor_is_in_the_final_state_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    model = Tied()
    captured = capture(tmp_path, lambda: (model(torch.ones(1, 2)), model.first(torch.ones(1, 2))))
    names = [event.module for event in captured.state if not event.module.startswith("rng")]
    assert names == ["Tied.first.weight", "Tied.first.bias", "Tied.second.bias"]


def test_a_model_that_is_dropped_midway_is_fingerprinted_and_let_go(tmp_path: Path) -> None:
    import weakref

    gone = []

    def program() -> None:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2))
        gone.append(weakref.ref(model))
        del model
        optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        for _ in range(4):
            optimizer.step()
        assert gone[0]() is None

    captured = capture(tmp_path, program)
    assert "Linear.weight" in [event.module for event in captured.state]


def test_watched_tensors_are_in_the_final_state(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.zeros(2)
        opguard.watch("mine", x)
        x.add_(3)

    state = {event.module: event for event in capture(tmp_path, program).state}
    assert state["mine"].outputs["0"]["mix64"] == mix(torch.full((2,), 3.0))


def test_the_final_state_of_a_raw_write_is_what_is_there(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)

    def program() -> None:
        model(torch.ones(1, 2))
        model.weight.detach().numpy()[:] = 7

    state = {event.module: event for event in capture(tmp_path, program).state}
    assert state["Linear.weight"].outputs["0"]["mix64"] == mix(torch.full((1, 2), 7.0))


def test_a_nested_capture_is_refused(tmp_path: Path) -> None:
    with opguard.capture(tmp_path / "outer"):
        with pytest.raises(opguard_error(), match="already open"), opguard.capture(tmp_path / "in"):
            pass
        torch.ones(1).sin()
    assert not (tmp_path / "in").exists()


def opguard_error() -> type[Exception]:
    from opguard.errors import UsageError

    return UsageError


def test_models_of_a_program_without_steps_are_let_go(tmp_path: Path) -> None:
    import gc
    import weakref

    alive: list[weakref.ref[nn.Module]] = []

    def program() -> None:
        for _ in range(600):
            model = nn.Linear(1, 1)
            model(torch.ones(1, 1))
            alive.append(weakref.ref(model))
        gc.collect()
        assert sum(model() is not None for model in alive) <= 300

    captured = capture(tmp_path, program)
    assert sum(event.module == "Linear.weight" for event in captured.state) == 600


@pytest.mark.mechanism("dispatch", reason="calls the mode itself")
def test_a_thread_without_python_frames(tmp_path: Path) -> None:
    """Autograd's device threads call operators straight from C++."""
    import _thread
    import threading

    from opguard.capture.dispatch import Dispatch
    from opguard.capture.session import CaptureSession

    def program() -> None:
        session = CaptureSession.active()
        assert session is not None
        mechanism, done = session._mechanism, threading.Event()
        assert isinstance(mechanism, Dispatch)
        mode = mechanism._main_mode
        assert mode is not None
        operator = torch.ops.aten.full.default
        _thread.start_new_thread(mode.__torch_dispatch__, (operator, (), ([3], 2.0)))
        while mechanism.recorder.events == 0:
            done.wait(0.01)

    event = capture(tmp_path, program).one("full")
    assert event.line is None
    assert event.outputs["0"]["mix64"] == mix(torch.full((3,), 2.0))
