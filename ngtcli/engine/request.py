"""Requests: a task, its documents, a question, and settings. Imports nothing slow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from ngtcli.config import FORMS, SETTINGS, Layer, SettingError, Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.engine.settings import settings_of, with_room
from ngtcli.errors import NgtError, UsageError
from ngtcli.models.recommended import demonstration_limit
from ngtcli.prompts.preset import TASKS, Preset, can_ask, for_task, load_preset, without_documents
from ngtcli.prompts.turns import Turn

# Maximum length of a predicted answer in characters (guess). It is about 250,000 tokens, whose
# counts take 110 MB (derived from 7 nodes per token).
MAX_PREDICTED = 1_000_000
_PREDICTED_METHODS = ("auto", "trie", "llma")  # methods that draft from a predicted answer
_NOTHING = Loaded(())


class OtherModelError(UsageError):
    """A request names a model other than the loaded one."""


def check_prediction(text: str, settings: Settings) -> None:
    """Raise UsageError for a predicted answer that is too long, or that would not be used."""
    if not text:
        return
    if len(text) > MAX_PREDICTED:
        raise UsageError(
            f"the predicted answer has more than {MAX_PREDICTED:,} characters",
            hint="Give the part that the answer will resemble.",
        )
    flag = ""
    if settings.engine.engine == "vllm":
        flag = "--engine vllm"
    elif settings.drafting.method.partition(":")[0] not in _PREDICTED_METHODS:
        flag = f"--method {settings.drafting.method}"
    if flag:
        raise UsageError(f"a predicted answer cannot be used with {flag}", hint="Leave it out.")


def check_form(task: str, settings: Settings) -> None:
    """Raise UsageError for a form that is invalid, or that answers of the task cannot have."""
    if not settings.answer.has_form:
        return
    from ngtcli.decoding.grammar.form import form_of  # imported here: few requests need it

    name = next(name for name in FORMS if settings.get(name))
    clash = ""
    if task == "summarize":
        clash = "a summary"
    elif settings.engine.engine == "vllm":
        clash = "--engine vllm"
    elif settings.answer.stop:
        clash = "stop, which could cut the answer short"
    if clash:
        raise SettingError(
            name, f"{SETTINGS[name].flag} cannot be used with {clash}", "Leave one of them out."
        )
    try:
        form_of(settings)
    except UsageError as error:
        raise SettingError(name, str(error), error.hint) from None


class Want(StrEnum):
    """Parts of an answer that are made only on request, because they take time."""

    REMARKS = "remarks"  # sentences about the prompt and the answer, which -v shows
    SOURCES = "sources"  # the places in the documents that the answer quotes
    PROBABILITIES = "probabilities"  # of each token, among the tokens that were possible


USUAL = frozenset({Want.SOURCES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A task with its documents, its settings, and what its answer should include.

    Attributes:
        task: "summarize", "ask", "extract", "generate" or "chat". "generate" takes the question as
            a free prompt, after the documents if there are any; "chat" adds the `turns` before it.
        question: The question or prompt; "" if the task is "summarize".
        turns: The earlier turns of a conversation.
        prediction: A text that the answer may resemble; drafts come from it, too.
        queries: The queries for passages of documents that do not fit; empty: the question.
        wants: What the answer should include besides its text.
    """

    task: str
    settings: Settings
    preset: Preset
    loaded: Loaded = _NOTHING
    question: str = ""
    turns: tuple[Turn, ...] = ()
    prediction: str = ""
    queries: tuple[str, ...] = ()
    wants: frozenset[Want] = USUAL

    @property
    def documents(self) -> Sequence[Document]:
        """Return the documents of the request."""
        return self.loaded.documents

    def incomplete_error(self, reason: str) -> NgtError | None:
        """Return the error of an answer whose form is incomplete, by its finish reason; or None."""
        if not self.settings.answer.has_form or reason == "stop":
            return None
        causes = {"length": "max_tokens was reached", "context": "the context is full"}
        return NgtError(
            f"the answer is incomplete: {causes.get(reason, reason)}",
            hint="Raise max_tokens, or limit the schema (maxLength, maxItems).",
        )

    @property
    def wording(self) -> Preset:
        """Return the preset; if there are no documents, one that does not mention them."""
        return self.preset if self.documents else without_documents(self.preset)


def builtin_limit(request: Request, documents: int | None = None) -> str:
    """Return why the built-in model cannot answer a request; "" if it can.

    Args:
        request: The request.
        documents: The number of documents of the command; None: those of the request.
    """
    settings = request.settings
    count = len(request.documents) if documents is None else documents
    has_schema = bool(settings.answer.schema or settings.answer.schema_multi)
    return demonstration_limit(request.task, count, has_schema)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The settings and the preset of each task, from which requests are made."""

    by_name: Mapping[str, tuple[Settings, Preset]]

    @classmethod
    def resolved(
        cls,
        layers: Sequence[Layer],
        preset: str | None = None,
        tasks: Sequence[str] = TASKS,
        *,
        fallback_for_ask: bool = False,
        model_of: Settings | None = None,
    ) -> Self:
        """Resolve the settings and the preset of each task. Raises UsageError.

        Args:
            layers: The layers above that of the preset.
            preset: The preset of all tasks; None: each task has its own.
            tasks: The tasks.
            fallback_for_ask: Whether "ask" has the wording of its own preset if `preset` has no
                place for a question.
            model_of: The settings whose model all tasks get; None: each has that of its layers.
        """
        resolved = {}
        for task in tasks:
            wording = load_preset(task if preset is None else preset)
            settings = settings_of([*layers, wording.settings]).settings
            if model_of is not None:
                settings = replace(settings, model=model_of.model)
            if fallback_for_ask and task == "ask" and not can_ask(wording):
                wording = load_preset(task)
            resolved[task] = settings, wording
        return cls(resolved)

    def request(
        self,
        task: str,
        text: str = "",
        *,
        loaded: Loaded = _NOTHING,
        turns: Sequence[Turn] = (),
        prediction: str = "",
        **values: Any,
    ) -> Request:
        """Return a request for a task, whose settings `values` override.

        Raises UsageError for values that the task, the preset or a setting does not allow.
        """
        settings, preset = self.by_name[task]
        settings = for_task(task, settings.replace(**values), preset)
        if any(name in values for name in FORMS):
            settings = with_room(settings, "max_tokens" in values)
        check_prediction(prediction, settings)
        check_form(task, settings)
        return Request(
            task=task,
            settings=settings,
            preset=preset,
            loaded=loaded,
            question=text,
            turns=tuple(turns),
            prediction=prediction,
        )
