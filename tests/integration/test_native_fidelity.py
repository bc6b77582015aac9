"""Under the recorder a program behaves and computes exactly as without capture."""

from __future__ import annotations

import mmap
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import captured
import fidelity_programs as programs
import opguard
from captured import Captured, capture
from fidelity_programs import Program, behaviour
from native_support import OLDEST, needs_native
from opguard.capture.session import CaptureSession

pytestmark = needs_native


@pytest.fixture(autouse=True)
def only_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MECHANISM", "native")


def same(folder: Path, program: Program) -> tuple[Captured, tuple[Any, ...]]:
    """Its events and its behaviour, which is that without capture."""
    behaviour(program)  # what is imported, compiled or warned of only once
    plain = behaviour(program)()
    seen: list[Callable[[], tuple[Any, ...]]] = []
    events = capture(folder, lambda: seen.append(behaviour(program)))
    assert seen[0]() == plain
    assert not events.coverage["lost_events"]
    return events, plain


COMPILERS: dict[str, tuple[Program, str]] = {
    "cond": (programs.conditional, ""),
    "while_loop": (
        programs.loop,
        "ones lt _local_scalar_dense _local_scalar_dense" + 3 * " add sin lt _local_scalar_dense",
    ),
    "flex_attention": (programs.attention, ""),
    "eager": (lambda: programs.compiled("eager"), ""),
    "aot_eager": (lambda: programs.compiled("aot_eager"), ""),
    "export": (programs.exported, "empty empty uniform_ uniform_ ones ones addmm"),
    "trace": (programs.traced, ""),
    "script": (programs.scripted, ""),
    "scripted module": (programs.scripted_module, ""),
    "functorch": (programs.functorch, ""),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_compilers_and_transforms(tmp_path: Path, name: str) -> None:
    program, names = COMPILERS[name]
    events, (_, error, *_) = same(tmp_path, program)
    assert not error or (OLDEST and name in ("cond", "flex_attention"))
    assert not events.coverage["opaque_calls"]
    assert not names or OLDEST or events.names == names.split()


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def compiled_in_place() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(Doubled(3, 3))
    model.compile(backend="eager")
    y = model(torch.ones(2, 3))
    return y, *(dict(torch._dynamo.utils.counters[name]) for name in ("stats", "frames"))


def test_the_compiler_does_not_compile_what_is_ours(tmp_path: Path) -> None:
    events, (_, error, *_) = same(tmp_path, compiled_in_place)
    assert not error
    assert events.one("addmm").module == "Sequential.0"


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_compiles_while_captured(tmp_path: Path) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_inductor_cache

    seen: list[Callable[[], tuple[Any, ...]]] = []
    # A new cache, so that the captured run does compile; in this process, where no threads stay.
    with fresh_inductor_cache(), config.patch(compile_threads=1):
        events = capture(
            tmp_path, lambda: seen.append(behaviour(lambda: programs.compiled("inductor")))
        )
        plain = behaviour(lambda: programs.compiled("inductor"))()
    assert seen[0]()[:2] == plain[:2]
    assert not plain[1]
    graphs = events.all("inductor")
    assert [event.phase for event in graphs] == ["other", "backward"] * 2


# Autograd


DROPOUT = "empty_like bernoulli_ div_ mul"
IS_NAN = "isnan _is_any_true _local_scalar_dense"
AUTOGRAD: dict[str, tuple[Program, str, str]] = {
    "checkpoint": (
        programs.checkpointed,
        "",
        f"randn sin {DROPOUT} sum ones_like sin {DROPOUT} mul cos mul "
        f"sin {DROPOUT} sum ones_like sin {DROPOUT} mul cos mul add_",
    ),
    # What the hooks compute while an operator saves its tensors is nested in that operator.
    "saved hooks": (
        programs.saved_through_hooks,
        "",
        "randn exp mul sum ones_like div div mul mul div mul add_",
    ),
    "double backward": (
        programs.double_backward,
        "",
        "randn pow sin sum ones_like cos mul pow mul mul sum ones_like "
        "mul mul mul pow mul mul mul sin neg mul pow mul mul add_",
    ),
    "leaf in place": (programs.leaf_in_place, "a leaf Variable that requires grad", "randn add_"),
    "overwritten": (
        programs.saved_and_overwritten,
        "is at version 1; expected version 0",
        "randn sigmoid mul_ sum ones_like mul",
    ),
    "freed graph": (
        programs.graph_already_freed,
        "backward through the graph a second time",
        "randn exp sum ones_like mul ones_like",
    ),
    "views": (
        programs.view_of_several,
        "is a view and is being modified inplace",
        "randn exp add_",
    ),
    "deterministic": (
        programs.nondeterministic,
        "does not have a deterministic implementation",
        "empty ones put_",
    ),
    "anomaly": (
        programs.anomaly,
        "returned nan values",
        f"zeros sqrt mul sum ones_like {IS_NAN} mul {IS_NAN} mul div {IS_NAN}",
    ),
    "inference": (programs.inference, "", "ones ones mm add_ clone randn mul"),
    "autocast": (
        programs.autocast,
        "",
        "randn randn _to_copy _to_copy mm _softmax mm _to_copy sum ones_like _to_copy "
        "mm mm _softmax_backward_data mm mm add_ _to_copy _to_copy",
    ),
}


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(tmp_path: Path, name: str) -> None:
    program, message, names = AUTOGRAD[name]
    events, (_, error, *_) = same(tmp_path, program)
    assert message in error if message else not error
    if name == "checkpoint" and hasattr(torch.utils.checkpoint, "_NoopSaveInputs"):
        names = names.replace("randn", "randn empty empty")  # it saves them with the inputs
    assert events.names == names.split()


# Custom operators


def test_custom_operators_are_one_event_each(tmp_path: Path) -> None:
    events, (_, error, *_) = same(tmp_path, programs.custom_operators)
    assert not error
    assert events.names == [
        "randn", "scaled", "sum", "ones_like", "scaled",
        "zeros", "ones", "bump_", "zeros", "ones", "bump_",
    ]  # fmt: skip
    assert [list(event.outputs) for event in events.all("bump_")] == [["x!"], []]
    assert [event.raised for event in events.all("bump_")] == [False, True]


# References and memory


def test_gradients_are_taken_over_and_added_up_in_place(tmp_path: Path) -> None:
    events, (value, *_) = same(tmp_path, programs.gradient_buffers)
    assert value[:3] == [True, False, True]
    assert len(events.all("add_")) == 3  # where both gradients meet, twice, and in the second grad


outlived = pytest.mark.skipif(
    OLDEST,
    reason="in torch 2.4 a weak reference to a storage keeps its Python object, not its bytes",
)


@outlived
def test_tensors_die_where_they_do_without_capture(tmp_path: Path) -> None:
    _, (value, error, *_) = same(tmp_path, programs.lifetimes)
    assert not error
    diary = value[0]
    assert diary[:3] == ["x dies", "storage of x dies", "after sin"]
    assert diary[-1] == "end"


@outlived
def test_a_compiled_graph_frees_its_inputs_while_it_runs(tmp_path: Path) -> None:
    seen: list[bool] = []

    def program() -> None:
        inputs: list[torch.Tensor] = [torch.ones(3)]
        storage = weakref.ref(inputs[0].untyped_storage())
        tensor = weakref.ref(inputs[0])

        def graph() -> list[torch.Tensor]:
            inputs.clear()
            seen.append(tensor() is None and storage() is None)
            return [torch.zeros(3)]

        session = CaptureSession.active()
        assert session is not None
        session._mechanism._graph_call(graph, inputs)

    events = capture(tmp_path, program)
    assert seen == [True]
    assert events.names == ["ones", "inductor"]
    assert list(events.one("inductor").inputs) == ["args[1]"]


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def chain() -> int:
    """Two of its tensors live at a time; the most memory it held."""
    y, most = torch.ones(1 << 18), 0
    for _ in range(300):
        y = y.sin().add_(1)
        most = max(most, resident())
    return most


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_temporaries_take_no_more_memory(tmp_path: Path) -> None:
    """A struct that is kept alive within freed memory would keep malloc from using it again.

    In a process of its own: what others left in the heap decides where the next tensor goes.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        plain, most = pool.submit(chains, tmp_path).result()
    assert most < plain + (64 << 20)


def chains(folder: Path) -> tuple[int, int]:
    """The most memory without and under capture."""
    most: list[int] = []
    for name in ("imports", "measured"):
        plain = chain()
        with opguard.capture(folder / name, mechanism="native"):
            most.append(chain())
    return plain, most[-1]


def test_reading_changes_no_tensor(tmp_path: Path) -> None:
    _, (value, error, *_) = same(tmp_path, programs.lazy_storages)
    assert not error
    assert value[0] == [True, True]


def test_copies_and_files(tmp_path: Path) -> None:
    events, (_, error, *_) = same(tmp_path, programs.stored_copies)
    assert not error
    assert events.names.count("clone") == 3  # copied: views of one storage, weight and bias


# Others that observe


@pytest.mark.parametrize(
    "program", [programs.training_step, programs.observed_by_a_mode, programs.profiled]
)
def test_training_runs_the_same_operators(tmp_path: Path, program: Program) -> None:
    _, (_, error, *_) = same(tmp_path, program)
    assert not error
