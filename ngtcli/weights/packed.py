"""Linear layers on packed weights: a CPU multiplies few rows quicker by a weight in blocks.

oneDNN, which comes with torch, packs a weight (out, in) into blocks that lie as its kernel reads
them. One layout serves any number of rows, so the packed weight takes the place of the other one.
It is memory of this process, also where the other was a part of a file that several processes
share. Which layout it is depends on the CPU, the dtype and the size. Whether packing pays for a
model on this machine is tried at first load, and stored.
"""

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ngtcli.model_files.dtypes import ROWS, Times, name_of
from ngtcli.system import trials
from ngtcli.weights.places import NOTHING, Place, Taken, named, packable, tie
from ngtcli.weights.trials import remembered

# Rows of the least product. Measured (one thread, 2,048 × 8,192, float32, over one row unpacked):
# one packed row costs 1.1 to 1.5, two 1.2 to 1.7, four 0.8 to 1.2, for fewer have a slower kernel.
_LEAST_ROWS = 4
_MARKS = 256  # whole numbers that each of `DTYPES` has; derived: bfloat16 has 8 bits for them
_BLOCKS = 192  # outputs: a multiple of those in a block of oneDNN's orders, 16, 32, 48 and 64
_COMPARED, _TAIL = 4096, 128  # rows compared where there are more, the last ones among them; guess


class _Packed(nn.Module):
    """A layer on a packed weight; `packed` is opaque to most of torch."""

    packed: nn.Parameter

    @property
    def weight(self) -> Tensor:
        """The weight (out, in), unpacked into a new tensor."""
        return self.packed.detach().to_dense()


class PackedLinear(_Packed):
    """What `linear` computes, on a packed copy of its weight.

    Raises RuntimeError for a dtype that oneDNN does not support on this CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = nn.Parameter(_packed_weight(linear.weight.detach()), requires_grad=False)
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        rows = inputs
        if (count := inputs.shape[:-1].numel()) < _LEAST_ROWS:
            rows = inputs.reshape(count, self.in_features)
            if count == 1:
                rows = rows.expand(_LEAST_ROWS, -1)  # quicker than rows of zeros
            elif count:
                rows = nn.functional.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        out = _product(rows, self.packed, self.bias)
        return out if rows is inputs else out[:count].view(*inputs.shape[:-1], self.out_features)


class PackedEmbedding(_Packed):
    """An embedding that reads its rows from the packed weight of the layer it is tied to."""

    def __init__(self, head: PackedLinear, layout: "WeightLayout") -> None:
        super().__init__()
        self.packed = head.packed  # owns the memory that `_elements` reads
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._elements, self._layout = elements(head.packed), layout

    def forward(self, ids: Tensor) -> Tensor:
        """(…) to (…, embedding_dim)."""
        return self._layout.rows(self._elements, ids)


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Where element (o, i) of a weight lies: at `outputs[o] + inputs[i]`, both int64."""

    outputs: Tensor
    inputs: Tensor

    def rows(self, elements: Tensor, ids: Tensor) -> Tensor:
        """Rows `ids`, (…), of a packed weight's elements, as (…, in)."""
        return elements.take(self.outputs[ids][..., None] + self.inputs)


def _product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    linear = torch.ops.mkldnn._linear_pointwise.default
    out: Tensor = linear(rows, packed, bias, "none", [], "")
    return out


@torch.no_grad()
def _packed_weight(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def elements(packed: Tensor) -> Tensor:
    """The memory of a packed weight as a tensor of one dimension, padding included; not a copy."""
    packed = packed.detach()
    size, start = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    return torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=packed.dtype)


def find_layout(layer: PackedLinear, weight: Tensor) -> WeightLayout | None:
    """How the weight of a layer is packed; None where no `WeightLayout` describes it.

    It is that of a weight with fewer outputs, whose blocks go on in the same way; or else that of
    one of the same size, which takes as much memory as two such weights. What is found counts if it
    gives rows of `weight`. Raises RuntimeError for a dtype that oneDNN does not support.
    """
    outputs, inputs = layer.out_features, layer.in_features
    few = 2 * _BLOCKS + outputs % _BLOCKS
    for count in (few, outputs) if few < outputs else (outputs,):
        layout = _marked_layout(count, inputs, weight.dtype)
        if layout is not None:
            own = layout.outputs
            if count < outputs:
                block, at = own[:_BLOCKS], torch.arange(outputs)
                own = block[at % _BLOCKS] + at // _BLOCKS * (own[_BLOCKS] - own[0])
            layout = WeightLayout(own, layout.inputs)
            if _gives_rows(layout, elements(layer.packed), weight.detach()):
                return layout
    return None


def _marked_layout(outputs: int, inputs: int, dtype: torch.dtype) -> WeightLayout | None:
    """How a weight is packed that is 0 but for its first row and column, which are numbered."""
    marked = torch.zeros(outputs, inputs, dtype=dtype)
    column, row = torch.arange(outputs) % _MARKS + 1, torch.arange(inputs) % _MARKS + 1
    marked[0], marked[:, 0] = -row.to(dtype), column.to(dtype)
    packed = _packed_weight(marked)
    found = elements(packed)  # as long as `packed` is there
    places = found.nonzero()[:, 0]
    marks = found[places].to(torch.int64)
    below = _in_order(places[marks > 0], marks[marks > 0], column)
    above = _in_order(places[marks < 0], -marks[marks < 0], row[1:])
    if below is None or above is None:
        return None
    return WeightLayout(below, torch.cat([below[:1], above]) - below[0])


def _gives_rows(layout: WeightLayout, found: Tensor, weight: Tensor) -> bool:
    """Whether a layout gives rows of a weight (out, in) of its packed elements."""
    below, along = layout.outputs, layout.inputs
    lowest, highest = below.min() + along.min(), below.max() + along.max()
    if not 0 <= lowest <= highest < len(found):
        return False
    compared = torch.arange(outputs := len(weight))
    if outputs > _COMPARED:
        spread = torch.linspace(0, outputs - 1, _COMPARED, dtype=torch.float64)
        compared = torch.cat([spread.to(torch.int64), compared[-_TAIL:]])
    return torch.equal(layout.rows(found, compared), weight[compared])


def _in_order(places: Tensor, found: Tensor, marks: Tensor) -> Tensor | None:
    """The places, rising, of marks as `found` there, in the order of `marks`; None for others.

    Of elements with the same mark the first is taken to lie first.
    """
    by_mark, order = found.argsort(stable=True), marks.argsort(stable=True)
    if not torch.equal(found[by_mark], marks[order]):
        return None
    out = torch.empty_like(places)
    out[order] = places[by_mark]
    return out


def packed_copy(linear: nn.Linear) -> PackedLinear | None:
    """The layer on a packed weight; None where oneDNN has no kernel for it on this CPU."""
    try:
        packed = PackedLinear(linear)  # whose bias may come later
        _product(linear.weight.new_zeros(_LEAST_ROWS, linear.in_features), packed.packed, None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return packed


def pack(place: Place) -> int:
    """Replace the layer that stands there, whose weight is freed; returns the bytes packed.

    A layer that this CPU has no kernel for stays as it is, and so does one tied to an embedding if
    its layout is not found: a second copy of it would cost too much.
    """
    weight, packed = place.layer.weight, packed_copy(place.layer)
    if packed is None:
        return 0
    if place.tied is not None:
        layout = find_layout(packed, weight)
        if layout is None:
            return 0
        setattr(*place.tied, PackedEmbedding(packed, layout))
    setattr(place.parent, place.name, packed)
    return int(weight.nbytes)


def is_packed(hf: nn.Module) -> bool:
    """Whether some layers of a model are packed."""
    return any(isinstance(module, PackedLinear) for module in hf.modules())


Notify = Callable[[str], None]
_REPEATS, _LIMIT_S = 5, 0.15  # of the products of one shape, rows and way; a busy machine is slow
# Weights of a layer that is packed. A packed product takes 10 to 25 µs more to start; a row of the
# built-in model, whose layers have up to 180,000, took 14% longer (measured, one thread).
_SMALLEST = 1 << 20
# In half precision: one row of a layer that is not packed has other bits, and its product may be a
# hundred times as slow (2,048 × 2,048, bfloat16, Zen 4: 30 ms, packed 0.2). Guess.
_SMALLEST_HALF = 1 << 10
_SHAPES = 3  # of layers, those with the most bytes: nearly all of a model; guessed
_COLD = 64e6  # bytes of layers of one shape that take turns, more than most caches hold; guessed
_LARGEST = 256e6  # bytes of a layer that is timed: packing an output layer of 1 GB takes seconds
# Root mean square of the difference over that of the result. Derived: sums in another order differ
# by 1e-7 to 1e-6 in float32, and results rounded to bfloat16 by 2e-3; float16 has 3 bits more.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# Quotients of seconds. A step of drafting has more rows than one, so it may lose some at one row.
_LEAST_GAIN, _LEAST_OF_ONE, _LEAST_OF_ONE_PLAIN = 1.1, 0.8, 0.97
_SLOW = 4.0  # times one row that eight cost where the dtype is called slow; float32 is below 3.2


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds of a model's linear layers over ROWS, unpacked and packed, and whether both agree.

    Raises ValueError for seconds that are not above zero.
    """

    agrees: bool
    unpacked: Times
    packed: Times

    def __post_init__(self) -> None:
        if not all(0 < seconds < 1e9 for seconds in self.unpacked + self.packed):
            raise ValueError("seconds that are not above zero")

    @property
    def gains(self) -> Times:
        """How many times as quick packed layers are."""
        one, few, many = (a / b for a, b in zip(self.unpacked, self.packed, strict=True))
        return one, few, many

    def pays(self, drafts: bool) -> bool:
        """Whether to pack a model; `drafts`: drafts will be verified, so most passes have rows."""
        one, few, many = self.gains
        least = _LEAST_OF_ONE if drafts else _LEAST_OF_ONE_PLAIN
        return self.agrees and one >= least and min(few, many) >= _LEAST_GAIN


@dataclass(slots=True)
class PackedLayers(Taken[Place]):
    """Layers that are packed as their weights come, and at the end those that have come before.

    `trial` says what it gains. `progress` gets what was done.
    """

    trial: Trial = field(kw_only=True)
    progress: Notify = field(kw_only=True)
    begin: float = field(default_factory=time.perf_counter)
    left: list[Any] = field(default_factory=list)  # layers that cannot be packed
    bytes: int = 0

    def find(self, hf: Any, stored: Mapping[str, Any] = NOTHING) -> None:
        """Find them in a model without values; none where it is not known what is `stored`."""
        tie(hf)
        # A weight of another dtype than the model's would come in that of the model.
        places = [one for one in worth_packing(hf) if one.layer.weight.dtype == hf.dtype]
        for own, other, place in named(hf, places if stored else []):
            if own != other and own in stored and other in stored:
                with torch.device("cpu"):  # the model is made on another
                    is_one = torch.equal(stored[own][...], stored[other][...])
                if not is_one:
                    place, other = replace(place, tied=None), own
            self.add(hf, place, own, other)

    def put(self, name: str, weight: Tensor) -> None:
        """Pack a layer's weight; its bias may come later."""
        place = self.places[name]
        own = nn.Parameter(weight, requires_grad=False)
        own._is_hf_initialized = True  # type: ignore[attr-defined]
        place.layer.weight = own
        if place.tied is not None:
            getattr(*place.tied).weight = own
        self._pack(place)
        place.layer._is_hf_initialized = True
        self.done |= {*self.names(name)}

    def _pack(self, place: Place) -> None:
        if size := pack(place):
            self.bytes += size
        else:
            self.left.append(place.layer)

    def finish(self, hf: Any) -> bool:
        """Pack the layers of a loaded model that are not; whether some are packed then."""
        places = [one for one in worth_packing(hf) if one.layer not in self.left]
        if places:
            self.progress("Packing weights …")
        for place in places:
            self._pack(place)
        if not self.done:
            _let_go_of_file(hf, self.bytes)
        if not self.bytes:
            return False
        seconds = time.perf_counter() - self.begin
        self.progress(f"Packed {self.bytes / 1e6:.0f} MB of weights in {seconds:.1f} s.")
        one, few, _ = self.trial.gains
        if one < _LEAST_OF_ONE_PLAIN:
            self.progress(
                f"They check a draft of {ROWS[1] - 1} tokens {few:.1f} times as fast, but one token"
                f" without a draft takes {1 / one:.1f} times as long: where few drafts are"
                " accepted, --no-packed is faster."
            )
        return True


def to_pack(
    hf: Any,
    *,
    wanted: bool = True,
    drafts: bool = True,
    warn: Notify = lambda _: None,
    progress: Notify = lambda _: None,
) -> PackedLayers | None:
    """What packs the linear layers of a model where that is `wanted` and pays; else None.

    The model needs no values. `drafts`: drafts will be verified. `warn` is called for a
    half-precision dtype in which several rows cost many times one.
    """
    half = hf.dtype in (torch.bfloat16, torch.float16)
    places = worth_packing(hf) if wanted or half else []
    if not places:
        return None

    def make() -> Trial:
        progress("Trying whether packed weights are quicker …")
        return try_packing(places, hf.dtype)[0]

    trial = remembered_trial(hf).find(make)
    packs = wanted and trial.pays(drafts or half)  # it decides bits: with drafts and without
    one, few, _ = trial.packed if packs else trial.unpacked
    if half and (times := few / one) > _SLOW:
        name = name_of(hf.dtype)
        warn(
            f"{name} is slow on this CPU: checking a draft of {ROWS[1] - 1} tokens takes"
            f" {times:.0f} times as long as one token, so drafts hardly pay; --dtype float32 does"
            " better"
        )
    return PackedLayers(trial=trial, progress=progress) if packs else None


def _let_go_of_file(hf: Any, packed: int) -> None:
    """Copy the other weights of a model of which so many bytes are packed, if they are fewer.

    Each may keep a mapped file, which holds the packed ones as well, in memory.
    """
    every = hf.parameters()
    others = [one for one in every if not one.is_mkldnn and one.is_floating_point()]
    if sum(one.nbytes for one in others) < packed:
        for one in others:
            one.data = one.data.clone()


def worth_packing(hf: Any) -> list[Place]:
    """Where layers stand that are not too small."""
    smallest = _SMALLEST if hf.dtype == torch.float32 else _SMALLEST_HALF
    places = packable(hf, hf.device.type)
    return [place for place in places if place.layer.weight.numel() >= smallest]


@torch.inference_mode()
def try_packing(places: Sequence[Place], *dtypes: torch.dtype) -> list[Trial]:
    """Time and compare layers of the most common shapes, a few of each, in each of the dtypes.

    All ways take turns, in which the machine is equally busy.
    """
    seconds = np.zeros((len(dtypes), 2, len(ROWS)))  # unpacked and packed
    agrees = [True] * len(dtypes)
    for layers, count in samples(places):
        width, own = layers[0].in_features, layers[0].weight.dtype
        ways: list[list[Any]] = []
        for i, dtype in enumerate(dtypes):
            ways.append(layers if dtype == own else [deepcopy(one).to(dtype) for one in layers])
            copies = [copy for one in ways[-1] if (copy := packed_copy(one)) is not None]
            agrees[i] = agrees[i] and len(copies) == len(layers)
            ways.append(copies or ways[-1])
        for at, rows in enumerate(ROWS):
            source = torch.Generator().manual_seed(0)
            inputs = torch.randn((1, rows, width), generator=source)
            given = [inputs.to(dtype) for dtype in dtypes for _ in range(2)]
            for i, dtype in enumerate(dtypes):
                true, found = (ways[j][0](given[j]).double() for j in (2 * i, 2 * i + 1))
                error, scale = (of.square().mean().sqrt() for of in (found - true, true))
                agrees[i] = agrees[i] and bool(error <= _TOLERANCE[dtype] * scale)
            seconds[:, :, at] += np.reshape(quickest(ways, *given), (-1, 2)) * count
    return [
        Trial(same, *((one, few, many) for one, few, many in times))
        for same, times in zip(agrees, seconds.tolist(), strict=True)
    ]


def samples(places: Sequence[Place]) -> list[tuple[list[Any], int]]:
    """Of the shapes with the most bytes, some layers and how many there are."""
    shapes: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for place in places:
        shapes[tuple(place.layer.weight.shape)].append(place.layer)
    each = {shape: layers[0].weight.nbytes for shape, layers in shapes.items()}
    timed = [shape for shape in shapes if each[shape] <= _LARGEST] or list(shapes)
    largest = sorted(timed, key=lambda shape: each[shape] * len(shapes[shape]), reverse=True)
    return [
        (
            [*map(_with_values, shapes[shape][: max(1, int(_COLD / each[shape]))])],
            len(shapes[shape]),
        )
        for shape in largest[:_SHAPES]
    ]


def _with_values(layer: Any) -> Any:
    """The layer, or where it has no values another of its shape with random ones."""
    if not layer.weight.is_meta:
        return layer
    made = deepcopy(layer).to_empty(device="cpu")
    source = torch.Generator().manual_seed(0)
    for one in made.parameters():
        one.uniform_(-0.05, 0.05, generator=source)
    return made


def quickest(ways: Sequence[Sequence[Any]], *inputs: Tensor) -> list[float]:
    """The quickest product of each way's layers; the ways take turns, as do their layers.

    `inputs` is one for all ways, or one for each.
    """
    best = [float("inf")] * len(ways)
    end = time.perf_counter() + _LIMIT_S * len(ways)
    for repeat in range(_REPEATS):
        if repeat > 1 and time.perf_counter() > end:
            break
        for way, layers in enumerate(ways):
            given = inputs[way % len(inputs)]
            for layer in layers:
                begin = time.perf_counter()
                layer(given)
                best[way] = min(best[way], time.perf_counter() - begin)
    return best


def remembered_trial(hf: Any) -> trials.Trial[Trial]:
    """Where the trial of a model is kept."""
    return remembered("packed", hf, Trial, timed=True)
