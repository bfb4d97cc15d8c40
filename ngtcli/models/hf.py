"""The only file that touches globals and private names of transformers."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import core_model_loading
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import ConversionOps
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_layers import MtpModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin


def forward_parameters(hf: Any) -> frozenset[str]:
    """Return the names of the parameters of a model's forward method."""
    return frozenset(inspect.signature(hf.forward).parameters)


# --- attention ---
# transformers looks attention functions up by a name in the model's configuration. Names are
# registered once, for good; `attending` sets the attention of the forward passes within it.

# The signature of attention functions in transformers: they take module, query, key, value, mask
# and the options of an `AttentionCall`, and return (1, queries, heads, head_dim) with attention
# weights, which are not used.
AttentionFunction = Callable[..., tuple[Tensor, Any]]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments that one layer passes to its attention function.

    Attributes:
        module: The attention module of the layer.
        query: (1, heads, queries, head_dim).
        key: (1, key heads, keys, head_dim).
        value: Like `key`; its last dimension may differ.
        mask: (1, 1, queries, keys): numbers that are added to the logits, or bool, False for keys
            that are left out.
        options: The keyword arguments, such as `scaling`.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: Mapping[str, Any]

    @property
    def scale(self) -> float | None:
        """The factor of the logits; None means 1 / sqrt(head_dim)."""
        return self.options.get("scaling")


class PassAttention(Protocol):
    """The attention of one forward pass, for all its query tokens."""

    def attend(self, call: AttentionCall, single: "SingleAttention") -> Tensor:
        """Compute attention.

        Args:
            call: The arguments of a layer.
            single: The attention that the model uses for one sequence.

        Returns:
            (1, queries, heads, head_dim).
        """


@dataclass(frozen=True, slots=True)
class SingleAttention:
    """An attention for one sequence, registered under a name.

    Attributes:
        name: The name in configurations.
        base: The attention of transformers that it stands for, "sdpa" or "eager".
        replacement: The function that computes it. None: that of transformers.
    """

    name: str
    base: str
    replacement: AttentionFunction | None = None

    @property
    def is_sdpa(self) -> bool:
        """Whether it is a plain softmax over the scaled dot products of queries and keys."""
        return self.base == "sdpa"

    def attend(self, call: AttentionCall) -> tuple[Tensor, Any]:
        """Compute attention; return what an `AttentionFunction` returns."""
        function: AttentionFunction
        if self.replacement is not None:
            function = self.replacement
        elif self.is_sdpa:
            function = sdpa_attention_forward
        else:  # The module of each model family defines its own eager attention.
            function = sys.modules[type(call.module).__module__].eager_attention_forward
        return function(call.module, call.query, call.key, call.value, call.mask, **call.options)


_registered: dict[str, SingleAttention] = {}
_pass_attention: ContextVar[PassAttention | None] = ContextVar("ngt_attention", default=None)


def register_attention(single: SingleAttention) -> None:
    """Register an attention with transformers; forward passes within `attending` replace it."""
    _registered[single.name] = single
    AttentionInterface.register(single.name, partial(_dispatch, single))
    AttentionMaskInterface.register(single.name, sdpa_mask if single.is_sdpa else eager_mask)


def _dispatch(
    single: SingleAttention,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    call = AttentionCall(module, query, key, value, attention_mask, options)
    attention = _pass_attention.get()
    if attention is None:
        return single.attend(call)
    return attention.attend(call, single), None


@contextmanager
def attending(attention: PassAttention | None) -> Iterator[None]:
    """Replace every registered attention within the context; None: replace none."""
    token = _pass_attention.set(attention)
    try:
        yield
    finally:
        _pass_attention.reset(token)


def use_attention(hf: Any, name: str) -> bool:
    """Set a registered attention in a model; return whether the model supports it."""
    hf.set_attn_implementation(name)
    return attention_name(hf.config.get_text_config()) == name


def attention_name(config: Any) -> str:
    """Return the name of the attention in a configuration, "" if it has none."""
    return getattr(config, "_attn_implementation", None) or ""


def base_attention(config: Any) -> str:
    """Return the name of the attention that transformers itself would use, "" if there is none."""
    name = attention_name(config)
    return _registered[name].base if name in _registered else name


def settled_attention(config: Any) -> str:
    """Return the name of the attention that computes a single sequence.

    It does not depend on whether the attention of forward passes can be replaced.
    """
    name = attention_name(config)
    if name in _registered and _registered[name].replacement is None:
        return _registered[name].base
    return name


def attention_function(config: Any) -> AttentionFunction:
    """Return the attention function of a configuration whose attention is not eager."""
    function: AttentionFunction = ALL_ATTENTION_FUNCTIONS[attention_name(config)]
    return function


# --- rotary positions ---

_LONGROPE = "longrope"
_FREQUENCIES = "original_inv_freq"  # the attribute with the frequencies for short sequences


class LongRope:
    """The rotary embedding of a model with factors for short and for long sequences.

    LongRoPE: Ding et al. 2024, arXiv:2402.13753. transformers chooses the factors by the positions
    of each forward pass. A KV cache needs the same factors for all tokens of a sequence, whatever
    chunk they are prefilled in.

    Attributes:
        border: The maximum length in tokens of a sequence with the factors for short ones. None:
            the model has no other factors.
    """

    def __init__(self, hf: Any) -> None:
        # Modules, the names of their frequencies, and the frequencies for long sequences.
        self._modules: list[tuple[nn.Module, str, Tensor]] = []
        borders: set[int] = set()
        for module in hf.modules():
            kinds = getattr(module, "rope_type", None)
            by_layer_type = kinds if isinstance(kinds, dict) else {"": kinds}
            for layer_type, kind in by_layer_type.items():
                name = f"{layer_type}_{_FREQUENCIES}" if layer_type else _FREQUENCIES
                if kind != _LONGROPE or not hasattr(module, name):
                    continue
                parameters = module.config.rope_parameters
                parameters = parameters[layer_type] if layer_type else parameters
                border = int(parameters["original_max_position_embeddings"])
                frequencies, _ = ROPE_INIT_FUNCTIONS[_LONGROPE](
                    module.config,
                    getattr(module, name).device,
                    seq_len=border + 1,
                    layer_type=layer_type or None,
                )
                self._modules.append((module, name, frequencies))
                borders.add(border)
        self.border = min(borders, default=None)

    def is_long(self, tokens: int) -> bool:
        """Return whether a sequence of this length takes the factors for long ones."""
        return self.border is not None and tokens > self.border

    @contextmanager
    def using(self, is_long: bool) -> Iterator[None]:
        """Use the factors for long sequences within the context, or leave the choice as it is."""
        if not is_long:
            yield
            return
        before = [getattr(module, name) for module, name, _ in self._modules]
        try:
            for module, name, frequencies in self._modules:
                setattr(module, name, frequencies)
            yield
        finally:
            for (module, name, _), frequencies in zip(self._modules, before, strict=True):
                setattr(module, name, frequencies)


# --- weights, while a checkpoint is read ---
# transformers passes weights one by one to quantization methods only. This "method" hands them to a
# `WeightTaker`.

_METHOD = "ngt"


class WeightTaker(Protocol):
    """Receives some weights of a checkpoint, by name, in place of `transformers`."""

    destinations: dict[str, Any]  # the destinations of weights, by name
    done: set[str]  # the names of the weights that were converted

    def find_destinations(self, hf: Any, stored: Mapping[str, Any]) -> None:
        """Fill `destinations` for a model without values and the weights of its checkpoint."""

    def fits(self, destination: Any, weight: Any) -> bool:
        """Return whether a weight has the shape of its destination."""

    def aliases(self, name: str) -> list[str]:
        """Return all names of a weight; a tied weight has several."""

    def convert(self, name: str, weight: Any) -> None:
        """Convert a weight and keep it."""


class WeightHook(QuantizationConfigMixin):  # type: ignore[misc]  # transformers has no types
    """A quantization configuration by which `transformers` hands weights over.

    It is never written to a file.

    Attributes:
        taker: Receives the weights.
        stored: The weights of the checkpoint by name.
        error: The error of `WeightTaker.convert`. `transformers` reports only that there was one.
    """

    def __init__(self, taker: WeightTaker | None, stored: Mapping[str, Any]) -> None:
        self.quant_method = _METHOD
        self.taker = taker
        self.stored = stored
        self.error: Exception | None = None

    def __deepcopy__(self, memo: Any) -> "WeightHook":
        return self  # It belongs to one model.

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method}


class _WeightReader(HfQuantizer, ConversionOps):  # type: ignore[misc]  # transformers has no types
    """The quantizer that `transformers` calls for each weight."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        hook: WeightHook = self.quantization_config
        prefix = model.base_model_prefix
        with_prefix = {f"{prefix}.{name}": weight for name, weight in hook.stored.items()}
        assert hook.taker is not None
        # Some checkpoints leave the prefix out.
        hook.taker.find_destinations(model, {**with_prefix, **hook.stored})

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        self.remove_quantization_config(model)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return param_name in self.quantization_config.taker.destinations

    def get_quantize_ops(self) -> ConversionOps:
        return self

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    def convert(
        self, input_dict: dict[str, Any], full_layer_name: str, missing_keys: set[str], **_: Any
    ) -> dict[str, Tensor]:
        """Hand weights over and return those that do not fit."""
        taker: WeightTaker = self.quantization_config.taker
        destinations = taker.destinations
        rest: dict[str, Tensor] = {}
        for key, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            name = key if key in destinations else full_layer_name
            if name in taker.done:  # A pickle has a tied weight under both names.
                missing_keys.discard(name)
                continue
            if name not in destinations or not taker.fits(destinations[name], weight):
                # transformers reports a wrong shape as that of any other weight.
                destinations.pop(name, None)
                rest[name] = weight
                continue
            missing_keys.difference_update(taker.aliases(name))
            try:
                taker.convert(name, weight)
            except Exception as error:
                self.quantization_config.error = error
                raise
        return rest


register_quantization_config(_METHOD)(WeightHook)
register_quantizer(_METHOD)(_WeightReader)


# --- names of weights ---


class _LazyPattern:
    """A regular expression that is compiled when it or a copy of it is first used."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        return getattr(re.compile(self._pattern), name)


@cache
def list_conversions() -> None:
    """Have transformers list its renamings of weights without compiling their patterns.

    It would compile a thousand of them when the first model is loaded, which takes a third of a
    second. The patterns of that model are copied before use, and are compiled then.
    """
    lazy_re = SimpleNamespace(**vars(re))
    lazy_re.compile = _LazyPattern
    module: Any = core_model_loading
    module.re = lazy_re
    try:
        get_checkpoint_conversion_mapping("")
    finally:
        module.re = re


# --- GGUF files ---


def add_gguf_types(sizes: Mapping[int, tuple[int, int]]) -> None:
    """Add tensor types to the GGUF reader.

    Args:
        sizes: The values and the bytes of a block, by ggml's number of the type.
    """
    from transformers.integrations.gguf import reader

    reader.GGML_BLOCK.update(sizes)


def cache_gguf_names() -> None:
    """Cache the list of all layer names: it takes 3 ms or more, and is asked for each module."""
    import gguf

    listed = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = cache(getattr(listed, "__wrapped__", listed))


# --- multi-token prediction ---


@contextmanager
def mtp_layer_in(folder: str, hf: Any, config: Any, layers: int) -> Iterator[None]:
    """Have `transformers` look in a folder for one MTP layer, numbered after the model's layers.

    The patterns of a model family contain the number of layers of its published models, so they are
    extended. Weights that the layer shares with the model, which may be packed, are not looked for.

    Args:
        folder: The folder with the layer's weights.
        hf: The model.
        config: The configuration with `num_mtp_layers`.
        layers: The number of layers of the model.
    """
    before = hf.config.name_or_path, hf._keys_to_ignore_on_load_unexpected, config.num_mtp_layers
    shared = MtpModel._keys_to_ignore_on_load_missing
    hf.config.name_or_path = folder
    config.num_mtp_layers = 1
    hf._keys_to_ignore_on_load_unexpected = [*(before[1] or ()), rf"(^|\.)layers\.{layers}\."]
    MtpModel._keys_to_ignore_on_load_missing = [*shared, r"^shared_head\.", r"^embed_tokens\."]
    try:
        yield
    finally:
        hf.config.name_or_path = before[0]
        hf._keys_to_ignore_on_load_unexpected = before[1]
        config.num_mtp_layers = before[2]
        MtpModel._keys_to_ignore_on_load_missing = shared
