"""Rank passages for a question: by BM25 and, if they are set, an embedding model and a reranker.

The ranks by BM25 and by the embedding model are combined by reciprocal rank fusion: G. Cormack,
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

# How many passages a reranker reads. With one, or an embedding model, rankings have at least these.
CANDIDATES = 100
FUSION_K = 60  # of reciprocal rank fusion; from the paper


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """The number of a passage in its index, and its scores."""

    passage: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best passages for a question.

    Attributes:
        index: The index of all passages.
        passages: The best ones, the best first.
        dense: How vectors were searched: "flat" or "ivf-pq"; None without an embedding model.
        embedded: The number of vectors that were computed for this ranking.
    """

    index: "Index"
    passages: Sequence[RankedPassage]
    dense: str | None = None
    embedded: int = 0


def rank(search: Search) -> Ranking:
    """Return the best passages for the question of a search; see `Ranker.rank`."""
    return Ranker(search).rank(search.question)


class Ranker:
    """Ranks the passages of one set of documents for any number of questions.

    The index, and the vectors where there is an embedding model, are made once for all questions.
    """

    def __init__(self, search: Search) -> None:
        from ngtcli.retrieval.index import index_of

        retrieval = search.settings.retrieval
        if retrieval.embedder or retrieval.reranker:
            search = replace(search, max_passages=max(search.max_passages, CANDIDATES))
        cutting = Cutting(retrieval.passage_tokens, retrieval.passage_overlap)
        self.index = index_of(search.documents, cutting, search.use_cache)
        self._search = search  # `rank` replaces its question.
        self._vectors: Vectors | None = None

    def rank(self, question: str) -> Ranking:
        """Return the best passages for a question.

        They are at most as many as wanted, or CANDIDATES if that is more and there is an embedding
        model or a reranker.

        Raises:
            ModelError: A model cannot be loaded.
        """
        search = replace(self._search, question=question)
        retrieval = search.settings.retrieval
        ranking = self._by_words(search)
        if retrieval.embedder and len(self.index):
            ranking = self._with_vectors(ranking, search)
        if retrieval.reranker and ranking.passages:
            ranking = replace(ranking, passages=_rerank(ranking, search))
        return ranking

    def _by_words(self, search: Search) -> Ranking:
        """Rank by BM25."""
        best = self.index.rank(search.question, search.max_passages, search.earlier)
        passages = [RankedPassage(passage, Scores(score, score)) for passage, score in best]
        return Ranking(self.index, passages)

    def _with_vectors(self, by_words: Ranking, search: Search) -> Ranking:
        """Combine a ranking by BM25 with that by the vectors of an embedding model."""
        from ngtcli.retrieval.encoders import load_embedder
        from ngtcli.retrieval.index import highest
        from ngtcli.retrieval.vectors import Vectors

        settings = search.settings
        embedder_name = settings.retrieval.embedder
        reporting.status(f"Loading {embedder_name} …")
        embedder = load_embedder(embedder_name, settings.model.device)
        if self._vectors is None:
            self._vectors = Vectors(self.index, embedder, search)
        vectors = self._vectors

        question_vector = embedder.question(search.all_questions)
        best_by_words = [ranked.passage for ranked in by_words.passages]
        candidates = vectors.candidates(question_vector, best_by_words)
        cosines = vectors.of(candidates) @ question_vector
        best_by_vectors = candidates[highest(cosines, search.max_passages)].tolist()

        fused = fuse(best_by_words, best_by_vectors)
        order = sorted(fused, key=lambda passage: (-fused[passage], passage))
        bm25 = self.index.scores(search.question, search.earlier).tolist()
        cosine_of = dict(zip(candidates.tolist(), cosines.tolist(), strict=True))
        passages = [
            RankedPassage(
                passage, Scores(fused[passage], bm25[passage], cosine_of[passage], fused[passage])
            )
            for passage in order[: search.max_passages]
        ]
        return Ranking(self.index, passages, vectors.kind, vectors.embedded)


def fuse(*rankings: Sequence[int]) -> dict[int, float]:
    """Return the sum of each passage's reciprocal ranks, 1 / (FUSION_K + rank).

    Args:
        rankings: The passages of each ranker, the best, with rank 1, first.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for position, passage in enumerate(ranking, 1):
            scores[passage] += 1 / (FUSION_K + position)
    return scores


def _rerank(ranking: Ranking, search: Search) -> list[RankedPassage]:
    """Return the first CANDIDATES in the reranker's order, followed by all others."""
    from ngtcli.retrieval.encoders import load_reranker  # here, as it loads transformers

    name = search.settings.retrieval.reranker
    reporting.status(f"Loading {name} …")
    reranker = load_reranker(name, search.settings.model.device)
    candidates = ranking.passages[:CANDIDATES]
    reporting.status(f"Reranking {len(candidates)} passages …")
    texts = [ranking.index.text(candidate.passage) for candidate in candidates]
    scores = reranker.scores(search.all_questions, texts).tolist()
    reranked = [
        RankedPassage(candidate.passage, replace(candidate.scores, score=score, reranked=score))
        for candidate, score in zip(candidates, scores, strict=True)
    ]
    reranked.sort(key=lambda candidate: (-candidate.scores.score, candidate.passage))
    return [*reranked, *ranking.passages[CANDIDATES:]]
