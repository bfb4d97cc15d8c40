"""oneDNN, which comes with torch: its layout of weights, and its matmul of 8-bit integers.

torch can make a tensor over memory that already has this layout, such as a mapped file. That saves
time: oneDNN prepacks 150 MB of integers a second, and quantizing floats gives 100 to 110 MB a
second (measured, one thread).
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PACKED_FOR_ROWS = 4  # Other numbers of rows give the same layout (measured).
QMAX = 127  # the largest magnitude of a quantized weight
# oneDNN does not use AMX if a matmul has at most this many results (rows times outputs), and takes
# 100 to 1,000 times as long. Measured on a Xeon, 896 inputs and 128 outputs: 3.8 ms for one row,
# 0.04 ms for three.
_MAX_SLOW_PRODUCT = 256
# Rows of smaller activations are zeros (derived: 127 divided by it is still a finite float32). No
# layer has such inputs.
MIN_ABSMAX = 1e-30


def packed_elements(packed: Tensor) -> Tensor:
    """View the memory of a prepacked weight in one dimension, padding included."""
    packed = packed.detach()
    size = torch.ops.mkldnn._nbytes(packed)
    start = torch.ops.mkldnn.data_ptr(packed)
    return torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=packed.dtype)


@dataclass(frozen=True, slots=True)
class Int8Kernel:
    """An int8 matmul of oneDNN, by the format of its activations.

    Attributes:
        signed: Activations range from -qmax to qmax; otherwise qmax + 1 is added to them.
        qmax: The largest magnitude of a quantized activation.
    """

    signed: bool = False
    qmax: int = 127

    @property
    def zero_point(self) -> int:
        """The integer that stands for zero."""
        return 0 if self.signed else self.qmax + 1

    def min_rows(self, out_features: int) -> int:
        """Return how many rows a matmul needs so that oneDNN takes its fast kernel."""
        return _MAX_SLOW_PRODUCT // out_features + 1 if self.signed else 1

    def quantize(self, activations: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize rows (count, in); return them and each row's largest magnitude (count, 1)."""
        # Fusing these steps is not worth it: a forward pass without them is 2 to 6% faster
        # (measured: 0.5B and 1B parameters; 1, 8 and 32 tokens).
        absmax = activations.abs().amax(-1, keepdim=True).float().clamp_min_(MIN_ABSMAX)
        quantized = torch.mul(activations.float(), self.qmax / absmax).round_().to(torch.int8)
        if self.signed:
            return quantized, absmax
        shift = self.zero_point
        if shift > 127:
            shift -= 256  # int8 holds 128 as -128; the view as uint8 undoes that.
        return quantized.add_(shift).view(torch.uint8), absmax

    def matmul(
        self, activations: Tensor, packed: Tensor, scale: Tensor, zero_points: Tensor
    ) -> Tensor:
        """Multiply integers.

        Args:
            activations: int8 or uint8 (count, in), from `quantize`.
            packed: The opaque tensor of a prepacked weight.
            scale: float32 (out,): the factors of the results.
            zero_points: int32 (out,): the zero points of the weight, all 0.

        Returns:
            float32 (count, out).
        """
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            activations,
            1.0,
            self.zero_point,
            packed,
            scale,
            zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return out

    def is_correct(self) -> bool:
        """Test that sums of products are exact, the largest ones too, with weights in a buffer.

        Returns:
            False also if there is no kernel, or if torch cannot make opaque tensors over a buffer.
        """
        generator = torch.Generator().manual_seed(0)
        layouts: PackedLayouts = {}
        try:
            for out_features, in_features in ((96, 128), (100, 67)):
                size = out_features, in_features
                weight = torch.randint(-QMAX, QMAX + 1, size, generator=generator)
                rows = torch.randint(
                    -self.qmax, self.qmax + 1, (9, in_features), generator=generator
                )
                weight[0] = QMAX
                weight[1] = -QMAX
                rows[0] = self.qmax
                rows[1] = -self.qmax
                dtype = torch.int8 if self.signed else torch.uint8
                activations = (rows + self.zero_point).to(dtype)
                buffer = prepack(weight.to(torch.int8), layouts)
                packed = opaque_tensor(buffer, size, layouts)
                scale = torch.ones(out_features)
                zero_points = torch.zeros(out_features, dtype=torch.int32)
                expected = rows.double() @ weight.double().T
                for count in (1, 3, 9):
                    out = self.matmul(activations[:count], packed, scale, zero_points)
                    if not torch.equal(out.double(), expected[:count]):
                        return False
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        return True


# oneDNN's serialized description of a weight's layout, by (out, in).
PackedLayouts = dict[tuple[int, int], bytes]


def prepack(weight: Tensor, layouts: PackedLayouts) -> Tensor:
    """Copy an int8 weight (out, in), contiguous, into oneDNN's layout: int8 of one dimension.

    The description of the layout, which `opaque_tensor` needs, is added to `layouts`.
    """
    out_features, in_features = weight.shape
    packed = torch.ops.onednn.qlinear_prepack(weight, [_PACKED_FOR_ROWS, in_features])
    if (out_features, in_features) not in layouts:
        description: Tensor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
        layouts[out_features, in_features] = bytes(description.tolist())
    return packed_elements(packed).clone()


def opaque_tensor(buffer: Tensor, size: tuple[int, int], layouts: PackedLayouts) -> Tensor:
    """Make an opaque tensor over the memory of a prepacked weight.

    Args:
        buffer: The prepacked weight. It must live as long as the tensor.
        size: (out, in).
        layouts: Descriptions of layouts, from `prepack`.

    Raises:
        RuntimeError: torch cannot make such a tensor.
    """
    create, dtype, device, layout = _tensor_constructor()
    description = layouts[size]
    out_features, in_features = size
    shape = (ctypes.c_int64 * 2)(in_features, out_features)
    strides = (ctypes.c_int64 * 2)(0, 0)
    handle = ctypes.c_void_p()
    failed = create(
        ctypes.c_void_p(buffer.data_ptr()),
        ctypes.c_int64(2),
        shape,
        strides,
        ctypes.c_int64(0),
        dtype,
        device,
        ctypes.c_int32(-1),
        ctypes.byref(handle),
        layout,
        description,
        ctypes.c_int64(len(description)),
    )
    if failed:
        raise RuntimeError("torch cannot make an opaque tensor over a buffer")
    pointers = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
    new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, *pointers)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    steal = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr
    tensor: Tensor = steal(new_capsule(handle, None, None))
    shares_memory = torch.ops.mkldnn.data_ptr(tensor) == buffer.data_ptr()
    if not shares_memory or len(packed_elements(tensor)) != len(buffer):
        raise RuntimeError("torch made an opaque tensor over other memory")
    return tensor


@cache
def _tensor_constructor() -> tuple[Any, ...]:
    """Return torch's C function that makes tensors over memory, and its constants.

    Returns:
        The function, and the constants of int8, of the CPU and of oneDNN's layout.

    Raises:
        RuntimeError: This version of torch has no such function.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)
        constants = [
            getattr(library, f"aoti_torch_{name}")()
            for name in ("dtype_int8", "device_type_cpu", "layout__mkldnn")
        ]
        create = library.aoti_torch_create_tensor_from_blob_v2
        return (create, *map(ctypes.c_int32, constants))
    except (OSError, AttributeError):
        raise RuntimeError("this version of torch cannot make opaque tensors") from None
