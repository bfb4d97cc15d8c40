"""What memory a model needs here and what may be quickest, by its configuration alone."""

import os
from collections.abc import Collection, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.dtype_trial import half_of
from ngtcli.decode.plain import STATES
from ngtcli.model_files.checkpoint import BUILTIN, fetch, find
from ngtcli.model_files.dtypes import known, name_of
from ngtcli.model_files.hub import ask, weight_files
from ngtcli.model_files.needs import ModelNeeds, Need
from ngtcli.model_files.pretrained import context_limit, loading, read_config
from ngtcli.model_files.quantized import identity
from ngtcli.model_files.scheme import scheme_of
from ngtcli.system.machine import free_memory
from ngtcli.system.trials import cpu
from ngtcli.weights.checkpoints import empty_model
from ngtcli.weights.quantize import quantized_bytes

SPARE = 1.15  # of the weights' bytes, for what loading and a pass need in addition to them; guess
_TOKENS = 0.75  # of the places that fit: at least so many are not `capacity_for`'s spare ones
_LARGE = 400_000_000  # parameters; from 500 million on 8-bit weights were measured
# Names in /proc/cpuinfo of products of 8-bit integers that are summed in 32 bits.
_PRODUCTS = {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp"}


def needs_of(name: str, device: str) -> ModelNeeds:
    """What a model needs on a device; of a hub's no weights are read. Raises ModelError."""
    path = fetch(name, ["config"])
    config = read_config(name, path)
    with loading(name):
        empty = empty_model(config)
    half = None if name == BUILTIN else half_of(config)  # that is computed in float32
    context = context_limit(config.get_text_config(), None).tokens
    download, free, numbers = _download(name, path), free_memory(device), cache_numbers(config)
    needs = []
    for form, dtype, size in _forms(path, empty, half or torch.bfloat16, device == "cpu", download):
        cache, fits = None if numbers is None else numbers * dtype.itemsize, None
        if free is not None and cache is not None:
            room = max(0, free - SPARE * size)
            fits = context if cache * context <= room else int(_TOKENS * room / cache)
        needs.append(Need(form, size, cache, fits))
    count = sum(one.numel() for one in empty.parameters())
    own = path if os.path.exists(os.path.expanduser(name)) else name  # as trials have it
    there = {need.form for need in needs if need.tokens != 0}
    stored = name_of(half or torch.float32)
    quickest = tuple(_quickest(own, there, stored if half else "", count >= _LARGE, device))
    return ModelNeeds(name, count, stored, context, download, free, tuple(needs), quickest)


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


def _forms(
    path: str, empty: Any, half: torch.dtype, on_cpu: bool, download: int
) -> Iterator[tuple[str, torch.dtype, int]]:
    """In what a model can be computed: its name, the dtype of the cache, the weights' bytes."""
    scheme, dtypes = scheme_of(path), (torch.float32, half)
    if scheme.method:
        stored = download or sum(size for _, size, _ in identity(path)["files"])
        own = scheme.bits and on_cpu
        yield f"int{scheme.bits} in bfloat16" if own else scheme.method, half, stored
    else:
        count = sum(one.numel() for one in empty.parameters())
        yield from ((name_of(dtype), dtype, count * dtype.itemsize) for dtype in dtypes)
    if on_cpu and (not scheme.method or scheme.bits == 4):
        for dtype in dtypes:
            yield f"int8 in {name_of(dtype)}", dtype, quantized_bytes(empty, dtype)


def _quickest(
    own: str, there: Collection[str], half: str, large: bool, device: str
) -> Iterator[str]:
    """Of the forms that fit (`there`), what is known or likely to be the quickest."""
    trials = {trial.model: trial for trial in known()}

    def tried(model: str) -> str:
        if trial := trials.get(model):
            return f"{trial.chosen}, by trial: {trial.reason}"
        return f"float32 or {half}: not tried here yet, the first load tries both"

    if not there:
        yield "none fits: name a smaller model, or a checkpoint of 4 bits"
    elif device != "cpu":
        yield f"the checkpoint's own dtype: no other is tried on {device}"
        return
    if large and "int8 in float32" in there and not _PRODUCTS.isdisjoint(cpu().split()):
        yield "likely --quantize int8 (other weights): this CPU has instructions for 8 bits"
        if half:
            yield f"between its layers {tried(f'{own} in int8')}"
    if half in there and "float32" not in there:
        yield f"with the checkpoint's weights --dtype {half}: float32 does not fit"
    elif "float32" in there:
        told = tried(own) if half else "float32: no other is tried"
        yield f"with the checkpoint's weights {told}"
