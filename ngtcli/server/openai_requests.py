"""Requests in OpenAI's forms, checked, and the `Request` that each makes.

Every sampling parameter is a setting of its name; requests name no files and no settings but those
of a line of a batch. What the API knows and this server has not is refused where it would change
the answer, and passed over where it would not.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from ngtcli.config import PER_REQUEST, SETTINGS, Settings, check_key
from ngtcli.drafting.drafter import draft_settings
from ngtcli.drafting.registry import parse_method
from ngtcli.engine.checks import check_drafting
from ngtcli.engine.request import Request, check_form
from ngtcli.errors import ModelError, UsageError
from ngtcli.prompts.turns import Turn
from ngtcli.server.public import RequestError
from ngtcli.server.service import GivenDocument, Service
from ngtcli.system.json_form import dump_json
from ngtcli.system.yaml_file import shown
from ngtcli.words import nearest

_MOST_STOPS = 16  # texts that end an answer, each of _LONGEST_STOP characters at most; guesses
_LONGEST_STOP = 1000
_ALIASES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",  # of llama.cpp and ollama
}
# What ordinary clients send, and what changes nothing of an answer here: nothing is stored or
# billed, no tool is called, the model thinks as it does, and what is loaded stays loaded.
_IGNORED = {
    *("user", "metadata", "safety_identifier", "service_tier", "priority", "request_id", "store"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_prompt"),
    *("parallel_tool_calls", "max_tool_calls", "include", "reasoning", "reasoning_effort"),
    *("keep_alive", "id_slot", "timings_per_token", "return_progress", "repeat_last_n"),
}
# What would change an answer, and is taken only where it does not.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("logprobs", "background", "echo", "ignore_eos"), (False,)),
    **dict.fromkeys(("tools", "functions", "context_management"), ([],)),
    "logit_bias": ({},),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("top_logprobs", "mirostat", "min_tokens"), (0,)),
    **dict.fromkeys(("typical_p", "tfs_z", "length_penalty"), (1, 1.0)),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
_FORMATS = ("response_format", "text")  # keys of the form of an answer, of chat and of responses
_TEXT_PARTS = ("text", "input_text", "output_text")
_SURROGATE = re.compile(  # half of a pair, as JSON escapes it
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"
)


class _StreamOptions(Struct, frozen=True):
    """`include_usage`: the last event has the figures. Other options change nothing here."""

    include_usage: bool = False


class _Said(Struct):
    """A message, or an item of the responses API; what else it has does not count."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    type: str = "message"
    tool_calls: list[Any] | None = None


class _Prediction(Struct, forbid_unknown_fields=True):
    """A text like which the answer may be."""

    content: str | list[dict[str, Any]]
    type: Literal["content"] = "content"


class _Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request except for its settings.

    With `truncation` the oldest turns are left out where not all fit; else that is an error.
    """

    model: str
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    documents: list[str | GivenDocument] | None = None
    settings: dict[str, Any] = {}
    prediction: _Prediction | None = None
    truncation: Literal["auto", "disabled"] = "disabled"


class _Chat(_Form, kw_only=True):
    messages: list[_Said]


class _Response(_Form, kw_only=True):
    input: str | list[_Said]
    instructions: str = ""


AnyForm = TypeVar("AnyForm", bound=Struct)


@dataclass(frozen=True, slots=True)
class Asks:
    """What a request asks, of the `model` that it names, and how it is to be answered."""

    model: str
    request: Request
    is_stream: bool = True
    with_usage: bool = False
    keeps_all: bool = False
    text: Mapping[str, Any] = field(default_factory=dict)  # the form of the answer, as it was said


def chat(service: Service, body: bytes) -> Asks:
    """What a POST to /v1/chat/completions asks. Raises RequestError, and InputError of a folder."""
    form, values = _parsed(_Chat, data_of(body))
    return _asks(service, form, values, form.messages)


def response(service: Service, body: bytes) -> Asks:
    """The same of /v1/responses: nothing is stored, so that `input` has all turns."""
    form, values = _parsed(_Response, data := data_of(body))
    said = [_Said("user", form.input)] if isinstance(form.input, str) else form.input
    if form.instructions:
        said = [_Said("system", form.instructions), *said]
    return replace(_asks(service, form, values, said), text=data.get("text") or {})


def form_of(kind: type[AnyForm], data: Mapping[str, Any]) -> AnyForm:
    """Data in a form. Raises RequestError."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        what, _, where = str(error).partition(" - at `$")
        unknown = what.startswith("Object contains unknown field")
        code = "unsupported_parameter" if unknown else "invalid_value"
        param = what.split("`")[1] if unknown and not where else where.strip("`.") or None
        where = f"{param}: " if param and not unknown else ""
        raise RequestError(where + what, param=param, code=code) from None


def data_of(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds. Raises RequestError."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"the body is not a JSON object: {error}"
        if _SURROGATE.search(body):
            what = "a text of the body has a lone surrogate, which is no character"
        raise RequestError(what, code="invalid_json") from None


def _parsed(kind: type[AnyForm], data: Mapping[str, Any]) -> tuple[AnyForm, dict[str, Any]]:
    """A request, and the settings that it has beside. Raises RequestError."""
    found, rest, newer = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, value in data.items():
        if value is None or name in _IGNORED:
            continue
        if name in _FORMATS:
            rest |= _format(name, value)
        elif name in _ONLY:
            _check_only(name, value)
        elif name == "chat_template_kwargs":
            rest["template_arg"] = _template_arguments(value)
        elif name in PER_REQUEST:
            rest[name] = value
        elif name in _ALIASES:
            newer[_ALIASES[name]] = value
        else:
            found[name] = value
    form = form_of(kind, found)
    values = {
        name: _value(name, _meant(name, value), name) for name, value in {**rest, **newer}.items()
    }
    for name, value in getattr(form, "settings", {}).items():
        if name not in PER_REQUEST:
            hint = nearest(name, PER_REQUEST)
            raise RequestError(f"{shown(name)} cannot be set by a request", hint, "settings")
        values[name] = _value(name, value, f"settings.{name}")
    return form, values


def _meant(name: str, value: Any) -> Any:
    """A parameter's value as settings have it.

    Clients of llama.cpp and ollama write -1 for any seed, and for as many tokens as there is room
    for; OpenAI's API takes a seed of any sign and size.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name == "seed":
        largest = int(SETTINGS[name].within[1])
        return secrets.randbelow(largest) if value == -1 else value & largest
    if name == "max_tokens" and value == -1:
        return int(SETTINGS[name].within[1])
    return value


def _template_arguments(value: Any) -> list[str]:
    """Variables of the chat template as the setting has them. Raises RequestError."""
    if not isinstance(value, dict):
        hint = "Give an object with the variables of the chat template."
        what = f"chat_template_kwargs is {shown(value)}"
        raise RequestError(what, hint, "chat_template_kwargs")
    return [f"{name}={msgspec.json.encode(one).decode()}" for name, one in value.items()]


def _format(name: str, value: Any) -> dict[str, Any]:
    """The setting that a format of the answer asks for, if any. Raises RequestError."""
    given = value
    if name == "text" and isinstance(value, dict) and {*value} <= {"format"}:
        given = value.get("format", {"type": "text"})
    given = given if isinstance(given, dict) else {}
    if (kind := given.get("type")) == "text":
        return {}
    own = given.get("json_schema", given)
    schema = own.get("schema") if isinstance(own, dict) else None
    schema = {"type": "object"} if kind == "json_object" else schema
    if kind not in ("json_object", "json_schema") or not isinstance(schema, dict):
        hint = "Give text, json_object, or json_schema with its schema."
        raise RequestError(f"{name} is {shown(value)}", hint, name)
    try:
        check_form("chat", Settings.of(schema=dump_json(schema, None)))
    except UsageError as error:
        raise RequestError(str(error), error.hint, name) from None
    return {"schema": schema}


def _check_only(name: str, value: Any) -> None:
    """Raise RequestError for a value that this server has not; true and 1.0 are not 1."""
    if msgspec.json.encode(value) not in map(msgspec.json.encode, _ONLY[name]):
        what = f"{name} is {shown(value)}, which this server does not support"
        raise RequestError(what, "Leave it out.", name, "unsupported_parameter")


def _value(name: str, value: Any, param: str) -> Any:
    """The value of a setting. Raises RequestError."""
    try:
        value = check_key(name, value, "the request")
    except UsageError as error:
        raise RequestError(str(error), error.hint, param) from None
    stops = value if name == "stop" else ()
    if len(stops) > _MOST_STOPS or any(not 0 < len(text) <= _LONGEST_STOP for text in stops):
        hint = f"Give at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters."
        raise RequestError(f"stop is {shown(value)}", hint, param)
    return value


def _asks(service: Service, form: _Form, values: dict[str, Any], said: Sequence[_Said]) -> Asks:
    loaded = service.documents_of(form.model, form.documents)
    system, turns, text = _conversation(said)
    if system:
        values["system"] = system
    task = "chat" if turns else "ask" if loaded.documents else "generate"
    prediction = _text_of(form.prediction.content, "prediction") if form.prediction else ""
    more: dict[str, Any] = {"loaded": loaded, "turns": turns, "prediction": prediction}
    request = service.tasks.request(task, text, **more, **values)
    if ":" in values.get("method", ""):
        what = f"method {shown(values['method'])} has options"
        raise RequestError(what, "Give the name of a method alone.", "method")
    if "method" in values or "num_draft" in values:
        _check_drafting(request.settings, service.tasks.of[task][0].drafting.num_draft)
    usage, keeps_all = form.stream_options.include_usage, form.truncation == "disabled"
    return Asks(form.model, request, form.stream, usage, keeps_all)


def _check_drafting(settings: Settings, max_nodes: int) -> None:
    """Raise RequestError for a method that a client cannot have.

    Args:
        settings: Those of the request.
        max_nodes: The draft nodes of a step for which the server was started.
    """
    try:
        check_drafting(settings)
        method = parse_method(settings.drafting.method, draft_settings(settings))
    except (UsageError, ModelError) as error:
        raise RequestError(str(error), error.hint, "method") from None
    if method.name == "rest":  # its datastores are files of the server's user
        hint = "Choose another method."
        raise RequestError("method rest reads the datastores of the server", hint, "method")
    if method.settings.num_draft > max_nodes:
        what = f"num_draft is {method.settings.num_draft}"
        raise RequestError(what, f"This server drafts {max_nodes} nodes at most.", "num_draft")


def _conversation(said: Sequence[_Said]) -> tuple[str, tuple[Turn, ...], str]:
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
            system.append(text)  # templates take it before all others alone
        elif message.role in ("user", "assistant"):
            turns.append(Turn(message.role, text))
        else:
            hint = "Choose from system, developer, user, assistant."
            raise RequestError(f"{where}: role is {shown(message.role)}", hint, where)
    if turns and turns[-1].role == "assistant":
        if turns[-1].text.strip():
            hint = "Let the last message be the user's."
            what = "the last message is the assistant's, and this server does not continue it"
            raise RequestError(what, hint, f"messages[{len(said) - 1}]", "unsupported_value")
        turns.pop()  # where the answer goes, as some clients write it
    if not turns or turns[-1].role != "user" or not turns[-1].text.strip():
        raise RequestError("the last message is not a user's text", "Ask something.", "messages")
    return "\n\n".join(filter(None, system)), tuple(turns[:-1]), turns[-1].text


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
