"""How many tokens a model takes, by its configuration and its tokenizer. Knows nothing of torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.tokens import Tokenizer

# The names that configurations give to their number of positions; the first that is there counts.
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length",
    "max_target_positions", "seq_length", "n_ctx", "max_seq_length",
)  # fmt: skip
_UNLIMITED = 1 << 20  # tokens, where a configuration names no number: guessed
_TURNING = {"longrope", "dynamic"}


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The most tokens of prompt and answer together; `reason` where it is less than the model's."""

    tokens: int
    reason: str = ""


def context_limit(config: Any, tokenizer: Tokenizer) -> ContextLimit:
    """The least of what configuration, tokenizer and rotary positions allow.

    Raises ModelError where the configuration's number is none.
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
    """Kinds of rope that turn every row anew past a length, kept rows too, with that length.

    The parameters are one mapping, or one for each kind of layer.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        kind = parameters.get("rope_type")
        first = parameters.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if kind in _TURNING and isinstance(first, int) and first > 0:
            yield kind, first
