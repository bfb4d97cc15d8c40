"""The memory that a model needs here, and its fastest format, by its configuration alone."""

import os
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.kv_cache import window_positions
from ngtcli.decoding.runner import sliding_layers
from ngtcli.decoding.state_slot import STATES
from ngtcli.models.checkpoint import BUILTIN, fetch, find
from ngtcli.models.hub import ask, weight_files
from ngtcli.models.needs import ModelNeeds, Need
from ngtcli.models.pretrained import context_limit, loading, read_config, sliding_window
from ngtcli.models.quantized import identity, name_of
from ngtcli.models.requirements import quantization_method, runs_on
from ngtcli.models.stand_in import source_of
from ngtcli.models.weights.checkpoints import empty_model
from ngtcli.models.weights.convert import quantized_bytes
from ngtcli.models.weights.formats import dtype_by_rule, half_of, int8_instruction_set
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.machine import free_memory

# Memory that loading and a forward pass take in all, in units of the weights' bytes (guess).
SPARE = 1.15
# The smallest share of a slot's KV positions that `capacity_for` leaves for use (derived).
_USED_CAPACITY = 0.75
_MIN_INT8_PARAMETERS = 400_000_000  # 8-bit weights were measured from 500 million parameters on.
_COUNTED_TOKENS = 3  # The growth of the cache is counted from one token less to this many.
# The maximum ratio of a model's memory to the size of its files (derived): float32 from 8 bits, and
# from 2 bits in a GGUF file.
_MAX_WIDENING = 4
_MAX_WIDENING_GGUF = 16


def needs_of(name: str, device: str) -> ModelNeeds:
    """Compute what a model needs on a device from its configuration, without its weights.

    Raises:
        ModelError: The configuration cannot be read.
    """
    path = fetch(name, ["config"])
    config = read_config(name, path)
    half = None if name == BUILTIN else half_of(config)  # The built-in model runs in float32.
    download = _download_bytes(name, path)
    free = free_memory(device)
    with loading(name):
        empty = empty_model(config)
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    needs = needs_by_format(path, empty, device, half or torch.bfloat16, download)
    fitting = {need.form for need in needs if need.tokens != 0}
    if runs_on(quantization_method(path), device):
        is_large = parameters >= _MIN_INT8_PARAMETERS
        fastest = tuple(_fastest(fitting, half, is_large, device))
    else:
        fastest = ("its weights run on a GPU only: name a GGUF file or the original checkpoint",)
    return ModelNeeds(
        name=name,
        parameters=parameters,
        dtype=name_of(half or torch.float32),
        context=context_limit(config.get_text_config(), None).tokens,
        download_bytes=download,
        free_bytes=free,
        forms=tuple(needs),
        quickest=fastest,
    )


def memory_words(path: str, config: Any, device: str, dtype: Any, bits: int) -> str:
    """Return the reason that the weights of a checkpoint do not fit into free memory, or "".

    It names flags with which they would fit.

    Args:
        path: The folder or file of the checkpoint.
        config: Its configuration.
        device: The device that the weights go to.
        dtype: The dtype of floats; "auto": the checkpoint's.
        bits: The bits of quantized weights, 0 if none are quantized.
    """
    free = free_memory(device)
    widening = _MAX_WIDENING_GGUF if source_of(path) else _MAX_WIDENING
    if free is None or widening * _stored_bytes(path) <= free:
        return ""  # Most models end here, before one is built.
    empty = empty_model(config)
    if dtype == "auto":
        dtype = empty.dtype
    half = dtype if dtype.itemsize == 2 else half_of(config) or torch.bfloat16
    needs = needs_by_format(path, empty, device, half)
    bytes_by_format = {need.form: need.weight_bytes for need in needs}
    chosen = f"int{bits} in {name_of(dtype)}" if bits else name_of(dtype)
    # The format that a checkpoint is stored in comes first, whatever its activations are in.
    needed = bytes_by_format.get(chosen, needs[0].weight_bytes)
    if needed <= free:
        return ""
    label = f"{bits}-bit integers" if bits else chosen
    parts = [f"its weights take {needed / 1e9:.1f} GB in {label}, and {free / 1e9:.1f} GB are free"]
    if not bits:
        flags = {"--quantize int8": f"int8 in {chosen}", f"--dtype {name_of(half)}": name_of(half)}
        for flag, other in flags.items():
            size = bytes_by_format.get(other, needed)
            if size < needed and size <= free:
                parts.append(f"{flag} takes {size / 1e9:.1f} GB")
    return "; ".join(parts)


def needs_by_format(
    path: str, empty: Any, device: str, half: torch.dtype, download: int = 0
) -> list[Need]:
    """List what a checkpoint needs in each format on a device.

    The formats are float32, a half precision, and 8-bit integers with activations in both. A
    quantized checkpoint has one format.

    Args:
        path: The folder or file of the checkpoint.
        empty: Its model without values.
        device: The device.
        half: The half precision.
        download: The bytes of weights that have to be downloaded.
    """
    method = quantization_method(path)
    free = free_memory(device)
    dtypes = torch.float32, half
    numbers = cache_numbers(empty.config)
    context = context_limit(empty.config.get_text_config(), None).tokens

    def need(label: str, dtype: torch.dtype, weight_bytes: int) -> Need:
        tokens = None
        cache_bytes = None if numbers is None else numbers.total * dtype.itemsize
        free_for_cache = None if free is None else free - SPARE * weight_bytes
        if free_for_cache is not None and free_for_cache < 0:
            tokens = 0
        elif free_for_cache is not None and numbers is not None:
            tokens = numbers.tokens_in(free_for_cache / dtype.itemsize, context)
        return Need(label, weight_bytes, cache_bytes, tokens)

    if method:
        return [need(method, half, download or _stored_bytes(path))]
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    needs = [need(name_of(dtype), dtype, parameters * dtype.itemsize) for dtype in dtypes]
    if device == "cpu":
        for dtype in dtypes:
            needs.append(need(f"int8 in {name_of(dtype)}", dtype, quantized_bytes(empty, dtype)))
    return needs


def _stored_bytes(path: str) -> int:
    """Return the size of a checkpoint's files in bytes."""
    return sum(size for _, size, _ in identity(path)["files"])


@dataclass(frozen=True, slots=True)
class CacheNumbers:
    """The numbers that a token adds to a model's KV cache.

    Attributes:
        full: The numbers in layers that attend to all tokens.
        sliding: The numbers in layers with a sliding window.
        max_sliding: The maximum number of KV positions of a slot in sliding layers.
    """

    full: int
    sliding: int = 0
    max_sliding: int = 0

    @property
    def total(self) -> int:
        """The numbers per token while the slots of sliding layers still grow."""
        return self.full + self.sliding

    def of_capacity(self, capacity: int) -> int:
        """Return the numbers in a slot of `capacity` KV positions."""
        return self.full * capacity + self.sliding * min(capacity, self.max_sliding)

    def tokens_in(self, available: float, context: int) -> int:
        """Return how many tokens fit into `available` numbers, at most the context.

        A quarter of a slot that is smaller than the context may be unused.

        >>> CacheNumbers(full=10).tokens_in(4_000, context=1_000)
        300
        >>> CacheNumbers(full=10, sliding=30, max_sliding=50).tokens_in(5_500, context=1_000)
        300
        """
        if self.of_capacity(context) <= available:
            return context
        capacity = available / self.total
        if capacity > self.max_sliding and self.full:
            capacity = (available - self.sliding * self.max_sliding) / self.full
        return int(_USED_CAPACITY * capacity)


@torch.inference_mode()
def cache_numbers(config: Any) -> CacheNumbers | None:
    """Count the numbers that a token adds to a model's cache; return None if that is impossible.

    The numbers are the difference between forward passes over `_COUNTED_TOKENS` tokens and over one
    token less, in a model without values.
    """
    empty = empty_model(deepcopy(config), torch.bfloat16)  # Some layers support no other dtype.
    text_config = empty.config.get_text_config()
    text_config.pad_token_id = None  # The forward pass would look for it in the token ids.
    window = sliding_window(text_config)
    if window is not None:
        # A cache of transformers keeps one token less than the window. It must grow here.
        text_config.sliding_window = max(window, _COUNTED_TOKENS + 1)

    def by_layer(tokens: int) -> list[int]:
        token_ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
        output = empty(input_ids=token_ids, use_cache=True)
        states = (getattr(output, name, None) for name in STATES)
        state = next(state for state in states if state is not None)
        return [
            sum(value.numel() for value in vars(layer).values() if isinstance(value, Tensor))
            for layer in state.layers
        ]

    try:
        longer = by_layer(_COUNTED_TOKENS)
        shorter = by_layer(_COUNTED_TOKENS - 1)
        grown = [after - before for after, before in zip(longer, shorter, strict=True)]
        if window is None:
            return CacheNumbers(sum(grown))
        slides = sliding_layers(text_config, window)
        sliding = sum(
            numbers for numbers, is_sliding in zip(grown, slides, strict=True) if is_sliding
        )
        return CacheNumbers(sum(grown) - sliding, sliding, window_positions(window))
    except Exception:  # Some model families cannot compute without values.
        return None


def _download_bytes(name: str, path: str) -> int:
    """Return the size in bytes of the weights that have to be downloaded."""
    if name == BUILTIN or os.path.exists(os.path.expanduser(name)) or os.path.isdir(find(name)):
        return 0
    sizes = ask(name).sizes
    return sum(sizes.get(file, 0) for file in weight_files(Path(path), sizes))


def _fastest(
    fitting: Collection[str], half: torch.dtype | None, is_large: bool, device: str
) -> Iterator[str]:
    """Yield lines that name the format that is likely to be the fastest of those that fit."""
    stored = name_of(half) if half else ""
    if not fitting:
        yield "none fits: name a smaller model, or a GGUF file of 4 bits"
    elif device != "cpu":
        yield f"the checkpoint's own dtype: no other is tried on {device}"
        return
    feature = int8_instruction_set()
    if is_large and "int8 in float32" in fitting and feature:
        yield f"likely --quantize int8 (rounded weights): this CPU multiplies 8 bits ({feature})"
    if stored in fitting and "float32" not in fitting:
        yield f"--dtype {stored} (weights unchanged): float32 does not fit"
    elif "float32" in fitting:
        choice = dtype_by_rule(half, 0, instruction_sets())
        if choice.by_rule:
            yield f"{name_of(choice.dtype)} (weights unchanged): {choice.why}"
        else:
            yield "float32 (weights unchanged)"
