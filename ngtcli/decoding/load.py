"""Loading a target model in three steps: plan what is read and how, read the weights, prepare
it."""

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ngtcli.decoding.attention import use_grouped
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.half_precision import HalfPrecision
from ngtcli.decoding.memory_needs import memory_words
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN, fetch
from ngtcli.models.pretrained import (
    check_weights,
    load_tokenizer,
    loading,
    read_config,
    transformers_quiet,
    warn_of_unused,
)
from ngtcli.models.quantized import fingerprint, name_of
from ngtcli.models.requirements import quantization_method, require_for_weights
from ngtcli.models.stand_in import source_of
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.convert import Conversion
from ngtcli.models.weights.formats import (
    HALF_DTYPES,
    DtypeChoice,
    WeightFormat,
    dtype_by_rule,
    dtype_of_gpu,
    half_of,
    int8_kernel,
    prepacks,
    use_full_float32,
)
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.models.weights.trials import module_devices
from ngtcli.system import reporting
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.machine import pick_device, pick_threads


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, and how the settings want it to be computed.

    Attributes:
        name: A folder, a hub id or "builtin".
        drafts: Whether its forward passes verify drafts.
        num_draft: The most nodes of a draft: half precision that a rule chooses must then be exact.
            None: it need not be, as for a draft model.
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
class Plan:
    """A plan of loading a model.

    Attributes:
        device_map: How accelerate places the layers; None: all on the device.
        weights: Tells the files of the weights.
        by_library: Whether a library of quantized layers computes them.
        memory: Why the weights do not fit in free memory; "" if they do.
    """

    name: str
    path: str
    device: str
    device_map: str | None
    config: Any
    tokenizer: Tokenizer
    weights: str
    format: WeightFormat
    by_library: bool
    memory: str

    def in_float32(self, why: str) -> "Plan":
        """Return the same plan in float32."""
        return replace(self, format=replace(self.format, dtype=torch.float32, why=why))


def load_model(
    spec: ModelSpec, ready: Callable[[TargetModel], object] = lambda _: None
) -> TargetModel:
    """Load a model; it may be downloaded. Raises ModelError.

    What takes long is reported, and once, though a model may be read twice, what the user should
    know: weights that it does not use, tokens that it does not know, memory that does not suffice.

    Args:
        spec: Names the model, and says how it is loaded.
        ready: Gets the model before its forward passes are tried.
    """
    planned = plan(spec)
    model = prepare(planned, read(planned), ready)
    half = HalfPrecision(planned.weights, planned.format, spec.num_draft)
    if half.holds(model, Exactness(model)):
        return model
    del model
    gc.collect()  # a model and its passes are a circle; its memory is free before another is
    why = f"{planned.format.why}, but a row's bits depend on the rows beside it"
    planned = planned.in_float32(why)
    return prepare(planned, read(planned), ready)


def plan(spec: ModelSpec) -> Plan:
    """Decide what loading will do; only small files of the model are read. Raises ModelError."""
    name = spec.name
    device = pick_device(spec.device)
    if spec.quantize == "int8":
        int8_kernel(device)  # refused before a download
    path = fetch(name)
    require_for_weights(name, path, device, spec.device_map)
    by_library = bool(quantization_method(path))
    tokenizer = load_tokenizer(name)
    config = read_config(name, path)
    weight_format = _format(spec, config, device, by_library)
    if spec.device_map != "none" and weight_format.bits:
        raise ModelError(
            f"{name}: --set device_map=auto places no integers that ngt computes itself",
            hint="Leave out --set device_map.",
        )
    planned = Plan(
        name=name,
        path=path,
        device=device,
        device_map=None if spec.device_map == "none" else spec.device_map,
        config=config,
        tokenizer=tokenizer,
        weights=fingerprint(path),
        format=weight_format,
        by_library=by_library,
        memory="",
    )
    if HalfPrecision(planned.weights, weight_format, spec.num_draft).is_known_to_fail:
        dtype = name_of(weight_format.dtype)
        planned = planned.in_float32(
            f"{dtype} is not exact here: a row's bits depend on the rows beside it"
        )
    if planned.device_map is None:
        with loading(name):
            memory = memory_words(path, config, device, planned.format.dtype, planned.format.bits)
        planned = replace(planned, memory=memory)
    return planned


def _format(spec: ModelSpec, config: Any, device: str, by_library: bool) -> WeightFormat:
    """Choose how the weights are computed; a library computes its own layers."""
    on_cpu = device == "cpu"
    kernel = int8_kernel(device) if spec.quantize == "int8" else None
    bits = 8 if kernel else 0
    choice = _dtype(spec, config, device, by_library, bits)
    packed = on_cpu and spec.packed and spec.device_map == "none"
    if not spec.drafts and choice.dtype not in HALF_DTYPES:
        # One row of floats takes less time where they are not packed. In half precision it has
        # other bits then than as one of several.
        packed = False
    return WeightFormat(choice.dtype, packed, bits, kernel, choice.by_rule, choice.why)


def _dtype(spec: ModelSpec, config: Any, device: str, by_library: bool, bits: int) -> DtypeChoice:
    """Choose the dtype: the named one; on a CPU by a rule; elsewhere mostly the checkpoint's."""
    if spec.dtype != "auto":
        return DtypeChoice(getattr(torch, spec.dtype))
    if by_library or device != "cpu":
        return DtypeChoice(dtype_of_gpu(half_of(config)) if device == "cuda" else "auto")
    if spec.name == BUILTIN:  # its figures were measured in float32
        return DtypeChoice(torch.float32)
    if spec.device_map != "none" or not (spec.packed or bits):
        return DtypeChoice(torch.float32)
    return dtype_by_rule(half_of(config), bits, instruction_sets())


def read(planned: Plan) -> Any:
    """Read the `transformers` model of a plan, in its format. Raises ModelError."""
    name = planned.name
    device = planned.device
    if planned.memory:
        reporting.warn_once(f"{name}: {planned.memory}")
    _warn_of_dtype(planned)
    use_full_float32(device)
    with loading(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a refused pickle is reported once, as an error
        hf = _read_weights(planned)
        if hf.device.type == "meta":
            raise ModelError(
                f"{name}: no device has room for its embedding",
                hint="Free memory, or name a smaller model.",
            )
        if counts := Counter(place for _, place in module_devices(hf)):
            parts = ", ".join(f"{count} on {place}" for place, count in counts.items())
            reporting.warn_once(f"{name}: of its parts {parts}")
        is_placed = planned.format.bits or planned.device_map or hf.device.type == device
        return hf if is_placed else hf.to(device).eval()


def _warn_of_dtype(planned: Plan) -> None:
    """Report a half precision that is slow here, or that is computed in another one."""
    dtype = planned.format.dtype
    is_named = dtype in HALF_DTYPES and not planned.format.chosen_by_rule
    if planned.device == "cpu" and is_named and not planned.format.bits and not prepacks(dtype):
        reporting.warn_once(
            f"{name_of(dtype)} is slow on this CPU, which has no kernel for it that takes"
            " several rows at once: drafts hardly help; --dtype float32 is faster"
        )
    if planned.device == "cuda" and dtype == torch.float16:
        if dtype_of_gpu(half_of(planned.config)) == torch.float16:
            reporting.warn_once(
                "this GPU only emulates bfloat16: computed in float16 (or give --dtype bfloat16)"
            )


def _read_weights(planned: Plan) -> Any:
    """Read the weights in the way of their format, and check that they fill the model."""
    path = planned.path
    weight_format = planned.format
    if weight_format.bits:
        hf, report = load_quantized(path, weight_format)
        _check_weights(planned.name, report)
        return hf
    if planned.by_library:
        on_device = planned.device if planned.device != "cpu" else None
        hf, report = transformers_quiet().AutoModelForCausalLM.from_pretrained(
            path,
            dtype=weight_format.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            # Left unset, it would ask on stdout and read the answer from a piped document.
            trust_remote_code=False,
            # Layers of other libraries cannot be moved later.
            device_map=planned.device_map or on_device,
        )
        _check_weights(planned.name, report)
        return hf
    conversion = None
    if weight_format.packed:
        conversion = Conversion(weight_format)
    config = read_config(planned.name, path)  # a copy of its own, which is changed
    hf, report = read_checkpoint(
        path,
        config,
        conversion,
        weight_format.dtype,
        device_map=planned.device_map,
    )
    _check_weights(planned.name, report)
    if conversion is not None:
        conversion.pack_rest(hf)
    return hf


def _check_weights(name: str, report: dict[str, Any]) -> None:
    """Check that the weights fill the model, and warn of those that it does not use."""
    check_weights(name, report)
    warn_of_unused(name, report)


def prepare(planned: Plan, hf: Any, ready: Callable[[TargetModel], object]) -> TargetModel:
    """Make the target model of a `transformers` model that was read. Raises ModelError."""
    name = planned.name
    kind = planned.format.kind
    half_by_rule = planned.format.chosen_by_rule and hf.dtype != torch.float32
    origin = Origin(planned.weights, planned.format.why, half_by_rule)
    model = prepared(hf, planned.tokenizer, name, origin)
    ready(model)
    if source := source_of(planned.path):
        computed = kind and f"quantized to {kind} and "
        reporting.warn_once(
            f"{name} is {source.words}; {computed}computed in {name_of(model.dtype)}"
        )
    backend = planned.tokenizer.backend
    tokens = len(backend) if hasattr(backend, "__len__") else 0
    if tokens > model.vocabulary:
        reporting.warn_once(
            f"{name}: its tokenizer has {tokens} tokens, the model {model.vocabulary}; a text that"
            " needs the others cannot be read"
        )
    return model


def prepared(
    hf: Any,
    tokenizer: Tokenizer,
    name: str,
    origin: Origin | None = None,
) -> TargetModel:
    """Make the target model of a `transformers` model, whose attention it prepares.

    Raises ModelError for a model that cannot be run.
    """
    use_grouped(hf)
    return target_model(hf, tokenizer, name, origin)


def use_threads(count: int) -> None:
    """Compute with so many threads on a CPU; 0: as many as there are cores."""
    torch.set_num_threads(pick_threads(count))
