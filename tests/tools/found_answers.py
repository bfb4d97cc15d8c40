"""Answers from passages that must be found: `python -m tests.tools.found_answers`.

`--data` is a folder with newwiki-qa.jsonl.xz. The questions are of articles that the built-in model
was not trained on. Each is answered as `ngt ask` does, from `--of` neighbouring paragraphs, its own
among them, with each combination of the settings given. An answer is right if it holds a gold one.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.prompt.preset import load_preset
from ngtcli.session.local import LocalSession
from tests.tools.retrieval import own_cache
from tests.tools.training.corpus import Article, read_corpus
from tests.tools.training.evaluate import holds_gold

COLLECTION = 1000  # paragraphs


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its gold answers, and the index of its paragraph."""

    text: str
    golds: tuple[str, ...]
    own: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the question's own paragraph was read, and whether the answer is right."""

    read: bool
    right: bool


def collection(articles: Sequence[Article], count: int) -> tuple[list[Document], list[Question]]:
    """`count` paragraphs, those of held-out articles first, and the questions on these."""
    ordered = [a for a in articles if a.source == "newwiki-qa"]
    ordered.sort(key=lambda article: not article.held_out)
    paragraphs = [(a, p) for a in ordered for p in a.paragraphs][:count]
    documents = [
        Document(f"{i}", " ".join(p.sentences), path=f"/collection/{i}.txt")
        for i, (_, p) in enumerate(paragraphs)
    ]
    questions = [
        Question(text, golds, i)
        for i, (article, p) in enumerate(paragraphs)
        if article.held_out
        for (text, _), golds in zip(p.questions, p.golds, strict=True)
    ]
    return documents, questions


def outcomes(
    session: LocalSession, documents: Sequence[Document], questions: Sequence[Question], size: int
) -> Iterator[Outcome]:
    """The answers from `size` neighbouring paragraphs, the question's own among them."""
    preset = load_preset("ask")
    for question in questions:
        first = question.own // size * size
        prompt = session.prompt(preset, documents[first : first + size], question.text)
        chosen = prompt.selection
        read = chosen is None or any(first + p.document == question.own for p in chosen.passages)
        text = "".join(t.text for step in session.answer(prompt) for t in step.tokens)
        yield Outcome(read, holds_gold(text, question.golds))


def line(name: str, got: Sequence[Outcome]) -> str:
    """A line of shares."""
    right, read = sum(o.right for o in got), sum(o.read for o in got)
    return (
        f"{name}: {len(got)} questions, paragraph read {read / len(got):.3f},"
        f" answer right {right / len(got):.3f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Answers from passages that must be found.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--of", type=int, nargs="+", default=[1, 5, COLLECTION])
    parser.add_argument("--passages", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--passage-tokens", type=int, nargs="+", default=[200])
    parser.add_argument("--whole-tokens", type=int, nargs="+", default=[0])
    parser.add_argument("--embedder", nargs="+", default=[""])
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    documents, questions = collection(read_corpus(given.data), COLLECTION)
    questions = questions[:: max(1, len(questions) // given.questions)][: given.questions]
    settings = Settings(overflow="retrieve", threads=given.threads)
    names = ("passages", "passage_tokens", "whole_tokens", "embedder")
    with own_cache():
        session = LocalSession(settings, persist=False)
        for size, *values in product(given.of, *(getattr(given, name) for name in names)):
            other = replace(settings, **dict(zip(names, values, strict=True)))
            got = list(outcomes(session.with_settings(other), documents, questions, size))
            words = ", ".join(f"{n} {v}" for n, v in zip(names, values, strict=True) if v)
            print(line(f"of {size} paragraphs, {words}", got), flush=True)


if __name__ == "__main__":
    main()
