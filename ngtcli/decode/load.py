"""Loading a target model: device, dtype and weights."""

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from ngtcli.decode.attention import use_grouped
from ngtcli.decode.dtype_trial import half_of, load_in_best
from ngtcli.decode.memory_needs import memory_words
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import BUILTIN, fetch
from ngtcli.model_files.dtypes import name_of
from ngtcli.model_files.pretrained import (
    check_weights,
    load_tokenizer,
    loading,
    read_config,
    transformers_quiet,
)
from ngtcli.model_files.quantized import weights_of
from ngtcli.model_files.scheme import Scheme, require_for_weights, scheme_of
from ngtcli.model_files.stand_in import source_of
from ngtcli.system.machine import pick_device, pick_threads
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.weights.checkpoints import empty_model, read_checkpoint
from ngtcli.weights.int4 import bits_of
from ngtcli.weights.int8 import Way, choose_least, find_way
from ngtcli.weights.load_quantized import load_quantized
from ngtcli.weights.packed import to_pack
from ngtcli.weights.trials import places_of

Notify = Callable[[str], None]


def pick_dtype(wanted: str, device: str) -> Any:
    """The dtype to load in; "auto" is float32 on a CPU, elsewhere the checkpoint's own.

    For a checkpoint in half precision a trial may choose that on a CPU (dtype_trial.py).
    """
    if wanted == "auto":
        return torch.float32 if device == "cpu" else "auto"
    return getattr(torch, wanted)


def int8_way(device: str) -> Way:
    """How 8-bit products are computed here. Raises ModelError on another device than a CPU."""
    if device != "cpu":
        what = f"--quantize int8 is for a CPU, and the device is {device}"
        raise ModelError(what, "Give --device cpu, or leave out --quantize int8.")
    return find_way()


def use_threads(wanted: int) -> None:
    """Compute with `wanted` threads on a CPU; 0: as many as there are cores."""
    torch.set_num_threads(pick_threads(wanted))


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Reads the model `name` from its folder into a device's memory.

    With a `way` its layers are quantised, by which 8-bit products are computed. `scheme`: that in
    which they are already, if it is computed here. Others are packed on a CPU, with `packed`, where
    that pays; `drafts`: drafts will be verified; `auto`: accelerate places them.
    """

    name: str
    path: str
    device: str
    way: Way | None
    scheme: Scheme
    packed: bool
    drafts: bool
    auto: str | None
    warn: Notify
    progress: Notify

    def empty(self, dtype: Any) -> Any:
        """The `transformers` model without values. Raises ModelError."""
        config = read_config(self.name, self.path)
        with loading(self.name):
            return empty_model(config, None if dtype == "auto" else dtype)

    def read(self, dtype: Any, slow: Notify) -> Any:
        """The `transformers` model; the dtype "auto" is the checkpoint's own. Raises ModelError.

        `slow` is called for a dtype that is slow here.
        """
        config = read_config(self.name, self.path)
        bits, layers = self.scheme.bits if self.way is None else 8, None
        with loading(self.name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
            line = memory_words(self.path, config, self.device, dtype, bits)
            if line and not self.auto:
                self.warn(f"{self.name}: {line}")
            pack = partial(
                to_pack, wanted=self.packed, drafts=self.drafts, warn=slow, progress=self.progress
            )
            if bits:
                hf, report = load_quantized(self.path, dtype, self.way, self.warn, self.progress)
                # The head of a checkpoint that is quantised already may not be.
                if type(hf.get_output_embeddings()) is torch.nn.Linear:
                    layers = pack(hf)
            elif getattr(config, "quantization_config", None) is not None:
                hf, report = transformers_quiet().AutoModelForCausalLM.from_pretrained(
                    self.path, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True,
                    # Left unset, it would ask on stdout and read the answer from a piped document.
                    trust_remote_code=False,
                    # Layers of other libraries cannot be moved later.
                    device_map=self.auto or (self.device if self.device != "cpu" else None),
                )  # fmt: skip
            else:
                layers = pack(self.empty(dtype)) if self.device == "cpu" and not self.auto else None
                hf, report = read_checkpoint(
                    self.path, config, layers, dtype, self.progress, device_map=self.auto
                )
            check_weights(self.name, report, self.warn)
            if layers is not None:
                layers.finish(hf)
            if hf.device.type == "meta":
                what = f"{self.name}: no device has room for its embedding"
                raise ModelError(what, "Free memory, or name a smaller model.")
            if counts := Counter(on for _, on in places_of(hf)):
                parts = ", ".join(f"{count} on {on}" for on, count in counts.items())
                self.warn(f"{self.name}: of its parts {parts}")
            stays = bits or self.auto or hf.device.type == self.device
            return hf if stays else hf.to(self.device).eval()


def prepared(
    hf: Any, tokenizer: Tokenizer, name: str, progress: Notify = lambda _: None
) -> TargetModel:
    """The target model on a `transformers` model, whose products and attention it prepares.

    Raises ModelError for a model that cannot be run.
    """
    if bits_of(hf) == 8:
        choose_least(hf)
    use_grouped(hf)
    return target_model(hf, tokenizer, name, progress)


def load_model(
    name: str,
    device: str = "auto",
    dtype: str = "auto",
    warn: Notify = lambda _: None,
    progress: Notify = lambda _: None,
    packed: bool = True,
    drafts: bool = True,
    quantize: str = "none",
    num_draft: int | None = None,
    device_map: str = "none",
    ready: Callable[[TargetModel], object] = lambda _: None,
) -> TargetModel:
    """Load a model by folder, hub id or "builtin"; it may be downloaded. Raises ModelError.

    `warn` is called for weights that the model does not use, tokens that it does not know and
    memory that does not suffice, `progress` for what takes long.
    With `packed` weights are packed on a CPU where that pays; `drafts`: drafts will be verified.
    `quantize` and `device_map` are as the settings. With `num_draft` the "auto" dtype is exact with
    drafts of so many nodes. `ready` is called with the model before that is found out.
    """
    device, warn = pick_device(device), cache(warn)  # each line once
    eight = int8_way(device) if quantize == "int8" else None
    path = fetch(name, progress=progress)
    require_for_weights(name, path, device, device_map)
    scheme = scheme_of(path)
    auto = None if device_map == "none" else device_map
    quantised = bool(scheme.method) and not (scheme.bits and device == "cpu")  # by a library
    scheme = Scheme() if quantised else scheme
    way = find_way() if scheme.bits == 8 else eight
    if auto and (way is not None or scheme.bits):
        what = f"{name}: --device-map auto places no integers that ngt computes itself"
        raise ModelError(what, "Leave out --device-map.")
    tokenizer = load_tokenizer(name)
    checkpoint = _Checkpoint(name, path, device, way, scheme, packed, drafts, auto, warn, progress)

    def load(dtype: Any, slow: Notify = lambda _: None) -> TargetModel:
        weights = weights_of(path)  # as they were before they were read
        model = prepared(checkpoint.read(dtype, slow), tokenizer, name, progress)
        model.weights = weights
        ready(model)
        return model

    kind = "int8" if way is not None else "int4" if scheme.bits else ""
    tries = (dtype, device, auto) == ("auto", "cpu", None) and (packed or kind) and not quantised
    # What is said of the built-in model's answers was measured in float32.
    config = read_config(name, path) if tries and name != BUILTIN else None
    half = None if config is None else torch.bfloat16 if kind == "int4" else half_of(config)
    if config is not None and half is not None:
        quantized = kind and f"{kind} {way}"
        own = path if os.path.exists(os.path.expanduser(name)) else name
        empty = partial(checkpoint.empty, half)
        model = load_in_best(own, config, half, empty, load, progress, num_draft, quantized)
    else:
        stays = quantised and dtype == "auto"  # in that which its kernels are made for
        model = load("auto" if stays else pick_dtype(dtype, device), warn)
    if source := source_of(path):
        computed = kind and f"quantised to {kind} and "
        warn(f"{name} is {source.words}; {computed}computed in {name_of(model.dtype)}")
    known = len(tokenizer.backend) if hasattr(tokenizer.backend, "__len__") else 0
    if known > model.vocabulary:
        warn(
            f"{name}: its tokenizer has {known} tokens, the model {model.vocabulary}; a text that"
            " needs the others cannot be read"
        )
    return model
