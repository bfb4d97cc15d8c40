"""Answers from passages that must be found: `python -m ngtcli.evaluate.dev.found_answers`.

`--data` is a folder with newwiki-qa.jsonl.xz. The questions are of articles that the built-in model
was not trained on. Each is answered as `ngt ask` does: from its own paragraph alone, and from a
collection of paragraphs, its own among them. An answer is right if it holds a gold answer.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ngtcli.builtin.training.corpus import Article, read_corpus
from ngtcli.builtin.training.evaluate import holds_gold
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.evaluate.dev.retrieval import own_cache
from ngtcli.prompt.preset import load_preset
from ngtcli.session import Session

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
    session: Session, documents: Sequence[Document], questions: Sequence[Question], found: bool
) -> Iterator[Outcome]:
    """The answers; with `found` from passages of all documents, else from the right one."""
    preset = load_preset("ask")
    for question in questions:
        given = documents if found else [documents[question.own]]
        prompt = session.prompt(preset, given, question.text)
        chosen = prompt.selection
        passages = chosen.passages if chosen else ()
        read = not found or any(p.document == question.own for p in passages)
        answer = session.answer(prompt)
        text = "".join(token.text for step in answer for token in step.tokens)
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
    parser.add_argument("--passages", type=int, nargs="+", default=[Settings().passages])
    parser.add_argument("--embedder", default="")
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    documents, questions = collection(read_corpus(given.data), COLLECTION)
    questions = questions[:: max(1, len(questions) // given.questions)][: given.questions]
    settings = Settings(overflow="retrieve", threads=given.threads)
    with own_cache():
        session = Session(settings, persist=False)
        alone = list(outcomes(session, documents, questions, False))
        print(line("own paragraph alone", alone), flush=True)
        for passages in given.passages:
            for embedder in dict.fromkeys(("", given.embedder)):
                other = replace(settings, passages=passages, embedder=embedder)
                among = outcomes(session.with_settings(other), documents, questions, True)
                by = "BM25 and vectors" if embedder else "BM25"
                name = f"{passages} passages of {len(documents)} paragraphs by {by}"
                print(line(name, list(among)), flush=True)


if __name__ == "__main__":
    main()
