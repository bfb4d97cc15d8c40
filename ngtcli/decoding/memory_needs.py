"""What memory a model needs here and what may be quickest, by its configuration alone."""

import os
from collections.abc import Collection, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.state_slot import STATES
from ngtcli.models.checkpoint import BUILTIN, fetch, find
from ngtcli.models.hub import ask, weight_files
from ngtcli.models.needs import ModelNeeds, Need
from ngtcli.models.pretrained import context_limit, loading, read_config
from ngtcli.models.quantized import identity, name_of
from ngtcli.models.requirements import quantization_method, runs_on
from ngtcli.models.stand_in import source_of
from ngtcli.models.weights.checkpoints import empty_model
from ngtcli.models.weights.convert import quantized_bytes
from ngtcli.models.weights.formats import dtype_by_rule, half_of, int8_instruction_set
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.machine import free_memory

SPARE = 1.15  # of the weights' bytes, for what loading and a pass need in addition to them; guess
_TOKENS = 0.75  # of the places that fit: at least so many are not `capacity_for`'s spare ones
_LARGE = 400_000_000  # parameters; from 500 million on 8-bit weights were measured
# Times as large as in its files a model is at most: float32 of 8 bits; of 2 bits in a GGUF file.
_WIDENED, _WIDENED_GGUF = 4, 16


def needs_of(name: str, device: str) -> ModelNeeds:
    """What a model needs on a device; of a hub's no weights are read. Raises ModelError."""
    path = fetch(name, ["config"])
    config = read_config(name, path)
    half = None if name == BUILTIN else half_of(config)  # that is computed in float32
    download, free = _download(name, path), free_memory(device)
    with loading(name):
        empty = empty_model(config)
    count = sum(one.numel() for one in empty.parameters())
    needs = forms(path, empty, device, half or torch.bfloat16, download)
    there = {need.form for need in needs if need.tokens != 0}
    stored, context = name_of(half or torch.float32), context_limit(config.get_text_config(), None)
    if runs_on(quantization_method(path), device):
        quickest = tuple(_quickest(there, half, count >= _LARGE, device))
    else:
        quickest = ("its weights run on a GPU only: name a GGUF file or the original checkpoint",)
    return ModelNeeds(name, count, stored, context.tokens, download, free, tuple(needs), quickest)


def memory_words(path: str, config: Any, device: str, dtype: Any, bits: int) -> str:
    """That the weights of a checkpoint do not fit in free memory, and what would fit; or "".

    "auto" is the checkpoint's own dtype. `bits`: those of weights that are quantised, otherwise 0.
    """
    free, times = free_memory(device), _WIDENED_GGUF if source_of(path) else _WIDENED
    if free is None or times * _stored(path) <= free:  # most models: no closer look
        return ""
    empty = empty_model(config)
    own = empty.dtype if dtype == "auto" else dtype
    half = own if own.itemsize == 2 else half_of(config) or torch.bfloat16
    needs = forms(path, empty, device, half)
    known = {need.form: need.weight_bytes for need in needs}
    form = f"int{bits} in {name_of(own)}" if bits else name_of(own)
    # What a checkpoint is stored in stands first, in whatever it is computed between layers.
    needed = known.get(form, needs[0].weight_bytes)
    if needed <= free:
        return ""
    others = {"--quantize int8": f"int8 in {form}", f"--dtype {name_of(half)}": name_of(half)}
    fits = [
        f"{flag} takes {known[other] / 1e9:.1f} GB"
        for flag, other in ({} if bits else others).items()
        if known.get(other, needed) < needed and known[other] <= free
    ]
    how = f"{bits}-bit integers" if bits else form
    line = f"its weights take {needed / 1e9:.1f} GB in {how}, and {free / 1e9:.1f} GB are free"
    return "; ".join([line, *fits])


def forms(path: str, empty: Any, device: str, half: torch.dtype, download: int = 0) -> list[Need]:
    """What a checkpoint, whose model has no values yet, takes in each form on a device.

    These are float32 and a `half` precision, and 8-bit integers between layers of both; or first
    that in which it is stored, if it is quantised. `download`: bytes of weights that are not there.
    """
    method = quantization_method(path)
    free = free_memory(device)
    dtypes = torch.float32, half
    numbers = cache_numbers(empty.config)
    context = context_limit(empty.config.get_text_config(), None).tokens

    def need(form: str, dtype: torch.dtype, size: int) -> Need:
        cache, fits = None if numbers is None else numbers * dtype.itemsize, None
        room = None if free is None else free - SPARE * size
        if room is not None and room < 0:
            fits = 0
        elif room is not None and cache is not None:
            fits = context if cache * context <= room else int(_TOKENS * room / cache)
        return Need(form, size, cache, fits)

    if method:
        needs = [need(method, half, download or _stored(path))]
    else:
        count = sum(one.numel() for one in empty.parameters())
        needs = [need(name_of(dtype), dtype, count * dtype.itemsize) for dtype in dtypes]
    if device == "cpu" and not method:
        sizes = [(dtype, quantized_bytes(empty, dtype)) for dtype in dtypes]
        needs += [need(f"int8 in {name_of(dtype)}", dtype, size) for dtype, size in sizes]
    return needs


def _stored(path: str) -> int:
    """The bytes of a checkpoint's files."""
    return sum(size for _, size, _ in identity(path)["files"])


@torch.inference_mode()
def cache_numbers(config: Any) -> int | None:
    """The numbers that a token adds to a model's cache; None where they cannot be counted.

    Counted are those of passes of a model without values.
    """
    empty = empty_model(deepcopy(config), torch.bfloat16)  # some layers take no other dtype
    empty.config.get_text_config().pad_token_id = None  # it would be looked for in the ids

    def size(tokens: int) -> int:
        ids = torch.zeros((1, tokens), dtype=torch.long, device="meta")
        told = empty(input_ids=ids, use_cache=True)
        state = next(found for name in STATES if (found := getattr(told, name, None)) is not None)
        tensors = (one for layer in state.layers for one in vars(layer).values())
        return sum(one.numel() for one in tensors if isinstance(one, Tensor))

    try:
        return size(3) - size(2)
    except Exception:  # families compute in many ways, some not without values
        return None


def _download(name: str, path: str) -> int:
    """Bytes of weights that only the hub has, or has some of."""
    if name == BUILTIN or os.path.exists(os.path.expanduser(name)) or os.path.isdir(find(name)):
        return 0
    sizes = ask(name).sizes
    return sum(sizes.get(file, 0) for file in weight_files(Path(path), sizes))


def _quickest(
    there: Collection[str], half: torch.dtype | None, large: bool, device: str
) -> Iterator[str]:
    """Of the forms that fit (`there`), what is likely to be the quickest."""
    stored = name_of(half) if half else ""
    if not there:
        yield "none fits: name a smaller model, or a GGUF file of 4 bits"
    elif device != "cpu":
        yield f"the checkpoint's own dtype: no other is tried on {device}"
        return
    if large and "int8 in float32" in there and (feature := int8_instruction_set()):
        yield f"likely --quantize int8 (other weights): this CPU multiplies 8 bits ({feature})"
    if stored in there and "float32" not in there:
        yield f"with the checkpoint's weights --dtype {stored}: float32 does not fit"
    elif "float32" in there:
        choice = dtype_by_rule(half, 0, instruction_sets())
        words = f"{name_of(choice.dtype)}: {choice.why}" if choice.by_rule else "float32"
        yield f"with the checkpoint's weights {words}"
