"""What a folder with an embedding model says of its use, in the form of sentence-transformers.

`modules.json` lists the model's parts, `1_Pooling/config.json` says how token vectors become one,
`sentence_bert_config.json` how many tokens are read, and `config_sentence_transformers.json` what
is put before questions and passages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.system.reading import read_bounded
from ngtcli.system.storage import DamagedFileError, parse_json

_MOST = 1_000_000  # bytes of one of these files; guess, they have hundreds
MEAN, FIRST, LAST, HIGHEST = "mean", "cls", "lasttoken", "max"
_POOLINGS = {  # the older form has a switch for each
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": FIRST,
    "pooling_mode_lasttoken": LAST,
    "pooling_mode_max_tokens": HIGHEST,
}
_PARTS = ("Transformer", "Pooling", "Normalize")
_QUESTION, _PASSAGE = ("query",), ("document", "passage", "corpus")  # names of prompts
# Without a `modules.json`: what a model that gives vectors of tokens is made for.
_ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")


@dataclass(frozen=True, slots=True)
class Use:
    """How vectors are made: pooling, most tokens of a text (0: not said), and what precedes it."""

    pooling: str = MEAN
    tokens: int = 0
    question: str = ""
    passage: str = ""


def use_of(name: str, folder: Path) -> Use:
    """How the embedding model `name` is used. Raises ModelError if it is none, or not known how."""
    parts = _read(name, folder / "modules.json", list)
    if parts is None:
        _check_encoder(name, folder)
        return Use(tokens=_tokens(name, folder))
    parts = [part for part in parts if isinstance(part, dict)]
    kinds = [str(part.get("type", "")).rsplit(".", 1)[-1] for part in parts]
    if unknown := [kind for kind in kinds if kind not in _PARTS]:
        raise ModelError(f"{name}: its part {unknown[0]} is not known", _OTHER)
    if kinds[:2] != ["Transformer", "Pooling"] or parts[0].get("path"):
        raise ModelError(f"{name}: modules.json has other parts than are known", _OTHER)
    pooling = _read(name, folder / str(parts[1].get("path")) / "config.json", dict) or {}
    prompts = _read(name, folder / "config_sentence_transformers.json", dict) or {}
    return Use(
        _pooling(name, pooling),
        _tokens(name, folder),
        _prompt(prompts, _QUESTION),
        _prompt(prompts, _PASSAGE),
    )


_OTHER = "Name another embedding model: its vectors would not be as its makers meant them."


def architectures(name: str, folder: Path) -> list[str]:
    """What config.json says the model was made as. Raises ModelError if it cannot be read."""
    found = (_read(name, folder / "config.json", dict) or {}).get("architectures")
    return [str(kind) for kind in found] if isinstance(found, list) else []


def _check_encoder(name: str, folder: Path) -> None:
    for kind in architectures(name, folder):
        if not kind.endswith(_ENCODERS):
            raise ModelError(
                f"{name} is not an embedding model: it is a {kind} without a modules.json",
                _OTHER_KIND,
            )


_OTHER_KIND = "Give the folder or hub id of an embedding model, as of sentence-transformers."


def _pooling(name: str, config: dict[str, Any]) -> str:
    said = config.get("pooling_mode")
    chosen = [said] if isinstance(said, str) else [p for k, p in _POOLINGS.items() if config.get(k)]
    others = [k for k, v in config.items() if k.startswith("pooling_mode_") and v is True]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS.values() or len(others) > 1:
        raise ModelError(f"{name}: how it pools its tokens is not known", _OTHER)
    if config.get("include_prompt") is False:
        raise ModelError(f"{name}: it pools its tokens without the prompt's", _OTHER)
    return str(chosen[0])


def _tokens(name: str, folder: Path) -> int:
    config = _read(name, folder / "sentence_bert_config.json", dict) or {}
    most = config.get("max_seq_length")
    return most if isinstance(most, int) and most > 0 else 0


def _prompt(config: dict[str, Any], names: Sequence[str]) -> str:
    """The prompt of the first of these names, or the one that is the model's default."""
    prompts = config.get("prompts")
    if not isinstance(prompts, dict):
        return ""
    wanted = [*names, str(config.get("default_prompt_name"))]
    return next((str(prompts[name]) for name in wanted if prompts.get(name)), "")


def _read(name: str, path: Path, kind: Any) -> Any:
    """The JSON in a file, None without one. Raises ModelError."""
    try:
        return parse_json(read_bounded(path, _MOST), kind)
    except FileNotFoundError:
        return None
    except (OSError, DamagedFileError) as error:
        raise ModelError(f"{name}: {path.name} cannot be read ({error})", _OTHER) from None
