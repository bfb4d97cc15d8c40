"""Linear layers with 4-bit weights: half a byte each, and a scale for some inputs of each output.

The product is torch's for a CPU. It adds up in float32, input by input, a row at a time, so that a
row's bits do not depend on the rows beside it. Inputs, scales and what zero points add are rounded
to bfloat16, which it is made for; with others it is many times slower. It costs nearly as much for
each row as for the first one (measured): 8-bit layers are quicker from eight rows on.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.model_files.scheme import GROUPS
from ngtcli.weights.int8 import Int8Linear

_MIDDLE = 8  # the integer that the product takes for zero
_OUTPUTS = 16  # it takes multiples of so many
_BLOCKS = (64, 32)  # outputs; with AVX-512, and AVX2


class Int4Linear(nn.Module):
    """A linear layer on what `packed` gives; `order`, (in,), is that of its inputs there."""

    def __init__(
        self,
        packed: Tensor,
        scales: Tensor,
        bias: nn.Parameter | None,
        outputs: int,
        order: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = outputs, 2 * packed.shape[1]
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales, self.bias, self.order = scales, bias, order
        self._group = self.in_features // len(scales)

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features), in the dtype of the inputs."""
        rows, shape = inputs.reshape(-1, self.in_features), (*inputs.shape[:-1], self.out_features)
        if not len(rows):
            return inputs.new_empty(shape)
        rows = rows.to(torch.bfloat16)
        rows = rows.contiguous() if self.order is None else rows.index_select(1, self.order)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
            rows, self.packed, self._group, self.scales
        )
        out = out[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            out = out + self.bias
        return out.view(shape)


def bits_of(hf: nn.Module) -> int:
    """The bits of a model's quantised layers, 0 where there are none."""
    kinds = {type(module) for module in hf.modules()}
    return 4 if Int4Linear in kinds else 8 if Int8Linear in kinds else 0


def packed(whole: Tensor, scales: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from 0 to 15, uint8 (out, in), as the product reads them, and its scales.

    `scales` and `zeros` are (groups, out), for `in` / groups inputs each; a weight is its scale
    times (integer - zero). The results are uint8 (out', in / 2) and bfloat16 (groups', out', 2),
    where out' is a multiple of 16: the integers are the same, scales and offsets rounded. Raises
    ValueError for groups that the product does not take.
    """
    own = whole.shape[1] // len(scales)
    group = next((one for one in GROUPS if own % one == 0), 0)
    if not group or own * len(scales) != whole.shape[1]:
        raise ValueError(f"{own} inputs share a scale")
    if missing := -len(whole) % _OUTPUTS:
        whole = nn.functional.pad(whole, (0, 0, 0, missing))
        scales, zeros = (nn.functional.pad(one, (0, missing)) for one in (scales, zeros))
    rounded = scales.to(torch.bfloat16).float()
    pairs = torch.stack((rounded, (_MIDDLE - zeros) * rounded), -1).to(torch.bfloat16)
    return _ordered(whole), pairs.repeat_interleave(own // group, 0)


def _ordered(whole: Tensor) -> Tensor:
    """As torch orders integers for its product: by itself, or here, which takes a fifth (measured).

    It is quickest for a weight whose transpose is contiguous.
    """
    block = _block()
    if not block or len(whole) % block:
        found: Tensor = _by_torch(whole)
        return found
    return _in_blocks(whole, block)


def _by_torch(whole: Tensor) -> Any:
    whole = whole.int().contiguous()
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu.default(whole, 1)


def _in_blocks(whole: Tensor, block: int) -> Tensor:
    """Blocks of outputs, where a byte has one integer and that of half a block behind."""
    outputs, inputs = whole.shape
    first, second = whole.t().reshape(inputs, outputs // block, 2, block // 2).unbind(2)
    made = (second << 4).bitwise_or_(first).transpose(0, 1)
    return made.contiguous().view(outputs, inputs // 2)


@cache
def _block() -> int:
    """Outputs in a block on this CPU; 0 where torch orders them in another way."""
    whole = torch.randint(0, 16, (32, 2 * max(_BLOCKS)), dtype=torch.uint8).t()
    true = _by_torch(whole)
    return next((one for one in _BLOCKS if torch.equal(_in_blocks(whole, one), true)), 0)
