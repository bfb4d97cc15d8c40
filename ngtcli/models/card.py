"""A model's card: default settings for the model, and the scripts that it reads.

The card is README.md in the model's folder. Its YAML header may have a key `ngt`:

    ---
    ngt:
      settings: {passages: 1, whole_tokens: 240}
      reads: English
      scripts: [Latin]
    ---

`settings` may have the settings in _CARD_SETTINGS. `reads` names the languages for a message;
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

_CARD_SETTINGS = settings_where(Use.CARD)
_MAX_LETTERS = 500  # letters of a text that are looked at (guess)
# Share of letters in foreign scripts above which a text counts as foreign (guess).
_FOREIGN_SHARE = 0.5
_MAX_NAMES = 3  # texts that a message names (guess)


@dataclass(frozen=True, slots=True)
class Card:
    """Settings and facts that a card has for ngt; empty for most models.

    Attributes:
        settings: Defaults that suit the model.
        reads: The languages that the model reads, for messages.
        scripts: The scripts of these languages, in capitals; none if it reads all.
    """

    settings: Layer = Layer("card")
    reads: str = ""
    scripts: frozenset[str] = frozenset()


@lru_cache(maxsize=8)
def load_card(model: str) -> Card:
    """Load the card of "builtin" or of a model's folder; an empty one if it has nothing for ngt.

    Raises UsageError if its key `ngt` is malformed.
    """
    folder = BUILTIN_PATH if model == BUILTIN else Path(os.path.expanduser(model))
    path = folder / "README.md"
    section = _read_header(path).get("ngt", {})
    scripts = section.get("scripts", []) if isinstance(section, dict) else None
    settings = section.get("settings", {}) if isinstance(section, dict) else None
    if not isinstance(scripts, list) or not isinstance(settings, dict):
        raise UsageError(
            f"{path}: invalid value of the key ngt: {shown(section)}",
            hint="The built-in model's card shows the form (ngt models list names its folder).",
        )
    unknown = [name for name in settings if name not in _CARD_SETTINGS]
    if unknown:
        raise UsageError(
            f"{path}: {shown(unknown[0])} is not a setting that a card may have",
            hint=f"It may have {', '.join(_CARD_SETTINGS)}.",
        )
    values = {name: check_key(name, value, path) for name, value in settings.items()}
    return Card(
        Layer(f"card of {model}", values),
        str(section.get("reads", "")),
        frozenset(str(script).upper() for script in scripts),
    )


def _read_header(path: Path) -> dict[str, Any]:
    """Read the YAML header of a card; {} if it has none, or one that cannot be parsed.

    Most headers are made by other tools, so that a malformed one is not the user's mistake.
    """
    try:
        text = read_bounded(path, SETTINGS_BYTES).decode("utf-8")
        if not text.startswith("---\n"):
            return {}
        header = parse_yaml(text.split("\n---", 1)[0], path)
    except (OSError, ValueError, UsageError):
        return {}
    return header if isinstance(header, dict) else {}


def script_words(model: str, documents: Sequence[Document], question: str) -> str:
    """Return a sentence on texts in scripts that `model` does not read; "" if there are none."""
    card = load_card(model)
    if not card.scripts:
        return ""
    texts = [("the question", question), *((d.name, d.text) for d in documents)]
    names: list[str] = []
    foreign: list[str] = []
    for name, text in texts:
        script = _foreign_script(text, card.scripts)
        if script:
            names.append(name)
            foreign.append(script)
    if not names:
        return ""
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], "more"]
    verb = "is" if len(names) == 1 else "are"
    scripts = " and ".join(dict.fromkeys(foreign))
    subject = "the built-in model" if model == BUILTIN else model
    return f"{subject} reads {card.reads}; {' and '.join(names)} {verb} in {scripts} script"


def _foreign_script(text: str, scripts: frozenset[str]) -> str:
    """Return the foreign script of a text; "" if most of its letters are in one of `scripts`.

    >>> latin = frozenset({"LATIN"})
    >>> _foreign_script("Ηταν μια φορά", latin), _foreign_script("α plus β", latin)
    ('Greek', '')
    """
    letters = islice(filter(str.isalpha, text), _MAX_LETTERS)
    counts = Counter(map(_script, letters))
    foreign = {script: count for script, count in counts.items() if script not in scripts}
    if sum(foreign.values()) <= _FOREIGN_SHARE * counts.total():
        return ""
    script = max(foreign, key=lambda name: foreign[name])
    return script if script == "CJK" else script.capitalize()


@lru_cache(maxsize=10_000)
def _script(letter: str) -> str:
    """Return the first word of a letter's Unicode name, without a form such as "fullwidth"."""
    words = unicodedata.name(letter, "unknown").removeprefix("FULLWIDTH ").split()
    return words[0].removesuffix("-")
