"""The places and the scores of passages that retrieval finds. Imports nothing heavy."""

from dataclasses import dataclass, field

from ngtcli.system.json_form import json_key

_MAX_NAMED_WORDS = 3  # in a message (guess)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A range of a document, by its index: one passage, or several in a row."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a passage by each ranker; None for a ranker that did not score it.

    Attributes:
        score: The score that decides.
        bm25: 0 for a passage without a word of the question.
        dense: A cosine, by an embedding model.
        fused: A sum of reciprocal ranks.
        reranked: A logit.
    """

    score: float
    bm25: float
    dense: float | None = None
    fused: float | None = None
    reranked: float | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a question the nearest passage of the documents covers.

    Attributes:
        share: Share of the weight of the question's words that it has, 0 to 1.
        enough: Whether that share is large enough for the documents to have the answer.
        missing: The question's words that it lacks, as they were asked, by weight.
    """

    share: float = field(metadata=json_key(digits=4))
    enough: bool
    missing: tuple[str, ...]

    @property
    def lacking(self) -> str:
        """The missing words for a sentence: “France” or “capital”."""
        *words, last_word = [f"“{word}”" for word in self.missing[:_MAX_NAMED_WORDS]]
        return f"{', '.join(words)} or {last_word}" if words else last_word
