"""What answers report of documents that were cut, and of parts. Loads nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A document that was cut to fit: its tokens and characters, and how many of them were kept.

    `tokens` is None for a document that is too long to be counted whole.
    """

    name: str
    tokens: int | None
    kept: int
    characters: int
    kept_characters: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part: its name, its summary, whether that was kept from an earlier run, and its level.

    Parts of level 1 are of the documents, those of level 2 of summaries of level 1, and so on. Of
    parts that are refined, which are of level 1, the summary covers those before as well.
    """

    name: str
    text: str
    kept: bool
    level: int
    new_tokens: int
