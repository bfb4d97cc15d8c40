"""What is asked: documents, a question, what was said before, how it is answered. Loads little."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import Preset, without_documents
from ngtcli.prompt.turns import Turn

# Characters of a predicted answer at most, about 250,000 tokens, of which 110 MB of counts are made
# (derived: 7 nodes a token); guess.
MOST_PREDICTED = 1_000_000
_PREDICTED = ("auto", "trie", "llma")  # methods that draft from a text beside the prompt


def check_prediction(text: str, settings: Settings) -> None:
    """Raise UsageError for a predicted answer that is too long, or that nothing drafts from."""
    if not text:
        return
    if len(text) > MOST_PREDICTED:
        what = f"the predicted answer has more than {MOST_PREDICTED:,} characters"
        raise UsageError(what, "Give the part that the answer is like.")
    idle = "--engine vllm" if settings.engine == "vllm" else f"--method {settings.method}"
    if settings.engine == "vllm" or settings.method.partition(":")[0] not in _PREDICTED:
        raise UsageError(f"a predicted answer does nothing with {idle}", "Leave it out.")


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
