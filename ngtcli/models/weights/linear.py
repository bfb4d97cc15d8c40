"""Linear layers on packed weights, and embeddings that read rows of a mapped file.

There are two formats:

- Floats, prepacked in the layout of oneDNN's kernel. A CPU multiplies few rows by them faster. A
  row's result does not depend on the other rows of a matmul of at least four.
- 8-bit integers, a quarter of the bytes of float32. The weights of each output are scaled by their
  largest magnitude and rounded to -127 … 127, and so are the activations of each row. Products are
  summed in integers; scale and bias follow in float32. A row's result never depends on other rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.models.weights.onednn import MIN_ABSMAX, QMAX, Int8Kernel

VERSION = 4  # The version of the quantization; raise it if cached files would differ.
_CHUNK_ELEMENTS = 1 << 24  # Elements that are cast to float32 at once for quantizing: 64 MB.


class PackedWeight:
    """A packed weight and its matmul.

    It is immutable: copies of a layer share it.

    Attributes:
        packed: The tensor that a layer has as its parameter.
        size: (out, in).
        min_rows: The minimum number of rows of a matmul; fewer are padded.
        bits: The bits of integers, 0 for floats.
    """

    packed: Tensor
    size: tuple[int, int]
    bits = 0

    @property
    def min_rows(self) -> int:
        return 1

    def matmul(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply rows (n, in) and add the bias; return (n, out) in the dtype of the rows."""
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class PrepackedFloats(PackedWeight):
    """Floats in the layout of oneDNN's kernel; `packed` is opaque to most of torch.

    Fewer than four rows go to a slower kernel that rounds differently. Measured on one thread with
    2,048 × 8,192 in float32, in units of one row without packing: one packed row costs 1.1 to 1.5,
    two 1.2 to 1.7, four 0.8 to 1.2.
    """

    packed: Tensor
    size: tuple[int, int]
    min_rows = 4

    def matmul(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise.default
        out: Tensor = linear(rows, self.packed, bias, "none", [], "")
        return out


@torch.no_grad()
def prepack_floats(weight: Tensor) -> PrepackedFloats | None:
    """Prepack a weight (out, in); return None if oneDNN has no kernel for it on this CPU."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        floats = PrepackedFloats(packed, (weight.shape[0], weight.shape[1]))
        floats.matmul(weight.new_zeros(floats.min_rows, floats.size[1]), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return floats


@dataclass(frozen=True, eq=False)
class PrepackedInt8(PackedWeight):
    """8-bit integers in the layout of oneDNN's kernel; `packed` is opaque to most of torch.

    Attributes:
        scale: float32 (out,): the factor from integers to weights, for each output.
        buffer: Owns the memory of `packed`.
    """

    packed: Tensor
    size: tuple[int, int]
    scale: Tensor
    kernel: Int8Kernel
    buffer: Tensor
    bits = 8

    @cached_property
    def min_rows(self) -> int:
        return self.kernel.min_rows(self.size[0])

    @cached_property
    def _epilogue(self) -> tuple[Tensor, Tensor]:
        """The factors of the results, float32 (out,), and the zero points, int32 (out,), all 0."""
        return self.scale / self.kernel.qmax, torch.zeros(len(self.scale), dtype=torch.int32)

    def matmul(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        quantized, absmax = self.kernel.quantize(rows)
        out = self.kernel.matmul(quantized, self.packed, *self._epilogue).mul_(absmax)
        if bias is not None:
            out += bias
        return out.to(rows.dtype)


@torch.no_grad()
def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a weight (out, in) of any floating dtype to int8; return it with its scale (out,).

    >>> quantize_weight(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))[0].tolist()
    [[64, -127], [0, 0]]
    """
    quantized = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight))
    step = max(1, _CHUNK_ELEMENTS // max(1, weight.shape[1]))
    for first in range(0, len(weight), step):
        part = weight[first : first + step].float()
        part_scale = part.abs().amax(1).clamp_min_(MIN_ABSMAX).div_(QMAX)
        quantized[first : first + step] = part.div(part_scale[:, None]).round_()
        scale[first : first + step] = part_scale
    return quantized, scale


class PackedLinear(nn.Module):
    """A linear layer on a packed weight.

    Attributes:
        dtype: The dtype of activations.
        bias: It may be set after the layer was made.
    """

    dtype = torch.float32

    def __init__(self, packed_weight: PackedWeight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = packed_weight.size
        self.packed = nn.Parameter(packed_weight.packed, requires_grad=False)
        self.packed_weight = packed_weight
        self.bias = bias

    @property
    def weight(self) -> Any:
        """The weight (out, in) as a new tensor; for integers, an object with dtype and shape only.

        Some models ask for the dtype of a weight; those that compute with the weight fail.
        """
        if self.packed_weight.bits:
            shape = torch.Size(self.packed_weight.size)
            return SimpleNamespace(dtype=self.dtype, device=self.packed.device, shape=shape)
        return self.packed.detach().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (…, in_features) to (…, out_features), in the dtype of the inputs."""
        shape = (*inputs.shape[:-1], self.out_features)
        min_rows = self.packed_weight.min_rows
        rows = inputs.reshape(-1, self.in_features)
        count = len(rows)
        if count == 0:
            return inputs.new_empty(shape)
        if count == 1 < min_rows:
            rows = rows.expand(min_rows, -1)  # This is faster than padding by zeros.
        elif count < min_rows:
            rows = nn.functional.pad(rows, (0, 0, 0, min_rows - count))
        out = self.packed_weight.matmul(rows, self.bias)
        return (out if len(rows) == count else out[:count]).view(shape)


class MappedEmbedding(nn.Module):
    """An embedding that casts the rows it looks up to the model's dtype, without loss.

    The weight is usually mapped from a file, of which only these rows are read. It is not a
    parameter, because the dtype of a model is that of its parameters.

    Attributes:
        weight: (num_embeddings, embedding_dim).
        dtype: The dtype of the rows that are returned.
        embed_scale: The factor of all rows (Gemma); None: they are not scaled.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, replaced: nn.Embedding) -> None:
        super().__init__()
        self.weight = weight.detach()
        self.dtype = dtype
        self.padding_idx = replaced.padding_idx
        self.num_embeddings, self.embedding_dim = weight.shape
        scale: float | None = getattr(replaced, "scalar_embed_scale", None)
        self.embed_scale = None if scale is None else torch.tensor(scale, dtype=dtype)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Look up token ids (…); return (…, embedding_dim)."""
        rows = nn.functional.embedding(token_ids, self.weight).to(self.dtype)
        return rows if self.embed_scale is None else rows * self.embed_scale


def packed_weights(hf: nn.Module) -> Iterator[PackedWeight]:
    """Iterate over the packed weights of a model."""
    return (module.packed_weight for module in hf.modules() if isinstance(module, PackedLinear))


def quantized_bits(hf: nn.Module) -> int:
    """Return the bits of a model's quantized layers, 0 if it has none."""
    return min((weight.bits for weight in packed_weights(hf) if weight.bits), default=0)
