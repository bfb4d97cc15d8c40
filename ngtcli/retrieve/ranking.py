"""The passages that fit a question best: by BM25, with an embedding model too, then reranked.

The ranks by BM25 and by the embedding model are put together by reciprocal rank fusion: G. Cormack,
C. Clarke and S. Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
Methods, 2009.
This module imports numpy and the indices only where it ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.retrieve.selection import Scores

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ngtcli.retrieve.index import Index

CANDIDATES = 100  # the best of each ranker that are put together, and reranked
FUSION_K = 60  # of reciprocal rank fusion; from the paper

Status = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A passage and its scores."""

    passage: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class Ranking:
    """The index, its passages that fit best, the best first, and how vectors were searched.

    `dense` is "flat", "ivf-pq" or None; `embedded` is the number of vectors that were made for it.
    """

    index: "Index"
    found: Sequence[Ranked]
    dense: str | None = None
    embedded: int = 0


def rank(
    documents: Sequence[Document],
    settings: Settings,
    question: str,
    most: int,
    status: Status = lambda _: None,
    warn: Status = lambda _: None,
    earlier: Sequence[str] = (),
    keep: bool = True,
) -> Ranking:
    """The `most` passages that fit a question best, or fewer. Raises ModelError, NgtError.

    How they are cut and ranked is in `settings`. The `earlier` questions of a conversation help:
    their words count less by BM25, and other rankers read them before the question. `status` gets
    lines on what is done, `warn` those of `index_of` and `vectors_of`; `keep` is as for these.
    """
    from ngtcli.retrieve.index import index_of

    cutting = Cutting(settings.passage_tokens, settings.passage_overlap)
    index = index_of(documents, cutting, status, warn, keep)
    if settings.embedder or settings.reranker:
        most = max(most, CANDIDATES)
    by_words = index.ranked(question, most, earlier)
    ranking = Ranking(index, [Ranked(at, Scores(score, score)) for at, score in by_words])
    whole = "\n".join([*earlier, question])
    if settings.embedder and len(index):
        scores = index.scores_in_turn(question, earlier)
        ranking = _with_vectors(ranking, scores, whole, most, settings, status, warn, keep)
    if settings.reranker and ranking.found:
        status(f"Loading {settings.reranker} …")
        ranking = replace(ranking, found=_reranked(ranking, whole, settings, status))
    return ranking


def _with_vectors(
    by_words: Ranking,
    scores: "npt.NDArray[np.float32]",
    question: str,
    most: int,
    settings: Settings,
    status: Status,
    warn: Status,
    keep: bool,
) -> Ranking:
    """The ranks by BM25, with the `scores` of all passages, and by vectors, put together."""
    import numpy as np

    from ngtcli.retrieve.encoders import check_installed, load_embedder
    from ngtcli.retrieve.vectors import nearest_of, vectors_of

    check_installed()
    status(f"Loading {settings.embedder} …")
    embedder = load_embedder(settings.embedder, settings.device)
    vectors = vectors_of(by_words.index, embedder, status, warn, keep)
    nearest = nearest_of(vectors, status, warn, keep)
    asked = embedder.question(question)
    together = fused(
        [one.passage for one in by_words.found], [p for p, _ in nearest.search(asked, most)]
    )
    order = sorted(together, key=lambda passage: (-together[passage], passage))[:most]
    cosines = nearest.cosines(asked, np.array(order, np.int64))
    found = [
        Ranked(p, Scores(together[p], float(scores[p]), float(cosine), together[p]))
        for p, cosine in zip(order, cosines, strict=True)
    ]
    return Ranking(by_words.index, found, nearest.kind, vectors.embedded)


def fused(*rankings: Sequence[int]) -> dict[int, float]:
    """The sum of each passage's reciprocal ranks, 1 / (FUSION_K + rank), the best having rank 1."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for at, passage in enumerate(ranking, 1):
            scores[passage] += 1 / (FUSION_K + at)
    return scores


def _reranked(ranking: Ranking, question: str, settings: Settings, status: Status) -> list[Ranked]:
    """The first CANDIDATES in the reranker's order, the others behind them."""
    from ngtcli.retrieve.encoders import BATCH, load_reranker  # here: it loads transformers

    reranker = load_reranker(settings.reranker, settings.device)
    texts = {one.passage: ranking.index.text(one.passage) for one in ranking.found[:CANDIDATES]}
    # Texts of equal lengths need no padding.
    first = sorted(ranking.found[:CANDIDATES], key=lambda one: -len(texts[one.passage]))
    scored: list[Ranked] = []
    for at in range(0, len(first), BATCH):
        status(f"Reranking passages: {at} of {len(first)} …")
        some = first[at : at + BATCH]
        scores = map(float, reranker.scores(question, [texts[one.passage] for one in some]))
        scored += (
            Ranked(one.passage, replace(one.scores, score=score, reranked=score))
            for one, score in zip(some, scores, strict=True)
        )
    scored.sort(key=lambda one: (-one.scores.score, one.passage))
    return [*scored, *ranking.found[CANDIDATES:]]
