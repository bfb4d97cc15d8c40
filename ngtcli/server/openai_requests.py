"""Parse and check requests in OpenAI's formats, and make a `Request` of each.

Every sampling parameter is a setting of the same name. Requests name no files, and only the
settings that a line of a batch may have. A parameter of the API that this server lacks is refused
where it would change the answer, and ignored where it would not.
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
from ngtcli.server.service import RequestDocument, Service
from ngtcli.system.json_form import dump_json
from ngtcli.system.yaml_file import shown
from ngtcli.words import nearest

_MAX_STOPS = 16  # stop sequences of a request (guess)
_MAX_STOP_LENGTH = 1000  # characters of a stop sequence (guess)
_ALIASES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "repeat_penalty": "repetition_penalty",  # of llama.cpp and ollama
}
# Parameters that ordinary clients send and that change no answer here: nothing is stored or
# billed, no tool is called, the reasoning has no levels, and the model stays loaded.
_IGNORED = {
    *("user", "metadata", "safety_identifier", "service_tier", "priority", "request_id", "store"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_prompt"),
    *("parallel_tool_calls", "max_tool_calls", "include", "reasoning", "reasoning_effort"),
    *("keep_alive", "id_slot", "timings_per_token", "return_progress", "repeat_last_n"),
}
# Parameters that would change an answer, and the only values that do not.
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
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
_FORMATS = ("response_format", "text")  # keys of the answer's format, of chat and of responses
_TEXT_PARTS = ("text", "input_text", "output_text")
_LONE_SURROGATE = re.compile(  # half of a pair, as JSON escapes it
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]"
)


class _StreamOptions(Struct, frozen=True):
    """`include_usage`: the last event has the figures. Other options change nothing here."""

    include_usage: bool = False


class _InputMessage(Struct):
    """A message, or an item of the responses API; its other fields are ignored."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    type: str = "message"
    tool_calls: list[Any] | None = None


class _Prediction(Struct, forbid_unknown_fields=True):
    """A text that the answer may resemble."""

    content: str | list[dict[str, Any]]
    type: Literal["content"] = "content"


class _Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request except for its settings.

    With `truncation` "auto" the oldest turns are left out where not all fit; with "disabled" that
    is an error.
    """

    model: str
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    documents: list[str | RequestDocument] | None = None
    settings: dict[str, Any] = {}
    prediction: _Prediction | None = None
    truncation: Literal["auto", "disabled"] = "disabled"


class _Chat(_Form, kw_only=True):
    messages: list[_InputMessage]


class _Response(_Form, kw_only=True):
    input: str | list[_InputMessage]
    instructions: str = ""


AnyForm = TypeVar("AnyForm", bound=Struct)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request over HTTP, and how it is to be answered.

    Attributes:
        model: The name by which the request names the model.
        request: The request to the engine.
        is_stream: Whether the answer is sent as a stream of events.
        with_usage: Whether the stream ends with the figures.
        refuses_truncation: Whether leaving out the oldest turns is an error.
        text_options: The value of "text" of /v1/responses, as the client sent it.
    """

    model: str
    request: Request
    is_stream: bool = True
    with_usage: bool = False
    refuses_truncation: bool = False
    text_options: Mapping[str, Any] = field(default_factory=dict)


def parse_chat(service: Service, body: bytes) -> ApiRequest:
    """Parse the body of a POST to /v1/chat/completions.

    Raises:
        RequestError: The request is wrong, or asks for something that this server lacks.
        InputError: The server's documents cannot be read.
    """
    form, values = _parse_form(_Chat, decode_body(body))
    return _api_request(service, form, values, form.messages)


def parse_response(service: Service, body: bytes) -> ApiRequest:
    """Parse the body of a POST to /v1/responses, as `parse_chat` does.

    Nothing is stored, so `input` has all turns.
    """
    data = decode_body(body)
    form, values = _parse_form(_Response, data)
    messages = form.input
    if isinstance(messages, str):
        messages = [_InputMessage("user", messages)]
    if form.instructions:
        messages = [_InputMessage("system", form.instructions), *messages]
    api_request = _api_request(service, form, values, messages)
    return replace(api_request, text_options=data.get("text") or {})


def convert_form(kind: type[AnyForm], data: Mapping[str, Any]) -> AnyForm:
    """Convert data to a form of this kind. Raises RequestError."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, path = str(error).partition(" - at `$")
        if message.startswith("Object contains unknown field"):
            param = path.strip("`.") or None if path else message.split("`")[1]
            raise RequestError(message, param=param, code="unsupported_parameter") from None
        param = path.strip("`.") or None
        if param:
            message = f"{param}: {message}"
        raise RequestError(message, param=param) from None


def decode_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds. Raises RequestError."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the body is not a JSON object: {error}"
        if _LONE_SURROGATE.search(body):
            message = "a text of the body has a lone surrogate, which is no character"
        raise RequestError(message, code="invalid_json") from None


def _parse_form(kind: type[AnyForm], data: Mapping[str, Any]) -> tuple[AnyForm, dict[str, Any]]:
    """Split the data of a request into its form and its settings. Raises RequestError."""
    fields: dict[str, Any] = {}  # of the form
    parameters: dict[str, Any] = {}  # settings by their names here
    aliased: dict[str, Any] = {}  # settings by other names, which take precedence
    for name, value in data.items():
        if value is None or name in _IGNORED:
            continue
        if name in _FORMATS:
            parameters |= _format_setting(name, value)
        elif name in _NEUTRAL_VALUES:
            _check_neutral(name, value)
        elif name == "chat_template_kwargs":
            parameters["template_arg"] = _template_arguments(value)
        elif name in PER_REQUEST:
            parameters[name] = value
        elif name in _ALIASES:
            aliased[_ALIASES[name]] = value
        else:
            fields[name] = value

    form = convert_form(kind, fields)
    values = {
        name: _checked_value(name, _translated_value(name, value), name)
        for name, value in {**parameters, **aliased}.items()
    }
    for name, value in getattr(form, "settings", {}).items():
        if name not in PER_REQUEST:
            hint = nearest(name, PER_REQUEST)
            raise RequestError(f"{shown(name)} cannot be set by a request", hint, "settings")
        values[name] = _checked_value(name, value, f"settings.{name}")
    return form, values


def _translated_value(name: str, value: Any) -> Any:
    """Translate the value of a parameter to the value of the setting.

    Clients of llama.cpp and ollama write -1 for any seed, and for as many tokens as there is room
    for; OpenAI's API takes a seed of any sign and size.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name == "seed":
        max_seed = int(SETTINGS[name].within[1])
        return secrets.randbelow(max_seed) if value == -1 else value & max_seed
    if name == "max_tokens" and value == -1:
        return int(SETTINGS[name].within[1])
    return value


def _template_arguments(value: Any) -> list[str]:
    """Return the variables of the chat template as the setting has them. Raises RequestError."""
    if not isinstance(value, dict):
        raise RequestError(
            f"chat_template_kwargs is {shown(value)}",
            "Give an object with the variables of the chat template.",
            "chat_template_kwargs",
        )
    return [f"{name}={msgspec.json.encode(argument).decode()}" for name, argument in value.items()]


def _format_setting(name: str, value: Any) -> dict[str, Any]:
    """Return the setting that an answer's format asks for, if any. Raises RequestError."""
    answer_format = value
    if name == "text" and isinstance(value, dict) and {*value} <= {"format"}:
        answer_format = value.get("format", {"type": "text"})
    if not isinstance(answer_format, dict):
        answer_format = {}

    kind = answer_format.get("type")
    if kind == "text":
        return {}
    schema: Any = None
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        # chat nests the schema below "json_schema"; responses has it beside "type".
        schema_holder = answer_format.get("json_schema", answer_format)
        if isinstance(schema_holder, dict):
            schema = schema_holder.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(
            f"{name} is {shown(value)}",
            "Give text, json_object, or json_schema with its schema.",
            name,
        )
    try:
        check_form("chat", Settings.of(schema=dump_json(schema, None)))
    except UsageError as error:
        raise RequestError(str(error), error.hint, name) from None
    return {"schema": schema}


def _check_neutral(name: str, value: Any) -> None:
    """Raise RequestError for a value that would change the answer; true and 1.0 are not 1."""
    if msgspec.json.encode(value) not in map(msgspec.json.encode, _NEUTRAL_VALUES[name]):
        raise RequestError(
            f"{name} is {shown(value)}, which this server does not support",
            "Leave it out.",
            name,
            "unsupported_parameter",
        )


def _checked_value(name: str, value: Any, param: str) -> Any:
    """Return the checked value of a setting.

    Args:
        name: The name of the setting.
        value: Its value in the request.
        param: Where the request has it, for the error.

    Raises:
        RequestError: The setting has no such value.
    """
    try:
        value = check_key(name, value, "the request")
    except UsageError as error:
        raise RequestError(str(error), error.hint, param) from None
    stops = value if name == "stop" else ()
    if len(stops) > _MAX_STOPS or any(not 0 < len(stop) <= _MAX_STOP_LENGTH for stop in stops):
        raise RequestError(
            f"stop is {shown(value)}",
            f"Give at most {_MAX_STOPS} texts of 1 to {_MAX_STOP_LENGTH} characters.",
            param,
        )
    return value


def _api_request(
    service: Service,
    form: _Form,
    values: dict[str, Any],
    messages: Sequence[_InputMessage],
) -> ApiRequest:
    """Return the request of a form.

    Args:
        service: The models and documents that are served.
        form: The request except for its settings and messages.
        values: The settings of the request, by name.
        messages: The conversation, with the question last.

    Raises:
        RequestError: The request asks for something that this server lacks.
        InputError: The server's documents cannot be read.
    """
    loaded = service.documents_of(form.model, form.documents)
    system, turns, question = _conversation(messages)
    if system:
        values["system"] = system
    if turns:
        task = "chat"
    else:
        task = "ask" if loaded.documents else "generate"
    prediction = ""
    if form.prediction:
        prediction = _text_of(form.prediction.content, "prediction")
    request = service.tasks.request(
        task, question, loaded=loaded, turns=turns, prediction=prediction, **values
    )

    if ":" in values.get("method", ""):
        raise RequestError(
            f"method {shown(values['method'])} has options",
            "Give only the name of a method.",
            "method",
        )
    if "method" in values or "num_draft" in values:
        _check_drafting(request.settings, service.tasks.by_name[task][0].drafting.num_draft)
    return ApiRequest(
        form.model,
        request,
        is_stream=form.stream,
        with_usage=form.stream_options.include_usage,
        refuses_truncation=form.truncation == "disabled",
    )


def _check_drafting(settings: Settings, max_nodes: int) -> None:
    """Raise RequestError for a method that a client cannot have.

    Args:
        settings: The settings of the request.
        max_nodes: The draft nodes of a step for which the server was started.
    """
    try:
        check_drafting(settings)
        method = parse_method(settings.drafting.method, draft_settings(settings))
    except (UsageError, ModelError) as error:
        raise RequestError(str(error), error.hint, "method") from None
    if method.name == "rest":  # its datastores are files of the server's user
        raise RequestError(
            "method rest reads the datastores of the server", "Choose another method.", "method"
        )
    if method.settings.num_draft > max_nodes:
        raise RequestError(
            f"num_draft is {method.settings.num_draft}",
            f"This server drafts {max_nodes} nodes at most.",
            "num_draft",
        )


def _conversation(messages: Sequence[_InputMessage]) -> tuple[str, tuple[Turn, ...], str]:
    """Return the system text, the earlier turns, and the question. Raises RequestError."""
    system_texts: list[str] = []
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        param = f"messages[{i}]"
        if message.type != "message" or message.tool_calls:
            kind = message.type if message.type != "message" else "tool call"
            raise RequestError(
                f"{param} is a {kind}", "This server has no tools.", param, "unsupported_value"
            )
        text = _text_of(message.content, param)
        if message.role in ("system", "developer"):
            system_texts.append(text)  # chat templates take a system text only as the first
        elif message.role in ("user", "assistant"):
            turns.append(Turn(message.role, text))
        else:
            raise RequestError(
                f"{param}: role is {shown(message.role)}",
                "Choose from system, developer, user, assistant.",
                param,
            )

    if turns and turns[-1].role == "assistant":
        if turns[-1].text.strip():
            raise RequestError(
                "the last message is the assistant's, and this server does not continue it",
                "Let the last message be the user's.",
                f"messages[{len(messages) - 1}]",
                "unsupported_value",
            )
        turns.pop()  # Some clients end with an empty message in the answer's place.
    if not turns or turns[-1].role != "user" or not turns[-1].text.strip():
        raise RequestError("the last message is not a user's text", "Ask something.", "messages")
    return "\n\n".join(filter(None, system_texts)), tuple(turns[:-1]), turns[-1].text


def _text_of(content: str | list[dict[str, Any]] | None, param: str) -> str:
    """Return the text of a message. Raises RequestError for other content."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type")
        text = part.get("text")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise RequestError(
                f"{param}: a part is {shown(kind)}, and the model reads only text",
                "Give parts of type text.",
                param,
                "unsupported_value",
            )
        texts.append(text)
    return "".join(texts)
