"""What the card of a model says to ngt: the settings that suit it, and the scripts that it reads.

The card is README.md in the model's folder. Its YAML head, as on model hubs, may have a key `ngt`:

    ---
    ngt:
      settings: {passages: 1, whole_tokens: 240}
      reads: English
      scripts: [Latin]
    ---

`settings` are some of those that a card may have; `reads` names the languages for a message, and
`scripts` are the first words of Unicode's names of their letters.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from ngtcli.config import Layer, Use, check_key, settings_where
from ngtcli.documents.load import Document
from ngtcli.errors import UsageError
from ngtcli.models.checkpoint import BUILTIN, BUILTIN_PATH
from ngtcli.system.files import read_bounded
from ngtcli.system.yaml_file import SETTINGS_BYTES, parse_yaml, shown

_ON_CARD = settings_where(Use.CARD)
_LETTERS = 500  # letters of a text that are looked at; guess
_SHARE = 0.5  # of them in other scripts, above which a text is in another one; guess
_NAMED = 3  # texts that a message names; guess


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says; empty for most models."""

    settings: Layer = Layer("card")
    reads: str = ""
    scripts: frozenset[str] = frozenset()


@lru_cache(maxsize=8)
def load_card(model: str) -> Card:
    """The card of "builtin" or of a model's folder; an empty one where it says nothing to ngt.

    Raises UsageError where what it says to ngt is wrong.
    """
    path = (BUILTIN_PATH if model == BUILTIN else Path(os.path.expanduser(model))) / "README.md"
    said = _head(path).get("ngt", {})
    scripts = said.get("scripts", []) if isinstance(said, dict) else None
    settings = said.get("settings", {}) if isinstance(said, dict) else None
    if not isinstance(scripts, list) or not isinstance(settings, dict):
        raise UsageError(
            f"{path}: ngt is {shown(said)}", hint="It must be as in the built-in model's."
        )
    if other := [name for name in settings if name not in _ON_CARD]:
        what = f"{path}: {shown(other[0])} is not a setting that a card may have"
        raise UsageError(what, hint=f"It may have {', '.join(_ON_CARD)}.")
    layer = Layer(f"card of {model}", {k: check_key(k, v, path) for k, v in settings.items()})
    return Card(layer, str(said.get("reads", "")), frozenset(str(s).upper() for s in scripts))


def _head(path: Path) -> dict[str, Any]:
    """The YAML head of a card; {} where there is none. Other tools' heads may be in any form."""
    try:
        text = read_bounded(path, SETTINGS_BYTES).decode("utf-8")
        head = parse_yaml(text.split("\n---", 1)[0], path) if text.startswith("---\n") else {}
    except (OSError, ValueError, UsageError):
        return {}
    return head if isinstance(head, dict) else {}


def script_words(model: str, documents: Sequence[Document], question: str) -> str:
    """A sentence on what is in scripts that `model` does not read; "" for nothing."""
    card = load_card(model)
    if not card.scripts:
        return ""
    texts = [("the question", question), *((d.name, d.text) for d in documents)]
    found = [(name, script) for name, text in texts if (script := _foreign(text, card.scripts))]
    if not found:
        return ""
    names = [name for name, _ in found[:_NAMED]] + ["more"] * (len(found) > _NAMED)
    are = "is" if len(names) == 1 else "are"
    scripts = " and ".join(dict.fromkeys(script for _, script in found))
    who = "the built-in model" if model == BUILTIN else model
    return f"{who} reads {card.reads}; {' and '.join(names)} {are} in {scripts} script"


def _foreign(text: str, scripts: frozenset[str]) -> str:
    """The script of most letters of `text` that are in none of `scripts`; "" where most are in one.

    >>> _foreign("Ηταν μια φορά", frozenset({"LATIN"})), _foreign("α plus β", frozenset({"LATIN"}))
    ('Greek', '')
    """
    letters = islice(filter(str.isalpha, text), _LETTERS)
    counts = Counter(map(_script, letters))
    foreign = {script: n for script, n in counts.items() if script not in scripts}
    if sum(foreign.values()) <= _SHARE * counts.total():
        return ""
    script = max(foreign, key=lambda one: foreign[one])
    return script if script == "CJK" else script.capitalize()


@lru_cache(maxsize=10_000)
def _script(letter: str) -> str:
    """The first word of a letter's Unicode name, without a form such as "fullwidth"."""
    words = unicodedata.name(letter, "unknown").removeprefix("FULLWIDTH ").split()
    return words[0].removesuffix("-")
