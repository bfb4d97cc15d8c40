"""A search for passages: its question, documents and settings."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.documents.load import Document


@dataclass(frozen=True, slots=True)
class Search:
    """A question, the documents to search, and how to search them.

    Attributes:
        documents: Those to search.
        settings: They say how documents are cut into passages, and how passages are ranked.
        question: The question.
        max_passages: The number of passages that are wanted.
        earlier: The earlier questions of a conversation. Their words count less by BM25; embedding
            models and rerankers read them before the question.
        use_cache: Whether passages and vectors are read from the cache, and stored there.
    """

    documents: Sequence[Document]
    settings: Settings
    question: str
    max_passages: int
    earlier: Sequence[str] = ()
    use_cache: bool = True

    @property
    def all_questions(self) -> str:
        """All questions, one per line, for models that read them."""
        return "\n".join([*self.earlier, self.question])
