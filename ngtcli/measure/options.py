"""What `ngt bench` is asked to measure, who cannot take part, and shapes of well-known models.

The files in `shapes/` are configurations without weights: they have the form of config.json, with
the `dtype` of the published weights. Knows no torch.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.config import Settings
from ngtcli.draft.drafter import draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import InputError, NgtError, UsageError, nearest, reason_of, shortened
from ngtcli.measure.records import Refusal, refusal
from ngtcli.system.files import read_bounded

SHAPES = Path(__file__).parent / "shapes"
_MOST = 1 << 20  # bytes of a configuration; the largest known have 20,000
_HINT = "Give a config.json of a transformers model."
IDS = ("all", "odd", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured and how, live or on a recording.

    Live and with real passes plain decoding always takes part: the others are set against it.
    `shape` names a model for real passes. `tasks` (none: all) and `limit`, per task, choose
    prompts; of a recording `ids` keeps the questions with "odd" or "even" ids, or "all";
    `template` and `turns` are as `read_traces` has them.
    """

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False
    quality: bool = True
    shape: str = ""
    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"
    template: str = ""
    turns: str = "first"


def unreadable(methods: Sequence[str], settings: Settings) -> list[Refusal]:
    """The methods with an unknown name or a wrong option; loads no model."""
    refused = []
    for method in methods:
        try:
            parse_method(method, draft_settings(settings))
        except NgtError as error:
            refused.append(refusal(method, error))
    return refused


def check_some_left(methods: Sequence[str], refused: Sequence[Refusal]) -> None:
    """Raise UsageError where none of `methods` can run."""
    reasons = {r.method: r.reason for r in refused}
    if reasons.keys() >= set(methods):
        reason = next(iter(reasons.values()), "none is named")
        raise UsageError(f"no method can run: {reason}", "Choose others with --methods.")


def check_against(settings: Settings) -> None:
    """Raise UsageError where `generate` would not be asked for the same text."""
    penalties = (settings.presence_penalty, settings.frequency_penalty)
    if settings.temperature > 0 or settings.repetition_penalty != 1 or any(penalties):
        raise UsageError("--against hf compares greedy decoding", "Leave out sampling flags.")
    if settings.stop:
        raise UsageError("--against hf knows no stop strings", "Leave out --stop.")


@dataclass(frozen=True, slots=True)
class Shape:
    """`values` are those of config.json; among them stands the `model_type`."""

    name: str
    values: dict[str, Any]


def shape_names() -> list[str]:
    """The shapes that are shipped."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def find_shape(name: str) -> Shape:
    """The shape of that name, or the one in a file, or in the config.json of a folder.

    Raises UsageError for an unknown name, InputError for a file that is no configuration.
    """
    path = SHAPES / f"{name}.json"
    if name not in shape_names():
        path = Path(os.path.expanduser(name))
        if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
            path = path / "config.json"
        if not os.path.exists(path):
            hint = f"{nearest(name.lower(), shape_names())} A config.json will do, too."
            raise UsageError(f"no shape {shortened(name)!r}", hint)
    try:
        values = json.loads(read_bounded(path, _MOST))
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", _HINT) from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON", _HINT) from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{path}: no configuration: it names no model_type", _HINT)
    return Shape(path.parent.name if path.name == "config.json" else path.stem, values)
