"""Tensors that ask Python of their shape, and one that torch refuses to tell the shape of."""

import threading
import warnings

import torch
from support import capture, in_threads, nothing_left, run_of

import opguard


# An operator gives back a tensor that asks Python of its shape and layout, which takes the
# GIL; another thread holds that and wants the capture's lock.
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            dispatch_sizes_strides_policy="sizes",
            dispatch_layout=True,
            dispatch_device=True,
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


lib = torch.library.Library("stress", "DEF")
lib.define("wrap(Tensor x) -> Tensor")
lib.impl("wrap", lambda x: Wrapper(x), "CPU")
lib.impl("wrap", lambda x: torch.ones(1), "NestedTensorCPU")
lib.impl("wrap", torch.library.fallthrough_kernel, "AutogradNestedTensor")
wrap = torch.ops.stress.wrap
wrap(torch.ones(3))

stop = threading.Event()


def exports():
    x = torch.ones(2)
    while not stop.is_set():
        x.__dlpack__()


def wraps():
    for _ in range(1500):
        wrap(torch.ones(3)) + 1
    stop.set()


with capture("run"):
    in_threads(exports, exports, wraps)
(record,) = run_of("run").all("wrap")[0].outputs.values()
assert record["reason"] == "freed" and record["shape"] == [3], record

# One that torch refuses to tell the shape of.
with warnings.catch_warnings():
    warnings.simplefilter("error", opguard.api.OpguardWarning)
    with capture("nested"):
        freed = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        freed.untyped_storage().resize_(0)
        torch.ops.stress.wrap(freed)
        torch.ones(2).sin()
assert run_of("nested").names[-1] == "sin"
nothing_left()

print("ok")
