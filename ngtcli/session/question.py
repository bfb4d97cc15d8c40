"""What is asked: documents, a question, what was said before, how it is answered. Loads little."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.prompt.preset import Preset, without_documents
from ngtcli.prompt.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is answered, and how.

    `task` is "summarize", where `question` is "", or "ask". "generate" follows the question as it
    stands, with the documents, if any, before it; "chat" does so after the `turns`; "complete" goes
    on with the text of the question, without a chat template. `prediction` is a text like which
    the answer may be: drafts come from it, too.
    """

    task: str
    settings: Settings
    preset: Preset
    loaded: Loaded = Loaded(())
    question: str = ""
    turns: tuple[Turn, ...] = ()
    prediction: str = ""

    @property
    def documents(self) -> Sequence[Document]:
        """The texts that it is about."""
        return self.loaded.documents

    @property
    def wording(self) -> Preset:
        """The preset as it words what there is."""
        return self.preset if self.documents else without_documents(self.preset)

    @property
    def raw(self) -> bool:
        """Whether the question is a text to go on with."""
        return self.task == "complete"
