"""Word stems and word rarities for the initial weights.

Rarity is inverse document frequency, counted over the paragraphs of the training texts. A token
that is no word (a sign, a special token) has weight 0.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any

_ENDINGS = ("ingly", "edly", "ings", "ing", "ies", "ied", "ed", "es", "ly", "er", "s", "e", "y")
_PIECE = 0.5  # factor of the weight of a token that continues a word; guess
_LETTERS = 6  # of a stem; guess


@dataclass(frozen=True, slots=True)
class Lexicon:
    """For every token id: the number of its word stem, and its weight from 0 to 1."""

    stems: tuple[int, ...]
    weights: tuple[float, ...]


def stem(text: str) -> str:
    """A word's beginning, the same for most of its forms: lower case, no ending, six letters.

    >>> stem(" Building"), stem("builds"), stem(" the")
    ('build', 'build', 'the')
    """
    word = text.strip().casefold()
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            word = word.removesuffix(ending)
            break
    return word[:_LETTERS]


def count_words(tokenizer: Any, texts: Iterable[str]) -> Lexicon:
    """The lexicon of a `tokenizers.Tokenizer`, its rarities counted over `texts` (paragraphs)."""
    spelled = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
    stems = [stem(text) for text in spelled]
    numbers = {s: n for n, s in enumerate(dict.fromkeys(stems))}
    seen: Counter[str] = Counter()
    total = 0
    for code in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        seen.update({stems[i] for i in code.ids})
        total += 1
    weights = []
    for text, name in zip(spelled, stems, strict=True):
        rarity = min(1.0, max(0.0, (log(max(1, total) / max(1, seen[name])) - 1.0) / 4.0))
        share = 1.0 if text[:1] in " " or text[:1].isupper() or text[:1].isdigit() else _PIECE
        weights.append(share * rarity if any(map(str.isalnum, name)) else 0.0)
    return Lexicon(tuple(numbers[s] for s in stems), tuple(weights))
