"""Load a model's tokenizer and configuration, check its weights, and read its limits.

This module imports no torch.
"""

import os
import re
from collections.abc import Iterator
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
from ngtcli.system import reporting
from ngtcli.system.files import read_bounded
from ngtcli.system.process import without_garbage_collection

# The class that AutoTokenizer chooses, by the model type and by the class in tokenizer_config.json,
# without `Fast` at its end. AutoTokenizer imports torch to choose; a test compares this table with
# what it chooses in this version of transformers.
_TABLE_VERSION = "5.23."
_TOKENIZER_CLASSES = {
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
# Names that configurations have for the number of positions; the first that is set counts.
_POSITION_FIELDS = (
    "max_position_embeddings n_positions max_seq_len max_sequence_length max_target_positions"
    " seq_length n_ctx max_seq_length"
).split()
_DEFAULT_POSITIONS = 1 << 20  # tokens, if a configuration has no number (guess)
_MAX_LAYERS = 10_000  # layers of a model (guess: far more than any has)
_MAX_MASKS = 64  # mask tokens of a model (guess: the authors of SPACE have 5)
_CHANGING_ROPES = {"dynamic"}
_SCALED_ROPES = {"linear", "yarn"}
# Settings that a checkpoint can suggest to `generate`; ngt has settings of its own instead.
_SUGGESTIONS = (
    "repetition_penalty encoder_repetition_penalty no_repeat_ngram_size num_beams suppress_tokens"
    " begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id"
    " min_length min_new_tokens exponential_decay_length_penalty do_sample"
).split()
# Parts of libraries' messages, and what ngt says instead.
_REASONS = (
    ("backend tokenizer", "its tokenizer cannot be read"),
    ("Weights only load failed", "its weights are a pickle that could run code"),
    ("offload_folder", "not all fits in memory, and its files lack the rest in the format needed"),
)
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


def load_tokenizer(name: str) -> Tokenizer:
    """Load a model's tokenizer, downloading it if needed. Raises ModelError."""
    path = fetch(name, ["tokenizer"])
    with loading(name):
        loader = getattr(transformers_quiet(), tokenizer_class(path) or "AutoTokenizer")
        return Tokenizer(loader.from_pretrained(path, trust_remote_code=False))


def tokenizer_class(path: str) -> str:
    """Name the class that AutoTokenizer would choose for a folder; "" if the table has none."""
    folder = Path(path)
    if not metadata.version("transformers").startswith(_TABLE_VERSION):
        return ""
    if not folder.is_absolute():
        return ""  # AutoTokenizer takes some short relative paths for well-known hub ids
    config = read_object(folder / "config.json")
    source = source_of(folder)
    if source and not source.base:
        return "TokenizersBackend"  # the class that wrote the tokenizer of a GGUF file
    tokenizer_config = read_object(folder / "tokenizer_config.json")
    class_name = str(tokenizer_config.get("tokenizer_class")).removesuffix("Fast")
    chosen = _TOKENIZER_CLASSES.get((str(config.get("model_type")), class_name), "")
    has_own_code = "auto_map" in tokenizer_config
    if has_own_code or {"auto_map", "tokenizer_class", "model_name"} & set(config):
        return ""  # other rules of AutoTokenizer apply
    if not chosen:
        return ""
    try:
        vocabulary = read_bounded(folder / "tokenizer.json", LARGEST_JSON)
    except OSError:
        return ""
    if chosen == "LlamaTokenizer" and b"ByteLevel" in vocabulary:
        return ""  # AutoTokenizer loads it as another class
    return chosen


def load_config(name: str) -> Any:
    """Load the configuration of a model's text part. Raises ModelError.

    It is read as plain JSON if that gives the same values: the class of `transformers` imports
    torch.
    """
    path = fetch(name, ["config"])
    values = read_object(Path(path) / "config.json")
    if _is_plain(values):
        return SimpleNamespace(**values)
    return read_config(name, path).get_text_config()


def read_config(name: str, path: str) -> Any:
    """Load the `PreTrainedConfig` of a model in the folder `path`. Raises ModelError."""
    _check_layers(name, read_object(Path(path) / "config.json"))
    with loading(name):
        return transformers_quiet().AutoConfig.from_pretrained(path, trust_remote_code=False)


def _check_layers(name: str, values: dict[str, Any]) -> None:
    """Raise ModelError if `transformers` would make lists of an absurd number of layers."""
    for part in (values, values.get("text_config")):
        layers = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if isinstance(layers, int | float) and layers > _MAX_LAYERS:
            raise ModelError(
                f"{name}: its config.json says {layers} layers", hint="Download the model again."
            )


def mask_tokens(config: Any) -> tuple[int, ...]:
    """Return the ids of the mask tokens that a model was tuned to fill, in order; () for none.

    The authors of SPACE (Yi et al. 2024; github.com/cteant/SPACE) pass `mask_id`, `mask_num` and
    `mask_diff` to their programs. With the last, ids count up from `mask_id`; else all are equal.
    Values that give ids outside the vocabulary count as none.

    Args:
        config: The configuration of the model's text part.
    """
    first = getattr(config, "mask_id", None)
    count = getattr(config, "mask_num", None)
    if type(first) is not int or type(count) is not int or not 0 < count <= _MAX_MASKS:
        return ()
    step = int(getattr(config, "mask_diff", False) is True)
    masks = tuple(first + step * i for i in range(count))
    return masks if first >= 0 and masks[-1] < config.vocab_size else ()


def _is_plain(values: dict[str, Any]) -> bool:
    """Return whether the class of `transformers` would keep sizes and rotary parameters."""
    sizes = [values.get(name) for name in ("vocab_size", "max_position_embeddings")]
    rope = values.get("rope_parameters", {"rope_type": "default"})
    return (
        any(kind == values.get("model_type") for kind, _ in _TOKENIZER_CLASSES)
        and all(type(size) is int and size > 0 for size in sizes)
        and isinstance(rope, dict)
        and rope.get("rope_type") == "default"
        and not values.get("rope_scaling")
        and "auto_map" not in values
    )


def transformers_quiet() -> Any:
    """Import `transformers` with its log messages and progress bars turned off."""
    with without_garbage_collection():
        import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.get_logger("accelerate").setLevel("ERROR")
    return transformers


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn any exception of the hub, a file or a configuration into a ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        why = _plain_reason(str(error).strip().partition("\n")[0] or type(error).__name__)
        is_local = name == BUILTIN or os.path.exists(os.path.expanduser(name))
        is_damaged = type(error).__name__ == "SafetensorError" and not is_local
        hint = f"Download its weights again: ngt models pull {name}" if is_damaged else HINT
        raise ModelError(f"{name}: cannot be loaded ({why})", hint=hint) from error


def _plain_reason(message: str) -> str:
    """Put known messages of libraries into plain words."""
    for part, reason in _REASONS:
        if part in message:
            return reason
    match = re.search(r"^Unrecognized configuration class .*?(\w+)Config'", message)
    if match:
        return f"{match[1]} is not a decoder: it does not generate text"
    return message


def check_weights(name: str, report: dict[str, Any]) -> None:
    """Check that the weights fill the model: `transformers` gives missing ones random values.

    Args:
        name: The model's name.
        report: The loading report of `transformers`.

    Raises:
        ModelError: Weights are missing, or have another shape than config.json says.
    """
    for key, *shapes in sorted(report["mismatched_keys"]):
        stored, configured = ("×".join(map(str, shape)) or "()" for shape in shapes)
        raise ModelError(
            f"{name}: {key} has shape {stored} in the weights and {configured} by config.json",
            hint="They belong to different models; download it again.",
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{name}: the weights lack {some(missing, 2)}",
            hint="They do not fill the model that config.json describes; download it again.",
        )


def warn_of_unused(name: str, report: dict[str, Any]) -> None:
    """Warn once of weights that the model does not use, by the loading report of `transformers`."""
    unused = sorted(report["unexpected_keys"])
    if unused:
        reporting.warn_once(f"{name}: the model does not use {some(unused, 2)} of its weights")


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The longest sequence, prompt and answer together.

    Attributes:
        tokens: Its length.
        reason: Why it is shorter than the configuration says; "" if it is not.
    """

    tokens: int
    reason: str = ""


def context_limit(config: Any, tokenizer: Tokenizer | None) -> ContextLimit:
    """Return the smallest limit of configuration, tokenizer and rotary positions.

    Args:
        config: The configuration of a decoder.
        tokenizer: Its `model_max_length` counts if it is below the configuration's limit.

    Raises:
        ModelError: The configuration's number is not a positive integer.
    """
    positions = _scaled_positions(config, _configured_positions(config))
    limit = ContextLimit(positions)
    max_length = getattr(tokenizer and tokenizer.backend, "model_max_length", None)
    if max_length and max_length < positions:
        limit = ContextLimit(
            int(max_length),
            f"The tokenizer's model_max_length is {int(max_length)} tokens, the model's"
            f" configuration allows {positions}; if that is wrong, change tokenizer_config.json.",
        )
    for rope_type, length in _first_lengths(config):
        if length < limit.tokens:
            limit = ContextLimit(
                length,
                f"Beyond {length} tokens the model's rotary positions ({rope_type}) change for all"
                " tokens, earlier ones too, which a cache cannot follow.",
            )
    return limit


def _configured_positions(config: Any) -> int:
    """Return the number of positions in a configuration. Raises ModelError."""
    for field in _POSITION_FIELDS:
        positions = getattr(config, field, None)
        if positions is None:
            continue
        if type(positions) is not int or positions < 1:
            raise ModelError(
                f"the model's config.json says {field}: {positions!r}, not a positive integer",
                hint="Correct it there.",
            )
        return positions
    return _DEFAULT_POSITIONS


def _scaled_positions(config: Any, positions: int) -> int:
    """Return the number of positions after linear scaling or YaRN.

    Model cards tell users to add such a scaling to a configuration whose number of positions is
    still that of the training; then the number has to be multiplied by the factor. If kinds of
    layers have parameters of their own (Gemma 3), the number is already scaled.
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
    """Yield the lengths in tokens beyond which a rotary embedding changes the rotation of all keys.

    Yields:
        Pairs of the embedding's type and the length.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in rope.values() if isinstance(value, dict)]
    field = "original_max_position_embeddings"
    for parameters in (rope, *by_layer_type):
        rope_type = parameters.get("rope_type")
        length = parameters.get(field) or getattr(config, field, 0)
        if rope_type in _CHANGING_ROPES and isinstance(length, int) and length > 0:
            yield rope_type, length


def end_ids(hf: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """Return all end token ids of a `transformers` model.

    They are those of the generation config, else of the configuration, and those of the tokenizer.
    """
    ids = set[int]()
    config = hf.config
    for source in (getattr(hf, "generation_config", None), config, config.get_text_config()):
        ids = ids or _as_ids(getattr(source, "eos_token_id", None))
    return frozenset(ids | _as_ids(getattr(tokenizer.backend, "eos_token_id", None)))


def _as_ids(value: Any) -> set[int]:
    """Return the integers of a configuration's value, which may be one or a list of them."""
    values = value if isinstance(value, list | tuple) else [value]
    return {token_id for token_id in values if type(token_id) is int}


def sliding_window(config: Any) -> int | None:
    """Return the window in tokens if some layer has sliding attention, else None."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None:
        return window if "sliding_attention" in kinds else None
    return window if getattr(config, "use_sliding_window", True) else None


def window_numbers(config: Any) -> dict[str, int]:
    """Return numbers of the configuration that may bound how far back a layer attends, by name."""
    values = config.to_dict()
    if not values.get("use_sliding_window", True):
        values.pop("sliding_window", None)
    return {
        name: value
        for name, value in values.items()
        if type(value) is int and value > 1 and ("window" in name or "chunk" in name)
    }


def unused_suggestions(hf: Any) -> dict[str, Any]:
    """Return what the checkpoint's generation config would change in `generate`; ngt ignores it."""
    config = getattr(hf, "generation_config", None)
    values = {name: getattr(config, name, None) for name in _SUGGESTIONS}
    return {name: value for name, value in values.items() if value not in _NEUTRAL}
