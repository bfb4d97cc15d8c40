"""What is asked of the user's documents for training: a summary of each part, and questions.

A question is about some words of the part, so that each part is asked several things and the
answers differ. All is drawn by hashes of the text: the same documents give the same prompts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages
from ngtcli.system.files import key_of

HELD_SHARE = 0.1  # of the parts, to validate on; guess
_LEAST = 40  # characters of a part from which on it is asked of; guess
_WORDS = (3, 6)  # least and most words of a sentence that a question is about; guess
_SENTENCE = re.compile(r"[^.!?。！？\n]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt to be: documents, and the question, "" for a summary.

    `held` ones are for validation; no part of a text is in both.
    """

    documents: tuple[Document, ...]
    question: str
    held: bool = False

    @property
    def text(self) -> str:
        """What it is about."""
        return self.documents[0].text


def hold_out(asked: Sequence[Asked]) -> list[Asked]:
    """The same, with all that is about a share of the texts held out: of one at least."""
    texts = sorted({one.text for one in asked}, key=key_of)
    held = set(texts[: max(1, round(HELD_SHARE * len(texts)))])
    return [replace(one, held=one.text in held) for one in asked]


def asked_of(documents: Iterable[Document], tokens: int, questions: int) -> list[Asked]:
    """A summary and at most so many `questions` of each part, of about `tokens`."""
    return [one for d in documents for part in _parts(d, tokens) for one in _of(part, questions)]


def _parts(document: Document, tokens: int) -> Iterator[Document]:
    for passage in passages(document, Cutting(tokens)):
        text = document.text[passage.start : passage.end]
        if len(text) >= _LEAST:
            yield Document(document.name, text)


def _of(part: Document, questions: int) -> Iterator[Asked]:
    yield Asked((part,), "")
    chance = Random(key_of(part.text))
    sentences = [words for s in _SENTENCE.findall(part.text) if len(words := s.split()) > 2]
    for words in chance.sample(sentences, min(questions, len(sentences))):
        yield Asked((part,), f"What is said of {_some(words, chance)}?")


def _some(words: Sequence[str], chance: Random) -> str:
    """A few words in a row of a sentence."""
    count = min(len(words), chance.randint(*_WORDS))
    first = chance.randint(0, len(words) - count)
    return " ".join(words[first : first + count]).strip(",;:()\"'")
