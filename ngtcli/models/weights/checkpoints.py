"""Reads checkpoints: `transformers` makes the model, and asks for each weight when it comes to it.

It is given what reads a weight then, of one file or of several. Weights that get another form,
packed or in 8 bits, are taken one by one as they come, so that none is in memory twice.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
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
from ngtcli.models.hf import WeightHook
from ngtcli.models.hub import weight_files
from ngtcli.models.pretrained import check_weights
from ngtcli.models.requirements import quantization_method
from ngtcli.models.stand_in import Source, source_of
from ngtcli.models.weights.gguf_weights import GgufWeight, gguf_weights
from ngtcli.system.progress import ByteBar

Notify = Callable[[str], None]
Stored = Mapping[str, Any]
_TEXT = re.compile(r"(model\.)?(language_model|text_model)\.")  # before names of a text part
# The text part is no decoder (a prompt is attended to in both directions), or has other names.
_WHOLE = ("paligemma", "qianfan_ocr")
_HINT = "Name the checkpoint that they were made of."
_MAPPED = ".safetensors"  # end of the names of files that are mapped
_SHOWN = 1e8  # bytes from which on a bar is shown; guess: fewer take less than a second
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_checkpoint(
    path: str,
    config: Any,
    layers: Any = None,
    dtype: torch.dtype | str | None = None,
    progress: Notify = lambda _: None,
    device_map: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What `transformers` makes of a checkpoint, GGUF file or adapter, and its loading report.

    `layers` take their weights as they come; the others are in `dtype`, "auto" for that of the
    configuration, None for that of most weights. Weights of safetensors that are neither taken nor
    converted stay in the mapped files. `progress` gets lines with the bytes that were read. With a
    `device_map`, as `transformers` takes one, no `layers` are taken; weights that lie on the disk
    stay in the checkpoint's files. Raises ModelError where they cannot be.
    """
    empty, source = empty_model(config), source_of(path)
    is_part = type(empty.config) is not type(config)
    stored: Stored | None
    if source and source.base:
        stored = _merged(source, config, dtype, progress)
    else:
        stored = _opened(path, empty, progress, is_part)
    hook = WeightHook(layers, stored or {})
    if device_map and not source and not is_part:
        stored = None  # from its own files alone `transformers` leaves weights on the disk
    is_own, known = stored is not None, empty.config.dtype
    if dtype is None and not source or dtype == "auto" and not known:
        dtype = torch.float32 if source else _dtype(stored.values()) if stored else "auto"
    told: dict[str, Any] = {} if layers is None else {"quantization_config": hook}
    try:
        found: tuple[Any, Any] = type(empty).from_pretrained(
            None if is_own else path, state_dict=stored, config=empty.config,
            dtype=dtype or known or torch.float32, device_map=device_map, output_loading_info=True,
            ignore_mismatched_sizes=True, trust_remote_code=False, **told,
        )  # fmt: skip
    except RuntimeError as error:
        raise hook.error or error from None
    if is_own:
        tell_source(found[0], path)
    return found


def _merged(source: Source, config: Any, dtype: Any, progress: Notify) -> dict[str, Tensor]:
    """The weights of a base model with an adapter, which the package peft merges into them."""
    from peft import PeftModel

    hf, report = read_checkpoint(source.base, config, dtype=dtype, progress=progress)
    check_weights(source.base, report, lambda _: None)
    tied = hf.all_tied_weights_keys
    for name in tied:  # else what is added to one were added to both
        parent, _, own = name.rpartition(".")
        setattr(hf.get_submodule(parent), own, nn.Parameter(hf.get_parameter(name).clone(), False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="Found missing adapter keys")
        made = PeftModel.from_pretrained(hf, source.file).merge_and_unload().state_dict()
    changed = {own for own, other in tied.items() if not torch.equal(made[own], made[other])}
    return {name: one for name, one in made.items() if name not in tied or name in changed}


def tell_source(hf: Any, path: str) -> None:
    """Give a model whose weights came by themselves its generation config and its folder."""
    with suppress(OSError):  # it has none
        hf.generation_config = GenerationConfig.from_pretrained(path)
    hf.config._name_or_path = path  # a part of what trials are stored under


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """A model without values, in the dtype of its configuration or in another.

    Of a model for images or sounds, too, it is the part for text.
    """
    told = {"dtype": dtype} if dtype else {}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_of_text(config) or config, **told)


def _of_text(config: Any) -> Any:
    """The configuration of the part for text where `transformers` makes a decoder of it, or None.

    Raises ModelError where there is such a part and it makes none.
    """
    text, known = config.get_text_config(), AutoModelForCausalLM._model_mapping
    if text is config or config.is_encoder_decoder:
        return None
    if type(text) not in known and type(config) in known:
        return None
    if type(text) not in known or config.model_type in _WHOLE:
        what = f"{config.model_type} is not for text alone, and its part for text"
        raise ModelError(
            f"{what} ({text.model_type}) is not one that transformers loads by itself",
            hint="Name a model for text.",
        )
    text = deepcopy(text)
    text.dtype = text.dtype or config.dtype
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)
    return text


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a file, which is read when it is asked for; `bar` is told its bytes there."""

    one: Any
    bar: ByteBar | None

    def get_dtype(self) -> str:
        """Its dtype, as safetensors name them."""
        return str(self.one.get_dtype())

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self.one.get_shape())

    def __getitem__(self, _: object) -> Tensor:
        """All of it, whatever is asked for."""
        tensor: Tensor = self.one[...]
        if self.bar is not None:
            self.bar.update(self.one.size if isinstance(self.one, GgufWeight) else tensor.nbytes)
        return tensor


def _opened(path: str, empty: Any, progress: Notify, is_part: bool) -> Stored | None:
    """The tensors of a folder, or of a GGUF file for an empty model; None without safetensors.

    With `is_part` those of the part for text. They lie in mapped files. Raises ModelError for
    integers of which config.json says nothing.
    """
    tensors: dict[str, Any] = {}
    if source := source_of(path):
        paths, tensors = [source.file], gguf_weights(source, empty)
    else:
        names = os.listdir(path)
        paths = [os.path.join(path, name) for name in weight_files(Path(path), names)]
        if ADAPTER in names or not paths or not all(one.endswith(_MAPPED) for one in paths):
            return None
        opened: list[Any] = [safe_open(path, "pt") for path in paths]
        for file in opened:
            tensors |= {name: file.get_slice(name) for name in file.offset_keys()}
        if not quantization_method(path) and any(map(_is_integer, tensors.items())):
            what = f"{path}: its weights are integers, of which config.json says nothing"
            raise ModelError(what, hint=_HINT)
    total = sum(map(os.path.getsize, paths))
    bar = ByteBar("Reading", total, progress) if total > _SHOWN else None
    stored: Stored = {name: _Stored(one, bar) for name, one in tensors.items()}
    return _text_of(stored) if is_part else stored


def _text_of(stored: Stored) -> Stored:
    """What is the text part's, by the names that it has there."""
    ends = {name: found.end() for name in stored if (found := _TEXT.match(name))}
    if not ends:
        return stored
    heads = {name: one for name, one in stored.items() if name.startswith("lm_head.")}
    return {name[end:]: stored[name] for name, end in ends.items()} | heads


def _is_integer(named: tuple[str, Any]) -> bool:
    """Whether a tensor by its name is a weight in integers of 8 bits; masks may be."""
    return named[0].endswith("weight") and named[1].get_dtype() in ("I8", "U8")


def _dtype(slices: Iterable[Any]) -> torch.dtype:
    """The dtype of most tensors, so that none is converted before it is quantised."""
    found = [_DTYPES.get(one.get_dtype()) for one in slices]
    known = [dtype for dtype in found if dtype is not None]
    return max(set(known), key=known.count) if known else torch.float32
