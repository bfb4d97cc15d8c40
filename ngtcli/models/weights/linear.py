"""Linear layers on weights in a format of their own, and embeddings that read rows of a file.

Two formats. Floats, prepacked in the layout of oneDNN's kernel: a CPU multiplies few rows faster by
them. Integers of 8 bits, a quarter of float32's bytes: the weights of each output are divided by
their largest magnitude and rounded to -127 … 127, and so are the activations of each row; the
products are summed in integers, then scale and bias follow in float32. In the second a row's bits
do not depend on the rows beside it; in the first they do not where every matmul has at least four.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.models.weights.onednn import MIN_ABSMAX, QMAX, Int8Kernel

VERSION = 4  # of how weights are quantized; raised where a cached file would differ
_ELEMENTS_AT_ONCE = 1 << 24  # that are float32 at once while weights are quantized: 64 MB


class PackedWeight:
    """A weight of a `size`, (out, in), and its matmul.

    Nothing of it changes: a copy of a layer has the same one.

    Attributes:
        packed: What a layer shows as its parameter.
        min_rows: Fewer rows are padded.
        bits: Of integers, 0 for floats.
    """

    packed: Tensor
    size: tuple[int, int]
    min_rows = 1
    bits = 0

    def matmul(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply (n, in); (n, out) in the dtype of the rows."""
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class PrepackedFloats(PackedWeight):
    """Floats in the layout of oneDNN's kernel; `packed` is opaque to most of torch.

    Fewer than four rows have a slower kernel, of other bits. Measured (one thread, 2,048 × 8,192,
    float32, over one row that is not packed): one packed row costs 1.1 to 1.5, two 1.2 to 1.7, four
    0.8 to 1.2.
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
    """Prepack a weight (out, in); None where oneDNN has no kernel for it on this CPU."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        floats = PrepackedFloats(packed, (weight.shape[0], weight.shape[1]))
        floats.matmul(weight.new_zeros(floats.min_rows, floats.size[1]), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return floats


@dataclass(frozen=True, eq=False)
class PrepackedInt8(PackedWeight):
    """Integers of 8 bits in the layout of oneDNN's kernel; `packed` is opaque to most of torch.

    Attributes:
        scale: float32 (out,): what an integer of each output's weights stands for.
        buffer: Owns the memory of `packed`.
    """

    packed: Tensor
    size: tuple[int, int]
    scale: Tensor
    kernel: Int8Kernel
    buffer: Tensor
    bits = 8

    @cached_property
    def _epilogue(self) -> tuple[Tensor, Tensor]:
        """The factors that the kernel multiplies results by, and zero points, which are 0."""
        return self.scale / self.kernel.qmax, torch.zeros(len(self.scale), dtype=torch.int32)

    def matmul(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        quantized, absmax = self.kernel.quantize(rows)
        out = self.kernel.matmul(quantized, self.packed, *self._epilogue).mul_(absmax)
        if bias is not None:
            out += bias
        return out.to(rows.dtype)


@torch.no_grad()
def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize a weight (out, in) of any floating dtype: int8, and the scale, float32 (out,).

    >>> quantize_weight(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))[0].tolist()
    [[64, -127], [0, 0]]
    """
    quantized = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight))
    step = max(1, _ELEMENTS_AT_ONCE // max(1, weight.shape[1]))
    for first in range(0, len(weight), step):
        part = weight[first : first + step].float()
        part_scale = part.abs().amax(1).clamp_min_(MIN_ABSMAX).div_(QMAX)
        quantized[first : first + step] = part.div(part_scale[:, None]).round_()
        scale[first : first + step] = part_scale
    return quantized, scale


class PackedLinear(nn.Module):
    """A linear layer on a packed weight; its bias may come later.

    `dtype` is that of activations.
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
        """The weight (out, in) of floats, in a new tensor; of integers its dtype and shape."""
        if self.packed_weight.bits:  # some models ask for its dtype; what would compute fails
            shape = torch.Size(self.packed_weight.size)
            return SimpleNamespace(dtype=self.dtype, device=self.packed.device, shape=shape)
        return self.packed.detach().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features), in the dtype of the inputs."""
        shape = (*inputs.shape[:-1], self.out_features)
        min_rows = self.packed_weight.min_rows
        rows = inputs.reshape(-1, self.in_features)
        count = len(rows)
        if count == 0:
            return inputs.new_empty(shape)
        if count == 1 < min_rows:
            rows = rows.expand(min_rows, -1)  # faster than rows of zeros
        elif count < min_rows:
            rows = nn.functional.pad(rows, (0, 0, 0, min_rows - count))
        out = self.packed_weight.matmul(rows, self.bias)
        return (out if len(rows) == count else out[:count]).view(shape)


class MappedEmbedding(nn.Module):
    """An embedding whose weight is in another dtype than the rows that it gives: the same values.

    Its weight, (num_embeddings, embedding_dim), mostly lies in a mapped file, of which only the
    rows that are looked up are read. It is no parameter: those give a model its dtype. Rows are
    scaled by `embed_scale` (Gemma's); None: they are not.
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
        """(…) to (…, embedding_dim)."""
        rows = nn.functional.embedding(token_ids, self.weight).to(self.dtype)
        return rows if self.embed_scale is None else rows * self.embed_scale


def packed_weights(hf: nn.Module) -> Iterator[PackedWeight]:
    """List those of a model's layers."""
    return (module.packed_weight for module in hf.modules() if isinstance(module, PackedLinear))


def quantized_bits(hf: nn.Module) -> int:
    """The bits of a model's quantized layers; 0 where there are none."""
    return min((weight.bits for weight in packed_weights(hf) if weight.bits), default=0)
