"""Whether packing pays for a model on this machine: measured at first load, and stored."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.packed import Place, pack_layers, packable, packed_copy
from ngtcli.draft.costs import read_points
from ngtcli.system.remembered import Remembered

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
