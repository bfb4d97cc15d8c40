"""Loads a model's tokenizer and configuration, checks its weights, and reads what they say.

Imports no torch.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN, HINT, LARGEST_JSON, fetch, read_object, some
from ngtcli.models.stand_in import source_of
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.files import read_bounded
from ngtcli.system.process import without_collection

# The class that AutoTokenizer chooses, by model type and by the class that tokenizer_config.json
# names, without `Fast` at its end. AutoTokenizer imports torch to choose; a test compares this
# table with what it chooses in this version of the library.
_CHOSEN_IN = "5.23."
_CHOICES = {
    ("llama", "TokenizersBackend"): "TokenizersBackend",
    ("llama", "PreTrainedTokenizer"): "TokenizersBackend",
    ("llama", "LlamaTokenizer"): "LlamaTokenizer",
    ("qwen2", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("qwen3", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("gemma", "GemmaTokenizer"): "GemmaTokenizer",
    ("gemma2", "GemmaTokenizer"): "GemmaTokenizer",
    ("gemma3_text", "GemmaTokenizer"): "GemmaTokenizer",
    ("gpt2", "GPT2Tokenizer"): "GPT2Tokenizer",
    ("gpt_neox", "GPTNeoXTokenizer"): "GPTNeoXTokenizer",
}
Notify = Callable[[str], None]
# Names of the number of positions in configurations; the first that is set counts.
_POSITIONS = (
    "max_position_embeddings n_positions max_seq_len max_sequence_length max_target_positions"
    " seq_length n_ctx max_seq_length"
).split()
_UNLIMITED = 1 << 20  # tokens, if a configuration has no number; guess
_MAX_LAYERS = 10_000  # of a model; guess: far more than any has
_MOST_MASKS = 64  # of a model; a guess: the authors have 5
_CHANGING_ROPES = {"dynamic"}
_SCALED_ROPES = {"linear", "yarn"}
# Settings that a checkpoint can suggest to `generate`; ngt has settings of its own instead.
_SUGGESTIONS = (
    "repetition_penalty encoder_repetition_penalty no_repeat_ngram_size num_beams suppress_tokens"
    " begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id"
    " min_length min_new_tokens exponential_decay_length_penalty do_sample"
).split()
# What libraries say of a model that cannot be loaded, and what is said in its place.
_REASONS = (
    ("backend tokenizer", "its tokenizer cannot be read"),
    ("Weights only load failed", "its weights are a pickle that could run code"),
    ("offload_folder", "not all fits in memory, and its files do not have the rest as computed"),
)
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without the model; it may be downloaded. Raises ModelError."""
    path = fetch(name, ["tokenizer"])
    with loading(name):
        kind = getattr(transformers_quiet(), tokenizer_class(path) or "AutoTokenizer")
        return Tokenizer(kind.from_pretrained(path, trust_remote_code=False))


def tokenizer_class(path: str) -> str:
    """The class that AutoTokenizer chooses for a folder; "" if `_CHOICES` does not decide it."""
    folder = Path(path)
    if not (folder.is_absolute() and metadata.version("transformers").startswith(_CHOSEN_IN)):
        return ""  # AutoTokenizer takes some short relative paths for well-known hub ids
    config = read_object(folder / "config.json")
    if (source := source_of(folder)) and not source.base:  # a GGUF file
        return "TokenizersBackend"  # the class that wrote it
    about = read_object(folder / "tokenizer_config.json")
    named = about.get("tokenizer_class")
    chosen = _CHOICES.get((str(config.get("model_type")), str(named).removesuffix("Fast")), "")
    foreign = "auto_map" in about or {"auto_map", "tokenizer_class", "model_name"} & set(config)
    if not chosen or foreign:
        return ""
    try:
        vocabulary = read_bounded(folder / "tokenizer.json", LARGEST_JSON)
    except OSError:
        return ""
    # A LlamaTokenizer with a byte-level vocabulary is loaded as another class.
    return "" if chosen == "LlamaTokenizer" and b"ByteLevel" in vocabulary else chosen


def load_config(name: str) -> Any:
    """The configuration of a model's text part, without the model. Raises ModelError.

    Where that gives the same values it is read as plain JSON: the library's class imports torch.
    """
    path = fetch(name, ["config"])
    values = read_object(Path(path) / "config.json")
    if _is_plain(values):
        return SimpleNamespace(**values)
    return read_config(name, path).get_text_config()


def read_config(name: str, path: str) -> Any:
    """The library's own configuration of a model in a folder. Raises ModelError."""
    _check_layers(name, read_object(Path(path) / "config.json"))
    with loading(name):
        return transformers_quiet().AutoConfig.from_pretrained(path, trust_remote_code=False)


def _check_layers(name: str, values: dict[str, Any]) -> None:
    """Raise ModelError for a number of layers of which the library would make endless lists."""
    for part in (values, values.get("text_config")):
        layers = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if isinstance(layers, int | float) and layers > _MAX_LAYERS:
            raise ModelError(f"{name}: {layers} layers", hint="Its config.json is damaged.")


def mask_tokens(config: Any) -> tuple[int, ...]:
    """The tokens that a model was tuned to fill, in their order below a token; () if none are.

    `config` is that of its text part. The authors of SPACE give `mask_id`, `mask_num` and
    `mask_diff` to their programs: with the last, ids count up from the first (SPACE, Yi et al.
    2024; github.com/cteant/SPACE). Values that give no ids of the vocabulary are taken for none.
    """
    first, count = getattr(config, "mask_id", None), getattr(config, "mask_num", None)
    if type(first) is not int or type(count) is not int or not 0 < count <= _MOST_MASKS:
        return ()
    step = int(getattr(config, "mask_diff", False) is True)
    masks = tuple(first + step * i for i in range(count))
    return masks if first >= 0 and masks[-1] < config.vocab_size else ()


def _is_plain(values: dict[str, Any]) -> bool:
    """Whether the library's class would not change the sizes and the rotary parameters."""
    sizes = [values.get(name) for name in ("vocab_size", "max_position_embeddings")]
    rope = values.get("rope_parameters", {"rope_type": "default"})
    return (
        any(kind == values.get("model_type") for kind, _ in _CHOICES)
        and all(type(size) is int and size > 0 for size in sizes)
        and isinstance(rope, dict)
        and rope.get("rope_type") == "default"
        and not values.get("rope_scaling")
        and "auto_map" not in values
    )


def transformers_quiet() -> Any:
    """The library `transformers`, its log messages and progress bars turned off."""
    with without_collection():
        import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.get_logger("accelerate").setLevel("ERROR")
    return transformers


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turns every exception of a hub, a file or a configuration into one ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        why = next((told for mark, told in _REASONS if mark in why), why)
        if kind := re.search(r"^Unrecognized configuration class .*?(\w+)Config'", why):
            why = f"{kind[1]} is not a decoder: it does not generate text"
        is_local = name == BUILTIN or os.path.exists(os.path.expanduser(name))
        is_damaged = type(error).__name__ == "SafetensorError" and not is_local
        hint = f"Get its weights again: ngt models pull {name}" if is_damaged else HINT
        raise ModelError(f"{name}: cannot be loaded ({why})", hint=hint) from error


def check_weights(name: str, told: dict[str, Any], warn: Notify) -> None:
    """Raise ModelError unless the weights fill the model; `warn` of those that it does not use.

    `told` is the loading report of `transformers`, which gives missing weights random values.
    """
    for key, *shapes in sorted(told["mismatched_keys"]):
        stored, wanted = ("×".join(map(str, shape)) or "()" for shape in shapes)
        what = f"{name}: {key} has shape {stored} in the weights and {wanted} by config.json"
        raise ModelError(what, hint="The two are not of one model; download it again.")
    if missing := sorted(told["missing_keys"]):
        raise ModelError(
            f"{name}: the weights lack {some(missing, 2)}",
            hint="They do not fill the model that config.json describes; download it again.",
        )
    if unused := sorted(told["unexpected_keys"]):
        warn(f"{name}: the model has no use for {some(unused, 2)} of its weights")


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The most tokens of prompt and answer together; `reason`, if that is less than configured."""

    tokens: int
    reason: str = ""


def context_limit(config: Any, tokenizer: Tokenizer | None) -> ContextLimit:
    """Return the smallest limit of configuration, tokenizer and rotary positions.

    Args:
        config: The configuration of a decoder.
        tokenizer: Its `model_max_length` counts where it is less than the configuration's.

    Raises ModelError if the configuration's number is not a positive integer.
    """
    name, positions = next(
        ((n, p) for n in _POSITIONS if (p := getattr(config, n, None)) is not None),
        ("", _UNLIMITED),
    )
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        what = f"the model's configuration says {name}: {positions!r}"
        raise ModelError(what, hint="Mend its config.json.")
    positions = _scaled_positions(config, positions)
    limit = ContextLimit(positions)
    longest = getattr(tokenizer and tokenizer.backend, "model_max_length", None)
    if longest and longest < positions:
        limit = ContextLimit(
            int(longest),
            f"The tokenizer's model_max_length is {int(longest)} tokens, the model's configuration"
            f" allows {positions}; if that is wrong, change tokenizer_config.json.",
        )
    for kind, first in _first_lengths(config):
        if first < limit.tokens:
            limit = ContextLimit(
                first,
                f"Beyond {first} tokens the model's rotary positions ({kind}) change for all"
                " tokens, earlier ones too, which a cache cannot follow.",
            )
    return limit


def _scaled_positions(config: Any, positions: int) -> int:
    """Return the number of positions after linear scaling or YaRN.

    Model cards have users add such a scaling to a configuration whose number of positions stays
    that of the training; then the factor is missing in it. Where layers have parameters of their
    own (Gemma 3), the number is the scaled one.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    factor = rope.get("factor")
    trained = rope.get("original_max_position_embeddings") or positions
    if rope.get("rope_type") not in _SCALED_ROPES or trained != positions:
        return positions
    if not isinstance(factor, int | float) or factor <= 1:
        return positions
    return int(positions * factor)


def _first_lengths(config: Any) -> Iterator[tuple[str, int]]:
    """(kind, length in tokens) of ropes that rotate all keys differently beyond that length.

    The parameters are one mapping, or one per kind of layer.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    name = "original_max_position_embeddings"
    for parameters in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        kind, first = parameters.get("rope_type"), parameters.get(name) or getattr(config, name, 0)
        if kind in _CHANGING_ROPES and isinstance(first, int) and first > 0:
            yield kind, first


def end_ids(hf: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """All end ids: the generation config's, or else the configuration's; and the tokenizer's."""
    told = _ids(getattr(getattr(hf, "generation_config", None), "eos_token_id", None))
    config = hf.config
    for source in (config, config.get_text_config()):
        told = told or _ids(getattr(source, "eos_token_id", None))
    return frozenset(told | _ids(getattr(tokenizer.backend, "eos_token_id", None)))


def _ids(found: Any) -> set[int]:
    return {i for i in (found if isinstance(found, list | tuple) else [found]) if type(i) is int}


def sliding_window(config: Any) -> int | None:
    """The window, if by the configuration some layer has sliding attention, else None."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None:
        return window if "sliding_attention" in kinds else None
    return window if getattr(config, "use_sliding_window", True) else None


def window_numbers(config: Any) -> dict[str, int]:
    """Numbers of the configuration that may bound how far back a layer attends, by name."""
    values = config.to_dict()
    if not values.get("use_sliding_window", True):
        values.pop("sliding_window", None)
    return {
        name: value
        for name, value in values.items()
        if type(value) is int and value > 1 and ("window" in name or "chunk" in name)
    }


def unused_suggestions(hf: Any) -> dict[str, Any]:
    """What the checkpoint's generation config would change in `generate`; ngt ignores it."""
    config = getattr(hf, "generation_config", None)
    found = {name: getattr(config, name, None) for name in _SUGGESTIONS}
    return {name: value for name, value in found.items() if value not in _NEUTRAL}
