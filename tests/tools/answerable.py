"""Count how often `ngt ask` errs about whether documents answer a question.

    python -m tests.tools.answerable FOLDER

Each set of documents gets a question that it answers and one that other documents answer. Two kinds
of mistakes are counted: a question with an answer is refused (wrong refusal), and a question
without one is let through (missed). The threshold is chosen on one half of the sets; the figures
are those of the other half.

FOLDER has newwiki-qa.jsonl.xz (paragraphs of Wikipedia with questions, from SquadShifts) and
qmsum.jsonl.xz (transcripts of meetings, with questions in words of their own).
"""

import json
import lzma
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.retrieval.coverage import MIN_SHARE, coverage
from ngtcli.retrieval.index import Index, index_of

SETS = 300  # sets of documents of each kind; half of them choose the threshold
THRESHOLDS = [share / 100 for share in range(5, 71)]
# Share of the questions with an answer that may be refused, of each kind but meetings.
MAX_WRONG = 0.05
CUTTING = Cutting(200, 40)
_SEED = 1
_ROLES = {
    "product": ("Project Manager", "Industrial Designer", "User Interface", "Marketing"),
    "research": ("PhD", "Grad", "Professor", "Postdoc"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """The coverage of a question that the documents answer, and of one that they do not.

    None stands for a question that is not judged.
    """

    answered: float | None
    unanswered: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Both kinds of mistakes at a threshold, as shares of the questions."""

    wrong: float
    missed: float


def rates(pairs: Sequence[Pair], threshold: float) -> Rates:
    """Return the shares of both mistakes; a question that is not judged is let through.

    >>> rates([Pair(0.9, 0.1), Pair(0.2, None)], 0.3)
    Rates(wrong=0.5, missed=0.5)
    """
    refused = sum(pair.answered is not None and pair.answered < threshold for pair in pairs)
    missed = sum(pair.unanswered is None or pair.unanswered >= threshold for pair in pairs)
    return Rates(refused / len(pairs), missed / len(pairs))


def best_threshold(kinds: Sequence[Sequence[Pair]], max_wrong: float = MAX_WRONG) -> float:
    """Return the highest threshold at which no kind has more than `max_wrong` wrong refusals.

    >>> best_threshold([[Pair(0.5, 0.1)] * 99 + [Pair(0.2, 0.3)]])
    0.5
    """
    good = [
        threshold
        for threshold in THRESHOLDS
        if all(rates(pairs, threshold).wrong <= max_wrong for pairs in kinds)
    ]
    return max(good, default=THRESHOLDS[0])


def read(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines from an xz file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def share_of(index: Index, question: str) -> float | None:
    """Return the share of a question that its nearest passage covers; None: it is not judged."""
    result = coverage(index, question)
    return None if result is None else result.share


def index_texts(texts: Sequence[str]) -> Index:
    """Return the index of texts; it is not cached."""
    documents = [Document(f"{number}.txt", text) for number, text in enumerate(texts)]
    return index_of(documents, CUTTING, use_cache=False)


def paragraphs(rows: Sequence[Mapping[str, Any]], size: int, whole: bool) -> Iterator[Pair]:
    """Yield the coverage of questions about paragraphs of Wikipedia.

    Args:
        rows: Paragraphs with their questions.
        size: The number of articles in a set of documents.
        whole: Whether each document is the whole article; otherwise it is one paragraph.
    """
    rng = random.Random(_SEED)
    by_title = defaultdict(list)
    for row in rows:
        by_title[row["title"]].append(row)
    titles = sorted(by_title)
    for _ in range(SETS):
        chosen_titles = rng.sample(titles, size)
        documents = []
        for title in chosen_titles:
            article = by_title[title]
            documents.append(article if whole else [rng.choice(article)])
        index = index_texts(
            ["\n".join(row["context"] for row in document) for document in documents]
        )

        answered_row = rng.choice(rng.choice(documents))
        other_titles = [title for title in titles if title not in chosen_titles]
        other_article = by_title[rng.choice(other_titles)]
        answered = _choose_question(rng, answered_row)
        unanswered = _choose_question(rng, rng.choice(other_article))
        yield Pair(share_of(index, answered), share_of(index, unanswered))


def _choose_question(rng: random.Random, row: Mapping[str, Any]) -> str:
    return str(rng.choice(row["qas"])["question"])


def meetings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    """Yield the coverage of questions about a meeting and about one of another kind."""
    rng = random.Random(_SEED)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[_kind(row)].append(row)
    for _ in range(SETS):
        kind = rng.choice(sorted(by_kind))
        other_kind = rng.choice(sorted(set(by_kind) - {kind}))
        meeting = rng.choice(by_kind[kind])
        other_meeting = rng.choice(by_kind[other_kind])
        index = index_texts(["\n".join(meeting["turns"])])
        answered = str(rng.choice(meeting["queries"])["query"])
        unanswered = str(rng.choice(other_meeting["queries"])["query"])
        yield Pair(share_of(index, answered), share_of(index, unanswered))


def _kind(row: Mapping[str, Any]) -> str:
    """The kind of a meeting, by the roles of the first speakers."""
    speakers = {turn.partition(":")[0].rsplit(" ", 1)[0] for turn in row["turns"][:20]}
    for kind, roles in _ROLES.items():
        if any(speaker.startswith(roles) for speaker in speakers):
            return kind
    return "committee"


def main(folder: Path) -> None:
    """Print the chosen threshold, and the mistakes at the one in the code."""
    wiki = read(folder / "newwiki-qa.jsonl.xz")
    qmsum = read(folder / "qmsum.jsonl.xz")
    kinds: dict[str, Callable[[], Iterator[Pair]]] = {
        "1 paragraph": lambda: paragraphs(wiki, 1, whole=False),
        "5 paragraphs of 5 articles": lambda: paragraphs(wiki, 5, whole=False),
        "30 paragraphs of 30 articles": lambda: paragraphs(wiki, 30, whole=False),
        "a whole article": lambda: paragraphs(wiki, 1, whole=True),
        "a meeting's transcript": lambda: meetings(qmsum),
    }
    pairs_by_kind = {name: list(make()) for name, make in kinds.items()}
    first_halves = [pairs[::2] for name, pairs in pairs_by_kind.items() if "meeting" not in name]
    threshold = best_threshold(first_halves)
    print(f"chosen on one half: {threshold:.2f}; in the code: {MIN_SHARE:.2f}; of the other half:")
    print(f"{'documents':32}{'questions':>12}{'wrong refusals':>18}{'missed':>10}")
    for name, pairs in pairs_by_kind.items():
        second_half = pairs[1::2]
        mistakes = rates(second_half, MIN_SHARE)
        questions = f"2 × {len(second_half)}"
        print(f"{name:32}{questions:>12}{mistakes.wrong:>18.1%}{mistakes.missed:>10.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
