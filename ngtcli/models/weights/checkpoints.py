"""Read checkpoints: `transformers` builds the model and asks for each weight when it needs it.

It gets objects that read a weight on access. Weights that are packed or quantized are handed over
one by one as they are read, so that none is in memory twice.
"""

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import ADAPTER
from ngtcli.models.hf import WeightHook, WeightTaker, list_conversions
from ngtcli.models.hub import weight_files
from ngtcli.models.pretrained import check_weights
from ngtcli.models.requirements import quantization_method
from ngtcli.models.stand_in import Source, source_of
from ngtcli.models.weights.gguf_weights import GgufWeight, gguf_weights
from ngtcli.system.progress import ByteBar

StoredWeights = Mapping[str, Any]  # by name: a `_StoredWeight`, a slice of safetensors or a tensor
# The prefix of the names of the weights in the text part of a multimodal model.
_TEXT_PREFIX = re.compile(r"(model\.)?(language_model|text_model)\.")
# The text part of these models is not a decoder (it attends to a prompt in both directions), or its
# weights have other names in the checkpoint.
_INSEPARABLE = ("paligemma", "qianfan_ocr")
_MAPPED_SUFFIX = ".safetensors"
_MIN_BAR_BYTES = 1e8  # Smaller checkpoints show no bar (guess: they take less than a second).
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_checkpoint(
    path: str,
    config: Any,
    taker: WeightTaker | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Let `transformers` build a model and read its weights.

    Args:
        path: The folder of a checkpoint, or the stand-in folder of a GGUF file or an adapter.
        config: The `PreTrainedConfig` of the model.
        taker: Receives the weights that are packed or quantized. None: there are none.
        dtype: The dtype of all other weights. "auto": that of the configuration; None: that of most
            weights. Weights in safetensors files that need no cast stay in the mapped files.
        device_map: The device map of `transformers`; it excludes a `taker`. Weights that it leaves
            on the disk stay in the checkpoint's files.

    Returns:
        The model and the loading report of `transformers`.

    Raises:
        ModelError: The weights cannot be used.
    """
    empty = empty_model(config)
    source = source_of(path)
    is_text_part = type(empty.config) is not type(config)
    stored: StoredWeights | None
    if source and source.base:
        stored = _merge_adapter(source, config, dtype)
    else:
        stored = _open_weights(path, empty, is_text_part)
    hook = WeightHook(taker, stored or {})
    if device_map and not source and not is_text_part:
        # transformers leaves weights on the disk only if it opens the files itself.
        stored = None

    config_dtype = empty.config.dtype
    if (dtype is None and not source) or (dtype == "auto" and not config_dtype):
        if source:
            dtype = torch.float32
        elif stored:
            dtype = _most_frequent_dtype(stored.values())
        else:
            dtype = "auto"
    options: dict[str, Any] = {} if taker is None else {"quantization_config": hook}
    list_conversions()
    try:
        loaded: tuple[Any, Any] = type(empty).from_pretrained(
            path if stored is None else None,
            state_dict=stored,
            config=empty.config,
            dtype=dtype or config_dtype or torch.float32,
            device_map=device_map,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
            **options,
        )
    except RuntimeError as error:
        raise hook.error or error from None
    if stored is not None:
        set_source(loaded[0], path)
    return loaded


def _merge_adapter(
    source: Source, config: Any, dtype: torch.dtype | str | None
) -> dict[str, Tensor]:
    """Merge an adapter into its base model with the package peft; return the weights."""
    from peft import PeftModel

    hf, report = read_checkpoint(source.base, config, dtype=dtype)
    check_weights(source.base, report)
    # Tied weights are untied first: the adapter may change only one of them.
    tied = hf.all_tied_weights_keys
    for name in tied:
        parent, _, attribute = name.rpartition(".")
        copy = nn.Parameter(hf.get_parameter(name).clone(), requires_grad=False)
        setattr(hf.get_submodule(parent), attribute, copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="Found missing adapter keys")
        merged = PeftModel.from_pretrained(hf, source.file).merge_and_unload().state_dict()
    still_tied = {name for name, twin in tied.items() if torch.equal(merged[name], merged[twin])}
    return {name: weight for name, weight in merged.items() if name not in still_tied}


def set_source(hf: Any, path: str) -> None:
    """Set the generation config and the folder's name, under which probe results are stored.

    `transformers` sets them only if it reads the files itself.
    """
    with suppress(OSError):  # A checkpoint may lack generation_config.json.
        hf.generation_config = GenerationConfig.from_pretrained(path)
    hf.config._name_or_path = path


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """Build a model without values, or the text part of a multimodal model.

    Args:
        config: The `PreTrainedConfig` of the model.
        dtype: The dtype of the weights. None: that of the configuration.
    """
    options = {"dtype": dtype} if dtype else {}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_text_config(config) or config, **options)


def _text_config(config: Any) -> Any:
    """Return the configuration of a multimodal model's text part, None for other models.

    Raises:
        ModelError: `transformers` cannot load the text part by itself.
    """
    text = config.get_text_config()
    decoders = AutoModelForCausalLM._model_mapping
    if text is config or config.is_encoder_decoder:
        return None
    if type(text) not in decoders and type(config) in decoders:
        return None
    if type(text) not in decoders or config.model_type in _INSEPARABLE:
        raise ModelError(
            f"{config.model_type} models are multimodal, and transformers cannot load their text"
            f" part ({text.model_type}) by itself",
            hint="Use a text model.",
        )
    text = deepcopy(text)
    text.dtype = text.dtype or config.dtype
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)
    return text


@dataclass(frozen=True, slots=True)
class _StoredWeight:
    """A weight in a file, which is read on access.

    Attributes:
        weight: A slice of a safetensors file, or a `GgufWeight`.
        bar: Counts the bytes that were read; None: no bar is shown.
    """

    weight: Any
    bar: ByteBar | None

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors, such as "BF16"."""
        return str(self.weight.get_dtype())

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self.weight.get_shape())

    def __getitem__(self, _: object) -> Tensor:
        """Read the complete weight, whatever the index."""
        tensor: Tensor = self.weight[...]
        if self.bar is not None:
            is_gguf = isinstance(self.weight, GgufWeight)
            self.bar.update(self.weight.size if is_gguf else tensor.nbytes)
        return tensor


def _open_weights(path: str, empty: Any, is_text_part: bool) -> StoredWeights | None:
    """Map the files with a model's weights into memory.

    Args:
        path: The folder of the checkpoint, or the stand-in folder of a GGUF file.
        empty: The model without values.
        is_text_part: Only the weights of a multimodal model's text part are needed.

    Returns:
        The weights by name; None if they are not all in safetensors files.

    Raises:
        ModelError: The weights are integers, but config.json names no quantization.
    """
    weights: dict[str, Any] = {}
    source = source_of(path)
    if source:
        paths = [source.file]
        weights |= gguf_weights(source, empty)
    else:
        names = os.listdir(path)
        paths = [os.path.join(path, name) for name in weight_files(Path(path), names)]
        all_mapped = all(file.endswith(_MAPPED_SUFFIX) for file in paths)
        if ADAPTER in names or not paths or not all_mapped:
            return None
        opened: list[Any] = [safe_open(file, "pt") for file in paths]
        for file in opened:
            weights |= {name: file.get_slice(name) for name in file.offset_keys()}
        if not quantization_method(path) and any(map(_is_int8_weight, weights.items())):
            raise ModelError(
                f"{path}: the weights are integers, but config.json names no quantization",
                hint="Use the checkpoint that was quantized.",
            )
    total = sum(map(os.path.getsize, paths))
    bar = ByteBar("Reading", total) if total > _MIN_BAR_BYTES else None
    stored = {name: _StoredWeight(weight, bar) for name, weight in weights.items()}
    return _text_weights(stored) if is_text_part else stored


def _text_weights(stored: StoredWeights) -> StoredWeights:
    """Return the weights of the text part by the names that they have in it."""
    text: dict[str, Any] = {}
    heads: dict[str, Any] = {}
    for name, weight in stored.items():
        prefix = _TEXT_PREFIX.match(name)
        if prefix:
            text[name[prefix.end() :]] = weight
        if name.startswith("lm_head."):
            heads[name] = weight
    return text | heads if text else stored


def _is_int8_weight(item: tuple[str, Any]) -> bool:
    """Return whether a (name, slice) pair is a weight of 8-bit integers, unlike a mask."""
    name, weight = item
    return name.endswith("weight") and weight.get_dtype() in ("I8", "U8")


def _most_frequent_dtype(weights: Iterable[Any]) -> torch.dtype:
    """Return the dtype of most weights, so that few are cast before they are quantized."""
    dtypes = [_DTYPES.get(weight.get_dtype()) for weight in weights]
    float_dtypes = [dtype for dtype in dtypes if dtype is not None]
    return max(set(float_dtypes), key=float_dtypes.count) if float_dtypes else torch.float32
