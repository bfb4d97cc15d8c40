"""Requests in OpenAI's forms, checked, and the question that each asks.

What the API knows and this server has not is refused where it would change the answer, and passed
over where it would not. Requests name no files and no settings but those of a line of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ngtcli.batch.lines import document_of
from ngtcli.config import SettingError, Settings, Use, check_key, settings_where
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import NgtError, UsageError, nearest
from ngtcli.prompt.preset import Preset, for_task
from ngtcli.prompt.turns import Turn
from ngtcli.serve.folder import ServedFolder
from ngtcli.session.question import Question, check_prediction
from ngtcli.system.yaml_file import shown

DOCS = "+docs"  # behind the model's name: answers from the server's folder
_MOST_STOPS = 16  # texts that end an answer, each of _LONGEST_STOP characters at most; guesses
_LONGEST_STOP = 1000
_MOST_DOCUMENTS = 10_000  # that a request gives: a second to read them; guess
_PER_LINE = settings_where(Use.LINE)
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
# What a request may say without a difference to the answer, and what it may say only so.
_IGNORED = {
    *("user", "metadata", "safety_identifier", "service_tier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
}
_ONLY: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("logprobs", "echo", "store", "background"), (False,)),
    **dict.fromkeys(("tools", "functions", "include", "context_management"), ([],)),
    **dict.fromkeys(("logit_bias", "reasoning"), ({},)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "top_logprobs": (0,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "text": ({}, {"format": {"type": "text"}}),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
_TEXT_PARTS = ("text", "input_text", "output_text")


class RequestError(UsageError):
    """What a request asks for is wrong, or not here; `param` names what."""

    def __init__(
        self, message: str, hint: str = "", param: str | None = None,
        code: str = "invalid_value", status: int = 400,
    ) -> None:  # fmt: skip
        super().__init__(message, hint)
        self.param, self.code, self.status = param, code, status


class StreamOptions(Struct, frozen=True):
    """`include_usage`: the last event has the figures."""

    include_usage: bool = False


class GivenDocument(Struct, forbid_unknown_fields=True):
    """A text to answer from."""

    text: str
    name: str = ""


class Said(Struct):
    """A message, or an item of the responses API; what else it has does not count."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    type: str = "message"
    tool_calls: list[Any] | None = None


class Prediction(Struct, forbid_unknown_fields=True):
    """A text like which the answer may be."""

    content: str | list[dict[str, Any]]
    type: Literal["content"] = "content"


class _Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """With `truncation` the oldest turns are left out where not all fit; else that is an error."""

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    documents: list[str | GivenDocument] | UnsetType = UNSET
    settings: dict[str, Any] = {}
    stop: str | list[str] = []
    prediction: Prediction | UnsetType = UNSET
    truncation: Literal["auto", "disabled"] = "disabled"
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET

    @property
    def most(self) -> int | UnsetType:
        """The most tokens of the answer."""
        raise NotImplementedError

    def said(self) -> list[Said]:
        """The messages, in their order; none where the text is to be gone on with."""
        raise NotImplementedError


class ChatRequest(_Request, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Said]
    max_tokens: int | UnsetType = UNSET
    max_completion_tokens: int | UnsetType = UNSET

    @property
    def most(self) -> int | UnsetType:
        new = self.max_completion_tokens
        return self.max_tokens if new is UNSET else new

    def said(self) -> list[Said]:
        return self.messages


class CompletionRequest(_Request, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str]
    max_tokens: int | UnsetType = UNSET

    @property
    def most(self) -> int | UnsetType:
        return self.max_tokens

    def said(self) -> list[Said]:
        return []

    @property
    def text(self) -> str:
        """What is gone on with. Raises RequestError for more than one text."""
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if len(texts) != 1:
            raise RequestError(f"{len(texts)} prompts", "Give one a request.", "prompt")
        if not texts[0]:
            raise RequestError("the prompt is empty", "Give a text.", "prompt")
        return texts[0]


class ResponseRequest(_Request, kw_only=True):
    """POST /v1/responses; nothing is stored, so that `input` has all turns."""

    input: str | list[Said]
    instructions: str = ""
    max_output_tokens: int | UnsetType = UNSET

    @property
    def most(self) -> int | UnsetType:
        return self.max_output_tokens

    def said(self) -> list[Said]:
        turns = [Said("user", self.input)] if isinstance(self.input, str) else self.input
        return [Said("system", self.instructions), *turns] if self.instructions else turns


AnyRequest = TypeVar("AnyRequest", bound=_Request)


def parsed(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request that a body holds. Raises RequestError."""
    try:
        data = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not a JSON object: {error}", code="invalid_json") from None
    found = {}
    for name, value in data.items():
        if value is None or name in _IGNORED:
            continue
        if name not in _ONLY:
            found[name] = value
        elif value not in _ONLY[name]:
            what = f"{name} is {shown(value)}, which this server has not"
            raise RequestError(what, "Leave it out.", name, "unsupported_parameter")
    try:
        return msgspec.convert(found, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        what, _, where = str(error).partition(" - at `$")
        unknown = what.startswith("Object contains unknown field")
        code = "unsupported_parameter" if unknown else "invalid_value"
        param = what.split("`")[1] if unknown else where.strip("`.") or None
        where = f"{param}: " if param and not unknown else ""
        raise RequestError(where + what, param=param, code=code) from None


@dataclass(frozen=True, slots=True)
class Service:
    """What is asked: the model by the `name` that requests give it, and a folder, if any.

    `tasks` have the settings and the wording of "ask", "summarize", "chat", "generate" and
    "complete".
    """

    name: str
    tasks: Mapping[str, tuple[Settings, Preset]]
    folder: ServedFolder | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of models that requests may give."""
        return (self.name, self.name + DOCS) if self.folder else (self.name,)

    def question(self, request: _Request) -> Question:
        """What a request asks. Raises RequestError; InputError where documents cannot be read."""
        if request.model not in self.names:
            what, hint = f"no model {shown(request.model)}", f"Served: {', '.join(self.names)}."
            raise RequestError(what, hint, "model", "model_not_found", 404)
        loaded = self._documents(request)
        if isinstance(request, CompletionRequest):
            if loaded.documents:
                hint = "Ask at /v1/chat/completions."
                raise RequestError("a completion has no documents", hint, "documents")
            system, text, task = "", request.text, "complete"
            turns: tuple[Turn, ...] = ()
        else:
            system, turns, text = _conversation(request.said())
            alone = "ask" if loaded.documents else "generate"
            task = "chat" if turns else alone
        settings, preset = self.tasks[task]
        settings = _with_values(settings, request, system)
        try:
            settings = for_task(task, settings, preset)
        except UsageError as error:
            raise RequestError(str(error), error.hint, "settings") from None
        return Question(
            task=task,
            settings=settings,
            preset=preset,
            loaded=loaded,
            question=text,
            turns=turns,
            prediction=_prediction(request, settings),
        )

    def _documents(self, request: _Request) -> Loaded:
        """The texts that a request gives, or those of the server's folder where it names them."""
        of_server = request.model != self.name and self.folder is not None
        if request.documents is UNSET:
            return self.folder.documents() if of_server and self.folder else Loaded(())
        if of_server:
            hint = f"Name the model {self.name} to have them alone."
            raise RequestError("documents beside those of the server", hint, "documents")
        return Loaded(given_documents(request.documents))


def given_documents(documents: Sequence[str | GivenDocument]) -> tuple[Document, ...]:
    """The texts that a request gives. Raises RequestError."""
    if len(documents) > _MOST_DOCUMENTS:
        hint = f"Give at most {_MOST_DOCUMENTS}."
        raise RequestError(f"{len(documents)} documents", hint, "documents")
    given = [("", one) if isinstance(one, str) else (one.name, one.text) for one in documents]
    try:
        return tuple(document_of(f"document {i}", *one) for i, one in enumerate(given, 1))
    except NgtError as error:
        raise RequestError(str(error), error.hint, "documents") from None


def _with_values(settings: Settings, request: _Request, system: str) -> Settings:
    """The settings with what a request says of them. Raises RequestError."""
    values = {name: getattr(request, name) for name in _SAMPLING}
    values["max_tokens"] = request.most
    values = {name: value for name, value in values.items() if value is not UNSET}
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    if len(stop) > _MOST_STOPS or any(not 0 < len(text) <= _LONGEST_STOP for text in stop):
        hint = f"Give at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters."
        raise RequestError(f"stop is {shown(stop)}", hint, "stop")
    if stop:
        values["stop"] = tuple(stop)
    if system:
        values["system"] = system
    for name, value in request.settings.items():
        if name not in _PER_LINE or name == "field":
            what = f"settings: {shown(name)} cannot be set by a request"
            raise RequestError(what, nearest(name, _PER_LINE), "settings")
        try:
            values[name] = check_key(name, value, "settings")
        except UsageError as error:
            raise RequestError(str(error), error.hint, f"settings.{name}") from None
    try:
        return replace(settings, **values)
    except SettingError as error:
        raise RequestError(str(error), error.hint, error.name) from None


def _conversation(said: Sequence[Said]) -> tuple[str, tuple[Turn, ...], str]:
    """System text, the turns before, and the question of messages. Raises RequestError."""
    system: list[str] = []
    turns: list[Turn] = []
    for i, message in enumerate(said):
        where = f"messages[{i}]"
        if message.type != "message" or message.tool_calls:
            what = f"{where} is a {message.type if message.type != 'message' else 'tool call'}"
            raise RequestError(what, "This server has no tools.", where, "unsupported_value")
        text = _text_of(message.content, where)
        if message.role in ("system", "developer"):
            if turns:
                hint = "Put it before the others."
                raise RequestError(f"{where}: system text behind other messages", hint, where)
            system.append(text)
        elif message.role in ("user", "assistant"):
            turns.append(Turn(message.role, text))
        else:
            hint = "Choose from system, developer, user, assistant."
            raise RequestError(f"{where}: role is {shown(message.role)}", hint, where)
    if not turns or turns[-1].role != "user" or not turns[-1].text.strip():
        raise RequestError("the last message is not a user's text", "Ask something.", "messages")
    return "\n\n".join(filter(None, system)), tuple(turns[:-1]), turns[-1].text


def _prediction(request: _Request, settings: Settings) -> str:
    """The text like which the answer may be, if any. Raises RequestError."""
    if request.prediction is UNSET:
        return ""
    text = _text_of(request.prediction.content, "prediction")
    try:
        check_prediction(text, settings)
    except UsageError as error:
        raise RequestError(str(error), error.hint, "prediction", "unsupported_parameter") from None
    return text


def _text_of(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a message. Raises RequestError for other content."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind, text = part.get("type"), part.get("text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            what = f"{where}: a part is {shown(kind)}, and the model reads text alone"
            raise RequestError(what, "Give parts of type text.", where, "unsupported_value")
        texts.append(text)
    return "".join(texts)
