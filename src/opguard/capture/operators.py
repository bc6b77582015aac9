"""What an operator writes, overwrites, leaves unset or ignores: the tables, and facts cached
per overload. Sources: the schemas of torch 2.13; for what they do not declare, the kernels'
documented behaviour, proved by running PyTorch's OpInfo samples (``benchmarks/fidelity.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.model import DTYPES, STATE_OPERATOR

OVERWRITES: Final = frozenset({
    "copy_", "fill_", "zero_", "uniform_", "normal_", "log_normal_", "bernoulli_", "random_",
    "exponential_", "geometric_", "cauchy_", "_foreach_copy_", "_foreach_zero_",
})  # fmt: skip
"""aten operators whose written arguments are wholly overwritten: these are no inputs."""

COPIES: Final = frozenset({"copy_", "clone", "_to_copy"})
"""aten operators that move elements as they are: void ones stay void. Circular padding copies
corners that it has not filled yet, and fills them afterwards."""

PARTIAL_WRITERS: Final = frozenset({
    "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "index_add_", "index_reduce_",
    "scatter_", "scatter_add_", "scatter_reduce_", "masked_fill_", "masked_scatter_", "put_",
    "fill_diagonal_", "tril_", "triu_", "embedding_renorm_", "_fill_mem_eff_dropout_mask_",
})  # fmt: skip
"""aten in-place operators that leave elements unwritten: void memory stays partly void."""

READS_AND_WRITES: Final = "rw"
RECEIVES: Final = "w"
"""Wholly overwritten, no input: a receive buffer."""
FROM_ROOT: Final = "root"
"""Read on the root rank, overwritten on the others."""

_COMMUNICATES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_OF_TORCH: Final = ("aten", "prim")
"""Namespaces whose ``sym_size`` and the like ask a tensor for its metadata."""

_RUNNING: Final = ("running_mean", "running_var")
UNDECLARED_WRITES: Final[dict[str, tuple[tuple[str, ...], str, str | None]]] = {
    "aten::native_batch_norm": (_RUNNING, READS_AND_WRITES, "training"),
    "aten::cudnn_batch_norm": (_RUNNING, READS_AND_WRITES, "training"),
    "aten::miopen_batch_norm": (_RUNNING, READS_AND_WRITES, "training"),
    "aten::batch_norm_gather_stats": (_RUNNING, READS_AND_WRITES, None),
    "aten::batch_norm_gather_stats_with_counts": (_RUNNING, READS_AND_WRITES, None),
    "aten::batch_norm_update_stats": (_RUNNING, READS_AND_WRITES, None),
    "aten::rrelu_with_noise": (("noise",), RECEIVES, "training"),
    "aten::rrelu_with_noise_": (("noise",), RECEIVES, "training"),
}
"""Arguments that are written although a schema does not say so, or says so where the call leaves
them alone: which, how, and the argument that switches the write."""

C10D_WRITES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "allreduce_": (("tensors", READS_AND_WRITES),),
    "allreduce_coalesced_": (("tensors", READS_AND_WRITES),),
    "reduce_": (("tensors", READS_AND_WRITES),),
    "broadcast_": (("tensors", FROM_ROOT),),
    "allgather_": (("output_tensors", RECEIVES),),
    "_allgather_base_": (("output_tensor", RECEIVES),),
    "allgather_coalesced_": (("output_lists", RECEIVES),),
    "allgather_into_tensor_coalesced_": (("outputs", RECEIVES),),
    "reduce_scatter_": (("output_tensors", RECEIVES),),
    "_reduce_scatter_base_": (("output_tensor", RECEIVES),),
    "reduce_scatter_tensor_coalesced_": (("outputs", RECEIVES),),
    "gather_": (("output_tensors", RECEIVES),),
    "scatter_": (("output_tensors", RECEIVES),),
    "alltoall_": (("output_tensors", RECEIVES),),
    "alltoall_base_": (("output", RECEIVES),),
    "recv_": (("tensors", RECEIVES),),
    "recv_any_source_": (("tensors", RECEIVES),),
}
"""What c10d operators write; none declares it."""

_MEMORY_FORMATS: Final = (torch.contiguous_format, torch.preserve_format, torch.channels_last,
                          torch.channels_last_3d)  # fmt: skip
"""In torch's own order."""

FROM_ROOT_OPERATORS: Final = frozenset(
    f"c10d::{name}"
    for name, arguments in C10D_WRITES.items()
    if any(how == FROM_ROOT for _, how in arguments)
)

C10D_WRITES_NOTHING: Final = frozenset({"send", "barrier", "monitored_barrier_", "check_for_nan"})
C10D_NO_INPUTS: Final = frozenset({"barrier", "monitored_barrier_"})
"""Their tensor argument only picks a device; its memory is uninitialised."""

UNSET_OUTPUTS: Final[dict[str, tuple[int, ...]]] = {
    "aten::_ctc_loss": (1,),
    "aten::_cudnn_rnn": (4,),
    "aten::miopen_rnn": (4,),
    "aten::mkldnn_rnn_layer": (3,),
    "aten::cudnn_batch_norm": (3,),
    "aten::_batch_norm_with_update": (3,),
    "aten::_batch_norm_no_update": (3,),
    "aten::_scaled_dot_product_efficient_attention": (1, 2, 3),
    "aten::_efficient_attention_forward": (1, 2, 3),
    "aten::_scaled_dot_product_cudnn_attention": (1, 6, 7),
    "aten::_cudnn_attention_forward": (1, 6, 7),
    "aten::_scaled_dot_product_flash_attention": (6, 7),
    "aten::_flash_attention_forward": (2, 3),
}
"""Returned tensors that the kernel leaves partly unset: never compared. Padding, reserve space and
workspaces of the backward; the random state of attention, which is set only where it drops out and
follows from the input slot ``rng``."""

WRITTEN_RETURNS: Final[dict[str, tuple[int, ...]]] = {"fsdp::all_gather_copy_in": (0,)}
"""Returned views of an argument that the operator has written."""

NOT_EVENTS: Final = frozenset({
    "aten::detach_", "aten::is_pinned", "prim::device", "aten::set_", "aten::resize_",
    "aten::resize_as_", "aten::_resize_output_", "aten::record_stream",
    "inductor::resize_storage_bytes_",
    "_c10d_functional::_wrap_tensor_autograd",  # puts the wrapper around a tensor in flight
})  # fmt: skip


def tables() -> dict[str, Any]:
    """All of them as plain data, for the C++ recorder."""
    return {
        "overwrites": OVERWRITES,
        "copies": COPIES,
        "partial_writers": PARTIAL_WRITERS,
        "not_events": NOT_EVENTS,
        "undeclared_writes": UNDECLARED_WRITES,
        "c10d_writes": C10D_WRITES,
        "c10d_no_inputs": C10D_NO_INPUTS,
        "unset_outputs": UNSET_OUTPUTS,
        "written_returns": WRITTEN_RETURNS,
    }


class Kind(Enum):
    """How a call of the operator is treated."""

    EVENT = "event"
    PASS = "pass"  # noqa: S105  (no password)
    """Runs, leaves no event."""
    COMPOSITE = "composite"
    """Runs through its composite kernel; the inner calls are the events."""


@dataclass(slots=True)
class Parameter:
    """One argument of an operator's schema. Slots are string ids of the capture's tables."""

    index: int
    name: str
    holds_tensors: bool
    read: bool
    """Its bytes before the call are an input."""
    written: bool
    declared: bool
    """The schema alone says that it is written: always, and not where a switch is on."""
    default: Any = None
    input_slot: int = -1
    output_slot: int = -1
    """That of ``name!``."""


@dataclass
class Operator:
    """Facts about one overload, looked up once per call. Ids are those of the capture's tables."""

    name: str
    schema_name: str
    kind: Kind
    parameters: tuple[Parameter, ...]
    by_name: dict[str, int]
    random: bool
    """Tagged ``nondeterministic_seeded``: it gets the input slot ``rng``."""
    void: bool
    """Its outputs are memory that nothing wrote."""
    partial: bool
    """Its writes may leave elements unwritten."""
    copies: bool
    declares_writes: bool
    """The schema marks written arguments: their version counters move."""
    bumps_first: bool
    """They do so before a mode sees the call."""
    collective: bool
    waits: bool
    """``wait_tensor``: it returns its argument once the data are there."""
    unset_outputs: tuple[int, ...]
    written_returns: tuple[int, ...]
    returned_writes: tuple[bool, ...]
    """For each return: it is the written argument itself, recorded as ``name!``."""
    switch: str | None
    """Argument that switches undeclared writes on."""
    from_root: bool
    """Only the root rank reads, only the others write."""
    may_view: bool
    """The schema says that it may return a view and that it writes nothing."""
    operator_id: int
    arguments: dict[Any, int] = field(default_factory=dict)
    """Canonical arguments already seen: key of the raw values to string id."""

    @property
    def is_never_view(self) -> bool:
        """An event whatever it returns: a graph's call, or one that writes the views it returns."""
        return not self.parameters or bool(self.written_returns)

    @property
    def bumps_last(self) -> bool:
        """Version counters of what it writes move once it has returned to autograd."""
        return self.declares_writes and not self.bumps_first


def describe(func: Any, operator_id: int) -> Operator:
    """Facts about ``func``, an ``OpOverload`` or a higher-order operator."""
    if torch_private.is_higher_order(func):
        return _higher_order(func, operator_id)
    schema = func._schema
    namespace, _, base = schema.name.partition("::")
    undeclared, switch = _undeclared(namespace, base)
    overwrites = namespace == "aten" and base in OVERWRITES
    parameters = tuple(
        _parameter(index, argument, undeclared, overwrites, base if namespace == "c10d" else "")
        for index, argument in enumerate(schema.arguments)
    )
    declares_writes = any(parameter.declared for parameter in parameters)
    bumps_first = declares_writes and torch_private.is_python_operator(schema.name)
    return Operator(
        name=str(func),
        schema_name=schema.name,
        kind=_kind(func, namespace, base),
        parameters=parameters,
        by_name={parameter.name: i for i, parameter in enumerate(parameters)},
        random=torch.Tag.nondeterministic_seeded in func.tags,
        void=namespace == "aten" and base.lstrip("_").startswith(("empty", "new_empty")),
        partial=namespace == "aten" and base in PARTIAL_WRITERS,
        copies=namespace == "aten" and base in COPIES,
        declares_writes=declares_writes,
        collective=namespace in _COMMUNICATES,
        waits=f"{namespace}::{base}" == "_c10d_functional::wait_tensor",
        unset_outputs=UNSET_OUTPUTS.get(schema.name, ()),
        written_returns=WRITTEN_RETURNS.get(schema.name, ()),
        returned_writes=tuple(
            bool(value.alias_info and value.alias_info.is_write) for value in schema.returns
        ),
        switch=switch,
        from_root=schema.name in FROM_ROOT_OPERATORS,
        bumps_first=bumps_first,
        may_view=not any(parameter.written for parameter in parameters)
        and any(value.alias_info is not None for value in schema.returns),
        operator_id=operator_id,
    )


def _undeclared(namespace: str, base: str) -> tuple[dict[str, str], str | None]:
    if namespace == "c10d":
        return dict(C10D_WRITES.get(base, ())), None
    names, how, switch = UNDECLARED_WRITES.get(f"{namespace}::{base}", ((), "", None))
    return dict.fromkeys(names, how), switch


def _parameter(
    index: int, argument: Any, undeclared: dict[str, str], overwrites: bool, c10d: str
) -> Parameter:
    declared = bool(argument.alias_info and argument.alias_info.is_write)
    how = undeclared.get(argument.name)
    replaced = declared and (overwrites or argument.kwarg_only)
    return Parameter(
        index=index,
        name=argument.name,
        holds_tensors="Tensor" in str(argument.type),
        read=not (replaced or how == RECEIVES or c10d in C10D_NO_INPUTS),
        written=declared or how is not None,
        declared=declared and how is None,
        default=_default(argument),
    )


def _default(argument: Any) -> Any:
    """The default as it would be passed: the schema holds dtypes as numbers, in the order in
    which ``DTYPES`` lists them after ``none``, and memory formats too."""
    value = argument.default_value
    if isinstance(value, int) and "ScalarType" in str(argument.real_type):
        return getattr(torch, DTYPES[value + 1])
    if isinstance(value, int) and "MemoryFormat" in str(argument.real_type):
        return _MEMORY_FORMATS[value]
    return value


def _kind(func: Any, namespace: str, base: str) -> Kind:
    name = f"{namespace}::{base}"
    if (
        name in NOT_EVENTS
        or namespace == "profiler"
        or (namespace in _OF_TORCH and base.startswith("sym_"))
        or torch.Tag.inplace_view in func.tags
    ):
        return Kind.PASS
    qualified = f"{name}.{func._overloadname}" if func._overloadname != "default" else name
    composite = torch_private.dispatch_has_kernel(qualified, "CompositeImplicitAutograd")
    own = any(torch_private.dispatch_has_kernel(qualified, key) for key in ("CPU", "CUDA"))
    return Kind.COMPOSITE if composite and not own else Kind.EVENT


def _higher_order(func: Any, operator_id: int) -> Operator:
    name = str(func.name() if callable(func.name) else func.name)
    compiled = name == "inductor_compiled_code"
    return _without_schema("compiled.inductor" if compiled else f"higher_order.{name}", operator_id)


def state_operator(operator_id: int) -> Operator:
    """The operator of final-state events."""
    return _without_schema(STATE_OPERATOR, operator_id)


def _without_schema(name: str, operator_id: int) -> Operator:
    return Operator(
        name=name,
        schema_name=name,
        kind=Kind.EVENT,
        parameters=(),
        by_name={},
        random=False,
        void=False,
        partial=False,
        copies=False,
        declares_writes=False,
        collective=False,
        waits=False,
        unset_outputs=(),
        written_returns=(),
        returned_writes=(),
        switch=None,
        from_root=False,
        bumps_first=False,
        may_view=False,
        operator_id=operator_id,
    )
