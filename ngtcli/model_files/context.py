"""What a configuration says of contexts, windows, end tokens and settings. Knows no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.tokens.tokenizer import Tokenizer

# Names of the number of positions in configurations; the first that is set counts.
_POSITIONS = (
    "max_position_embeddings n_positions max_seq_len max_sequence_length max_target_positions"
    " seq_length n_ctx max_seq_length"
).split()
_UNLIMITED = 1 << 20  # tokens, if a configuration has no number; guess
_CHANGING_ROPES = {"longrope", "dynamic"}
# Settings that a checkpoint can suggest to `generate`; ngt has settings of its own instead.
_SUGGESTIONS = (
    "repetition_penalty encoder_repetition_penalty no_repeat_ngram_size num_beams suppress_tokens"
    " begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id"
    " min_length min_new_tokens exponential_decay_length_penalty do_sample"
).split()
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The most tokens of prompt and answer together; `reason`, if that is less than configured."""

    tokens: int
    reason: str = ""


def context_limit(config: Any, tokenizer: Tokenizer) -> ContextLimit:
    """The smallest limit of configuration, tokenizer and rotary positions.

    Raises ModelError if the configuration's number is not a positive integer.
    """
    name, positions = next(
        ((n, p) for n in _POSITIONS if (p := getattr(config, n, None)) is not None),
        ("", _UNLIMITED),
    )
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 1:
        raise ModelError(
            f"the model's configuration says {name}: {positions!r}", "Mend its config.json."
        )
    longest = getattr(tokenizer.backend, "model_max_length", None) or positions
    limit = ContextLimit(int(min(positions, longest)))
    for kind, first in _first_lengths(config):
        if first < limit.tokens:
            limit = ContextLimit(
                first,
                f"Beyond {first} tokens the model's rotary positions ({kind}) change for all"
                " tokens, earlier ones too, which a cache cannot follow.",
            )
    return limit


def _first_lengths(config: Any) -> Iterator[tuple[str, int]]:
    """(kind, length in tokens) of ropes that rotate all keys differently beyond that length.

    That includes keys that are in the cache. The parameters are one mapping, or one per kind of
    layer.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        kind = parameters.get("rope_type")
        first = parameters.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
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
