"""Every private name of torch that capture uses, with what happens where it is absent.

Read off torch 2.13; a release that lacks a name loses what its comment says and nothing else.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import _python_dispatch as python_dispatch


def graph_task_id() -> int:
    """Id of the autograd graph task active on this thread, -1 without one."""
    return _graph_task_id()


_graph_task_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)

current_node: Callable[[], Any] = getattr(torch._C, "_current_autograd_node", lambda: None)
"""The autograd node being evaluated on this thread, or None. Absent: backward events carry no
module path and the site of the ``backward()`` call."""

next_sequence_nr: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
"""Sequence number that the next autograd node created on this thread will get."""

keyset_of: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys

number_of_keyset: Callable[[Any], int | str] = getattr(torch._C.DispatchKeySet, "raw_repr", repr)
"""Tells a set of dispatch keys from all others. Absent in torch 2.4: its text does, more slowly."""

dispatch_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key


def is_python_operator(name: str) -> bool:
    """Made by ``torch.library.custom_op``. Absent: what such an operator writes in place counts as
    written by somebody else, too."""
    library = getattr(torch._library, "custom_ops", None)
    return name in getattr(library, "OPDEFS", ())


ALIAS_DISPATCH_KEY = torch._C.DispatchKey.CompositeImplicitAutograd


def disabled_modes() -> AbstractContextManager[Any]:
    """No dispatch mode of this thread sees what runs inside."""
    return python_dispatch._disable_current_modes()


def push_mode(mode: Any) -> None:
    """Push without the bookkeeping of ``__enter__``, which is global and races over threads."""
    python_dispatch._push_mode(mode)


def remove_mode(mode: Any) -> bool:
    """Take ``mode`` out of this thread's stack, wherever it stands. False if it is not there."""
    above: list[Any] = []
    found = False
    for _ in range(torch._C._len_torch_dispatch_stack()):
        top = python_dispatch._pop_mode()
        if top is mode:
            found = True
            break
        above.append(top)
    for other in reversed(above):
        python_dispatch._push_mode(other)
    return found


def admit_higher_order_operators(patches: Any, cls: type) -> None:
    """Let ``torch.cond`` and the like run under a mode of this class.

    Before torch had ``supports_higher_order_operators`` they raised unless each knew the class.
    """
    if hasattr(python_dispatch.TorchDispatchMode, "supports_higher_order_operators"):
        return
    original: Any = torch._ops.HigherOrderOperator.dispatch

    def dispatch(operator: Any, *args: Any, **kwargs: Any) -> Any:
        def call(mode: Any, *args: Any, **kwargs: Any) -> Any:
            return mode.__torch_dispatch__(operator, (), args, kwargs)

        operator.python_key_mode_table.setdefault(cls, call)
        return original(operator, *args, **kwargs)

    patches.replace(torch._ops.HigherOrderOperator, "dispatch", dispatch)


def storage_key(storage: Any) -> int:
    """Address of the StorageImpl: unique as long as a weak reference to it is held."""
    key: int = storage._cdata
    return key


def weak_storage(storage: Any) -> int:
    """Weak reference to a storage; to be given back with :func:`drop_weak_storage`."""
    reference: int = storage._weak_ref()
    return reference


def weak_storage_expired(reference: int) -> bool:
    """True when no tensor holds the storage any more."""
    return bool(torch.UntypedStorage._expired(reference))


def drop_weak_storage(reference: int) -> None:
    """Give a weak reference back."""
    torch.UntypedStorage._free_weak_ref(reference)


def work_of(boxed: Any) -> Any:
    """The ``torch.distributed.Work`` behind a boxed one: the very object the program holds.

    None if ``boxed`` is something else. Absent before torch 2.3: collectives are then read where
    the next operator touches their storage.
    """
    if not isinstance(boxed, torch.ScriptObject):
        return None
    from torch._C._distributed_c10d import Work

    unbox = getattr(Work, "unbox", None)
    return None if unbox is None else unbox(boxed)


def work_is_done(work: Any) -> bool:
    """True once the data are there. Never waits.

    Gloo completes the future first, and DDP waits for that; the flag follows.
    """
    if work.is_completed():
        return True
    try:
        return bool(work.get_future().done())
    except (RuntimeError, AttributeError):  # not every backend gives a future
        return False


def wrap_work_wait(observe: Callable[[Any, str], None]) -> Callable[[], None]:
    """Call ``observe(work, "begins")`` before each ``Work.wait`` and ``"returned"`` or
    ``"raised"`` after it; returns what undoes it."""
    if not torch.distributed.is_available():
        return lambda: None
    from torch._C._distributed_c10d import Work

    original = Work.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        observe(self, "begins")
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            observe(self, "raised")
            raise
        observe(self, "returned")
        return result

    def restore() -> None:
        Work.wait = original  # type: ignore[method-assign]

    Work.wait = wait  # type: ignore[method-assign]
    return restore


def is_higher_order(operator: Any) -> bool:
    """True for ``torch.cond`` and its like, which have no schema."""
    return isinstance(operator, torch._ops.HigherOrderOperator)


def is_fake(tensor: torch.Tensor) -> bool:
    """True for tensors that carry no data: meta tensors and ``FakeTensor``."""
    if tensor.device.type == "meta":
        return True
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(tensor, fakes.FakeTensor)


def is_functorch_wrapper(tensor: torch.Tensor) -> bool:
    """True inside vmap, grad and jvp, where the inner calls on plain tensors are the events."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


engine_code = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
"""Code of the Python frame right below the C++ nodes of a backward pass. Absent: their events
carry the site of the ``backward()`` call."""


def flatten(tree: Any) -> list[Any]:
    """Leaves of nested lists, tuples and dictionaries."""
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(tree))


def reduction_name(boxed: Any) -> str:
    """``SUM``, ``AVG``, … of a boxed ``ReduceOp``; its type where torch does not tell."""
    if not boxed._has_method("op"):
        return "<ReduceOp>"
    from torch._C._distributed_c10d import ReduceOp  # (distributed may be absent)

    return str(ReduceOp.RedOpType(boxed._get_method("op")()).name)


def rank_of_group(boxed: Any) -> int:
    """This process's rank in a boxed process group."""
    from torch._C._distributed_c10d import ProcessGroup

    return int(ProcessGroup.unbox(boxed).rank())


@functools.cache
def desugars(cls: type) -> bool:
    """True for subclasses whose ``__torch_dispatch__`` calls operators on plain tensors."""
    plain = getattr(cls, "__torch_dispatch__", None) in (
        None, torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl,
    )  # fmt: skip
    return not plain and cls.__module__ != "torch._subclasses.fake_tensor"


_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

set_tracer: Callable[[Any], Any] = getattr(_eval_frame, "set_eval_frame", lambda _tracer: None)
"""Sets the compiler's hook into Python frames on this thread and returns the one before: None
keeps it from compiling what runs next. Absent: no compiler."""


def leave_untraced(function: Any) -> None:
    """Keep the compiler from compiling ``function`` itself; it may still inline it.

    Absent: it is compiled where a compiler traces what calls it.
    """
    code = function.__code__
    if hasattr(_eval_frame, "skip_code"):
        _eval_frame.skip_code(code)
    elif hasattr(_eval_frame, "set_code_exec_strategy"):
        action = _eval_frame._FrameAction
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        _eval_frame.set_code_exec_strategy(code, strategy)


def wrap_compiled_regions(patches: Any, entered: Callable[[str], None]) -> None:
    """Make each compiled graph's call one operator call that a mode sees (torch 2.13).

    Graphs compiled before that, and all graphs where torch lacks it, are opaque regions:
    ``entered`` is called at each of their calls.
    """
    from torch._inductor import config

    home = sys.modules[compiled_graph_module()]
    if hasattr(config, "wrap_inductor_compiled_regions"):
        patches.replace_config(config, "wrap_inductor_compiled_regions", True)
        # Its own answer is the bookkeeping of ``__enter__``, which ``push_mode`` goes around.
        patches.replace(
            home, "is_in_torch_dispatch_mode",
            lambda *_: torch._C._len_torch_dispatch_stack() > 0,
        )  # fmt: skip

    def called(graph: Any, *_: Any) -> None:
        if not getattr(graph, "_wrap_compiled_regions", False):
            entered("compiled.inductor")

    patches.before_call(home.CompiledFxGraph, "__call__", called)


def wrap_graph_calls(
    patches: Any, around: Callable[[Callable[[], Any], Sequence[Any]], Any]
) -> None:
    """Call ``around(call, inputs)`` for each call of a graph that inductor compiled."""
    home = sys.modules[compiled_graph_module()]
    original = home.CompiledFxGraph.__call__

    def call(graph: Any, inputs: Any) -> Any:
        return around(lambda: original(graph, inputs), inputs)

    patches.replace(home.CompiledFxGraph, "__call__", call)


def graphs_have_names() -> bool:
    """True where a mode is given a compiled graph's name after its inputs: None for most.

    Absent: torch 2.11 gives it the graph and its inputs alone.
    """
    operator = getattr(sys.modules.get(compiled_graph_module()), "inductor_compiled_code", None)
    code = getattr(type(operator).__call__, "__code__", None)
    if code is None:
        return False
    return "name" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def wrap_compilation(patches: Any, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Call ``begin()`` and ``end()`` on the thread that compiles, around each compilation.

    Not by registered callbacks: ``torch._dynamo.reset()`` drops those, and only the first of
    several threads that compile at a time runs them.
    """
    handler = sys.modules["torch._dynamo.callback"].CompilationCallbackHandler
    original = getattr(handler, "install_callbacks", None)
    if original is None:  # before torch 2.6
        patches.before_call(handler, "run_start_callbacks", lambda _: begin())
        patches.before_call(handler, "run_end_callbacks", lambda _: end())
        return

    @contextmanager
    def installed(*args: Any, **kwargs: Any) -> Iterator[Any]:
        begin()
        try:
            with original(*args, **kwargs) as value:
                yield value
        finally:
            end()

    patches.replace(handler, "install_callbacks", installed)


@functools.cache
def compiled_graph_module() -> str:
    """Module that holds the class of compiled graphs: another one before torch 2.6."""
    # Asking the import system would import the compiler.
    folder = Path(torch.__file__).parent / "_inductor"
    name = "output_code" if (folder / "output_code.py").exists() else "codecache"
    return f"torch._inductor.{name}"


def _step_wrapper() -> Any:
    constants = torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    return next((c for c in constants if getattr(c, "co_name", "") == "wrapper"), None)


step_code = _step_wrapper()
"""Code of the frame around every ``Optimizer.step``. Absent: a step that ended by an exception
counts as running until the next one."""


def remove_global_hooks(hooks: list[Callable[..., None]]) -> None:
    """Take these hooks of all modules and optimizers out, also where no handle was kept."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    always = getattr(module, "_global_forward_hooks_always_called", {})
    for owner, name in (
        (module, "_global_forward_pre_hooks"), (module, "_global_forward_hooks"),
        (optimizer, "_global_optimizer_pre_hooks"), (optimizer, "_global_optimizer_post_hooks"),
    ):  # fmt: skip
        registered = getattr(owner, name, {})
        for key in [key for key, hook in registered.items() if hook in hooks]:
            always.pop(key, None)
            registered.pop(key, None)


def any_global_hook() -> Callable[[], bool]:
    """What torch answers, just now, when asked whether there are global module hooks."""
    from torch.nn.modules import module

    known = getattr(module, "_has_any_global_hook", None)
    answer = bool(known()) if known is not None else False
    return lambda: answer
