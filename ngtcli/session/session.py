"""What answers: settings over a model that is loaded here, or that another engine serves.

The protocols are what is known of a model and of an answer that is being made, whichever engine
runs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.draft.drafter import Drafter, PassRows
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.steps import InSteps, Limits, PassesReport, Statistics, Step
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.model_files.card import script_words
from ngtcli.prompt.build import Prompt, Task
from ngtcli.prompt.chat import Chat
from ngtcli.prompt.preset import Preset
from ngtcli.prompt.reports import PartReport
from ngtcli.prompt.selecting import prompt_for
from ngtcli.prompt.thinking import thinking_of
from ngtcli.prompt.turns import Turn
from ngtcli.session.events import Ended
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.corpus import Corpus
from ngtcli.trie.report import TrieReport

Notify = Callable[[str], None]
# The trie of documents, None for methods that draft from none, and how it was had.
DocumentsTrie = tuple[Corpus | None, TrieReport]
NO_TRIE: DocumentsTrie = None, TrieReport("none")
NumberedPrompt = tuple[int, Prompt | NgtError]  # the caller's key; in place of a prompt its error
_NO_PROMPT = Prompt("", [], (), ())


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What one answer does differently from its session; None stands for the session's own.

    `method` and `num_draft` take the place of the settings' values. With `split_times` the device
    is waited for between the parts of a step. `trie` takes the place of the one of the prompt's
    documents, which is then neither read nor written. `drafter` is one made for this method.
    `to_the_end`: the answer goes on where it repeats itself, and thoughts are part of it, as that
    of other programs. `many`: it is one of many prompts.
    """

    method: str | None = None
    num_draft: int | None = None
    split_times: bool = False
    trie: DocumentsTrie | None = None
    drafter: Drafter | None = None
    to_the_end: bool = False
    many: bool = False


class Passes(Protocol):
    """How the model's passes are run; `reason` says why they are not captured, if they are not."""

    @property
    def reason(self) -> str: ...
    def report(self) -> PassesReport: ...


class Model(Protocol):
    """What is known of a model. `context` is in tokens.

    `context_reason` says why it is less than the model's own, `plain_reason` why nothing is
    drafted, `tree_reason` why no draft has branches, `keeps_reason` why nothing that it reads is
    kept, `unused` has what the checkpoint suggests and is not followed, `dtype_reason` why a trial
    has chosen the dtype, "" where none has.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def context(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def dtype(self) -> object: ...
    @property
    def context_reason(self) -> str: ...
    @property
    def plain_reason(self) -> str: ...
    @property
    def tree_reason(self) -> str: ...
    @property
    def keeps_reason(self) -> str: ...
    @property
    def unused(self) -> dict[str, Any]: ...
    @property
    def dtype_reason(self) -> str: ...
    @property
    def passes(self) -> Passes: ...


class AnswerRun(Protocol):
    """A generation, by ngt's own loop or another engine: iterate over it for its steps.

    `output` are the ids emitted, end token included. `exact` says whether in any dtype no token
    depends on drafts; then `rows` are those of its passes.
    """

    def __iter__(self) -> Iterator[Step]: ...
    def finish(self) -> Self: ...
    @property
    def model(self) -> Model: ...
    @property
    def drafter(self) -> Drafter: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def output(self) -> list[int]: ...
    @property
    def statistics(self) -> Statistics: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def exact(self) -> bool: ...
    @property
    def rows(self) -> PassRows | None: ...


class Answer(InSteps):
    """A prepared answer: iterate over it for its steps, or `finish` it, then read `run`."""

    def __init__(
        self,
        run: AnswerRun,
        prompt: Prompt,
        trie: TrieReport,
        at_end: Callable[[], None] = lambda: None,
        background_words: Callable[[], str] = lambda: "",
    ) -> None:
        self.run, self.prompt, self.trie, self._at_end = run, prompt, trie, at_end
        self.interrupted = False
        self.steps: list[Step] = []  # so far
        self.background_words = background_words  # what general text `auto` drafts from

    def __iter__(self) -> Iterator[Step]:
        try:
            for step in self.run:
                self.steps.append(step)
                yield step
        finally:
            self._at_end()

    @property
    def policy(self) -> PolicyReport | None:
        """What the drafter decided in this run; None for most methods."""
        return self.run.drafter.report()

    @property
    def finish_reason(self) -> str:
        return "interrupted" if self.interrupted else self.run.finish_reason

    def ended(self, parts: Iterable[PartReport] = ()) -> Ended:
        """What came of it, made of the summaries of `parts`."""
        run = self.run
        return Ended(
            finish_reason=self.finish_reason,
            steps=tuple(self.steps),
            statistics=run.statistics,
            exact=run.exact,
            cuts=self.prompt.cuts,
            selection=self.prompt.selection,
            parts=tuple(parts),
            trie=self.trie,
            passes=run.model.passes.report(),
            policy=self.policy,
        )


@dataclass(frozen=True, slots=True)
class FinishedAnswer(Ended):
    """One of many answers; or an `error`, and then nothing else but `key` and `prompt`.

    `key` is the caller's number of the prompt, which is empty where it could not be made.
    """

    key: int
    prompt: Prompt = _NO_PROMPT
    error: NgtError | None = None

    @classmethod
    def of(cls, key: int, prompt: Prompt, answer: Ended) -> Self:
        """The answer of a key."""
        return cls(key, prompt, **{f.name: getattr(answer, f.name) for f in fields(Ended)})


AS_SET = AnswerOptions()


class Session(ABC):
    """Makes prompts that fit its `model`, which a subclass loads, and answers them.

    `status` is told what is being done, `warn` what the user should know and may change. The
    `settings` are fixed; see `with_settings`. What is read of a prompt is kept for its `owner`
    alone, "" for the user. Of texts that another gives, without a file, nothing is stored.
    """

    model: Model
    owner = ""

    def __init__(self, settings: Settings, status: Notify, warn: Notify) -> None:
        self.settings, self.status, self.warn = settings, status, warn

    def check_settings(self, settings: Settings, fixed: Iterable[str]) -> None:
        """Raise ValueError where `settings` differ in one of the `fixed` ones."""
        for name in fixed:
            if getattr(settings, name) != getattr(self.settings, name):
                raise ValueError(f"a session cannot change its {name}")

    def prompt(
        self,
        preset: Preset,
        documents: Sequence[Document],
        question: str = "",
        turns: Sequence[Turn] = (),
    ) -> Prompt:
        """The prompt, fitted to the model; `turns` are as for Task.

        Raises ContextOverflowError and ModelError.
        """
        task = replace(self._task(preset, documents, question), turns=turns)
        try:
            prompt = prompt_for(task, self.settings, self.warn)
        except ContextOverflowError as error:
            hint = f"{error.hint} {self.model.context_reason}".strip()
            raise ContextOverflowError(str(error), hint) from None
        self._warn_of_scripts(prompt.documents, question)
        return prompt

    def task(self, preset: Preset, documents: Sequence[Document], question: str = "") -> Task:
        """The parts of a prompt, and the room that the model has for it."""
        self._warn_of_scripts(documents, question)
        return self._task(preset, documents, question)

    def _task(self, preset: Preset, documents: Sequence[Document], question: str) -> Task:
        m, most = self.model, self.limits.most
        own, chat = (preset, documents, question), Chat.of(self.settings)
        task = Task(*own, m.tokenizer, m.context, most, m.vocabulary, self.status, chat=chat)
        return replace(task, keep=not self.owner or all(d.path for d in documents))

    @property
    def limits(self) -> Limits:
        """When answers stop, by the settings and the model's chat template. Raises ModelError."""
        s = self.settings
        thinking = thinking_of(s, self.model.tokenizer)
        return Limits(s.max_tokens, s.num_draft, s.stop, s.max_repeats, thinking)

    def _warn_of_scripts(self, documents: Sequence[Document], question: str) -> None:
        if words := script_words(self.settings.model, documents, question):
            self.warn(words)

    @abstractmethod
    def with_settings(self, settings: Settings) -> Self:
        """A session with other settings over the same model.

        Raises ValueError where `settings` name another model than the one that is loaded.
        """

    def documents_trie(self, documents: Sequence[Document], keep: bool = True) -> DocumentsTrie:
        """The trie of these documents, if the method drafts from one; with `keep` it is cached."""
        return NO_TRIE

    def store_documents(self) -> int:
        """After an answer: write what was read for it to disk, if that is wanted; the bytes."""
        return 0

    @abstractmethod
    def answer(self, prompt: Prompt, options: AnswerOptions = AS_SET) -> Answer:
        """A prepared answer to `prompt`. Raises ContextOverflowError, UsageError and ModelError."""

    @abstractmethod
    def answers(
        self,
        prompts: Iterable[NumberedPrompt],
        size: int,
        session_of: Callable[[int], Self] | None = None,
    ) -> Iterator[FinishedAnswer]:
        """The answers to `prompts`, each with the caller's key, as they finish: in any order.

        Prompts are drawn one at a time, when there is room for one; an error in place of a prompt,
        and one that its answer ends with, is yielded as that key's. At most `size` are answered
        together; 0: as many as memory, or the engine, allows. `session_of` gives the session of a
        key, made by `with_settings` of this one. Raises NgtError for what ends the run.
        """
