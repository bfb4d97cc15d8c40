"""Linear layers with 8-bit weights and activations: a quarter of float32's bytes, integer sums.

Each output's weights are divided by their largest magnitude and rounded to -127 … 127 (symmetric,
per channel); so are the inputs of each row (per token). The products are summed in integers by
oneDNN's matrix product, which comes with torch, so that a row's bits do not depend on the rows
beside it; then scale and bias follow in float32.

oneDNN's kernels differ in what they compute and how quickly. Without VNNI, products of 8 bits are
summed in 16 and overflow, so inputs get 7 bits there; signed inputs are quick with AMX and take a
reference kernel's seconds without. So a trial chooses (`find_way`), and no kernel is used whose
results are not the integers' own. For one to three rows a kernel may be slower than for four: that
depends on the size of a layer, and is tried for each model (`choose_least`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.errors import ModelError
from ngtcli.system.trials import Trial
from ngtcli.weights.int8_order import layout, packed_weight
from ngtcli.weights.packed import elements, quickest
from ngtcli.weights.trials import remembered

VERSION = 2  # of the scheme: what is quantised how; raised where a kept file would differ
_LARGEST = 127  # magnitude of a quantised weight
# Inputs below this are zeros: 127 divided by it is a float32. Derived; no layer has such inputs.
_TINY = 1e-30
_AT_ONCE = 1 << 24  # elements that are float32 at once while weights are quantised: 64 MB


@dataclass(frozen=True, slots=True)
class Way:
    """How the kernel takes inputs: from -`most` to `most`; unsigned, `most` + 1 is added.

    Fewer rows than `least` are padded, where these have a slower kernel; the bits are the same.
    Raises ValueError for others than the trials choose from.
    """

    signed: bool = False
    most: int = 127
    least: int = 1
    scheme: int = VERSION

    def __post_init__(self) -> None:
        if self.scheme != VERSION or self.most not in (127, 63) or self.least not in (1, _LEAST):
            raise ValueError("another way")

    @property
    def zero(self) -> int:
        """The integer that stands for zero."""
        return 0 if self.signed else self.most + 1

    def quantized(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (count, n) as integers, and the largest magnitude of each, float32 (count, 1)."""
        # Passes that take this for nothing gain 2 to 6% (0.5B and 1B, 1, 8 and 32 rows): not fused.
        most = rows.abs().amax(-1, keepdim=True).float().clamp_min_(_TINY)
        whole = torch.mul(rows.float(), self.most / most).round_().to(torch.int8)
        if self.signed:
            return whole, most
        return whole.add_(self.zero - 256 if self.zero > 127 else self.zero).view(torch.uint8), most

    def product(self, rows: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
        """float32 (count, out) of integers (count, in); `scale` (out,) is multiplied in."""
        count = len(rows)
        if 0 < count < self.least:
            rows = nn.functional.pad(rows, (0, 0, 0, self.least - count))
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            rows, 1.0, self.zero, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out[:count]


class Int8Linear(nn.Module):
    """A linear layer on a packed weight of integers; `packed` is opaque to most of torch.

    `scale`, float32 (out,), is what an integer of each output's weights stands for. `held` is what
    the memory of `packed` belongs to, if that is not the tensor itself.
    """

    def __init__(
        self,
        packed: Tensor,
        scale: Tensor,
        bias: nn.Parameter | None,
        way: Way,
        held: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = packed.shape
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias, self.scale, self.way, self.held = bias, scale, way, held
        self._scale, self._zeros = scale / way.most, torch.zeros(len(scale), dtype=torch.int32)

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features), in the dtype of the inputs."""
        rows, shape = inputs.reshape(-1, self.in_features), (*inputs.shape[:-1], self.out_features)
        if not len(rows):
            return inputs.new_empty(shape)
        whole, most = self.way.quantized(rows)
        out = self.way.product(whole, self.packed, self._scale, self._zeros).mul_(most)
        if self.bias is not None:
            out += self.bias
        return out.to(inputs.dtype).view(shape)


class Int8Embedding(nn.Module):
    """An embedding that reads its rows from the integers of the layer it is tied to."""

    def __init__(
        self, head: Int8Linear, order: int, dtype: torch.dtype, factor: float | None = None
    ) -> None:
        """`order` as in int8_order.py; `dtype` is that of the rows, multiplied by `factor`."""
        super().__init__()
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self.packed, self.held, self.order = head.packed, head.held, order  # `_elements` is theirs
        self.dtype, self._scale, self._elements = dtype, head.scale, elements(head.packed)
        self._layout = layout(order, head.out_features, head.in_features)
        self._factor = None if factor is None else torch.tensor(factor, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """(…) to (…, embedding_dim)."""
        rows = self._layout.rows(self._elements, ids).float()
        rows = rows.mul_(self._scale[ids][..., None]).to(self.dtype)
        return rows if self._factor is None else rows * self._factor


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
        own = part.abs().amax(1).clamp_min_(_TINY).div_(_LARGEST)
        whole[at : at + step] = part.div(own[:, None]).round_()
        scale[at : at + step] = own
    return whole, scale


_LEAST = 4  # rows of the least product, where it is not one
_SHAPES = ((4864, 896), (896, 4864), (2048, 2048))  # timed: layers of models of 0.5B and 1B
_SMALL = (256, 256)  # of a layer that the reference kernel computes in 10 to 50 ms
_ROWS = (1, 4, 8, 32)  # timed
_SLOW = 10.0  # times as long as unsigned inputs: then signed ones take the reference kernel
_GAIN = 0.95  # of the seconds, at most, for another way than the usual; guess
_PASSES = 4  # of all layers, that are timed with and without padding; guess


@dataclass(frozen=True, slots=True)
class _Found:
    way: Way | None


def find_way() -> Way:
    """The quickest way on this machine that is right, as stored or tried now.

    Raises ModelError where there is none.
    """
    cpu = torch.device("cpu")
    found = Trial("int8", cpu, (), _Found, timed=True).find(_try)
    if found.way is None:
        raise ModelError(
            "this CPU, or this version of torch, has no right product of 8-bit integers",
            "Leave out --quantize int8; --dtype bfloat16 takes half of float32's memory.",
        )
    return found.way


@torch.inference_mode()
def _try() -> _Found:
    """Of the ways that are right the quickest, unsigned inputs of 8 bits being the usual."""
    right = (way for way in (Way(False, 127), Way(False, 63)) if _is_right(way))
    if (usual := next(right, None)) is None:
        return _Found(None)
    signed = Way(True, 127)
    if usual.most == signed.most and _is_right(signed):
        first, second = _seconds((usual, signed), _SMALL)
        if second < _SLOW * first:
            every = [_seconds((usual, signed), shape) for shape in _SHAPES]
            first, second = map(sum, zip(*every, strict=True))
            usual = signed if second < _GAIN * first else usual
    return _Found(usual)


def _is_right(way: Way) -> bool:
    """Whether products are those of the integers, the largest among them; False without kernel."""
    source = torch.Generator().manual_seed(0)
    try:
        for outputs, inputs in ((96, 128), (100, 67)):
            whole = torch.randint(-_LARGEST, _LARGEST + 1, (outputs, inputs), generator=source)
            rows = torch.randint(-way.most, way.most + 1, (9, inputs), generator=source)
            whole[0], rows[0], whole[1], rows[1] = _LARGEST, way.most, -_LARGEST, -way.most
            given = (rows + way.zero).to(torch.int8 if way.signed else torch.uint8)
            packed = packed_weight(whole.to(torch.int8))
            scale, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
            true = rows.double() @ whole.double().T
            for count in (1, 3, 9):
                out = way.product(given[:count], packed, scale, zeros)
                if not torch.equal(out.double(), true[:count]):
                    return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def _seconds(ways: Sequence[Way], shape: tuple[int, int]) -> list[float]:
    """For each way the quickest seconds over all `_ROWS` of a layer (out, in)."""
    outputs, inputs = shape
    packed = packed_weight(torch.ones(shape, dtype=torch.int8))
    layers = [[Int8Linear(packed, torch.ones(outputs), None, way)] for way in ways]
    found = [quickest(layers, torch.ones(rows, inputs)) for rows in _ROWS]
    return [sum(seconds) for seconds in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class _Padded:
    """The sizes (out, in) of layers that compute fewer than four rows as four."""

    sizes: tuple[tuple[int, int], ...]


def choose_least(hf: Any) -> None:
    """Set the least number of rows for each size of layer: as stored, or tried now."""
    layers = [module for module in hf.modules() if isinstance(module, Int8Linear)]
    trial = remembered("int8", hf, _Padded, timed=True)
    found = trial.find(lambda: _Padded(_padded(layers)))
    for layer in layers:
        if (layer.out_features, layer.in_features) in found.sizes:
            layer.way = replace(layer.way, least=_LEAST)


@torch.inference_mode()
def _padded(layers: Sequence[Int8Linear]) -> tuple[tuple[int, int], ...]:
    """The sizes of layers for which four rows take less time than one.

    All layers take turns, as in a pass: of few layers the weights stay in the CPU's cache, from
    where other numbers of rows are the quickest (measured).
    """
    best = torch.full((2, len(layers)), float("inf"))
    inputs = [torch.ones(1, layer.in_features) for layer in layers]
    for _ in range(_PASSES):
        for padded, least in enumerate((1, _LEAST)):
            for at, layer in enumerate(layers):
                layer.way = replace(layer.way, least=least)
                begin = time.perf_counter()
                layer(inputs[at])
                best[padded, at] = min(time.perf_counter() - begin, best[padded, at].item())
                layer.way = replace(layer.way, least=1)
    totals: dict[tuple[int, int], Tensor] = {}
    for layer, seconds in zip(layers, best.T, strict=True):
        size = layer.out_features, layer.in_features
        totals[size] = totals.get(size, 0) + seconds
    return tuple(size for size, (one, four) in totals.items() if four < _GAIN * one)
