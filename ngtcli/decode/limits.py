"""Windows, end tokens and suggested settings, from a checkpoint's configuration."""

from typing import Any

from ngtcli.tokens.tokenizer import Tokenizer

# Settings that a checkpoint can suggest to `generate`; ngt has settings of its own instead.
_SUGGESTIONS = (
    "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "num_beams",
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias",
    "forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens",
    "exponential_decay_length_penalty", "do_sample",
)  # fmt: skip
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


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
