"""oneDNN, which comes with torch: its order of weights, and its product of 8-bit integers.

Where torch makes a tensor of bytes that lie in that order, they may be those of a file. It orders
150 MB of integers a second (measured, one thread), which are made of floats at 100 to 110.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_ROWS_FOR = 4  # rows that oneDNN orders a weight for; other numbers give the same order (measured)
LARGEST = 127  # magnitude of a quantised weight
# Inputs below this are zeros: 127 divided by it is a float32. Derived; no layer has such inputs.
TINY = 1e-30


def elements(packed: Tensor) -> Tensor:
    """The memory of a packed weight as a tensor of one dimension, padding included; not a copy."""
    packed = packed.detach()
    size, start = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    return torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=packed.dtype)


@dataclass(frozen=True, slots=True)
class Int8Kernel:
    """How the kernel takes inputs: from -`most` to `most`; unsigned, `most` + 1 is added."""

    signed: bool = False
    most: int = 127

    @property
    def zero(self) -> int:
        """The integer that stands for zero."""
        return 0 if self.signed else self.most + 1

    def quantized(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (count, n) as integers, and the largest magnitude of each, float32 (count, 1)."""
        # Passes that take this for nothing gain 2 to 6% (0.5B and 1B, 1, 8 and 32 rows): not fused.
        most = rows.abs().amax(-1, keepdim=True).float().clamp_min_(TINY)
        whole = torch.mul(rows.float(), self.most / most).round_().to(torch.int8)
        if self.signed:
            return whole, most
        return whole.add_(self.zero - 256 if self.zero > 127 else self.zero).view(torch.uint8), most

    def product(self, rows: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
        """float32 (count, out) of integers (count, in); `scale` (out,) is multiplied in."""
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            rows, 1.0, self.zero, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out

    def is_right(self) -> bool:
        """Whether products are those of the integers, the largest too, of weights in given memory.

        False without a kernel, or where torch makes no opaque tensors of memory.
        """
        source, sizes = torch.Generator().manual_seed(0), Sizes()
        try:
            for outputs, inputs in ((96, 128), (100, 67)):
                whole = torch.randint(-LARGEST, LARGEST + 1, (outputs, inputs), generator=source)
                rows = torch.randint(-self.most, self.most + 1, (9, inputs), generator=source)
                whole[0], rows[0], whole[1], rows[1] = LARGEST, self.most, -LARGEST, -self.most
                given = (rows + self.zero).to(torch.int8 if self.signed else torch.uint8)
                data = in_blocks(whole.to(torch.int8), sizes)
                packed = opaque(data, (outputs, inputs), sizes)
                scale, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
                true = rows.double() @ whole.double().T
                for count in (1, 3, 9):
                    out = self.product(given[:count], packed, scale, zeros)
                    if not torch.equal(out.double(), true[:count]):
                        return False
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        return True


Sizes = dict[tuple[int, int], bytes]  # what oneDNN has to know of weights, by outputs and inputs


def in_blocks(whole: Tensor, sizes: Sizes) -> Tensor:
    """int8 (out, in), contiguous, as oneDNN orders it: bytes, int8 of one dimension.

    To `sizes` is added what `opaque` needs besides.
    """
    outputs, inputs = whole.shape
    packed = torch.ops.onednn.qlinear_prepack(whole, [_ROWS_FOR, inputs])
    if (outputs, inputs) not in sizes:
        about: Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
        sizes[outputs, inputs] = bytes(about.tolist())
    return elements(packed).clone()


def opaque(data: Tensor, size: tuple[int, int], sizes: Sizes) -> Tensor:
    """The opaque tensor of what `in_blocks` gave for a weight of that size, in its memory.

    `data` must be held as long as the tensor. Raises RuntimeError where torch makes no such tensor.
    """
    make, dtype, device, kind = _maker()
    about, (outputs, inputs) = sizes[size], size
    shape, strides = (ctypes.c_int64 * 2)(inputs, outputs), (ctypes.c_int64 * 2)(0, 0)
    handle, number = ctypes.c_void_p(), ctypes.c_int64
    failed = make(
        ctypes.c_void_p(data.data_ptr()), number(2), shape, strides, number(0), dtype, device,
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
