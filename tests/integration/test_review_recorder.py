"""What a review of the recorder found wrong, under each mechanism."""

from __future__ import annotations

import contextlib
import ctypes
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import captured
import opguard
from captured import capture, read, run_source
from opguard.capture import choice
from opguard.capture import native as native_mechanism
from opguard.capture.dispatch import Dispatch
from opguard.capture.native import Native
from opguard.capture.session import CaptureSession
from opguard.fingerprint import spec
from opguard.settings import CaptureSettings
from parity_compiled import PROGRAMS as COMPILED


def hex_of(tensor: torch.Tensor) -> str:
    """A small tensor's fingerprint, by the reference."""
    return f"{spec.mix64(tensor.contiguous().view(-1).view(torch.uint8).numpy()):016x}"


@pytest.mark.filterwarnings("ignore:.*(quantize|nested tensors)")
def test_parts_that_are_made_and_freed_are_no_inputs_of_what_comes_next(tmp_path: Path) -> None:
    """The output is given the memory of an input's part: it is no view of it."""
    plain = torch.linspace(-1, 1, 64)
    quantized = torch.quantize_per_tensor(plain, 0.1, 10, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)])

    def program() -> None:
        for _ in range(100):
            quantized.int_repr()
            nested.to_padded_tensor(0.0)
            torch.quantize_per_tensor(plain, 0.1, 10, torch.qint8).dequantize()

    rank = capture(tmp_path / "run", program)
    counts = {name: rank.names.count(name) for name in set(rank.names)}
    assert counts.items() >= {"int_repr": 100, "dequantize": 100}.items()
    assert counts["to_padded_tensor"] == 100
    expected = hex_of(quantized.int_repr())
    assert {e.outputs["0"]["mix64"] for e in rank.all("int_repr")} == {expected}


@pytest.mark.mechanism("native", reason="dispatch is given graphs by torch alone")
def test_a_graph_that_raises_may_have_written_its_inputs(tmp_path: Path) -> None:
    x = torch.ones(3)

    def graph() -> None:
        ctypes.memset(x.data_ptr(), 0, x.nbytes)  # no version counter moves
        raise ValueError

    with opguard.capture(tmp_path / "run", mechanism="native"):
        x.sin()
        session = CaptureSession.active()
        assert session is not None
        mechanism = session._mechanism
        assert isinstance(mechanism, Native)
        with contextlib.suppress(ValueError):
            mechanism._graph_call(graph, [x])
        x.cos()
    (rank,) = read(tmp_path / "run")
    assert rank.one("inductor").raised
    assert rank.one("sin").inputs["self"]["mix64"] == hex_of(torch.ones(3))
    assert rank.one("cos").inputs["self"]["mix64"] == hex_of(torch.zeros(3))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
def test_compiled_graphs_communicate_nothing(tmp_path: Path) -> None:
    rank = capture(tmp_path / "run", COMPILED["training"], mode="collectives")
    assert rank.events == []


def test_the_limit_of_events_holds_at_a_compiled_graph(tmp_path: Path) -> None:
    source = """
        import torch
        @torch.compile
        def f(x):
            return (x.sin() + 1).cos()
        x = torch.ones(3)
        f(x)
        x.exp()
        f(x)
        print("not reached")
    """
    done = run_source(tmp_path, source, flags=("--stop-after", "3events"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (rank,) = read(tmp_path / "run")
    assert rank.names == ["ones", "inductor", "exp"]
    assert rank.header["close"]["stopped"]


def test_operators_of_others_may_be_called_anything(tmp_path: Path) -> None:
    with torch.library._scoped_library("opguard_review", "FRAGMENT") as library:
        library.define("sym_size(Tensor x) -> Tensor")
        library.impl("sym_size", lambda x: x * 2, "CPU")
        x = torch.ones(3)
        rank = capture(tmp_path / "run", lambda: torch.ops.opguard_review.sym_size(x))
    assert rank.names == ["sym_size"]
    assert rank.events[0].outputs["0"]["mix64"] == hex_of(torch.full((3,), 2.0))


def test_several_views_are_no_events(tmp_path: Path) -> None:
    x = torch.arange(12.0).view(3, 4)

    def program() -> None:
        x.split(1)
        x.unbind(1)
        x.chunk(2)
        torch.unbind(torch.empty(0, 3))
        x.sum()

    assert capture(tmp_path / "run", program).names == ["empty", "unbind", "sum"]


@pytest.mark.mechanism("native", reason="dispatch takes half a minute")
def test_ever_other_arguments_and_places(tmp_path: Path) -> None:
    """More than what is remembered: the answers stay the same."""
    x = torch.arange(200_000.0)

    def program() -> None:
        x.sum()
        for place in range(0, 140_000, 2):
            torch.add(x[place : place + 2], place)

    with opguard.capture(tmp_path / "a", mechanism="native"):
        program()
    rank = capture(tmp_path / "b", program)
    adds = rank.all("add")
    assert len(adds) == 70_000
    for place in (0, 1, 69_000, 69_999):
        event, values = adds[place], x[2 * place : 2 * place + 2]
        assert event.arguments.startswith(f"other={2 * place}")
        assert event.outputs["0"]["mix64"] == hex_of(values + 2 * place)
    assert opguard.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"


def test_a_cache_that_is_written_step_by_step(tmp_path: Path) -> None:
    steps = 2500

    def program() -> None:
        cache = torch.zeros(2, steps)
        for step in range(steps):
            cache[:, step] = 1.0
            if step % 100 == 99 or step == steps - 1:
                cache.sum()
                cache[:, : step + 1].sum()

    for name in ("a", "b"):
        rank = capture(tmp_path / name, program)
    last = rank.all("sum")[-2:]
    assert all(512 < len(event.inputs["self"]["producers"]) <= 1024 for event in last)
    assert last[0].inputs["self"]["mix64"] == hex_of(torch.ones(2, steps))
    newest = rank.all("fill_")[-1] if "fill_" in rank.names else rank.all("copy_")[-1]
    assert last[0].inputs["self"]["producers"][0][0] == newest.seq
    assert opguard.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"


# Which mechanism


@pytest.fixture
def settings(tmp_path: Path) -> CaptureSettings:
    return CaptureSettings(output=tmp_path / "run")


def chosen(settings: CaptureSettings) -> tuple[str, list[str]]:
    notes: list[str] = []
    session = CaptureSession(settings, ["x"], notes.append)
    return type(session._mechanism).__name__, notes


@pytest.mark.mechanism("native", reason="it is about the choice")
@pytest.mark.parametrize("visible", [None, "", "-1", "0"])
def test_auto_does_not_start_the_gpu_runtime(
    settings: CaptureSettings, visible: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def starts() -> bool:
        raise AssertionError("the runtime was started")

    monkeypatch.setattr(torch.cuda, "is_available", starts)
    monkeypatch.setattr(torch.cuda, "device_count", starts)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(choice, "_noted", set())
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(choice, "_DRIVERS", (str(tmp_path / "none"), str(tmp_path / "nvidiactl")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    name, notes = chosen(settings)
    if visible in ("", "-1"):
        assert (name, notes) == (Native.__name__, [])
    else:
        assert name == Dispatch.__name__
        assert "may use a GPU" in notes[0]
        assert len(notes) == 1
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert chosen(settings) == (Native.__name__, [])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
@pytest.mark.parametrize("inference", [False, True])
def test_what_a_compiled_graph_fills_is_void_no_more(tmp_path: Path, inference: bool) -> None:
    """Under inference mode no version counter tells that the graph wrote."""
    torch._dynamo.reset()

    @torch.compile
    def fill(buffer: torch.Tensor, x: torch.Tensor, factor: float) -> None:
        buffer.copy_(x * factor)

    def program(factor: float) -> None:
        with torch.inference_mode(inference):
            buffer = torch.empty(8)
            fill(buffer, torch.arange(8.0), factor)
            opguard.watch("buffer", buffer)
            buffer.sum()

    for name, factor in (("same", 1.5), ("other", 2.5)):
        with opguard.capture(tmp_path / name, mechanism=captured.MECHANISM):
            program(factor)
    rank = capture(tmp_path / "run", lambda: program(1.5))
    read_after = rank.one("sum").inputs["self"]
    assert read_after["mix64"] == hex_of(torch.arange(8.0) * 1.5)
    assert opguard.compare(tmp_path / "same", tmp_path / "run").verdict == "identical"
    # Not "diverged": what the graph wrote is no output of its event.
    assert opguard.compare(tmp_path / "other", tmp_path / "run").verdict == "inconclusive"


def test_symbolic_sizes_are_not_asked(tmp_path: Path) -> None:
    """To ask one takes the interpreter lock and puts a guard on it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def program() -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return torch.empty(x.shape[0] * 2) + 0

        graphs.append(make_fx(f, tracing_mode="symbolic")(torch.ones(5)).code)

    graphs: list[str] = []
    program()
    capture(tmp_path / "run", program)
    assert graphs[0] == graphs[1]
    assert "[10]" not in graphs[1]


class Late:
    """The recorder, on a machine on which the thread that carries rows is held up for long after it
    was told that there are none."""

    def __init__(self, mechanism: Native) -> None:
        self._recorder, self._mechanism = mechanism._recorder, mechanism

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def take(self, seconds: float) -> Any:
        block = self._recorder.take(seconds)
        until = time.monotonic() + 5
        if block is None and self._mechanism._is_open:
            while not self.rows_closed and time.monotonic() < until:
                time.sleep(0.01)
        return block


@pytest.mark.mechanism("native", reason="dispatch has no such thread")
def test_a_thread_that_carries_rows_late_carries_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(mechanism: Native) -> None:
        mechanism._recorder = Late(mechanism)
        real_start(mechanism)

    def program() -> None:
        torch.ones(3)
        time.sleep(0.3)
        torch.ones(3)

    real_start = Native.start
    monkeypatch.setattr(Native, "start", start)
    monkeypatch.setattr(native_mechanism, "IDLE_SECONDS", 0.05)
    assert capture(tmp_path / "run", program).names == ["ones", "ones"]
