"""A session: a model with settings. It makes prompts that fit the model.

The model is in this process, or in that of another engine.
"""

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
from ngtcli.engine.events import Message, Reading, Report, report_to
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
from ngtcli.system import reporting
from ngtcli.system.reporting import Reporter, reporting_to

# The trie of documents, None for methods that do not use one, and where it came from.
DocumentsTrie = tuple[Corpus | None, TrieReport]
NO_TRIE: DocumentsTrie = None, TrieReport("none")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of one answer that differ from its session's; None: that of the session.

    Attributes:
        method: The drafting method.
        num_draft: The maximum number of nodes of a draft tree.
        split_times: Whether to wait for the device between the parts of a step, to time each.
        trie: The trie of the prompt's documents; the cached one is neither read nor written.
        drafter: The drafter, which was made for `method`.
        to_the_end: Whether to decode as other programs do: do not stop at repetitions, and treat
            reasoning as part of the answer.
        many: Whether the prompt is one of a batch.
        probabilities: Whether to return the probabilities of tokens.
    """

    method: str | None = None
    num_draft: int | None = None
    split_times: bool = False
    trie: DocumentsTrie | None = None
    drafter: Drafter | None = None
    to_the_end: bool = False
    many: bool = False
    probabilities: bool = False


SESSION_OPTIONS = AnswerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model that hold whichever engine runs it.

    Attributes:
        tokenizer: The tokenizer.
        context: The maximum number of tokens of a prompt with its answer.
        vocabulary: The number of token ids.
        dtype: The dtype that it computes in.
        context_why: Why the context is shorter than the model's; "" if it is not.
        draft_support: The kind of drafts that it can verify.
        draft_why: Why it cannot verify draft trees; "" if it can.
        prefix_caching: Whether prefixes of prompts are cached.
        dtype_why: Why a rule chose the dtype; "" if a setting did.
        capturing: Whether forward passes are captured, on devices with CUDA graphs.
        unused: Generation settings of the checkpoint that ngt does not use.
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


class Session(Reporter, ABC):
    """Settings over a model; it makes prompts that fit the model. Subclasses have the model.

    Messages go to the reporter that was current when the session was made, or to the `report` of
    `sharing`.

    Args:
        settings: The settings.

    Attributes:
        owner: Who asks; "" for the user of this process. Cached prefixes are used only for the
            owner who sent the prompt. For owners other than "" nothing is stored of documents that
            did not come from files.
    """

    owner = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.report: Report = report_to(reporting.current())

    @property
    @abstractmethod
    def facts(self) -> ModelFacts:
        """The facts about the model."""

    def status(self, text: str) -> None:
        """As `Reporter.status`."""
        self.report(Message("status", text))

    def warn(self, text: str) -> None:
        """As `Reporter.warn`."""
        self.report(Message("warn", text))

    def remark(self, text: str) -> None:
        """As `Reporter.remark`."""
        self.report(Message("remark", text))

    def reading(self, read: int, total: int) -> None:
        """As `Reporter.reading`."""
        self.report(Reading(read, total))

    def sharing(self, settings: Settings, owner: str = "", report: Report | None = None) -> Self:
        """Return a session for one answer that shares the model and what was learned.

        Args:
            settings: Its settings. They may differ from this session's only in settings of a single
                answer (`PER_REQUEST`); for others use `with_settings`.
            owner: Who asks. Only the user's answers are drafted from what this session has learned.
            report: Receives messages; None: as in this session.
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
        with_coverage: bool = False,
    ) -> Prompt:
        """Return the prompt, fitted to the model.

        Args:
            preset: The wording.
            documents: The documents.
            question: The question.
            turns: See `Task`.
            queries: See `Task`.
            with_coverage: See `Task`.

        Raises:
            ContextOverflowError: The prompt does not fit.
            ModelError: The chat template cannot be used.
        """
        task = replace(
            self._task(preset, documents, question),
            turns=turns,
            queries=queries,
            with_coverage=with_coverage,
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
        """Return the task of a prompt: its parts, and the limits of the model."""
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
        """The limits of answers, by the settings and the chat template. Raises ModelError."""
        answer = self.settings.answer
        max_repeats = answer.max_repeats
        if answer.has_form:  # A grammar ends structured output.
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
        """Return the trie of documents, if the method drafts from one; with `keep`, cache it."""
        return NO_TRIE
