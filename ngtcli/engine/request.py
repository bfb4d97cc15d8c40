"""Requests: a task, its documents, a question, and settings. Loads little."""

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

# Characters that a predicted answer may have: about 250,000 tokens, whose counts take 110 MB
# (derived: 7 nodes a token). The bound is a guess.
MAX_PREDICTED = 1_000_000
_PREDICTED_METHODS = ("auto", "trie", "llma")  # these draft from a text beside the prompt
_NOTHING = Loaded(())


class OtherModelError(UsageError):
    """A request is to be answered by another model than the one that is loaded."""


def check_prediction(text: str, settings: Settings) -> None:
    """Raise UsageError for a predicted answer that is too long, or that nothing drafts from."""
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
    """Raise UsageError for a form that no answer of the task can have, or that is not valid."""
    if not settings.answer.has_form:
        return
    from ngtcli.decoding.grammar.form import form_of  # here: few requests need it

    name = next(name for name in FORMS if settings.get(name))
    clash = ""
    if task == "summarize":
        clash = "a summary"
    elif settings.engine.engine == "vllm":
        clash = "--engine vllm"
    elif settings.answer.stop:
        clash = "stop, which would end an answer within it"
    if clash:
        raise SettingError(name, f"{SETTINGS[name].flag} with {clash}", "Leave one of them out.")
    try:
        form_of(settings)
    except UsageError as error:
        raise SettingError(name, str(error), error.hint) from None


class Want(StrEnum):
    """What may be wanted back besides the text of an answer, since it takes time."""

    REMARKS = "remarks"  # the sentences about prompt and answer that -v shows
    SOURCES = "sources"  # where the answer's words are in the documents
    PROBABILITIES = "probabilities"  # of each token among those that were possible


USUAL = frozenset({Want.SOURCES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, of which documents, how it is answered, and what is wanted back.

    Attributes:
        task: "summarize", "ask" or "extract". "generate" continues the question as it stands, with
            the documents, if any, before it; "chat" does so after the `turns`.
        question: "" where the task is "summarize".
        turns: What was said before in a conversation.
        prediction: A text that the answer may be like; drafts come from it, too.
        queries: Of documents that do not fit, passages are read for each of these; for the question
            where there is none.
        wants: What is wanted back besides the text.
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
        """The texts that it is about."""
        return self.loaded.documents

    def cut_off(self, reason: str) -> NgtError | None:
        """The error of an answer that has a form and ended within it, for a finish reason."""
        if not self.settings.answer.has_form or reason == "stop":
            return None
        causes = {"length": "max_tokens was reached", "context": "the context is full"}
        return NgtError(
            f"the answer is incomplete: {causes.get(reason, reason)}",
            hint="Raise max_tokens, or limit the schema (maxLength, maxItems).",
        )

    @property
    def wording(self) -> Preset:
        """The preset; without documents one that does not speak of them."""
        return self.preset if self.documents else without_documents(self.preset)


def limit_of(request: Request, documents: int | None = None) -> str:
    """Return what the built-in model cannot do of a request; "" where it can.

    Args:
        request: What is asked.
        documents: How many documents the command is about; None for those of the request.
    """
    settings = request.settings
    count = len(request.documents) if documents is None else documents
    has_schema = bool(settings.answer.schema or settings.answer.schema_multi)
    return demonstration_limit(request.task, count, has_schema)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The settings and the wording of each task: where requests come from."""

    of: Mapping[str, tuple[Settings, Preset]]

    @classmethod
    def resolved(
        cls,
        layers: Sequence[Layer],
        preset: str | None = None,
        tasks: Sequence[str] = TASKS,
        *,
        worded: bool = False,
        like: Settings | None = None,
    ) -> Self:
        """The tasks by all layers, below them the preset: the one that is named, or their own.

        `worded`: where the named one has no place for a question, `ask` is worded by its own.
        With `like` all have the model of these settings. Raises UsageError.
        """
        resolved = {}
        for task in tasks:
            wording = load_preset(task if preset is None else preset)
            settings = settings_of([*layers, wording.settings]).settings
            if like is not None:
                settings = replace(settings, model=like.model)
            if worded and task == "ask" and not can_ask(wording):
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
        """Return a request of a task, with `values` above its settings.

        Raises UsageError for what the task, the preset or a setting cannot have.
        """
        settings, preset = self.of[task]
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
