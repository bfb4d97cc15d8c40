"""Linear layers on packed weights: a CPU multiplies few rows quicker by a weight in blocks.

oneDNN, which comes with torch, packs a weight (out, in) into blocks, each of which lies in the
order in which its kernel reads it. One layout serves any number of rows, reading the prompt
included, so the packed weight takes the place of the other one. It is memory of this process, also
where the other one was a part of a file that several processes share.

Which layout that is depends on the CPU, the dtype and the size. An embedding that reads rows of a
packed weight finds out by packing a weight whose elements are marked. Whether packing pays for a
model on this machine is measured at first load, and stored.
"""

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.draft.costs import read_points
from ngtcli.system.remembered import Remembered

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float16 on few CPUs: tried
# Rows of the least product. Measured (one thread, 2,048 × 8,192, float32, over one row unpacked):
# one packed row costs 1.1 to 1.5, two 1.2 to 1.7, four 0.8 to 1.2, for fewer have a slower kernel.
_LEAST_ROWS = 4
_MARKS = 256  # whole numbers that each of `DTYPES` has; derived: bfloat16 has 8 bits for them
_COMPARED, _TAIL = 4096, 128  # rows compared where there are more, the last ones among them; guess


class PackedLinear(nn.Module):
    """What `linear` computes, on a packed copy of its weight. `packed` is opaque to most of torch.

    Raises RuntimeError for a dtype that oneDNN does not support on this CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = nn.Parameter(_packed_weight(linear.weight.detach()), requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The weight (out_features, in_features), unpacked into a new tensor."""
        return self.packed.detach().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        rows = inputs
        if (count := inputs.shape[:-1].numel()) < _LEAST_ROWS:
            rows = inputs.reshape(count, self.in_features)
            if count == 1:
                rows = rows.expand(_LEAST_ROWS, -1)  # quicker than rows of zeros
            elif count:
                rows = nn.functional.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.packed, self.bias, "none", [], ""
        )
        return out if rows is inputs else out[:count].view(*inputs.shape[:-1], self.out_features)


class PackedEmbedding(nn.Module):
    """An embedding that reads its rows from the packed weight of the layer it is tied to."""

    def __init__(self, head: PackedLinear, layout: "WeightLayout") -> None:
        super().__init__()
        self.packed = head.packed  # owns the memory that `_elements` reads
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._elements, self._layout = elements(head.packed), layout

    @property
    def weight(self) -> Tensor:
        """The weight (num_embeddings, embedding_dim), unpacked into a new tensor."""
        return self.packed.detach().to_dense()

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


@torch.no_grad()
def _packed_weight(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def elements(packed: Tensor) -> Tensor:
    """The memory of a packed weight as a tensor of one dimension, padding included; not a copy."""
    packed = packed.detach()
    size, start = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    return torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=packed.dtype)


def find_layout(outputs: int, inputs: int, dtype: torch.dtype) -> WeightLayout | None:
    """How weights of a size are packed on this CPU; None where no `WeightLayout` describes it.

    Takes as much memory as two such weights. Raises RuntimeError for a dtype that oneDNN does not
    support.
    """
    marked = torch.zeros(outputs, inputs, dtype=dtype)
    column, row = torch.arange(outputs) % _MARKS, torch.arange(inputs) % _MARKS
    marked[0] = -(row + 1).to(dtype)
    marked[:, 0] = (column + 1).to(dtype)
    packed = _packed_weight(marked)
    found = elements(packed)
    places = found.nonzero()[:, 0]
    marks = found[places].to(torch.int64)
    below = _in_order(places[marks > 0], marks[marks > 0], column + 1)
    above = _in_order(places[marks < 0], -marks[marks < 0], row[1:] + 1)
    if below is None or above is None:
        return None
    along = torch.cat([below[:1], above]) - below[0]
    lowest, highest = below.min() + along.min(), below.max() + along.max()
    return WeightLayout(below, along) if 0 <= lowest <= highest < len(found) else None


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a linear layer stands: `parent`.`name`; and so the embedding tied to it, if any."""

    parent: nn.Module
    name: str
    tied: tuple[nn.Module, str] | None

    @property
    def layer(self) -> Any:
        """The layer that stands there."""
        return getattr(self.parent, self.name)


def packed_copy(linear: nn.Linear) -> PackedLinear | None:
    """The layer on a packed weight; None where oneDNN has no kernel for it on this CPU."""
    try:
        packed = PackedLinear(linear)
        packed(linear.weight.new_zeros(1, linear.in_features))
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return packed


def packable(hf: nn.Module) -> list[Place]:
    """Where linear layers stand that can be packed, in the model's order.

    Left out: other classes, whose weights may be of another form; layers with hooks; weights that
    are shared, but for one shared by an embedding and one linear layer, which go together.
    """
    users: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent in hf.modules():
        for name, child in parent.named_children():
            for parameter in child.parameters(recurse=False):
                users[id(parameter)].append((parent, name))
    return [
        Place(parent, name, _embedding(others))
        for parent in hf.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _is_plain(child)
        for others in [[u for u in users[id(child.weight)] if u != (parent, name)]]
        if not others or _embedding(others)
    ]


def _is_plain(layer: Any) -> bool:
    """Whether a layer has a dense weight on the CPU, of a dtype known here, and no hooks."""
    weight = layer._parameters.get("weight")
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype in DTYPES
        and weight.numel() > 0
        and not (layer._forward_hooks or layer._forward_pre_hooks)
    )


def _embedding(users: list[tuple[nn.Module, str]]) -> tuple[nn.Module, str] | None:
    """The only one of `users` (parent and name), if it is an embedding of the usual kind."""
    if len(users) != 1:
        return None
    child = getattr(*users[0])
    usual = type(child) is nn.Embedding and child.max_norm is None and _is_plain(child)
    return users[0] if usual else None


def pack_layers(places: Sequence[Place]) -> Iterator[int]:
    """Replace the layers that stand there, one at a time; yields the bytes packed so far.

    Each weight is freed when its layer is replaced, so that few copies of one layer are the most
    that lie in memory at once. A layer that this CPU has no kernel for stays as it is, and so does
    one tied to an embedding if its layout is not found: a second copy of it would cost too much.
    """
    done = 0
    for place in places:
        weight, packed = place.layer.weight, packed_copy(place.layer)
        if packed is None:
            continue
        if place.tied is not None:
            layout = _layout_of(packed, weight)
            if layout is None:
                continue
            setattr(*place.tied, PackedEmbedding(packed, layout))
        setattr(place.parent, place.name, packed)
        done += weight.nbytes
        del weight
        yield done


def is_packed(hf: nn.Module) -> bool:
    """Whether some layers of a model are packed."""
    return any(isinstance(module, PackedLinear) for module in hf.modules())


def _layout_of(layer: PackedLinear, weight: Tensor) -> WeightLayout | None:
    """The layout found, if the rows of the packed weight that it tells are those of `weight`."""
    count = layer.out_features
    layout = find_layout(count, layer.in_features, weight.dtype)
    rows = torch.arange(count)
    if count > _COMPARED:
        spread = torch.linspace(0, count - 1, _COMPARED, dtype=torch.float64)
        rows = torch.cat([spread.to(torch.int64), rows[-_TAIL:]])
    if layout is None or not torch.equal(
        layout.rows(elements(layer.packed), rows), weight.detach()[rows]
    ):
        return None
    return layout


Notify = Callable[[str], None]
ONE, FEW, MANY = 1, 8, 32  # rows timed: plain decoding, a short draft, a long one or a prompt
_REPEATS, _LIMIT_S = 5, 0.15  # of the products of one shape, rows and way; a busy machine is slow
# Weights of a layer that is packed. A packed product takes 10 to 25 µs more to start; a row of the
# built-in model, whose layers have up to 180,000, took 14% longer (measured, one thread).
_SMALLEST = 1 << 20
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
    """Seconds of a model's linear layers by rows, unpacked and packed, and whether both agree."""

    agrees: bool
    unpacked: dict[int, float]
    packed: dict[int, float]

    def gain(self, rows: int) -> float:
        """How many times as quick packed layers are; 0 where they do not agree."""
        return self.unpacked[rows] / self.packed[rows] if self.agrees else 0.0

    def pays(self, drafts: bool) -> bool:
        """Whether to pack a model; `drafts`: drafts will be verified, so most passes have rows."""
        least = _LEAST_OF_ONE if drafts else _LEAST_OF_ONE_PLAIN
        return (
            self.gain(ONE) >= least
            and self.gain(FEW) >= _LEAST_GAIN
            and self.gain(MANY) >= _LEAST_GAIN
        )


def pack_if_it_pays(
    hf: Any,
    *,
    wanted: bool = True,
    drafts: bool = True,
    warn: Notify = lambda _: None,
    progress: Notify = lambda _: None,
) -> bool:
    """Pack the linear layers of a loaded model where that is `wanted` and pays; whether it did.

    `drafts`: drafts will be verified. `warn` is called for a half-precision dtype in which several
    rows cost many times one.
    """
    half = hf.dtype in (torch.bfloat16, torch.float16)
    places = packable(hf) if wanted or half else []
    places = [place for place in places if place.layer.weight.numel() >= _SMALLEST]
    if not places:
        return False
    trial = _trial(hf, places, progress)
    packs = wanted and trial.pays(drafts)
    if half:
        _warn_of_slow(trial.packed if packs else trial.unpacked, hf.dtype, warn)
    return packs and _pack(places, trial, progress)


def _trial(hf: Any, places: Sequence[Place], progress: Notify) -> Trial:
    def make() -> Trial:
        progress("Trying whether packed weights are quicker …")
        return try_packing(places)

    return remembered_trial(hf).find(make, timed=True)


def _warn_of_slow(seconds: dict[int, float], dtype: torch.dtype, warn: Notify) -> None:
    times = seconds[FEW] / seconds[ONE]
    if times > _SLOW:
        name = str(dtype).removeprefix("torch.")
        warn(
            f"{name} is slow on this CPU: checking a draft of {FEW - 1} tokens takes {times:.0f}"
            " times as long as one token, so drafts hardly pay; --dtype float32 does better"
        )


def _pack(places: Sequence[Place], trial: Trial, progress: Notify) -> bool:
    begin = time.perf_counter()
    progress("Packing weights …")
    done = max(pack_layers(places), default=0)
    if not done:
        return False
    progress(f"Packed {done / 1e6:.0f} MB of weights in {time.perf_counter() - begin:.1f} s.")
    if trial.gain(ONE) < _LEAST_OF_ONE_PLAIN:
        progress(
            f"They check a draft of {FEW - 1} tokens {trial.gain(FEW):.1f} times as fast, but one"
            f" token without a draft takes {1 / trial.gain(ONE):.1f} times as long: where few"
            " drafts are accepted, --no-packed is faster."
        )
    return True


@torch.inference_mode()
def try_packing(places: Sequence[Place]) -> Trial:
    """Time and compare layers of the most common shapes, a few of each in turn."""
    unpacked, packed = (dict.fromkeys((ONE, FEW, MANY), 0.0) for _ in range(2))
    agrees = True
    for layers, count in _samples(places):
        copies = [packed_copy(layer) for layer in layers]
        others = [copy for copy in copies if copy is not None]
        agrees = agrees and len(others) == len(layers)
        for rows in unpacked:
            inputs = _inputs(layers[0], rows)
            agrees = agrees and _agree(layers[0](inputs), others[0](inputs))
            before, after = _seconds((layers, others or layers), inputs)
            unpacked[rows] += before * count
            packed[rows] += after * count
    return Trial(agrees, unpacked, packed)


def _samples(places: Sequence[Place]) -> list[tuple[list[Any], int]]:
    """Of the shapes with the most bytes, some layers and how many there are."""
    shapes: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for place in places:
        shapes[tuple(place.layer.weight.shape)].append(place.layer)
    timed = [layers for layers in shapes.values() if _bytes(layers[:1]) <= _LARGEST]
    largest = sorted(timed or shapes.values(), key=_bytes, reverse=True)[:_SHAPES]
    return [(layers[: max(1, int(_COLD / _bytes(layers[:1])))], len(layers)) for layers in largest]


def _bytes(layers: Sequence[Any]) -> int:
    return sum(layer.weight.nbytes for layer in layers)


def _inputs(layer: Any, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (1, rows, layer.in_features)
    return torch.randn(shape, generator=generator).to(layer.weight.dtype)


def _agree(true: Tensor, found: Tensor) -> bool:
    error = (found.double() - true.double()).square().mean().sqrt()
    scale = true.double().square().mean().sqrt()
    return bool(error <= _TOLERANCE[true.dtype] * scale)


def _seconds(ways: Sequence[Sequence[Any]], inputs: Tensor) -> list[float]:
    """The quickest product of each way's layers; the ways take turns, as do their layers."""
    quickest = [float("inf")] * len(ways)
    end = time.perf_counter() + _LIMIT_S * len(ways)
    for repeat in range(_REPEATS):
        if repeat > 1 and time.perf_counter() > end:
            break
        for way, layers in enumerate(ways):
            for layer in layers:
                begin = time.perf_counter()
                layer(inputs)
                quickest[way] = min(quickest[way], time.perf_counter() - begin)
    return quickest


def remembered_trial(hf: Any) -> Remembered[Trial]:
    """Where the trial of a model is kept."""
    config = hf.config.to_json_string(use_diff=False)
    parts = (hf.dtype, type(hf).__name__, config)
    return Remembered("packed", hf.device, parts, _read, asdict)


def _read(stored: Any) -> Trial:
    if stored.keys() != {"agrees", "unpacked", "packed"} or type(stored["agrees"]) is not bool:
        raise ValueError("another form")
    unpacked, packed = (read_points(stored[name]) for name in ("unpacked", "packed"))
    if not unpacked.keys() == packed.keys() == {ONE, FEW, MANY}:
        raise ValueError("seconds of other rows")
    return Trial(stored["agrees"], unpacked, packed)
