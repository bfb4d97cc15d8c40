"""How the trie of documents was had, as answers report it. Knows no numpy."""

from dataclasses import dataclass, field
from pathlib import Path

from ngtcli.system.json_form import HIDDEN, json_key


@dataclass(frozen=True, slots=True)
class TrieReport:
    """How the trie was obtained: "cached", "built", "rebuilt" (its file was damaged) or "none"."""

    status: str = field(metadata=json_key(choices=("cached", "built", "rebuilt", "none")))
    seconds: float = field(default=0.0, metadata=json_key(digits=6))
    nodes: int = 0
    path: Path | None = field(default=None, metadata=HIDDEN)
