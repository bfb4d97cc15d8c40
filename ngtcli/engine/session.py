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

    Attributes:
        method: Takes the place of the method of the settings.
        num_draft: Takes the place of the setting.
        split_times: Whether the device is waited for between the parts of a step.
        trie: Takes the place of the one of the prompt's documents, which is then neither read nor
            written.
        drafter: Was made for this method.
        to_the_end: Whether the answer goes on where it repeats itself, and its reasoning is part of
            it, as in other programs.
        many: Whether it is one of many prompts.
        probabilities: Whether tokens have their probabilities.
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
    """What is known of a model, whoever runs it.

    Attributes:
        tokenizer: Its tokenizer.
        context: The tokens that prompt and answer may have.
        vocabulary: The number of its token ids.
        dtype: In what it computes.
        context_why: Why the context is less than the model's own; "" where it is not.
        draft_support: Which drafts it verifies.
        draft_why: Why no draft trees are verified; "" where they are.
        prefix_caching: Whether what is prefilled is cached.
        dtype_why: Why a rule chose the dtype; "" where none did.
        capturing: Whether CUDA graphs are captured where there are any.
        unused: What the checkpoint suggests and is not followed.
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
            changed = (
                name
                for name in settings_in("model")
                if settings.get(name) != self.settings.get(name)
            )
            name = next(changed)
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
        """Return the prompt, fitted to the model.

        Args:
            preset: The wording.
            documents: What it is about.
            question: What is asked.
            turns: As in `Task`.
            queries: Likewise.
            compares: Likewise.

        Raises:
            ContextOverflowError: It does not fit.
            ModelError: The chat template cannot be used.
        """
        task = replace(
            self._task(preset, documents, question),
            turns=turns,
            queries=queries,
            compares=compares,
        )
        try:
            with reporting_to(self):
                prompt = prompt_for(task, self.settings)
        except ContextOverflowError as error:
            hint = f"{error.hint} {self.facts.context_why}".strip()
            raise ContextOverflowError(str(error), hint=hint) from None
        self._warn_of_scripts(prompt.documents, question)
        return prompt

    def task(self, preset: Preset, documents: Sequence[Document], question: str = "") -> Task:
        """Return the parts of a prompt, and the room that the model has for it."""
        self._warn_of_scripts(documents, question)
        return self._task(preset, documents, question)

    def _task(self, preset: Preset, documents: Sequence[Document], question: str) -> Task:
        facts = self.facts
        task = Task(
            preset,
            documents,
            question,
            facts.tokenizer,
            facts.context,
            self.limits.max_output,
            facts.vocabulary,
            chat=Chat.of(self.settings),
        )
        return replace(task, keep=not self.owner or all(d.path for d in documents))

    @property
    def limits(self) -> Limits:
        """When answers stop, by the settings and the model's chat template. Raises ModelError."""
        answer = self.settings.answer
        max_repeats = answer.max_repeats
        if answer.has_form:  # structured output ends by itself
            max_repeats = 0
        return Limits(
            answer.max_tokens,
            self.settings.drafting.num_draft,
            answer.stop,
            max_repeats,
            thinking_of(self.settings, self.facts.tokenizer),
        )

    def _warn_of_scripts(self, documents: Sequence[Document], question: str) -> None:
        warning = script_words(self.settings.model.model, documents, question)
        if warning:
            self.warn(warning)

    def documents_trie(self, documents: Sequence[Document], keep: bool = True) -> DocumentsTrie:
        """Return the trie of these documents, if the method drafts from one.

        With `keep` it is cached.
        """
        return NO_TRIE
