"""Unrelated passages mixed into the documents of a prompt, as retrieval does (paper, Table 4)."""

import random
from collections.abc import Sequence
from dataclasses import replace

from ngtcli.documents.load import Document
from ngtcli.errors import UsageError
from ngtcli.measure.prompts import Item


def add_noise(
    items: Sequence[Item], count: int, seed: int = 0, sources: Sequence[Item] = ()
) -> list[Item]:
    """Each item with `count` passages of `sources` (else of the items) among its documents.

    They are the same for one `seed`, and none is of a text that the item itself is about. Raises
    UsageError where there are too few.
    """
    if any(item.message for item in items):
        raise UsageError(
            "--noise cannot be mixed into whole messages",
            "Give prompts whose documents stand apart from the question.",
        )
    others = [(other, _passages(other)) for other in sources or items]
    return [_noisy(item, others, count, seed) for item in items]


def _passages(item: Item) -> set[str]:
    return {passage for document in item.documents for passage in passages(document)}


def passages(document: Document) -> list[str]:
    """Paragraphs of at least 20 words; the whole text where there are none."""
    parts = [p.strip() for p in document.text.split("\n\n") if len(p.split()) >= 20]
    return parts or [document.text.strip()]


def _noisy(item: Item, others: Sequence[tuple[Item, set[str]]], count: int, seed: int) -> Item:
    own = _passages(item)
    unrelated = [
        other
        for other, theirs in others
        if not theirs & own and not (item.source and item.source == other.source)
    ]
    offered = dict.fromkeys(p for other in unrelated for d in other.documents for p in passages(d))
    found = [p for p in offered if not any(p in d.text for d in item.documents)]
    if len(found) < count:
        raise UsageError(
            f"--noise {count}: only {len(found)} unrelated passages for {item.id}",
            "Give fewer, or more prompts to take them from.",
        )
    chance = random.Random(f"{seed} {item.id}")  # its own: the order of items decides nothing
    mixed = list(item.documents)
    for i, passage in enumerate(chance.sample(found, count), 1):
        mixed.insert(chance.randint(0, len(mixed)), Document(f"extract {i}", passage))
    return replace(item, documents=tuple(mixed))
