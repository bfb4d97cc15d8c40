"""Training texts as articles of paragraphs of sentences. Independent of tokens and of torch.

Each source is a `*.jsonl.xz` file. `read_corpus` turns all of them into articles of one form. A
hash of its name puts a whole article into the training set or holds it out, so that nothing is
measured on what was trained on.
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
    """The sentences of a paragraph, in order.

    Attributes:
        sentences: The sentences.
        questions: Real questions, each with the index of the sentence that answers it.
        summary: The index of the sentence nearest to a human one-line summary, if there is one.
    """

    sentences: tuple[str, ...]
    questions: tuple[tuple[str, int], ...] = ()
    summary: int | None = None


@dataclass(frozen=True, slots=True)
class Article:
    """One document: consecutive paragraphs of one source."""

    source: str
    name: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def held_out(self) -> bool:
        """Whether the article is held out: one in ten, of newwiki-qa one in six."""
        digest = hashlib.sha256(f"{self.source}/{self.name}".encode()).digest()
        divisor = 6 if self.source == "newwiki-qa" else 10
        return digest[0] % divisor == 0


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [word.lower() for word in _WORD.findall(text)]


def split_sentences(text: str) -> list[str]:
    """Split one paragraph into sentences; closing quotes stay with their sentence.

    >>> split_sentences('It rained. "Go," said Mr. Hill. We went.')
    ['It rained.', '"Go," said Mr. Hill.', 'We went.']
    """
    sentences: list[str] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[start : match.start()]):
            continue
        end = match.start() + len(match.group().rstrip())
        sentences.append(text[start:end].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def is_prose(sentence: str) -> bool:
    """Return whether a sentence can be quoted as an answer.

    It has 5 to 45 words and 88% letters and spaces; both limits are guesses.
    """
    if not 5 <= len(sentence.split()) <= 45 or sentence[-1] not in ".!?”\"')":
        return False
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return sentence[0].isupper() and letters >= 0.88 * len(sentence)


def overlap_f1(first: Iterable[str], second: Iterable[str]) -> float:
    """Return the F1, 0 to 1, of two sets of words; 0 if one is empty."""
    first_words = set(first)
    second_words = set(second)
    if not first_words or not second_words:
        return 0.0
    return 2 * len(first_words & second_words) / (len(first_words) + len(second_words))


def _one_line(text: str) -> str:
    """Replace all white space by single spaces."""
    return " ".join(text.split())


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a `*.jsonl.xz` file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _prose_paragraphs(text: str) -> list[Paragraph]:
    """Return the paragraphs of which more than half of the sentences are prose."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        plain = _MARKUP.sub(lambda match: match.group(1) or "", _one_line(block))
        if len(plain) < 60 or plain[0] in "-*#+|.=<" or "::" in plain:
            continue
        sentences = split_sentences(plain)
        if sum(map(is_prose, sentences)) * 2 > len(sentences):
            paragraphs.append(Paragraph(tuple(sentences)))
    return paragraphs


def _plain_articles(source: str, path: Path) -> Iterator[Article]:
    """Read rows that are plain texts."""
    for row in read_rows(path):
        text = row["text"]
        if source == "sherlock":  # its paragraphs are lines
            text = text.replace("\n", "\n\n")
        paragraphs = _prose_paragraphs(text)
        if paragraphs:
            yield Article(source, row["id"], tuple(paragraphs))


def _abstracts(source: str, path: Path) -> Iterator[Article]:
    """Read abstracts of papers, each with a one-line summary."""
    for number, row in enumerate(read_rows(path)):
        sentences = tuple(_one_line(sentence) for sentence in row["source"] if sentence.strip())
        if not sentences:
            continue
        summary = words(row["target"][0])
        scores = [overlap_f1(words(sentence), summary) for sentence in sentences]
        paragraph = Paragraph(sentences, summary=scores.index(max(scores)))
        yield Article(source, str(number), (paragraph,))


def _question_paragraph(row: dict[str, Any]) -> Paragraph:
    """Find the sentence of each answer; questions without one are left out."""
    sentences = tuple(split_sentences(_one_line(row["context"])))
    questions = []
    for pair in row["qas"]:
        answers = [_one_line(answer) for answer in pair["answers"]]
        counts = [sum(answer in sentence for answer in answers) for sentence in sentences]
        if any(counts):
            questions.append((_one_line(pair["question"]), counts.index(max(counts))))
    return Paragraph(sentences, tuple(questions))


def _question_articles(source: str, path: Path) -> Iterator[Article]:
    """Read paragraphs with questions and answers; those of one title are an article."""
    by_title: dict[str, list[Paragraph]] = {}
    for row in read_rows(path):
        by_title.setdefault(row["title"], []).append(_question_paragraph(row))
    for title, paragraphs in by_title.items():
        yield Article(source, title, tuple(paragraphs))


def tidy_speech(turn: str) -> str:
    """Remove the speaker, remarks in braces, and spaces before punctuation."""
    _, _, speech = turn.partition(": ")
    without_remarks = re.sub(r"\{[^}]*\}", "", speech)
    return _one_line(re.sub(r"\s+([.,?!'’])", r"\1", without_remarks))


def _meetings(source: str, path: Path) -> Iterator[Article]:
    """Read transcripts of meetings with questions and written answers."""
    for number, row in enumerate(read_rows(path)):
        turns = [split_sentences(tidy_speech(turn)) or [""] for turn in row["turns"]]
        questions: dict[int, tuple[str, int]] = {}  # by turn; the last one counts
        for query in row["queries"]:
            position = _spoken_answer(turns, query)
            if position is not None:
                turn, sentence = position
                questions[turn] = (_one_line(query["query"]), sentence)
        paragraphs = []
        for index, sentences in enumerate(turns):
            if any(map(is_prose, sentences)):
                pairs = (questions[index],) if index in questions else ()
                paragraphs.append(Paragraph(tuple(sentences), pairs))
        if paragraphs:
            yield Article(source, str(number), tuple(paragraphs))


def _spoken_answer(turns: list[list[str]], query: dict[str, Any]) -> tuple[int, int] | None:
    """Return the sentence in the query's spans that is nearest to its written answer.

    It is given as (turn, index in the turn); None if no sentence is near.
    """
    answer = words(query["answer"])
    best = (0.0, -1, -1)  # score, turn, index
    for first, last in query.get("span", []):
        for turn in range(int(first), min(int(last) + 1, len(turns))):
            for index, sentence in enumerate(turns[turn]):
                if is_prose(sentence):
                    best = max(best, (overlap_f1(words(sentence), answer), turn, index))
    score, turn, index = best
    return (turn, index) if score > 0.2 else None


_READERS = {
    **dict.fromkeys(("eips", "peps", "rust-rfcs", "sherlock"), _plain_articles),
    "scitldr": _abstracts,
    "newwiki-qa": _question_articles,
    "qmsum": _meetings,
}


def read_corpus(folder: Path) -> list[Article]:
    """Read all articles of the known `NAME.jsonl.xz` files in `folder`.

    Raises FileNotFoundError if none of them exists, OSError or ValueError for a damaged one.
    """
    articles: list[Article] = []
    has_source = False
    for source, read in _READERS.items():
        path = folder / f"{source}.jsonl.xz"
        if path.exists():
            has_source = True
            articles += read(source, path)
    if not has_source:
        raise FileNotFoundError(f"{folder}: has none of {', '.join(_READERS)} (.jsonl.xz)")
    return articles
