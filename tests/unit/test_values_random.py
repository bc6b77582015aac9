"""Both implementations of values, driven with the same operations, always answer the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from values_probes import Probe, PythonProbe, native_probe

from native_support import needs_native

MOST_TENSORS = 8
ELEMENTS = 12

index = st.integers(0, MOST_TENSORS - 1)
small = st.integers(0, 4)


def last_byte(tensor: torch.Tensor) -> int:
    """End of the tensor's span in its storage; 0 for no elements."""
    if not tensor.numel():
        return 0
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach + 1) * tensor.itemsize


def fits(tensor: torch.Tensor) -> bool:
    return last_byte(tensor) <= tensor.untyped_storage().nbytes()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    places = torch.zeros(1, dtype=torch.int64)
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + torch.arange(n) * step).flatten()
    return places.unique().numel() != tensor.numel()


def writable(tensor: torch.Tensor) -> bool:
    return fits(tensor) and not overlaps_itself(tensor) and not tensor.is_conj()


VIEWS: tuple[Callable[..., torch.Tensor], ...] = (
    lambda x, a, b: x.flatten()[a : a + b] if x.is_contiguous() else x.detach(),
    lambda x, a, _: x[a:] if x.dim() else x[None],
    lambda x, a, _: x[:: a + 1] if x.dim() else x.detach(),
    lambda x, a, _: x[..., a::2] if x.dim() else x.reshape(1),
    lambda x, *_: x.t() if x.dim() == 2 else x[None],
    lambda x, a, _: x[:, None].expand(x.shape[0], a) if x.dim() == 1 else x.detach(),
    lambda x, *_: x.view(-1, 2) if x.is_contiguous() and x.numel() % 2 == 0 else x.detach(),
    lambda x, a, b: x.as_strided((2, 3), (a, b)),
    lambda x, a, b: x.as_strided((a, b), (b + 1, 1), 1),
    lambda x, *_: x.data,
    lambda x, *_: x.detach(),
    lambda x, *_: x.view(torch.int32) if x.dtype == torch.float32 else x.view_as(x),
    lambda x, *_: x.conj() if x.is_complex() else x.unsqueeze(-1),
)

MAKERS: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.zeros(ELEMENTS),
    lambda: torch.zeros(3, 4),
    lambda: torch.zeros(2, 3, dtype=torch.complex64),
    lambda: torch.zeros(4, dtype=torch.float64),
    lambda: torch.zeros(0),
    lambda: torch.zeros(7, dtype=torch.uint8),
    lambda: torch.from_numpy(np.zeros(ELEMENTS, np.float32)),
)


def answers(probe: Probe, tensor: torch.Tensor) -> list[Any]:
    if not probe.met(tensor):
        return [probe.geometry(tensor)]
    facts = probe.facts(tensor)
    found = [
        probe.geometry(tensor), facts, probe.producers(tensor), probe.known(tensor),
        probe.covering(tensor),
    ]  # fmt: skip
    if last_byte(tensor) <= facts["nbytes"]:  # numpy would read past its map
        found += [probe.is_void(tensor), probe.unset_elements(tensor)]
    return found


class BothImplementations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.probes: tuple[Probe, Probe] = (PythonProbe(), native_probe())
        self.tensors: list[torch.Tensor] = []
        self.record = 0

    def both(self, ask: Callable[[Probe], Any]) -> Any:
        python, native = (ask(probe) for probe in self.probes)
        assert python == native
        return native

    def pick(self, at: int) -> torch.Tensor:
        return self.tensors[at % len(self.tensors)]

    def add(self, tensor: torch.Tensor, at: int) -> None:
        if len(self.tensors) < MOST_TENSORS:
            self.tensors.append(tensor)
        else:
            self.tensors[at] = tensor

    def known_to_both(self, at: int) -> torch.Tensor | None:
        """A tensor whose storage is entered as it is now; None if the storage ends before it."""
        tensor = self.pick(at)
        self.both(lambda probe: probe.create(tensor))
        return tensor if fits(tensor) else None

    @initialize()
    def start(self) -> None:
        self.add(MAKERS[0](), 0)

    # The program

    @rule(maker=st.sampled_from(MAKERS), at=index, inference=st.booleans())
    def make(self, maker: Callable[[], torch.Tensor], at: int, inference: bool) -> None:
        with torch.inference_mode(inference):
            self.add(maker(), at)

    @rule(view=st.sampled_from(VIEWS), of=index, at=index, a=small, b=small)
    def view(self, view: Callable[..., torch.Tensor], of: int, at: int, a: int, b: int) -> None:
        base = self.pick(of)
        with torch.inference_mode(base.is_inference()):
            try:
                made = view(base, a, b)
            except RuntimeError:  # the storage is too small for it
                return
        self.add(made, at)

    @rule(at=index)
    def write_unseen(self, at: int) -> None:
        tensor = self.pick(at)
        if writable(tensor):
            with torch.inference_mode(tensor.is_inference()):
                tensor.zero_()

    @rule(at=index)
    def share_with_numpy(self, at: int) -> None:
        tensor = self.pick(at)
        if fits(tensor) and not tensor.is_conj():
            tensor.numpy()

    @rule(at=index)
    def share_with_processes(self, at: int) -> None:
        tensor = self.pick(at)
        if tensor.untyped_storage().resizable() and tensor.untyped_storage().nbytes():
            tensor.share_memory_()

    @rule(at=index, nbytes=st.integers(0, 64), told=st.booleans())
    def resize(self, at: int, nbytes: int, told: bool) -> None:
        tensor = self.pick(at)
        storage = tensor.untyped_storage()
        if storage.resizable() and not storage.is_shared():
            storage.resize_(nbytes)
            if told:
                self.both(lambda probe: probe.resized(tensor))

    @rule(at=index, source=index, told=st.booleans())
    def set_storage(self, at: int, source: int, told: bool) -> None:
        tensor, other = self.pick(at), self.pick(source)
        alike = tensor.dtype == other.dtype and tensor.is_conj() == other.is_conj()
        if alike and not tensor.is_inference() and not other.is_inference():
            if told:
                self.both(lambda probe: probe.rebuilt(tensor, other))
            tensor.data = other

    @precondition(lambda self: len(self.tensors) > 1)
    @rule(at=index)
    def free(self, at: int) -> None:
        del self.tensors[at % len(self.tensors)]

    # What capture does

    @rule(at=index)
    def read(self, at: int) -> None:
        tensor = self.pick(at)
        self.both(lambda probe: probe.meet(tensor))

    @rule(at=index, partial=st.booleans(), declared=st.booleans())
    def write(self, at: int, partial: bool, declared: bool) -> None:
        tensor = self.known_to_both(at)
        if tensor is None or not writable(tensor):
            return
        self.record += 1
        if declared:
            self.both(lambda probe: probe.begins(tensor))
            with torch.inference_mode(tensor.is_inference()):
                tensor.zero_()
        self.both(lambda probe: probe.wrote(tensor, self.record, partial))
        if declared:
            self.both(lambda probe: probe.ended(tensor))

    @rule(at=index, mix=st.integers(0, 2**64 - 1))
    def learn(self, at: int, mix: int) -> None:
        tensor = self.known_to_both(at)
        if tensor is not None:
            self.both(lambda probe: probe.learn(tensor, mix, mix & 0xFFFF))

    @rule(at=index, bits=st.none() | st.lists(st.booleans(), min_size=1, max_size=8))
    def leave_void(self, at: int, bits: list[bool] | None) -> None:
        tensor = self.known_to_both(at)
        if tensor is None or overlaps_itself(tensor):
            return
        mask = None
        if bits is not None:
            mask = torch.tensor(bits).repeat(tensor.numel())[: tensor.numel()].view(tensor.shape)
            if tensor.dim() and len(bits) > 4:
                mask = mask[:1].contiguous()
        self.both(lambda probe: probe.leave_void(tensor, mask))

    @rule(
        at=index,
        what=st.sampled_from(["forget", "keep", "reread", "external", "reader", "creator"]),
    )
    def touch(self, at: int, what: str) -> None:
        tensor = self.known_to_both(at)
        if tensor is None:
            return
        self.record += 1
        does: dict[str, Callable[[Probe], None]] = {
            "forget": lambda probe: probe.forget(tensor, False),
            "keep": lambda probe: probe.forget(tensor, True),
            "reread": lambda probe: probe.reread(tensor),
            "external": lambda probe: probe.make_external(tensor),
            "reader": lambda probe: probe.set_reader(tensor, self.record),
            "creator": lambda probe: probe.set_creator(tensor, self.record),
        }
        self.both(does[what])

    @rule(sure=st.integers(0, 9))
    def forget_all(self, sure: int) -> None:
        if sure == 0:
            self.both(lambda probe: probe.forget_all())

    # What they answer

    @invariant()
    def same_answers(self) -> None:
        python, native = ([answers(probe, x) for x in self.tensors] for probe in self.probes)
        assert python == native

    @invariant()
    def same_values(self) -> None:
        keys = [[str(probe.value_key(tensor)) for tensor in self.tensors] for probe in self.probes]
        python, native = ([row.index(key) for key in row] for row in keys)
        assert python == native


TestBothImplementations = needs_native(BothImplementations.TestCase)
TestBothImplementations.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


@needs_native
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("lllllws"), st.integers(0, 63), st.integers(0, 20)),
        max_size=200,
    )
)
def test_many_known_values_of_one_storage(steps: list[tuple[str, int, int]]) -> None:
    probes: tuple[Probe, Probe] = (PythonProbe(), native_probe())
    data = torch.zeros(64)
    for probe in probes:
        probe.meet(data)
    for number, (what, start, size) in enumerate(steps):
        view = data[start : start + size : 2 if what == "s" else 1]
        for probe in probes:
            if what == "w":
                probe.wrote(view, number, False)
            else:
                probe.learn(view, number, 0)
        queries = [view, data[start + 1 : start + size], data[start:], data[start::2], data[:0]]
        for query in queries:
            assert probes[0].known(query) == probes[1].known(query)
            assert probes[0].covering(query) == probes[1].covering(query)
