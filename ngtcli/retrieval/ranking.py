"""The passages that fit a question best: by BM25, with an embedding model too, then reranked.

The ranks by BM25 and by the embedding model are put together by reciprocal rank fusion: G. Cormack,
C. Clarke and S. Büttcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
Methods, 2009. This module imports numpy and the indices only where it ranks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ngtcli.documents.passages import Cutting
from ngtcli.documents.selection import Scores
from ngtcli.retrieval.search import Search
from ngtcli.system import reporting

if TYPE_CHECKING:
    from ngtcli.retrieval.index import Index
    from ngtcli.retrieval.vectors import Vectors

CANDIDATES = 100  # the best of each ranker that are put together, and reranked
FUSION_K = 60  # of reciprocal rank fusion; from the paper


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


def rank(search: Search) -> Ranking:
    """The passages that fit a question best, or fewer. Raises ModelError."""
    return Ranker(search).rank(search.question)


class Ranker:
    """Ranks the passages of one set of documents for any number of questions.

    The index, and the vectors where there is an embedding model, are made once for all of them.
    `search` is that of the first question.
    """

    def __init__(self, search: Search) -> None:
        from ngtcli.retrieval.index import index_of

        s = search.settings
        if s.retrieval.embedder or s.retrieval.reranker:
            search = replace(search, most=max(search.most, CANDIDATES))
        cutting = Cutting(s.retrieval.passage_tokens, s.retrieval.passage_overlap)
        self._search = search
        self.index = index_of(search.documents, cutting, search.keep)
        self._vectors: Vectors | None = None

    def rank(self, question: str) -> Ranking:
        """The passages that fit a question best, or fewer. Raises ModelError."""
        search = replace(self._search, question=question)
        by_words = self.index.ranked(question, search.most, search.earlier)
        ranking = Ranking(self.index, [Ranked(at, Scores(score, score)) for at, score in by_words])
        if search.settings.retrieval.embedder and len(self.index):
            ranking = self._with_vectors(ranking, search)
        if search.settings.retrieval.reranker and ranking.found:
            ranking = replace(ranking, found=_reranked(ranking, search))
        return ranking

    def _with_vectors(self, by_words: Ranking, search: Search) -> Ranking:
        """The ranks by BM25 and by vectors, put together."""
        from ngtcli.retrieval.encoders import load_embedder
        from ngtcli.retrieval.index import best
        from ngtcli.retrieval.vectors import Vectors

        index, settings = self.index, search.settings
        reporting.status(f"Loading {settings.retrieval.embedder} …")
        embedder = load_embedder(settings.retrieval.embedder, settings.model.device)
        if self._vectors is None:
            self._vectors = Vectors(index, embedder, search)
        vectors, asked = self._vectors, embedder.question(search.whole)
        words = [one.passage for one in by_words.found]
        passages = vectors.candidates(asked, words)
        found = vectors.of(passages) @ asked
        together = fused(words, passages[best(found, search.most)].tolist())
        cosines = dict(zip(passages.tolist(), found.tolist(), strict=True))
        bm25 = index.scores(search.question, search.earlier).tolist()
        order = sorted(together, key=lambda passage: (-together[passage], passage))[: search.most]
        ranked = [Ranked(p, Scores(together[p], bm25[p], cosines[p], together[p])) for p in order]
        return Ranking(index, ranked, vectors.kind, vectors.embedded)


def fused(*rankings: Sequence[int]) -> dict[int, float]:
    """The sum of each passage's reciprocal ranks, 1 / (FUSION_K + rank), the best having rank 1."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for at, passage in enumerate(ranking, 1):
            scores[passage] += 1 / (FUSION_K + at)
    return scores


def _reranked(ranking: Ranking, search: Search) -> list[Ranked]:
    """The first CANDIDATES in the reranker's order, the others behind them."""
    from ngtcli.retrieval.encoders import load_reranker  # here: it loads transformers

    reporting.status(f"Loading {search.settings.retrieval.reranker} …")
    reranker = load_reranker(search.settings.retrieval.reranker, search.settings.model.device)
    first = ranking.found[:CANDIDATES]
    reporting.status(f"Reranking {len(first)} passages …")
    scores = reranker.scores(search.whole, [ranking.index.text(one.passage) for one in first])
    scored = [
        Ranked(one.passage, replace(one.scores, score=score, reranked=score))
        for one, score in zip(first, scores.tolist(), strict=True)
    ]
    scored.sort(key=lambda one: (-one.scores.score, one.passage))
    return [*scored, *ranking.found[CANDIDATES:]]
