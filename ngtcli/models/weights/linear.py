"""Linear layers on weights in a form of their own, and embeddings that read rows of a file.

There are two storages. Floats in blocks, as oneDNN's kernel reads them: a CPU multiplies few rows
faster by them. Integers of 8 bits, a quarter of float32's bytes: each output's weights are divided
by their largest magnitude and rounded to -127 … 127, and so are the inputs of each row; the
products are summed in integers, then scale and bias follow in float32. A row's bits do not depend
on the rows beside it in the second; in the first they do not where every matmul has at least four.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.models.weights.onednn import LARGEST, TINY, Int8Kernel

VERSION = 4  # of what is quantised how; raised where a kept file would differ
_AT_ONCE = 1 << 24  # elements that are float32 at once while weights are quantised: 64 MB


class Storage:
    """A weight of a `size`, (outputs, inputs), and its product.

    Fewer rows than `least` are padded to as many. `packed` is what a layer shows as its parameter,
    `bits` are those of integers, 0 for floats. Nothing of it changes: a copy of a layer has the
    same one.
    """

    packed: Tensor
    size: tuple[int, int]
    least, bits = 1, 0

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """(n, inputs) to (n, outputs), in the dtype of the rows."""
        raise NotImplementedError

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@dataclass(frozen=True, eq=False)
class FloatBlocks(Storage):
    """Floats in the order of oneDNN's kernel; `packed` is opaque to most of torch.

    Rows of the least product, measured (one thread, 2,048 × 8,192, float32, over one row unpacked):
    one packed row costs 1.1 to 1.5, two 1.2 to 1.7, four 0.8 to 1.2, for fewer have a slower kernel
    of other bits.
    """

    packed: Tensor
    size: tuple[int, int]
    least = 4

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise.default
        out: Tensor = linear(rows, self.packed, bias, "none", [], "")
        return out


@torch.no_grad()
def float_blocks(weight: Tensor) -> FloatBlocks | None:
    """A weight (out, in) in blocks; None where oneDNN has no kernel for it on this CPU."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        blocks = FloatBlocks(packed, (weight.shape[0], weight.shape[1]))
        blocks.product(weight.new_zeros(blocks.least, blocks.size[1]), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return blocks


@dataclass(frozen=True, eq=False)
class Int8Blocks(Storage):
    """Integers of 8 bits in the order of oneDNN's kernel; `packed` is opaque to most of torch.

    `scale`, float32 (out,), is what an integer of each output's weights stands for. `held` is what
    the memory of `packed` belongs to.
    """

    packed: Tensor
    size: tuple[int, int]
    scale: Tensor
    kernel: Int8Kernel
    held: Tensor
    bits = 8

    @cached_property
    def _given(self) -> tuple[Tensor, Tensor]:
        """What the kernel multiplies results by, and zero points, which are none."""
        return self.scale / self.kernel.most, torch.zeros(len(self.scale), dtype=torch.int32)

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        whole, most = self.kernel.quantized(rows)
        out = self.kernel.product(whole, self.packed, *self._given).mul_(most)
        if bias is not None:
            out += bias
        return out.to(rows.dtype)


@torch.no_grad()
def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight (out, in) of any floating dtype as int8, and the scale (out,), float32.

    >>> quantized(torch.tensor([[1.0, -2.0], [0.0, 0.0]]))[0].tolist()
    [[64, -127], [0, 0]]
    """
    whole = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight))
    step = max(1, _AT_ONCE // max(1, weight.shape[1]))
    for at in range(0, len(weight), step):
        part = weight[at : at + step].float()
        own = part.abs().amax(1).clamp_min_(TINY).div_(LARGEST)
        whole[at : at + step] = part.div(own[:, None]).round_()
        scale[at : at + step] = own
    return whole, scale


class PackedLinear(nn.Module):
    """A linear layer on a storage, of a `dtype` between layers; its bias may come later."""

    dtype = torch.float32

    def __init__(self, storage: Storage, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = storage.size
        self.packed = nn.Parameter(storage.packed, requires_grad=False)
        self.storage, self.bias = storage, bias

    @property
    def weight(self) -> Any:
        """The weight (out, in) of floats, in a new tensor; of integers what is known without it."""
        if self.storage.bits:  # some models ask for its dtype; what would compute fails
            on, shape = self.packed.device, torch.Size(self.storage.size)
            return SimpleNamespace(dtype=self.dtype, device=on, shape=shape)
        return self.packed.detach().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features), in the dtype of the inputs."""
        shape, least = (*inputs.shape[:-1], self.out_features), self.storage.least
        rows = inputs.reshape(-1, self.in_features)
        if not (count := len(rows)):
            return inputs.new_empty(shape)
        if count == 1 < least:
            rows = rows.expand(least, -1)  # quicker than rows of zeros
        elif count < least:
            rows = nn.functional.pad(rows, (0, 0, 0, least - count))
        out = self.storage.product(rows, self.bias)
        return (out if len(rows) == count else out[:count]).view(shape)


class MappedEmbedding(nn.Module):
    """An embedding whose rows are given in another dtype than that of its weight: the same values.

    Its weight, (num_embeddings, embedding_dim), is mostly one in a mapped file, of which only the
    rows that are looked up are read. It is no parameter: those give a model its dtype. Rows are
    scaled by `embed_scale` (Gemma's), None: they are not.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, replaced: nn.Embedding) -> None:
        super().__init__()
        self.weight, self.dtype, self.padding_idx = weight.detach(), dtype, replaced.padding_idx
        self.num_embeddings, self.embedding_dim = weight.shape
        scale: float | None = getattr(replaced, "scalar_embed_scale", None)
        self.embed_scale = None if scale is None else torch.tensor(scale, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """(…) to (…, embedding_dim)."""
        rows = nn.functional.embedding(ids, self.weight).to(self.dtype)
        return rows if self.embed_scale is None else rows * self.embed_scale


def storages(hf: nn.Module) -> Iterator[Storage]:
    """Those of a model's layers."""
    return (module.storage for module in hf.modules() if isinstance(module, PackedLinear))


def bits_of(hf: nn.Module) -> int:
    """The bits of a model's quantised layers, 0 where there are none."""
    return min((storage.bits for storage in storages(hf) if storage.bits), default=0)
