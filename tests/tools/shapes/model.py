"""Models of a given shape with random weights: their passes cost as much as those of the real ones.

The weights are uniform with a standard deviation of 0.02, norms are 1 and biases 0, so that logits
stay finite in every dtype. A mixture of experts routes at random, so that nearly every token of a
forward pass takes other experts. The tokens of such a model mean nothing: a recording gives them.
"""

import json
import time
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.utils import logging

from ngtcli.config import Settings
from ngtcli.decoding.load import prepared
from ngtcli.decoding.memory_needs import SPARE, cache_numbers
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.errors import ModelError
from ngtcli.models.quantized import name_of
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.convert import Conversion, quantized_bytes
from ngtcli.models.weights.formats import WeightFormat, int8_kernel
from ngtcli.models.weights.load_quantized import set_activation_dtype, summary
from ngtcli.system.machine import free_memory, pick_device
from ngtcli.system.reporting import reporting_to
from tests.support.recording_reporter import CallsOf, Notify

SEED = 0
_HALF_WIDTH = 0.02 * 3**0.5  # Of a uniform distribution with a standard deviation of 0.02.
_GB = 1e9
SHAPES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Shape:
    """The configuration of a model. `values` are those of config.json, with the `model_type`."""

    name: str
    values: dict[str, Any]


def shape_names() -> list[str]:
    """Return the names of the shapes in this folder. Their `dtype` is the published one."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def find_shape(name: str) -> Shape:
    """Read the shape of that name, in that file, or in the config.json of that folder."""
    path = SHAPES / f"{name}.json" if name in shape_names() else Path(name)
    if path.is_dir():
        path = path / "config.json"
    shape_name = path.parent.name if path.name == "config.json" else path.stem
    return Shape(shape_name, json.loads(path.read_text(encoding="utf-8")))


class _NoText:
    """The tokenizer of a model whose text nobody reads: each id is the empty text."""

    eos_token_id = None
    chat_template = None
    is_fast = False

    def decode(self, ids: Any, **_: Any) -> str:
        return ""

    def get_vocab(self) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class Plan:
    """A model that will be built, and the memory that it needs. Nothing is allocated yet."""

    shape: Shape
    config: Any
    device: str
    format: WeightFormat

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, or of the activations if the weights are integers."""
        return self.format.dtype  # type: ignore[no-any-return]

    @cached_property
    def empty(self) -> Any:
        """The model on the meta device, without memory for its weights."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(deepcopy(self.config), dtype=self.dtype)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.empty.parameters())

    @property
    def weight_bytes(self) -> int:
        if self.format.bits:
            return quantized_bytes(self.empty, self.dtype)
        return sum(p.nbytes for p in self.empty.parameters())

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens in all layers."""
        numbers = cache_numbers(self.config)
        return 0 if numbers is None else numbers.of_capacity(tokens) * self.dtype.itemsize


def plan(shape: Shape, settings: Settings) -> Plan:
    """Plan a model with the settings' device and dtype.

    "auto" is float32 on a CPU. Elsewhere it is the configuration's dtype, or else bfloat16.
    """
    logging.set_verbosity_error()
    device = pick_device(settings.model.device)
    values = dict(shape.values)
    model_type = values.pop("model_type")
    values.pop("auto_map", None)
    config = AutoConfig.for_model(model_type, **values)
    if settings.model.dtype != "auto":
        dtype = getattr(torch, settings.model.dtype)
    elif device == "cpu":
        dtype = torch.float32
    else:
        dtype = config.dtype or torch.bfloat16
    kernel = int8_kernel(device) if settings.model.quantize == "int8" else None
    packed = device == "cpu" and settings.model.packed
    return Plan(shape, config, device, WeightFormat(dtype, packed, 8 if kernel else 0, kernel))


def check_memory(plan: Plan, tokens: int, copies: int = 1) -> None:
    """Raise ModelError if the copies of the weights and a cache of `tokens` do not fit."""
    needed = int(SPARE * copies * plan.weight_bytes) + plan.cache_bytes(tokens)
    free = free_memory(plan.device)
    if free is not None and needed > free:
        hint = "Choose a smaller shape"
        if plan.dtype.itemsize >= 4:
            hint += ", or --dtype bfloat16"
        if plan.device == "cpu" and not plan.format.bits:
            hint += ", or --quantize int8"
        raise ModelError(
            f"{plan.shape.name}: {plan.parameters / _GB:.1f} billion parameters in"
            f" {name_of(plan.dtype)} take {needed / _GB:.1f} GB, and {free / _GB:.1f} GB are"
            f" free on this {plan.device}",
            hint=f"{hint}.",
        )


def make_hf(plan: Plan) -> Any:
    """Make the `transformers` model with random weights: on one device always the same."""
    with torch.device(plan.device), no_init_weights():
        hf = AutoModelForCausalLM.from_config(deepcopy(plan.config), dtype=plan.dtype)
    hf.tie_weights()
    generator = torch.Generator(plan.device).manual_seed(SEED)
    conversion = Conversion(plan.format)
    conversion.find_destinations(hf)
    with torch.no_grad():
        for name in [name for name, _ in hf.named_parameters()]:
            parameter = hf.get_parameter(name)
            if parameter.ndim > 1:
                parameter.uniform_(-_HALF_WIDTH, _HALF_WIDTH, generator=generator)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            if name in conversion.destinations:
                conversion.convert(name, parameter.detach())
    if plan.format.bits:
        conversion.fill(hf, conversion.store.finish())
    return set_activation_dtype(hf, plan.dtype)


@dataclass(frozen=True, slots=True)
class Built:
    """A model of a shape.

    `model` is prepared for the decoding loop; no token ends its answers. `stock` has the same
    weights in the unchanged layers of `transformers`, for comparison, if it was asked for.
    """

    plan: Plan
    model: TargetModel
    stock: Any


def build(planned: Plan, settings: Settings, progress: Notify, stock: bool) -> Built:
    """Make the model and prepare it as `load_model` and a session do.

    With `stock` the result also has the unprepared model.
    """
    progress(f"Making a model of shape {planned.shape.name} …")
    started = time.perf_counter()
    hf = make_hf(planned)
    stock_model = _with_shared_weights(hf) if stock else None
    if planned.format.bits:
        _, message = summary(hf, time.perf_counter() - started)
        progress(message)
    origin = Origin(f"random, seed {SEED}")
    with reporting_to(CallsOf(status=progress, warn=progress)):
        if planned.format.packed and not planned.format.bits:
            Conversion(planned.format).pack_rest(hf)
        model = prepared(hf, Tokenizer(_NoText()), planned.shape.name, origin)
        model.end_ids = frozenset()
        if settings.model.capture:
            model.passes.switch_on(model.device)
    return Built(planned, model, stock_model)


def copies(device: str, settings: Settings, stock: bool) -> int:
    """Return how many copies of the weights `build` makes: packed ones cannot be shared."""
    is_packed = device == "cpu" and settings.model.packed and settings.model.quantize == "none"
    return 2 if stock and is_packed else 1


def _with_shared_weights(hf: Any) -> Any:
    """Copy a model without its tensors, which both share."""
    tensors = [*hf.parameters(), *hf.buffers()]
    for module in hf.modules():  # some modules keep tensors in plain attributes
        tensors += [value for value in vars(module).values() if isinstance(value, Tensor)]
    return deepcopy(hf, {id(tensor): tensor for tensor in tensors})
