"""How many tokens a model takes, by its configuration and tokenizer. Independent of torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.tokens.tokenizer import Tokenizer

# Names of the number of positions in configurations; the first that is set counts.
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length",
    "max_target_positions", "seq_length", "n_ctx", "max_seq_length",
)  # fmt: skip
_UNLIMITED = 1 << 20  # tokens, if a configuration has no number; guess
_CHANGING_ROPES = {"longrope", "dynamic"}


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
