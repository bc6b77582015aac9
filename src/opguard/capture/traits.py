"""How a tensor can be read, judged once per set of dispatch keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opguard.capture import torch_private


@dataclass(frozen=True)
class Traits:
    """What a tensor's dispatch keys say of it."""

    plain: bool
    """Strided, with a storage whose bytes are its elements."""
    bits: int
    """Conjugate (1) and negative (2) bits."""
    cpu: bool
    dataless: bool
    """Meta and fake tensors, and functorch wrappers: no record is made of them."""
    wrapper: bool
    """Of functorch: the inner calls on what it wraps are the events."""


def _judge(tensor: torch.Tensor) -> Traits:
    wrapper = torch_private.is_functorch_wrapper(tensor)
    dataless = wrapper or torch_private.is_fake(tensor)
    odd = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested
    return Traits(
        plain=not (dataless or odd),
        bits=int(tensor.is_conj()) | 2 * int(tensor.is_neg()) if not odd else 0,
        cpu=tensor.device.type == "cpu",
        dataless=dataless,
        wrapper=wrapper,
    )


_KNOWN: dict[int | str, Traits] = {}


def traits(tensor: torch.Tensor) -> Traits:
    """Traits of ``tensor``; one set of keys always gives the same answer."""
    number = torch_private.number_of_keyset(torch_private.keyset_of(tensor))
    found = _KNOWN.get(number)
    if found is None:
        found = _KNOWN[number] = _judge(tensor)
    return found
