"""Asks the Python and the C++ call sites about the same place; ways to be called there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from opguard.capture import places, torch_private
from opguard.capture.callsite import CallSites
from opguard.capture.interning import Interner
from opguard.fingerprint import native

PACKAGE = str(Path(places.__file__).resolve().parents[1])
CHECKPOINT = "torch/utils/checkpoint.py"
Frames = list[list[Any]]


class Both:
    """Asks both languages about the same place and compares their answers."""

    def __init__(
        self,
        engine: CodeType | None = torch_private.engine_code,
        step: CodeType | None = torch_private.step_code,
    ) -> None:
        self.strings: Any = native.module().Interner()
        self.native = native.module().CallSites(
            self.strings, PACKAGE, str(Path.home()), engine, step, CHECKPOINT
        )
        self.interner = Interner()
        self.python = CallSites(self.interner)
        self.codes = engine, step
        self.flags: list[tuple[bool, bool]] = []

    def __call__(self) -> Frames:
        """Frames of the caller as they are stored."""
        compiled, python = self.native, self.python
        # All on one line, which is part of the answer.
        site, again, stack = compiled.whole(), compiled.here(), python.of(sys._getframe())
        assert again == site
        text = self.strings.text("stack", site[0])
        assert site[0] == stack
        assert text == self.interner.text("stack", stack)
        frames = [self.strings.text("frame", number) for number in json.loads(text)]
        assert frames == [self.interner.text("frame", number) for number in json.loads(text)]
        assert site[1:] == (*self.phases(sys._getframe()), False)
        self.flags.append(site[1:3])
        return [json.loads(frame) for frame in frames[1:]]  # without this method

    def phases(self, frame: FrameType) -> tuple[bool, bool]:
        """What the Python capture says of the optimizer and of recomputation."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_private, "engine_code", self.codes[0])
            patch.setattr(torch_private, "step_code", self.codes[1])
            locator = places.Locator(cast(Any, None), self.python)
            here = cast(Any, SimpleNamespace(optimizers=[]))
            return locator._in_step(here, 0, frame), locator._recomputing(0, frame)


def plainly(call: Callable[[], Any]) -> Any:
    return call()


def by_a_generator(call: Callable[[], Any]) -> Any:
    def values() -> Iterator[Any]:
        yield call()

    return next(values())


def by_a_key(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def key(_: int) -> int:
        found.append(call())
        return 0

    sorted([1], key=key)
    return found[0]


class Descriptor:
    call: Callable[[], Any]

    @property
    def value(self) -> Any:
        return self.call()


def by_a_property(call: Callable[[], Any]) -> Any:
    descriptor = Descriptor()
    descriptor.call = call
    return descriptor.value


def by_a_coroutine(call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return call()

    with pytest.raises(StopIteration) as stopped:
        run().send(None)
    return stopped.value.value


def by_exec(call: Callable[[], Any]) -> Any:
    space: dict[str, Any] = {"call": call}
    exec("def made():\n\n    return call()\nvalue = made()", space)
    return space["value"]


WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "plain": plainly,
    "lambda": lambda call: call(),
    "comprehension": lambda call: [call() for _ in "x"][0],  # noqa: RUF015
    "generator expression": lambda call: next(call() for _ in "x"),
    "generator": by_a_generator,
    "sorted": by_a_key,
    "map": lambda call: next(map(lambda _: call(), "x")),  # noqa: C417
    "property": by_a_property,
    "coroutine": by_a_coroutine,
    "exec": by_exec,
}


def descend(depth: int, call: Callable[[], Any]) -> Any:
    return descend(depth - 1, call) if depth else call()


def run_in(file: str, call: Callable[[], Any], lines: int = 0, name: str = "größe") -> Any:
    """Call from a function of another file, which is gone afterwards."""
    space: dict[str, Any] = {}
    exec(compile("\n" * lines + f"def {name}(call): return call()", file, "exec"), space)
    return space[name](call)
