"""The order of a weight's integers as oneDNN's kernel reads them, and tensors made in that order.

oneDNN orders 40 MB a second (measured, one thread): minutes for a large model. So the first weight
of a shape is ordered by it, and the others are copied into the order found there, ten times as
quick. Where torch makes a tensor of bytes that lie in that order, they may be those of a file.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ngtcli.weights.packed import WeightLayout, elements

_DEEP = 64  # inputs in a block, four of each output beside each other: oneDNN's BA16a64b4a
# Outputs in a block, of its orders BA16a64b4a to BA16a16b4a; 0: without blocks, inputs by outputs.
ORDERS = (64, 48, 32, 16, 0)
_ROWS_FOR = 4  # rows that oneDNN orders a weight for; other numbers give the same order (measured)


def packed_weight(whole: Tensor) -> Tensor:
    """int8 (out, in), contiguous, as oneDNN orders it; an opaque tensor."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(whole, [_ROWS_FOR, whole.shape[1]])
    return packed


def ordered(whole: Tensor, order: int) -> Tensor:
    """int8 (out, in) in an order of `ORDERS`, padded with zeros: int8 of one dimension.

    Behind blocks stands the negative sum of each output's integers, int32: what a number added to
    all inputs adds to the product is taken off by that.
    """
    if not order:
        return whole.t().contiguous().flatten()
    outputs, inputs = whole.shape
    wide, deep = -(-outputs // order), -(-inputs // _DEEP)
    if (missing := (deep * _DEEP - inputs, wide * order - outputs)) != (0, 0):
        whole = pad(whole, (0, missing[0], 0, missing[1]))
    whole = whole.view(torch.int32)
    blocks = whole.view(wide, order, deep, _DEEP // 4).permute(0, 2, 3, 1)
    out = torch.empty(whole.numel() * 4 + wide * order * 4, dtype=torch.int8)
    out[: whole.numel() * 4].view(torch.int32).view(blocks.shape).copy_(blocks)
    sums = torch.empty(len(whole), dtype=torch.int32)
    for at in range(0, len(whole), _AT_ONCE):  # of int8, torch sums in int64
        sums[at : at + _AT_ONCE] = whole[at : at + _AT_ONCE].view(torch.int8).sum(1)
    out[whole.numel() * 4 :] = sums.neg_().view(torch.int8)
    return out


_AT_ONCE = 4096  # outputs whose integers are summed at once; guess


def layout(order: int, outputs: int, inputs: int) -> WeightLayout:
    """Where each integer of a weight (outputs, inputs) in an order lies."""
    across, along = torch.arange(outputs), torch.arange(inputs)
    if not order:
        return WeightLayout(across, along * outputs)
    deep = -(-inputs // _DEEP)
    across = across // order * (deep * order * _DEEP) + across % order * 4
    along = along // _DEEP * (order * _DEEP) + along % _DEEP // 4 * (order * 4) + along % 4
    return WeightLayout(across, along)


def find_order(packed: Tensor, whole: Tensor) -> int | None:
    """The order that oneDNN gave to a weight (out, in); None for one that is not known here."""
    found = elements(packed)
    outputs, inputs = whole.shape
    for order in ORDERS:
        blocks = -(-outputs // order) * -(-inputs // _DEEP) if order else 0
        size = blocks * order * _DEEP + -(-outputs // order) * order * 4 if order else whole.numel()
        if size == len(found) and _is_ordered(found, whole, order):
            return order
    return None


def _is_ordered(found: Tensor, whole: Tensor, order: int) -> bool:
    """Whether a weight lies in an order, by some of its outputs at a time: it may be large."""
    outputs, inputs = whole.shape
    if not order:
        return torch.equal(found.view(inputs, outputs).t(), whole)
    deep, wide = -(-inputs // _DEEP) * _DEEP, -(-outputs // order) * order
    step = max(1, _AT_ONCE // order) * order
    for at in range(0, outputs, step):
        part = ordered(whole[at : at + step], order)
        rows = len(part) // (deep + 4)
        sums = wide * deep + at * 4
        there = found[at * deep : (at + rows) * deep], found[sums : sums + rows * 4]
        if not torch.equal(torch.cat(there), part):
            return False
    return True


def description(packed: Tensor) -> bytes:
    """What oneDNN has to know of an opaque tensor besides its bytes."""
    about: Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
    return bytes(about.tolist())


def opaque(data: Tensor, outputs: int, inputs: int, about: bytes) -> Tensor:
    """The opaque tensor of a weight whose bytes are `data`, int8 of one dimension, in its memory.

    `about` is the `description` of a weight of that size. `data` must be held as long as the
    tensor. Raises RuntimeError where torch makes no such tensor; see `makes_opaque`.
    """
    made, dtype, device, kind = _maker()
    sizes, strides = (ctypes.c_int64 * 2)(inputs, outputs), (ctypes.c_int64 * 2)(0, 0)
    handle, number = ctypes.c_void_p(), ctypes.c_int64
    failed = made(
        ctypes.c_void_p(data.data_ptr()), number(2), sizes, strides, number(0), dtype, device,
        ctypes.c_int32(-1), ctypes.byref(handle), kind, about, number(len(about)),
    )  # fmt: skip
    if failed:
        raise RuntimeError("torch makes no opaque tensor of given memory")
    pointers = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, *pointers)(("PyCapsule_New", ctypes.pythonapi))
    take = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr
    tensor: Tensor = take(capsule(handle, None, None))
    if torch.ops.mkldnn.data_ptr(tensor) != data.data_ptr() or len(elements(tensor)) != len(data):
        raise RuntimeError("torch makes an opaque tensor of other memory")
    return tensor


@cache
def _maker() -> tuple[Any, ...]:
    """The function of torch's C interface that makes tensors of memory, and what it is told."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
        told = [
            getattr(library, f"aoti_torch_{name}")()
            for name in ("dtype_int8", "device_type_cpu", "layout__mkldnn")
        ]
        return (library.aoti_torch_create_tensor_from_blob_v2, *map(ctypes.c_int32, told))
    except (OSError, AttributeError):
        raise RuntimeError("torch has no function for it") from None


@cache
def makes_opaque() -> bool:
    """Whether torch makes opaque tensors of given memory: only then weights can lie in a file."""
    try:
        packed = packed_weight(torch.ones((16, 64), dtype=torch.int8))
        opaque(elements(packed).clone(), 16, 64, description(packed))
        return True
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


@dataclass(frozen=True, slots=True)
class SizeOrder:
    """How oneDNN orders weights of a size: in an order of `ORDERS`, if known; its description."""

    order: int | None
    about: bytes


class Packer:
    """Orders weights of any number of sizes, and makes opaque tensors of what came of it."""

    def __init__(self, known: Mapping[tuple[int, int], SizeOrder] | None = None) -> None:
        """`known`: of weights that were ordered before."""
        self.known = dict(known or {})

    def pack(self, whole: Tensor) -> Tensor:
        """int8 (out, in) as its kernel reads it: bytes, int8 of one dimension.

        It is an opaque tensor where torch makes none of bytes.
        """
        size = whole.shape[0], whole.shape[1]
        if (known := self.known.get(size)) and known.order is not None and makes_opaque():
            return ordered(whole, known.order)
        packed = packed_weight(whole)
        if known is None:
            self.known[size] = SizeOrder(find_order(packed, whole), description(packed))
        return elements(packed).clone() if makes_opaque() else packed

    def opaque(self, data: Tensor, outputs: int, inputs: int) -> Tensor:
        """The opaque tensor of what `pack` gave for a weight of that size; `data` is to be held."""
        if data.is_mkldnn:
            return data
        return opaque(data, outputs, inputs, self.known[outputs, inputs].about)
