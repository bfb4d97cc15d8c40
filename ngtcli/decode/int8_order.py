"""The order of a weight's integers as oneDNN's kernel reads them, and tensors made in that order.

oneDNN orders 40 MB a second (measured, one thread): minutes for a large model. So the first weight
of a shape is ordered by it, and the others are copied into the order found there, ten times as
quick. Where torch makes a tensor of bytes that lie in that order, they may be those of a file.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ngtcli.decode.packed import WeightLayout, elements

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
    whole = pad(whole, (0, deep * _DEEP - inputs, 0, wide * order - outputs)).view(torch.int32)
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
    for order in ORDERS:
        outputs, inputs = whole.shape
        blocks = -(-outputs // order) * -(-inputs // _DEEP) if order else 0
        size = blocks * order * _DEEP + -(-outputs // order) * order * 4 if order else whole.numel()
        if size == len(found) and torch.equal(ordered(whole, order), found):
            return order
    return None


def description(packed: Tensor) -> bytes:
    """What oneDNN has to know of an opaque tensor besides its bytes."""
    about: Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
    return bytes(about.tolist())


def opaque(data: Tensor, outputs: int, inputs: int, about: bytes) -> Tensor | None:
    """The opaque tensor of a weight whose bytes are `data`; None where torch cannot make one.

    `about` is the `description` of a weight of that size. `data` is not copied, and must be held as
    long as the tensor.
    """
    if (maker := _maker()) is None:
        return None
    made, dtype, device, kind = maker
    sizes, strides = (ctypes.c_int64 * 2)(inputs, outputs), (ctypes.c_int64 * 2)(0, 0)
    handle, number = ctypes.c_void_p(), ctypes.c_int64
    failed = made(
        ctypes.c_void_p(data.data_ptr()), number(2), sizes, strides, number(0), dtype, device,
        ctypes.c_int32(-1), ctypes.byref(handle), kind, about, number(len(about)),
    )  # fmt: skip
    if failed:
        return None
    pointers = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, *pointers)(("PyCapsule_New", ctypes.pythonapi))
    take = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr
    tensor: Tensor = take(capsule(handle, None, None))
    return tensor if torch.ops.mkldnn.data_ptr(tensor) == data.data_ptr() else None


@cache
def _maker() -> tuple[Any, ...] | None:
    """The function of torch's C interface that makes tensors of memory, and what it is told."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
        told = [
            getattr(library, f"aoti_torch_{name}")()
            for name in ("dtype_int8", "device_type_cpu", "layout__mkldnn")
        ]
        made = library.aoti_torch_create_tensor_from_blob_v2
    except (OSError, AttributeError):
        return None
    rest = (torch.ops.mkldnn, "_get_mkldnn_serialized_md"), (torch._C, "_aoti")
    dtype, device, kind = map(ctypes.c_int32, told)
    return (made, dtype, device, kind) if all(hasattr(*one) for one in rest) else None


class Packer:
    """Orders weights of any number of shapes."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int | None, bytes]] = {}

    def order(self, outputs: int, inputs: int) -> int | None:
        """The order of the weights of a shape that was ordered before, where it is known."""
        return self._known[outputs, inputs][0]

    def pack(self, whole: Tensor) -> tuple[Tensor, Tensor | None]:
        """The opaque tensor of int8 (out, in), and what is to be held as long as it."""
        outputs, inputs = whole.shape
        order, about = self._known.get((outputs, inputs), (None, b""))
        if order is not None:
            data = ordered(whole, order)
            if (packed := opaque(data, outputs, inputs, about)) is not None:
                return packed, data
        packed = packed_weight(whole)
        if (outputs, inputs) not in self._known:
            order = find_order(packed, whole)
            self._known[outputs, inputs] = order, description(packed) if _maker() else b""
        return packed, None
