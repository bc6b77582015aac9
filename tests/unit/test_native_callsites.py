"""Python stacks: the C++ walk gives the strings and phases of the Python one."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from callsite_twins import (
    CHECKPOINT,
    PACKAGE,
    WAYS,
    Both,
    Frames,
    by_a_key,
    by_exec,
    descend,
    plainly,
    run_in,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from native_support import needs_native
from opguard.capture.callsite import MOST_FRAMES
from opguard.fingerprint import native
from opguard.model import NONE_ID

pytestmark = needs_native


@pytest.fixture
def both() -> Both:
    return Both()


def names(frames: Frames, count: int) -> list[str]:
    """Last parts of the innermost functions' names: all that Python 3.10 has."""
    return [frame[2].rsplit(".", 1)[-1] for frame in frames[:count]]


@given(st.lists(st.sampled_from(sorted(WAYS)), max_size=30))
def test_any_way_to_be_called(ways: list[str]) -> None:
    both = Both()
    call: Callable[[], Any] = both
    for way in ways:
        call = functools.partial(WAYS[way], call)
    assert call() is not None
    assert call() is not None  # once more from what is known


def test_frames_have_file_line_and_function(both: Both) -> None:
    frames = WAYS["exec"](both)
    assert names(frames, 3) == ["made", "<module>", "by_exec"]
    assert [frame[:2] for frame in frames[:2]] == [["<string>", 3], ["<string>", 4]]
    assert frames[2][0].endswith("callsite_twins.py")
    assert frames[2][1] > by_exec.__code__.co_firstlineno


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified name")
def test_names_are_qualified(both: Both) -> None:
    assert WAYS["property"](both)[0][2] == "Descriptor.value"


def test_a_statement_over_several_lines(both: Both) -> None:
    line = sys._getframe().f_lineno + 1
    first = both()
    second = [
        both(),
    ][0]
    assert (first[0][1], second[0][1]) == (line, line + 2)


@pytest.mark.parametrize("depth", [0, 10, 22, 23, 24, 60])
def test_no_more_than_24_frames(both: Both, depth: int) -> None:
    frames = descend(depth, both)
    assert len(frames) <= MOST_FRAMES - 1
    assert names(frames, min(depth + 1, MOST_FRAMES - 1)) == ["descend"] * min(depth + 1, 23)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (f"{PACKAGE}/capture/own.py", None),
        (f"{PACKAGE}_like/own.py", None),  # the Python walk looks at the beginning alone
        (f"{Path.home()}/program.py", "~/program.py"),
        (f"{Path.home()}x/program.py", f"{Path.home()}x/program.py"),
        (os.fsdecode(b"/caf\xe9/\xff.py"), "/caf\udce9/\udcff.py"),
        ("/ünï/\U0001f600.py", "/ünï/\U0001f600.py"),
        ('/a"b\\c\n.py', '/a"b\\c\n.py'),
        ("", ""),
    ],
)
def test_file_names(both: Both, file: str, shown: str | None) -> None:
    frames = run_in(file, both)
    if shown is None:
        assert names(frames, 1) == ["run_in"]
    else:
        assert frames[0] == [shown, 1, "größe"]


def test_own_frames_tell_stacks_apart(both: Both) -> None:
    """They are left out of the string, not of what it is looked up by."""
    own = f"{PACKAGE}/own.py"
    frames = [run_in(own, both), run_in(own, both, lines=3), run_in("/program.py", both)]
    assert frames[0] == frames[1]
    assert frames[0][0][2].endswith("run_in")
    assert frames[2][0] == ["/program.py", 1, "größe"]


def test_the_identity_of_a_function_that_is_gone_is_not_reused(both: Both) -> None:
    for number in range(300):
        # Only the native walk: the other one keeps the code as well.
        stack = run_in(f"/{number}.py", both.native.whole, lines=number)[0]
        frames = json.loads(both.strings.text("stack", stack))
        assert json.loads(both.strings.text("frame", frames[0])) == [
            f"/{number}.py", number + 1, "größe",
        ]  # fmt: skip


def test_threads(both: Both) -> None:
    found: dict[int, bool] = {}
    sites, python = both.native, both.python

    def work(number: int) -> None:
        def walk() -> bool:
            pair = sites.whole()[0], python.of(sys._getframe())
            texts = both.strings.text("stack", pair[0]), both.interner.text("stack", pair[1])
            kinds = both.strings, both.interner
            frames = [
                [kind.text("frame", frame) for frame in json.loads(text)]
                for kind, text in zip(kinds, texts, strict=True)
            ]
            return frames[0] == frames[1]

        found[number] = all(descend((turn * number) % 30, walk) for turn in range(100))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == dict.fromkeys(range(1, 9), True)


@pytest.mark.parametrize("ask", ["here", "whole"])
def test_a_thread_without_frames(both: Both, ask: str) -> None:
    found: list[Any] = []
    # C functions all the way: the thread never runs bytecode.
    start_new_thread(found.extend, (itertools.starmap(getattr(both.native, ask), [()]),))
    end = time.monotonic() + 30
    while not found and time.monotonic() < end:
        time.sleep(0.001)
    assert found == [(0, False, False, True)]
    assert both.strings.drain() == (("stack", 0, "[]"),)
    assert both.python.of(None) == 0
    assert both.interner.text("stack", 0) == "[]"


class Thing:
    pass


def test_neither_frames_nor_locals_are_kept(both: Both) -> None:
    def work() -> weakref.ref[Thing]:
        thing = Thing()
        both.native.whole()
        both.native.here()
        return weakref.ref(thing)

    enabled = gc.isenabled()
    gc.disable()
    try:
        assert descend(5, work)() is None
    finally:
        if enabled:
            gc.enable()


@pytest.mark.parametrize("enabled", [False, True])
def test_garbage_collection_is_as_it_was(both: Both, enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        both.native.whole()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_no_garbage_is_collected_while_frames_are_made(both: Both) -> None:
    """Finalizers are code of the program: none may run in the middle of a walk."""
    collections: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    def work() -> int:
        collections.clear()
        both.native.whole()
        return len(collections)

    threshold = gc.get_threshold()
    gc.callbacks.append(count)
    gc.set_threshold(1)
    try:
        # Some belong to the tuple that the call returns.
        assert descend(22, work) < 10
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(count)


@pytest.mark.parametrize("ask", ["stack", "step", "recomputation", "everything"])
def test_only_what_is_asked_for_is_looked_for_further_out(ask: str) -> None:
    both = Both(engine=by_a_key.__code__, step=plainly.__code__)

    def asked(depth: int) -> Any:
        def in_step() -> Any:
            return run_in(f"/site/{CHECKPOINT}", lambda: descend(depth, walk))

        return plainly(in_step)[1:3]

    def walk() -> Any:
        return both.native.whole(ask)

    assert asked(5) == (True, True)
    assert asked(40) == (ask in ("step", "everything"), ask in ("recomputation", "everything"))
    assert descend(40, walk)[1:3] == (False, False)
    # Near the engine it is known that nothing is recomputed.
    behind = f"/site/{CHECKPOINT}", lambda: by_a_key(walk)
    assert run_in(*behind)[1:3] == (False, False)


@pytest.mark.parametrize("depth", [0, 40])
def test_the_step_is_found_at_any_depth(depth: int) -> None:
    both = Both(step=plainly.__code__)
    descend(depth, both)
    plainly(lambda: descend(depth, both))
    assert both.flags == [(False, False), (True, False)]
    both = Both(step=None)
    descend(depth, both)
    assert both.flags == [(True, False)]


def test_recomputation_stands_above_the_engine() -> None:
    def in_checkpoint(call: Callable[[], Any]) -> Any:
        return run_in(f"/site/{CHECKPOINT}", call)

    both = Both(engine=plainly.__code__)
    in_checkpoint(lambda: plainly(both))
    plainly(lambda: in_checkpoint(both))
    plainly(lambda: in_checkpoint(lambda: descend(40, both)))
    run_in("/site/torch/utils/checkpoints.py", both)
    assert [recomputes for _, recomputes in both.flags] == [False, True, True, False]


def test_below_the_engine_only_that_is_told() -> None:
    def engine() -> tuple[Any, Any]:
        return sites.here(), sites.whole()

    strings = native.module().Interner()
    sites = native.module().CallSites(strings, PACKAGE, "/", engine.__code__, None, CHECKPOINT)
    here, whole = engine()
    assert here == (NONE_ID, False, False, True)
    assert whole == (0, True, False, True)
    frames = json.loads(strings.text("stack", 0))
    assert json.loads(strings.text("frame", frames[0]))[2].endswith("engine")
    assert plainly(sites.here)[3] is False


def test_optimizer_step(both: Both) -> None:
    class Asking(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            both()
            return closure

    optimizer = Asking([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    both()
    optimizer.step()
    optimizer.step()
    assert both.flags == [(False, False), (True, False), (True, False)]


class Ask(torch.autograd.Function):
    both: Both

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        Ask.both()
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (value,) = ctx.saved_tensors  # recomputes
        Ask.both()
        return cast(torch.Tensor, gradient * value)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_and_custom_functions(both: Both, reentrant: bool) -> None:
    Ask.both = both
    value = torch.ones(3, requires_grad=True)
    checkpoint(Ask.apply, value, use_reentrant=reentrant).sum().backward()
    # Reentrant: the backward pass that the checkpoint's own one runs has an engine frame again.
    assert both.flags == [(False, True), (False, True), (False, False)]


def test_wrong_arguments_are_refused() -> None:
    strings = native.module().Interner()
    with pytest.raises(TypeError):
        native.module().CallSites(strings, PACKAGE, "/", plainly, None, CHECKPOINT)
    sites = native.module().CallSites(strings, PACKAGE, "/", None, None, CHECKPOINT)
    with pytest.raises(ValueError, match="nothing to ask for: all"):
        sites.whole("all")
