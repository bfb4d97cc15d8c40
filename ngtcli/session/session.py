"""What answers: settings over a model that is loaded here, or that another engine serves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import ContextOverflowError
from ngtcli.model_files.card import script_words
from ngtcli.prompt.build import Prompt, Task
from ngtcli.prompt.preset import Preset
from ngtcli.prompt.selecting import prompt_for
from ngtcli.session.answer import (
    NO_TRIE,
    Answer,
    AnswerOptions,
    DocumentsTrie,
    FinishedAnswer,
    Model,
    NumberedPrompt,
)

Notify = Callable[[str], None]
AS_SET = AnswerOptions()


class Session(ABC):
    """Makes prompts that fit its `model`, which a subclass loads, and answers them.

    `status` is told what is being done, `warn` what the user should know and may change. The
    `settings` are fixed; see `with_settings`.
    """

    model: Model

    def __init__(self, settings: Settings, status: Notify, warn: Notify) -> None:
        self.settings, self.status, self.warn = settings, status, warn

    def check_settings(self, settings: Settings, fixed: Iterable[str]) -> None:
        """Raise ValueError where `settings` differ in one of the `fixed` ones."""
        for name in fixed:
            if getattr(settings, name) != getattr(self.settings, name):
                raise ValueError(f"a session cannot change its {name}")

    def prompt(self, preset: Preset, documents: Sequence[Document], question: str = "") -> Prompt:
        """The prompt, fitted to the model. Raises ContextOverflowError and ModelError."""
        try:
            prompt = prompt_for(self._task(preset, documents, question), self.settings, self.warn)
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
        m, most = self.model, self.settings.max_tokens
        own = preset, documents, question
        return Task(*own, m.tokenizer, m.context, most, m.vocabulary, self.status)

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
