"""Loading a target model: plan, read, prepare."""

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from ngtcli.decoding.attention import use_grouped
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.memory_needs import memory_words
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN, fetch
from ngtcli.models.pretrained import (
    check_weights,
    load_tokenizer,
    loading,
    read_config,
    transformers_quiet,
)
from ngtcli.models.quantized import name_of, weights_of
from ngtcli.models.requirements import quantization_method, require_for_weights
from ngtcli.models.stand_in import source_of
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.convert import Conversion
from ngtcli.models.weights.forms import (
    Form,
    dtype_by_rule,
    dtype_of_gpu,
    half_of,
    has_blocks,
    int8_kernel,
    use_full_float32,
)
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.models.weights.trials import places_of
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.machine import pick_device, pick_threads
from ngtcli.system.trials import Trial

Notify = Callable[[str], None]
_HALVES = (torch.bfloat16, torch.float16)
_TOKENS = 900  # of a text for which exactness is tried: kept for all up to 1,024 places


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model by folder, hub id or "builtin", and how it is to be computed, as the settings say.

    `drafts`: its passes verify drafts; of up to `num_draft` nodes, if that is given: then half
    precision counts only where it is exact, but if it is named.
    """

    name: str
    device: str = "auto"
    dtype: str = "auto"
    packed: bool = True
    quantize: str = "none"
    device_map: str = "none"
    drafts: bool = True
    num_draft: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Who is told while a model loads.

    `warn` of weights that the model does not use, tokens that it does not know and memory that does
    not suffice, `progress` of what takes long; `ready` gets the model before its passes are tried.
    """

    warn: Notify = field(default=lambda _: None)
    progress: Notify = field(default=lambda _: None)
    ready: Callable[[TargetModel], object] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be read, and how: `weights` names those in the files, as they are.

    `memory` says that they do not fit in free memory, "" if they do. Of layers that a library
    computes `by_library` is true; accelerate places those of a `device_map`.
    """

    name: str
    path: str
    device: str
    device_map: str | None
    config: Any
    tokenizer: Tokenizer
    weights: str
    form: Form
    by_library: bool
    memory: str

    @property
    def in_float32(self) -> "Plan":
        """The same where half precision was chosen and is not exact."""
        reason = f"{self.form.reason}, but a row's bits depend on the rows beside it"
        return replace(self, form=replace(self.form, dtype=torch.float32, reason=reason))


def load_model(wanted: Wanted, tell: Tell | None = None) -> TargetModel:
    """Load a model; it may be downloaded. Raises ModelError."""
    tell = replace(tell or Tell(), warn=cache((tell or Tell()).warn))  # each line once
    planned = plan(wanted, tell.progress)
    model = prepare(planned, read(planned, tell), tell)
    if not _stays(planned, model, wanted, tell.progress):
        del model
        gc.collect()  # a model and its passes are a circle; its memory is free before another is
        planned = planned.in_float32
        model = prepare(planned, read(planned, tell), tell)
    return model


def plan(wanted: Wanted, progress: Notify = lambda _: None) -> Plan:
    """What loading will do; nothing but the model's small files is read. Raises ModelError."""
    name, device = wanted.name, pick_device(wanted.device)
    if wanted.quantize == "int8":
        int8_kernel(device)  # refused before a download
    path = fetch(name, progress=progress)
    require_for_weights(name, path, device, wanted.device_map)
    by_library = bool(quantization_method(path))
    tokenizer, weights = load_tokenizer(name), weights_of(path)
    config = read_config(name, path)
    form = _form(wanted, config, device, by_library)
    if wanted.device_map != "none" and form.bits:
        what = f"{name}: --set device_map=auto places no integers that ngt computes itself"
        raise ModelError(what, "Leave out --set device_map.")
    half = name_of(form.dtype)
    if form.reason and form.dtype in _HALVES and wanted.num_draft is not None:
        if _remembered(weights, form).load() is False:
            reason = f"{half} is not exact here: a row's bits depend on the rows beside it"
            form = replace(form, dtype=torch.float32, reason=reason)
    auto = None if wanted.device_map == "none" else wanted.device_map
    with loading(name):
        memory = "" if auto else memory_words(path, config, device, form.dtype, form.bits)
    return Plan(name, path, device, auto, config, tokenizer, weights, form, by_library, memory)


def _form(wanted: Wanted, config: Any, device: str, by_library: bool) -> Form:
    """The form of a model; of one `by_library` a library computes the layers.

    "auto" is float32 on a CPU but where the rule says otherwise, elsewhere mostly the checkpoint's.
    """
    on_cpu, auto = device == "cpu", wanted.device_map != "none"
    kernel = int8_kernel(device) if wanted.quantize == "int8" else None
    bits = 8 if kernel else 0
    dtype, reason = None, ""
    if wanted.dtype != "auto":
        dtype = getattr(torch, wanted.dtype)
    elif by_library or not on_cpu:
        dtype = dtype_of_gpu(half_of(config)) if device == "cuda" else "auto"
    elif wanted.name == BUILTIN or auto or not (wanted.packed or bits):
        dtype = torch.float32  # what is said of the built-in model's answers was measured in it
    else:
        dtype, reason = dtype_by_rule(half_of(config), bits, instruction_sets())
    # One row of floats takes less time where they are not in blocks; in half precision it has other
    # bits then than as one of several.
    packed = on_cpu and wanted.packed and not auto and (wanted.drafts or dtype in _HALVES)
    return Form(dtype, packed, bits, kernel, reason)


def _remembered(weights: str, form: Form) -> Trial[bool]:
    """Where it is kept that half precision is not exact: else each start would read both."""
    parts = weights, name_of(form.dtype), form.kind, form.packed
    return Trial("halves", torch.device("cpu"), parts, bool)


def _stays(planned: Plan, model: TargetModel, wanted: Wanted, progress: Notify) -> bool:
    """Whether a model stays in its dtype: one that was chosen and is not exact does not."""
    form = planned.form
    if not form.reason or form.dtype not in _HALVES or wanted.num_draft is None:
        return True
    if not model.verifies_trees:  # it decodes plainly, see Exactness
        return True
    rows = Exactness(model, progress).any_number(wanted.num_draft, _TOKENS)
    if rows is None:
        _remembered(planned.weights, form).save(False)
    return rows is not None


def read(planned: Plan, tell: Tell) -> Any:
    """The `transformers` model of a plan, in its form. Raises ModelError."""
    name, form, auto, device = planned.name, planned.form, planned.device_map, planned.device
    if planned.memory:
        tell.warn(f"{name}: {planned.memory}")
    named = device == "cpu" and form.dtype in _HALVES and not form.reason and not form.bits
    if named and not has_blocks(form.dtype):
        tell.warn(
            f"{name_of(form.dtype)} is slow on this CPU, which has no kernel for it that takes"
            " several rows at once: drafts hardly pay; --dtype float32 does better"
        )
    if device == "cuda" and form.dtype == dtype_of_gpu(half_of(planned.config)) == torch.float16:
        tell.warn("this GPU only emulates bfloat16: computed in float16 (or give --dtype bfloat16)")
    use_full_float32(device, tell.warn)
    config = read_config(name, planned.path)  # one of its own, which is changed
    conversion = None
    with loading(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
        if form.bits:
            hf, report = load_quantized(planned.path, form, tell.warn, tell.progress)
        elif planned.by_library:
            hf, report = transformers_quiet().AutoModelForCausalLM.from_pretrained(
                planned.path, dtype=form.dtype, output_loading_info=True,
                ignore_mismatched_sizes=True,
                # Left unset, it would ask on stdout and read the answer from a piped document.
                trust_remote_code=False,
                # Layers of other libraries cannot be moved later.
                device_map=auto or (device if device != "cpu" else None),
            )  # fmt: skip
        else:
            conversion = Conversion(form, progress=tell.progress) if form.packed else None
            hf, report = read_checkpoint(
                planned.path, config, conversion, form.dtype, tell.progress, device_map=auto
            )
        check_weights(name, report, tell.warn)
        if conversion is not None:
            conversion.pack_rest(hf)
        if hf.device.type == "meta":
            what = f"{name}: no device has room for its embedding"
            raise ModelError(what, "Free memory, or name a smaller model.")
        if counts := Counter(on for _, on in places_of(hf)):
            parts = ", ".join(f"{count} on {on}" for on, count in counts.items())
            tell.warn(f"{name}: of its parts {parts}")
        stays = form.bits or auto or hf.device.type == device
        return hf if stays else hf.to(device).eval()


def prepare(planned: Plan, hf: Any, tell: Tell) -> TargetModel:
    """The target model on a `transformers` model that was read. Raises ModelError."""
    name, kind = planned.name, planned.form.kind
    model = prepared(hf, planned.tokenizer, name, tell.progress)
    model.weights, model.dtype_why = planned.weights, planned.form.reason
    model.half_by_rule = model.dtype != torch.float32 and bool(planned.form.reason)
    tell.ready(model)
    if source := source_of(planned.path):
        computed = kind and f"quantised to {kind} and "
        tell.warn(f"{name} is {source.words}; {computed}computed in {name_of(model.dtype)}")
    backend = planned.tokenizer.backend
    known = len(backend) if hasattr(backend, "__len__") else 0
    if known > model.vocabulary:
        tell.warn(
            f"{name}: its tokenizer has {known} tokens, the model {model.vocabulary}; a text that"
            " needs the others cannot be read"
        )
    return model


def prepared(
    hf: Any, tokenizer: Tokenizer, name: str, progress: Notify = lambda _: None
) -> TargetModel:
    """The target model on a `transformers` model, whose attention it prepares.

    Raises ModelError for a model that cannot be run.
    """
    use_grouped(hf)
    return target_model(hf, tokenizer, name, progress)


def use_threads(wanted: int) -> None:
    """Compute with `wanted` threads on a CPU; 0: as many as there are cores."""
    torch.set_num_threads(pick_threads(wanted))
