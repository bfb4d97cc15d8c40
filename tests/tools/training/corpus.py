"""Training text as articles of paragraphs of sentences. Independent of tokens and of torch.

Every source is a `*.jsonl.xz` file; `read_corpus` turns all of them into articles of one form. An
article is in the training set or held out, as a whole, by a hash of its name: nothing measured was
trained on.
"""

import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Sr|Jr|vs|etc|e\.g|i\.e|cf|No|Inc|Fig|al|c|ca)|\b[A-Z])\.$"
)
_WORD = re.compile(r"\w+(?:['’]\w+)?")
_MARKUP = re.compile(r"``?|\*\*|:[a-z]+:(?=`)|\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences in order; `questions` pairs a real question with the index of its sentence."""

    sentences: tuple[str, ...]
    questions: tuple[tuple[str, int], ...] = ()
    summary: int | None = None  # index of the sentence nearest to a human one-line summary


@dataclass(frozen=True, slots=True)
class Article:
    """One document: consecutive paragraphs of one source."""

    source: str
    name: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def held_out(self) -> bool:
        """Whether it is held out: one in ten (of newwiki-qa one in six), by a hash of its name."""
        digest = hashlib.sha256(f"{self.source}/{self.name}".encode()).digest()
        return digest[0] % (6 if self.source == "newwiki-qa" else 10) == 0


def words(text: str) -> list[str]:
    """Lower-cased words of a text, without punctuation."""
    return [w.lower() for w in _WORD.findall(text)]


def split_sentences(text: str) -> list[str]:
    """Sentences of one paragraph, closing quotes kept.

    >>> split_sentences('It rained. "Go," said Mr. Hill. We went.')
    ['It rained.', '"Go," said Mr. Hill.', 'We went.']
    """
    parts: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        end = match.start() + len(match.group().rstrip())
        if _ABBREVIATION.search(text[start : match.start()]):
            continue
        parts.append(text[start:end].strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def is_prose(sentence: str) -> bool:
    """Whether a sentence can be quoted as an answer: 5 to 45 words, 88% letters; both guesses."""
    if not 5 <= len(sentence.split()) <= 45 or sentence[-1] not in ".!?”\"')":
        return False
    letters = sum(c.isalpha() or c == " " for c in sentence)
    return sentence[0].isupper() and letters >= 0.88 * len(sentence)


def overlap_f1(a: Iterable[str], b: Iterable[str]) -> float:
    """F1, 0 to 1, of two sets of words; 0 if one is empty."""
    left, right = set(a), set(b)
    return 2 * len(left & right) / (len(left) + len(right)) if left and right else 0.0


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _prose_blocks(text: str) -> list[Paragraph]:
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        flat = _MARKUP.sub(lambda m: m.group(1) or "", " ".join(block.split()))
        if len(flat) < 60 or flat[0] in "-*#+|.=<" or "::" in flat:
            continue
        sentences = split_sentences(flat)
        if sum(map(is_prose, sentences)) * 2 > len(sentences):
            blocks.append(Paragraph(tuple(sentences)))
    return blocks


def _plain_articles(source: str, path: Path) -> Iterator[Article]:
    for row in read_rows(path):
        text = row["text"]
        if source == "sherlock":  # one paragraph a line there
            text = text.replace("\n", "\n\n")
        if blocks := _prose_blocks(text):
            yield Article(source, row["id"], tuple(blocks))


def _abstracts(source: str, path: Path) -> Iterator[Article]:
    for number, row in enumerate(read_rows(path)):
        sentences = tuple(" ".join(s.split()) for s in row["source"] if s.strip())
        target = words(row["target"][0])
        scores = [overlap_f1(words(s), target) for s in sentences]
        best = max(range(len(scores)), key=scores.__getitem__) if scores else None
        if best is not None:
            yield Article(source, str(number), (Paragraph(sentences, summary=best),))


def _question_paragraph(row: dict[str, Any]) -> Paragraph:
    sentences = tuple(split_sentences(" ".join(row["context"].split())))
    questions = []
    for qa in row["qas"]:
        answers = [" ".join(a.split()) for a in qa["answers"]]
        hits = [sum(a in s for a in answers) for s in sentences]
        if any(hits):
            questions.append((" ".join(qa["question"].split()), hits.index(max(hits))))
    return Paragraph(sentences, tuple(questions))


def _question_articles(source: str, path: Path) -> Iterator[Article]:
    by_title: dict[str, list[Paragraph]] = {}
    for row in read_rows(path):
        by_title.setdefault(row["title"], []).append(_question_paragraph(row))
    for title, paragraphs in by_title.items():
        yield Article(source, title, tuple(paragraphs))


def tidy_speech(turn: str) -> str:
    text = re.sub(r"\{[^}]*\}", "", turn.partition(": ")[2])
    return " ".join(re.sub(r"\s+([.,?!'’])", r"\1", text).split())


def _meetings(source: str, path: Path) -> Iterator[Article]:
    for number, row in enumerate(read_rows(path)):
        turns = [split_sentences(tidy_speech(t)) or [""] for t in row["turns"]]
        questions: dict[int, tuple[str, int]] = {}
        for query in row["queries"]:
            if found := _spoken_answer(turns, query):
                questions[found[0]] = (" ".join(query["query"].split()), found[1])
        paragraphs = [
            Paragraph(tuple(t), (questions[i],) if i in questions else ())
            for i, t in enumerate(turns)
        ]
        kept = tuple(p for p in paragraphs if any(map(is_prose, p.sentences)))
        if kept:
            yield Article(source, str(number), kept)


def _spoken_answer(turns: list[list[str]], query: dict[str, Any]) -> tuple[int, int] | None:
    """(turn, sentence) inside the query's spans that is nearest to its written answer."""
    answer, best = words(query["answer"]), (0.0, -1, -1)
    for first, last in query.get("span", []):
        for turn in range(int(first), min(int(last) + 1, len(turns))):
            for i, sentence in enumerate(turns[turn]):
                if is_prose(sentence):
                    best = max(best, (overlap_f1(words(sentence), answer), turn, i))
    return (best[1], best[2]) if best[0] > 0.2 else None


_READERS = {
    **dict.fromkeys(("eips", "peps", "rust-rfcs", "sherlock"), _plain_articles),
    "scitldr": _abstracts,
    "newwiki-qa": _question_articles,
    "qmsum": _meetings,
}


def read_corpus(folder: Path) -> list[Article]:
    """All articles of the known `NAME.jsonl.xz` files in `folder`.

    Raises FileNotFoundError if none of them exists, OSError or ValueError for a damaged one.
    """
    paths = {name: folder / f"{name}.jsonl.xz" for name in _READERS}
    found = {name: path for name, path in paths.items() if path.exists()}
    if not found:
        raise FileNotFoundError(f"{folder}: none of {', '.join(_READERS)} (.jsonl.xz) is here")
    return [article for name, path in found.items() for article in _READERS[name](name, path)]
