"""A question to documents."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.documents.load import Document


@dataclass(frozen=True, slots=True)
class Search:
    """A question to documents; `settings` say how these are cut and ranked.

    `most` passages are wanted. The `earlier` questions of a conversation help: their words count
    less by BM25, and other rankers read them before the question. Without `keep` nothing of the
    cache is read or written.
    """

    documents: Sequence[Document]
    settings: Settings
    question: str
    most: int
    earlier: Sequence[str] = ()
    keep: bool = True

    @property
    def whole(self) -> str:
        """All questions, for rankers that read."""
        return "\n".join([*self.earlier, self.question])
