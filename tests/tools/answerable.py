"""How often `ngt ask` is wrong about whether documents have an answer.

`python -m tests.tools.answerable FOLDER` asks, of sets of documents, one question that they answer
and one that other documents answer, and counts both mistakes: questions with an answer that are
taken to have none (wrong refusals), and questions without one that are let through (missed). The
threshold is chosen on one half of the sets, the figures are those of the other half.

FOLDER has newwiki-qa.jsonl.xz (paragraphs of Wikipedia with questions, SquadShifts) and
qmsum.jsonl.xz (transcripts of meetings with questions that say in their own words what they want).
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

SETS = 300  # of each kind; half of them choose the threshold
THRESHOLDS = [share / 100 for share in range(5, 71)]
MOST_WRONG = 0.05  # of the questions with an answer of every kind but meetings may be refused
CUTTING = Cutting(200, 40)
_SEED = 1
_ROLES = {
    "product": ("Project Manager", "Industrial Designer", "User Interface", "Marketing"),
    "research": ("PhD", "Grad", "Professor", "Postdoc"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """The shares of a question that the documents answer, and of one that they do not.

    None is a question that is not judged.
    """

    answered: float | None
    unanswered: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Both mistakes at a threshold, as shares of the questions of each kind."""

    wrong: float
    missed: float


def rates(pairs: Sequence[Pair], threshold: float) -> Rates:
    """Return both mistakes; a question that is not judged is let through.

    >>> rates([Pair(0.9, 0.1), Pair(0.2, None)], 0.3)
    Rates(wrong=0.5, missed=0.5)
    """
    refused = [p.answered is not None and p.answered < threshold for p in pairs]
    missed = [p.unanswered is None or p.unanswered >= threshold for p in pairs]
    return Rates(sum(refused) / len(pairs), sum(missed) / len(pairs))


def best_threshold(kinds: Sequence[Sequence[Pair]], most_wrong: float = MOST_WRONG) -> float:
    """Return the highest threshold at which no kind has more than `most_wrong` wrong refusals.

    >>> best_threshold([[Pair(0.5, 0.1)] * 99 + [Pair(0.2, 0.3)]])
    0.5
    """
    good = [t for t in THRESHOLDS if all(rates(p, t).wrong <= most_wrong for p in kinds)]
    return max(good, default=THRESHOLDS[0])


def read(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines, packed by xz."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def share_of(index: Index, question: str) -> float | None:
    """Return how much of a question the nearest passage has."""
    found = coverage(index, question)
    return None if found is None else found.share


def indexed(texts: Sequence[str]) -> Index:
    """Return the index of texts, none of which is stored."""
    documents = [Document(f"{number}.txt", text) for number, text in enumerate(texts)]
    return index_of(documents, CUTTING, use_cache=False)


def paragraphs(rows: Sequence[Mapping[str, Any]], size: int, whole: bool) -> Iterator[Pair]:
    """Ask of `size` articles, of each one paragraph or the `whole`, and of none of them."""
    choose = random.Random(_SEED)
    by_title = defaultdict(list)
    for row in rows:
        by_title[row["title"]].append(row)
    titles = sorted(by_title)
    for _ in range(SETS):
        own = choose.sample(titles, size)
        read = [by_title[t] if whole else [choose.choice(by_title[t])] for t in own]
        texts = ["\n".join(row["context"] for row in article) for article in read]
        asked = choose.choice(choose.choice(read))
        others = by_title[choose.choice([title for title in titles if title not in own])]
        index = indexed(texts)
        yield Pair(
            share_of(index, _question(choose, asked)),
            share_of(index, _question(choose, choose.choice(others))),
        )


def _question(choose: random.Random, row: Mapping[str, Any]) -> str:
    return str(choose.choice(row["qas"])["question"])


def meetings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Pair]:
    """Ask of a meeting its own question, and one about a meeting of another kind."""
    choose = random.Random(_SEED)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[_kind(row)].append(row)
    for _ in range(SETS):
        kind = choose.choice(sorted(by_kind))
        other = choose.choice(sorted(set(by_kind) - {kind}))
        own, strange = choose.choice(by_kind[kind]), choose.choice(by_kind[other])
        index = indexed(["\n".join(own["turns"])])
        asked = [str(choose.choice(row["queries"])["query"]) for row in (own, strange)]
        yield Pair(share_of(index, asked[0]), share_of(index, asked[1]))


def _kind(row: Mapping[str, Any]) -> str:
    """Whose meeting it is, by the roles of the first speakers."""
    speakers = {turn.partition(":")[0].rsplit(" ", 1)[0] for turn in row["turns"][:20]}
    for kind, roles in _ROLES.items():
        if any(speaker.startswith(roles) for speaker in speakers):
            return kind
    return "committee"


def main(folder: Path) -> None:
    """Print the figures."""
    wiki, qmsum = read(folder / "newwiki-qa.jsonl.xz"), read(folder / "qmsum.jsonl.xz")
    kinds: dict[str, Callable[[], Iterator[Pair]]] = {
        "1 paragraph": lambda: paragraphs(wiki, 1, whole=False),
        "5 paragraphs of 5 articles": lambda: paragraphs(wiki, 5, whole=False),
        "30 paragraphs of 30 articles": lambda: paragraphs(wiki, 30, whole=False),
        "a whole article": lambda: paragraphs(wiki, 1, whole=True),
        "a meeting's transcript": lambda: meetings(qmsum),
    }
    found = {name: list(make()) for name, make in kinds.items()}
    chosen_on = [pairs[::2] for name, pairs in found.items() if "meeting" not in name]
    chosen = best_threshold(chosen_on)
    print(f"chosen on one half: {chosen:.2f}; in the code: {MIN_SHARE:.2f}; of the other half:")
    print(f"{'documents':32}{'questions':>12}{'wrong refusals':>18}{'missed':>10}")
    for name, pairs in found.items():
        other = pairs[1::2]
        at = rates(other, MIN_SHARE)
        print(f"{name:32}{f'2 × {len(other)}':>12}{at.wrong:>18.1%}{at.missed:>10.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
