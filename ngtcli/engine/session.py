"""What makes prompts: settings over a model that is loaded here, or that another engine serves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ngtcli.config import Settings, settings_in
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.support import SUPPORTED, DraftSupport, Support
from ngtcli.documents.load import Document
from ngtcli.drafting.drafter import Drafter
from ngtcli.drafting.tries.corpus import Corpus
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.engine.events import Message, Report
from ngtcli.engine.request import OtherModelError
from ngtcli.errors import ContextOverflowError
from ngtcli.models.card import script_words
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt, Task
from ngtcli.prompts.chat import Chat
from ngtcli.prompts.preset import Preset
from ngtcli.prompts.selecting import prompt_for
from ngtcli.prompts.thinking import thinking_of
from ngtcli.prompts.turns import Turn
from ngtcli.system.reporting import reporting_to

# The trie of documents, None for methods that draft from none, and how it was had.
DocumentsTrie = tuple[Corpus | None, TrieReport]
NO_TRIE: DocumentsTrie = None, TrieReport("none")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What one answer does differently from its session; None stands for the session's own.

    `method` and `num_draft` take the place of the settings' values. With `split_times` the device
    is waited for between the parts of a step. `trie` takes the place of the one of the prompt's
    documents, which is then neither read nor written. `drafter` is one made for this method.
    `to_the_end`: the answer goes on where it repeats itself, and thoughts are part of it, as that
    of other programs. `many`: it is one of many prompts. `probabilities`: tokens have them.
    """

    method: str | None = None
    num_draft: int | None = None
    split_times: bool = False
    trie: DocumentsTrie | None = None
    drafter: Drafter | None = None
    to_the_end: bool = False
    many: bool = False
    probabilities: bool = False


AS_SET = AnswerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model, whoever runs it. `context` is in tokens.

    `draft_support` says which drafts it verifies, `prefix_caching` whether what is prefilled is
    cached, `capturing` whether CUDA graphs are captured where there are any. `context_why`,
    `draft_why` and `dtype_why` say why the context is less than the model's own, why no draft trees
    are verified, and why a rule chose the dtype; "" where that is not so. `unused` has what the
    checkpoint suggests and is not followed.
    """

    tokenizer: Tokenizer
    context: int
    vocabulary: int
    dtype: object
    context_why: str = ""
    draft_support: DraftSupport = DraftSupport.TREES
    draft_why: str = ""
    prefix_caching: Support = SUPPORTED
    dtype_why: str = ""
    capturing: Support = SUPPORTED
    unused: Mapping[str, Any] = field(default_factory=dict)


class Session(ABC):
    """Makes prompts that fit its model, which a subclass has.

    `report` is called with what is being done, and with what the user should know and may change.
    What is read of a prompt is cached for its `owner` alone, "" for the user. Of texts that another
    owner gives, without a file, nothing is stored.
    """

    owner = ""

    def __init__(self, settings: Settings, report: Report) -> None:
        self.settings = settings
        self.report = report

    @property
    @abstractmethod
    def facts(self) -> ModelFacts:
        """What is known of the model."""

    def status(self, text: str) -> None:
        """Report what is being done."""
        self.report(Message("status", text))

    def warn(self, text: str) -> None:
        """Report what the user should know."""
        self.report(Message("warn", text))

    def sharing(self, settings: Settings, owner: str = "", report: Report | None = None) -> Self:
        """Return a session for one answer, whose settings differ in those that a line may have.

        It drafts from what this session has learned, unless the owner is another than the user.
        `report` takes the place of this session's own.
        """
        other = copy(self)
        other.settings = settings
        other.owner = owner
        other.report = report or self.report
        return other

    def with_settings(
        self, settings: Settings, owner: str = "", report: Report | None = None
    ) -> Self:
        """Return a session with other settings over the same model. Raises OtherModelError."""
        if settings.model != self.settings.model:
            names = settings_in("model")
            name = next(n for n in names if settings.get(n) != self.settings.get(n))
            raise OtherModelError(
                f"another model is loaded: a session cannot change its {name}",
                hint="Use --no-serve.",
            )
        return self.sharing(settings, owner, report)

    def prompt(
        self,
        preset: Preset,
        documents: Sequence[Document],
        question: str = "",
        turns: Sequence[Turn] = (),
        queries: Sequence[str] = (),
        compares: bool = False,
    ) -> Prompt:
        """The prompt, fitted to the model; `turns`, `queries` and `compares` are as for Task.

        Raises ContextOverflowError and ModelError.
        """
        task = replace(self._task(preset, documents, question), turns=turns, queries=queries)
        task = replace(task, compares=compares)
        try:
            with reporting_to(self):
                prompt = prompt_for(task, self.settings)
        except ContextOverflowError as error:
            hint = f"{error.hint} {self.facts.context_why}".strip()
            raise ContextOverflowError(str(error), hint=hint) from None
        self._warn_of_scripts(prompt.documents, question)
        return prompt

    def task(self, preset: Preset, documents: Sequence[Document], question: str = "") -> Task:
        """The parts of a prompt, and the room that the model has for it."""
        self._warn_of_scripts(documents, question)
        return self._task(preset, documents, question)

    def _task(self, preset: Preset, documents: Sequence[Document], question: str) -> Task:
        m, most = self.facts, self.limits.max_output
        own, chat = (preset, documents, question), Chat.of(self.settings)
        task = Task(*own, m.tokenizer, m.context, most, m.vocabulary, chat=chat)
        return replace(task, keep=not self.owner or all(d.path for d in documents))

    @property
    def limits(self) -> Limits:
        """When answers stop, by the settings and the model's chat template. Raises ModelError."""
        s = self.settings
        thinking = thinking_of(s, self.facts.tokenizer)
        repeats = 0 if s.answer.has_form else s.answer.max_repeats  # a form has an end
        return Limits(s.answer.max_tokens, s.drafting.num_draft, s.answer.stop, repeats, thinking)

    def _warn_of_scripts(self, documents: Sequence[Document], question: str) -> None:
        if words := script_words(self.settings.model.model, documents, question):
            self.warn(words)

    def documents_trie(self, documents: Sequence[Document], keep: bool = True) -> DocumentsTrie:
        """The trie of these documents, if the method drafts from one; with `keep` it is cached."""
        return NO_TRIE
