"""Measure the built-in model: `python -m tests.tools.training.evaluate --data DIR`.

All articles are held out. Questions: the document is one paragraph of newwiki-qa; then the same
with three paragraphs of other articles beside it. An answer is right if it contains a gold answer.
The baseline quotes the sentence that shares most content words with the question. Verbatim is the
share of the word 4-grams inside an answer's sentences that occur in the documents.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.prompt.preset import load_preset
from ngtcli.session.local import LocalSession
from ngtcli.system.json_form import dump_json
from tests.tools.training.corpus import Article, read_corpus, split_sentences, words
from tests.tools.training.tasks import FUNCTION_WORDS

DISTRACTORS = 3  # paragraphs of other articles beside the question's; guess


@dataclass(frozen=True, slots=True)
class Exercise:
    """Documents, a question ("" for a summary) and its gold answers."""

    documents: tuple[Document, ...]
    question: str = ""
    golds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer and its scores."""

    text: str
    ended: bool  # by the end token, not by the token limit
    verbatim: float  # share of 4-grams, 0 to 1
    right: bool  # holds a gold answer; for a summary, which has none, False
    baseline_right: bool
    mean_acceptance_length: float  # tokens a step


def questions(articles: Sequence[Article], distractors: int, seed: int = 0) -> list[Exercise]:
    """All real questions of the held-out newwiki-qa articles, in an order fixed by `seed`.

    The documents are the question's paragraph and, in random order around it, `distractors`
    paragraphs of other held-out articles. Raises ValueError if there are fewer of those.
    """
    held_out = [a for a in articles if a.held_out and a.source == "newwiki-qa"]
    pool = [(a.name, " ".join(p.sentences)) for a in held_out for p in a.paragraphs]
    rng = random.Random(seed)
    exercises = []
    for article in held_out:
        others = [pair for pair in pool if pair[0] != article.name]
        for paragraph in article.paragraphs:
            own = Document(article.name, " ".join(paragraph.sentences))
            for (question, _), golds in zip(paragraph.questions, paragraph.golds, strict=True):
                documents = [Document(*pair) for pair in rng.sample(others, distractors)]
                documents.insert(rng.randint(0, distractors), own)
                exercises.append(Exercise(tuple(documents), question, golds))
    rng.shuffle(exercises)
    return exercises


def summaries(articles: Sequence[Article], seed: int = 0) -> list[Exercise]:
    """Openings of held-out documents, 80 to 400 words, in an order fixed by `seed`.

    An opening is whole paragraphs from the first on. Meetings (qmsum) are left out, since they
    open with small talk.
    """
    exercises = []
    for article in articles:
        if not article.held_out or article.source == "qmsum":
            continue
        parts: list[str] = []
        for paragraph in article.paragraphs:
            text = " ".join(paragraph.sentences)
            if len(" ".join([*parts, text]).split()) > 400:
                break
            parts.append(text)
        document = Document(article.name, "\n\n".join(parts))
        if len(document.text.split()) >= 80:
            exercises.append(Exercise((document,)))
    random.Random(seed).shuffle(exercises)
    return exercises


def holds_gold(text: str, golds: Sequence[str]) -> bool:
    """Whether the words of a gold answer occur in sequence in `text`; case is ignored.

    >>> holds_gold("It was two Brothers.", ["two brothers"])
    True
    """
    padded = f" {' '.join(words(text))} "
    return any(f" {' '.join(words(g))} " in padded for g in golds if words(g))


def keyword_baseline(exercise: Exercise) -> str:
    """The sentence that shares most content words with the question; of equals the first.

    Raises ValueError if the documents contain no sentence.
    """
    keywords = set(words(exercise.question)) - FUNCTION_WORDS
    sentences = [s for d in exercise.documents for s in split_sentences(d.text)]
    return max(sentences, key=lambda s: len(keywords & set(words(s))))


def verbatim_share(text: str, documents: Sequence[Document], n: int = 4) -> float:
    """Share, 0 to 1, of the word n-grams inside sentences of `text` that occur in a document.

    It is 1 for a text without n-grams.
    """
    grams = [g for s in split_sentences(text) for g in _grams(words(s), n)]
    known = {g for d in documents for g in _grams(words(d.text), n)}
    return sum(g in known for g in grams) / len(grams) if grams else 1.0


def _grams(tokens: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def answer_all(session: LocalSession, exercises: Sequence[Exercise]) -> Iterator[Outcome]:
    """Greedy answers as `ngt ask` and `ngt summarize` give them, one per exercise."""
    presets = {"ask": load_preset("ask"), "summarize": load_preset("summarize")}
    for exercise in exercises:
        preset = presets["ask" if exercise.question else "summarize"]
        prompt = session.prompt(preset, exercise.documents, exercise.question)
        answer = session.answer(prompt)
        text = "".join(token.text for step in answer for token in step.tokens)
        yield Outcome(
            text,
            answer.finish_reason == "stop",
            verbatim_share(text, exercise.documents),
            holds_gold(text, exercise.golds),
            bool(exercise.question) and holds_gold(keyword_baseline(exercise), exercise.golds),
            answer.run.statistics.mean_acceptance_length,
        )


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means over the outcomes: shares from 0 to 1, words, sentences, and tokens per step.

    Raises ZeroDivisionError if there are no outcomes.
    """
    count = len(outcomes)

    def mean(values: Any) -> float:
        return round(float(sum(values)) / count, 4)

    return {
        "answers": count,
        "right": mean(o.right for o in outcomes),
        "right_keyword_baseline": mean(o.baseline_right for o in outcomes),
        "verbatim_4grams": mean(o.verbatim for o in outcomes),
        "wholly_verbatim": mean(o.verbatim == 1.0 for o in outcomes),
        "ended_itself": mean(o.ended for o in outcomes),
        "words": mean(len(o.text.split()) for o in outcomes),
        "sentences": mean(len(split_sentences(o.text)) for o in outcomes),
        "mean_acceptance_length": mean(o.mean_acceptance_length for o in outcomes),
    }


def main() -> None:
    """Read the arguments, measure the three tasks, print one JSON object."""
    parser = argparse.ArgumentParser(description="Measure a model on held-out documents.")
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl.xz texts")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--limit", type=int, default=300, help="questions and summaries each")
    parser.add_argument("--show", type=int, default=0, help="print this many answers of each kind")
    args = parser.parse_args()
    articles = read_corpus(args.data)
    session = LocalSession(replace(Settings(), model=args.model, max_tokens=160))
    body: dict[str, Any] = {"model": args.model}
    for name, exercises in (
        ("one_paragraph", questions(articles, 0)),
        ("four_paragraphs", questions(articles, DISTRACTORS)),
        ("summaries", summaries(articles)),
    ):
        chosen = exercises[: args.limit]
        outcomes = list(answer_all(session, chosen))
        body[name] = report(outcomes)
        for exercise, outcome in list(zip(chosen, outcomes, strict=True))[: args.show]:
            print(f"[{name}] {exercise.question or exercise.documents[0].name}\n  {outcome.text}")
            print(f"  right: {outcome.right}, gold: {exercise.golds[:2]}")
    print(dump_json(body))


if __name__ == "__main__":
    main()
