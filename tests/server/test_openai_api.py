"""The HTTP API of OpenAI: answers, refusals, who may ask, and clients that leave."""

import json
import os
import socket
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ngtcli.config import Settings
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.drafting.steps import Statistics, Step, Token
from ngtcli.engine.events import Ended, Event, Prompted, Started, Stepped
from ngtcli.engine.request import Request, Tasks
from ngtcli.errors import ContextOverflowError, UsageError
from ngtcli.prompts.preset import load_preset
from ngtcli.server import folder, http_guard
from ngtcli.server.folder import ServedFolder
from ngtcli.server.http_guard import Address, address_of
from ngtcli.server.service import Service
from tests.support.serving import CLIENT, LOCAL, RunningServer, ScriptedAnswers, Ticket

WORDS = ("The", " tide", " turns", " at", " noon", ".")
HEADERS = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


def script(question: Request, ticket: Ticket) -> Generator[Event]:
    """Answer with WORDS, or in the way that words of the question ask for."""
    if "too long" in question.question:
        hint = "Use --overflow truncate to cut them, or name a model with a longer context (-m)."
        raise ContextOverflowError("the prompt has 9 tokens", hint=hint)
    yield Prompted(11)
    if "breaks" in question.question:
        raise UsageError("it broke", hint="Leave --think out.")
    yield Started()
    tokens = [Token(i, word, "prompt" if i else "model") for i, word in enumerate(WORDS)]
    if "think" in question.question:
        tokens.insert(0, Token(9, "", "model", "So."))
    while "for ever" in question.question:
        ticket.cancelled.wait(0.01)
        yield Stepped(Step((tokens[1],)))
    if "control" in question.question:
        tokens[2] = Token(2, "\x1b]0;pwned\x07")
    steps = [Step(tuple(tokens[:3]), nodes=4), Step(tuple(tokens[3:]), "stop", nodes=3)]
    for step in steps:
        yield Stepped(step)
    statistics = Statistics(
        prompt_tokens=11,
        new_tokens=len(tokens),
        steps=2,
        drafted_tokens=7,
        accepted_tokens=4,
        prefill_s=0.5,
        decode_s=0.25,
    )
    statistics.acceptance_histogram.update([1, 3])
    text = "".join(token.text for token in tokens)
    sources = sources_of(text, question.documents)
    yield Ended(finish_reason="stop", steps=tuple(steps), statistics=statistics, sources=sources)


class Live(RunningServer):
    """A server on the scripted answers, and clients of it."""

    answers: ScriptedAnswers

    def __init__(self, folder: ServedFolder | None, address: Address = LOCAL) -> None:
        presets = {"chat": "chat", "generate": "chat", "ask": "ask"}
        tasks = Tasks({task: (Settings(), load_preset(name)) for task, name in presets.items()})
        super().__init__(ScriptedAnswers(script), Service("builtin", tasks, folder), address)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":")[-1])

    def openai(self, **more: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "http_client": CLIENT, **more}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def chat(self, text: str, model: str = "builtin", **more: Any) -> Any:
        """What the client gets for one message."""
        completions = self.openai().chat.completions
        return completions.create(model=model, messages=messages_of(text), **more)

    def post(self, path: str = CHAT, **more: Any) -> httpx.Response:
        body = {"model": "builtin", "messages": messages_of("When?"), **more}
        return self.raw(path, json.dumps(body).encode())

    def raw(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        more_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return CLIENT.post(self.url + path, content=body, headers={**HEADERS, **more_headers})


def json_schema(schema: Any) -> Any:
    """The format of an answer by a schema."""
    named_schema = {"name": "x", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named_schema}


def messages_of(text: str) -> Any:
    """The messages of a question."""
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("served")
    (root / "deep").mkdir()
    (root / "deep" / "tides.txt").write_text("At the pier the tide turns at noon. Bring boots.")
    server = Live(ServedFolder([str(root)], Settings()))
    yield server
    server.close()


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- the openai client ---


def test_a_chat_completion_has_the_text_the_usage_and_the_timings(live: Live) -> None:
    done = live.openai().chat.completions.create(
        model="builtin",
        seed=3,
        temperature=0.5,
        max_tokens=40,
        stop=["\n"],
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        ],
    )
    assert done.choices[0].message.content == "The tide turns at noon."
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.total_tokens == 17
    assert done.usage.prompt_tokens_details
    assert done.usage.prompt_tokens_details.cached_tokens == 0
    question, owner = live.answers.asked[-1]
    assert question.task == "chat"
    assert question.question == "When?"
    assert owner == "http"
    assert [(turn.role, turn.text) for turn in question.turns] == [
        ("user", "Hello"),
        ("assistant", "Hello!"),
    ]
    answer = question.settings.answer
    assert answer.system == "Be short."
    assert answer.seed == 3
    assert answer.temperature == 0.5
    assert answer.stop == ("\n",)
    assert answer.max_tokens == 40
    assert done.model_extra is not None
    assert done.model_extra["timings"] == {
        "cache_n": 0,
        "prompt_n": 11,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 500 / 11,
        "prompt_per_second": 22.0,
        "predicted_n": 6,
        "predicted_ms": 250.0,
        "predicted_per_token_ms": 250 / 6,
        "predicted_per_second": 24.0,
        "draft_n": 7,
        "draft_n_accepted": 4,
    }


def test_a_streamed_chat_has_the_same_text_and_the_usage_at_its_end(live: Live) -> None:
    chunks = list(live.chat("think", stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "The tide turns at noon."
    assert [d.model_extra["reasoning_content"] for d in deltas if d.model_extra] == ["So."]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7
    assert chunks[-1].model_extra
    assert chunks[-1].model_extra["timings"]["draft_n"] == 7
    assert not any(chunk.usage for chunk in chunks[:-1])


def test_a_response_has_the_reasoning_and_the_message(live: Live) -> None:
    client = live.openai().responses
    done = client.create(model="builtin", input="think", instructions="Be short.")
    assert done.output_text == "The tide turns at noon."
    assert [item.type for item in done.output] == ["reasoning", "message"]
    assert done.status == "completed"
    assert done.usage
    assert done.usage.output_tokens == 7
    assert live.answers.last.settings.answer.system == "Be short."


def test_a_response_is_streamed_in_the_events_of_openai(live: Live) -> None:
    with live.openai().responses.stream(model="builtin", input="So?") as stream:
        events = list(stream)
        response = stream.get_final_response()
    assert response.output_text == "The tide turns at noon."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_the_message_of_a_response_is_a_turn_of_the_next_request(live: Live) -> None:
    client = live.openai().responses
    (message,) = client.create(model="builtin", input="Hi").output
    turns: Any = [
        {"role": "user", "content": "Hi"},
        message.model_dump(),
        {"role": "user", "content": [{"type": "input_text", "text": "So?"}]},
    ]
    client.create(model="builtin", input=turns)
    request = live.answers.last
    assert request.question == "So?"
    assert [turn.text for turn in request.turns] == ["Hi", "The tide turns at noon."]


def test_the_model_and_the_model_with_the_folder_are_listed(live: Live) -> None:
    assert [model.id for model in live.openai().models.list()] == ["builtin", "builtin+docs"]
    assert live.openai().models.retrieve("builtin+docs").id == "builtin+docs"


def test_an_unknown_model_is_refused(live: Live) -> None:
    with pytest.raises(openai.NotFoundError, match="Served: builtin, builtin"):
        live.chat("Once", "gpt-4o")
    assert error_of(CLIENT.get(f"{live.url}/v1/models/x"))["code"] == "model_not_found"


def test_the_folder_answers_with_its_sources(live: Live) -> None:
    done = live.chat("When?", "builtin+docs")
    question = live.answers.last
    assert question.task == "ask"
    assert question.settings.retrieval.overflow == "retrieve"
    assert [d.name for d in question.documents] == ["deep/tides.txt"]
    annotations: Any = done.choices[0].message.model_dump()["annotations"]
    assert annotations[0]["type"] == "file_citation"
    cited = annotations[0]["file_citation"]
    assert cited["filename"] == "deep/tides.txt"
    assert cited["page"] is None
    assert "tide turns at noon" in cited["quote"]
    text = done.choices[0].message.content or ""
    assert "tide turns at noon" in text[cited["start_index"] : cited["end_index"]]
    answer = live.openai().responses.create(model="builtin+docs", input="When?")
    content: Any = answer.output[0]
    assert content.content[0].annotations[0].filename == "deep/tides.txt"


def test_a_request_may_bring_documents(live: Live) -> None:
    live.chat("When?", extra_body={"documents": ["a text", {"name": "b", "text": "tide"}]})
    contents = {document.name: document.text for document in live.answers.last.documents}
    assert contents == {"document 1": "a text", "b": "tide"}


def test_empty_documents_and_documents_beside_the_folder_are_refused(live: Live) -> None:
    assert live.post(documents=[{"name": "b", "text": ""}]).status_code == 400
    assert live.post(model="builtin+docs", documents=["x"]).status_code == 400


def test_a_request_may_predict_its_answer(live: Live) -> None:
    predicted = {"type": "content", "content": [{"type": "text", "text": "At noon"}]}
    assert live.post(prediction=predicted).status_code == 200
    assert live.answers.last.prediction == "At noon"


# --- errors ---


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.0}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"seed": True}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"colour": "red"}, "colour"),
        ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, "prediction"),
        ({"settings": {"model": "other"}}, "settings"),
        ({"schema": "a foo"}, "schema"),
        ({"response_format": "json"}, "response_format"),
        *(
            ({"response_format": wrong_format}, "response_format")
            for wrong_format in (
                [],
                {"type": "yaml"},
                {"type": "json_schema", "json_schema": {}},
                {"type": "json_schema", "json_schema": "x"},
            )
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format",
        ),
        ({"response_format": {"type": "json_object"}, "stop": "}"}, "schema"),
        (
            {"response_format": json_schema({"type": "array", "items": {"$ref": "#"}})},
            "response_format",
        ),
        ({"settings": {"system": "@/etc/passwd"}}, "settings.system"),
        ({"settings": {"top_k": "x"}}, "settings.top_k"),
        ({"settings": {"template_arg": ["/etc"]}}, "template_arg"),
        ({"documents": ["a"] * 10_001}, "documents"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "too long"}]}, "messages"),
    ],
)
def test_an_invalid_or_unsupported_parameter_is_refused(live: Live, more: Any, param: str) -> None:
    response = live.post(**more)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA_FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}


def test_the_format_of_a_chat_is_a_schema_of_the_request(live: Live) -> None:
    live.chat("When?", response_format=json_schema(SCHEMA))
    assert json.loads(live.answers.last.settings.answer.schema) == SCHEMA


@pytest.mark.parametrize(
    ("text_format", "schema"),
    [
        (SCHEMA_FORMAT, json.dumps(SCHEMA)),
        ({"type": "json_object"}, '{"type": "object"}'),
        ({"type": "text"}, ""),
    ],
)
def test_the_format_of_a_response_is_a_schema_of_the_request(
    text_format: Any, schema: str, live: Live
) -> None:
    response = live.openai().responses.create(
        model="builtin", input="?", text={"format": text_format}
    )
    assert response.text is not None
    assert response.text.to_dict()["format"] == text_format
    assert live.answers.last.settings.answer.schema == schema


def test_a_recursive_schema_of_a_response_is_refused(live: Live) -> None:
    recursive: Any = {"format": {**SCHEMA_FORMAT, "schema": {"$ref": "#"}}}
    with pytest.raises(openai.BadRequestError, match="recursion") as raised:
        live.openai().responses.create(model="builtin", input="When?", text=recursive)
    assert raised.value.param == "text"


@pytest.mark.parametrize("text", ["x", [{}], {"verbosity": "low"}, {"format": None}])
def test_an_invalid_text_of_a_response_is_refused(text: Any, live: Live) -> None:
    body = json.dumps({"model": "builtin", "input": "?", "text": text}).encode()
    response = live.raw("/v1/responses", body)
    assert error_of(response)["param"] == "text"


def test_parameters_with_their_default_values_are_accepted(live: Live) -> None:
    defaults = {
        "n": 1,
        "user": "me",
        "tools": None,
        "logprobs": False,
        "stream_options": None,
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
        "store": False,
    }
    assert live.post(**defaults).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 5, "max_completion_tokens": 9},
        {"max_completion_tokens": 9, "max_tokens": 5},
    ],
)
def test_max_completion_tokens_is_preferred_to_max_tokens(body: dict[str, Any], live: Live) -> None:
    assert live.post(**body).status_code == 200
    assert live.answers.last.settings.answer.max_tokens == 9


def test_settings_of_ngt_may_be_members_of_the_body_or_of_settings(live: Live) -> None:
    assert live.post(think="off").status_code == 200
    assert live.answers.last.settings.answer.think == "off"

    assert live.post(settings={"top_k": 5, "think": "off"}).status_code == 200
    assert live.answers.last.settings.answer.top_k == 5
    assert live.answers.last.settings.answer.think == "off"


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_effort": "low"},
        {"store": True},
        {"service_tier": "auto"},
        {"keep_alive": "5m"},
        {"cache_prompt": True, "id_slot": -1, "timings_per_token": True},
        {"tool_choice": "auto", "parallel_tool_calls": True, "tools": []},
        {"mirostat": 0},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"typical_p": 1.0, "tfs_z": 1, "ignore_eos": False, "best_of": 1},
    ],
)
def test_parameters_without_effect_that_clients_send_are_accepted(
    more: dict[str, Any], live: Live
) -> None:
    assert live.post().status_code == 200
    before = live.answers.last
    assert live.post(**more).status_code == 200
    assert live.answers.last.settings == before.settings


def test_responses_accept_parameters_without_effect(live: Live) -> None:
    more = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["x"], "store": True}
    body = json.dumps({"model": "builtin", "input": "When?", **more}).encode()
    assert live.raw("/v1/responses", body).status_code == 200


def test_a_seed_of_minus_one_is_a_random_seed(live: Live) -> None:
    seeds = set()
    for _ in range(3):
        assert live.post(seed=-1).status_code == 200
        seeds.add(live.answers.last.settings.answer.seed)
    assert len(seeds) == 3


@pytest.mark.parametrize("seed", [-2, 2**70])
def test_any_integer_is_a_seed(seed: int, live: Live) -> None:
    assert live.post(seed=seed).status_code == 200


@pytest.mark.parametrize(
    ("body", "setting", "value"),
    [
        ({"max_tokens": -1}, "max_tokens", 10**6),
        ({"repeat_penalty": 1.1}, "repetition_penalty", 1.1),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "x": "a"}},
            "template_arg",
            ("enable_thinking=false", 'x="a"'),
        ),
    ],
)
def test_parameters_of_other_servers_are_settings(
    body: dict[str, Any], setting: str, value: Any, live: Live
) -> None:
    assert live.post(**body).status_code == 200
    assert live.answers.last.settings.get(setting) == value


def test_system_messages_are_joined_wherever_they_come(live: Live) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "c"},
    ]
    assert live.post(messages=messages).status_code == 200
    request = live.answers.last
    assert request.settings.answer.system == "Be kind.\n\nBe brief."
    assert request.question == "c"
    turns = [(turn.role, turn.text) for turn in request.turns]
    assert turns == [("user", "a"), ("assistant", "b")]


def test_the_beginning_of_an_answer_is_refused(live: Live) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Sure,"}]
    error = error_of(live.post(messages=messages))
    assert "does not continue it" in error["message"]
    assert error["param"] == "messages[1]"


def test_an_empty_last_message_stands_for_the_answer(live: Live) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]
    assert live.post(messages=messages).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"logprobs": True},
        {"tools": [{"type": "function"}]},
        {"logit_bias": {"1": 5}},
        {"typical_p": 0.9},
        {"mirostat": 2},
        {"max_tokens": -2},
        {"max_tokens": 0},
        {"chat_template_kwargs": "x"},
        {"previous_response_id": "x"},
        {"verbosity": "low"},
        {"ignore_eos": True},
        {"n": True},
    ],
)
def test_an_unsupported_parameter_that_changes_the_answer_is_refused(
    more: dict[str, Any], live: Live
) -> None:
    response = live.post(**more)
    assert response.status_code == 400
    assert error_of(response)["param"] == next(iter(more))


HOSTILE_SCHEMAS: list[Any] = [
    {"maximum": -9223372036854775808},
    {"exclusiveMaximum": -9223372036854775808},
    {"minimum": -(10**25), "maximum": -(10**24)},
    {"minimum": 10**30},
    {"pattern": "("},
    {"multipleOf": 7, "minimum": 8, "maximum": 13},
]


@pytest.mark.parametrize("bounds", HOSTILE_SCHEMAS)
@pytest.mark.parametrize("member", ["response_format", "settings", "text"])
def test_no_schema_ends_the_server(bounds: dict[str, Any], member: str, live: Live) -> None:
    field_type = "string" if "pattern" in bounds else "integer"
    schema = {
        "type": "object",
        "properties": {"i": {"type": field_type, **bounds}},
        "required": ["i"],
    }
    if member == "text":
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        body = json.dumps({"model": "builtin", "input": "?", "text": text}).encode()
        response = live.raw("/v1/responses", body)
    elif member == "settings":
        response = live.post(settings={"schema": schema})
    else:
        response = live.post(response_format=json_schema(schema))
    assert response.status_code == 400
    assert error_of(response)["message"]
    assert live.post().status_code == 200


def test_what_is_no_body_of_a_request_is_refused(live: Live) -> None:
    bodies = b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": "\xff"}', b"[" * 100_000
    for body in bodies:
        assert error_of(live.raw(CHAT, body))["code"] == "invalid_json"
    for half in (b"\\ud800", b"\\udc00", b"\\ud800\\u0041"):
        error = error_of(live.raw(CHAT, b'{"model": "' + half + b'"}'))
        assert error["code"] == "invalid_json"
        assert "lone surrogate" in error["message"]
    assert live.raw(CHAT, b"{}", content_type="text/plain").status_code == 415
    assert error_of(live.raw(CHAT, b" " * 8_000_001))["code"] == "too_large"
    assert error_of(CLIENT.get(live.url + CHAT))["code"] == "unknown_url"
    assert CLIENT.get(live.url + "/v2").status_code == 404


def test_an_error_in_the_middle_of_an_answer_is_reported(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="it broke"):
        live.chat("breaks")
    with pytest.raises(openai.APIError, match="it broke"):
        list(live.chat("breaks", stream=True))
    events = list(live.openai().responses.create(model="builtin", input="breaks", stream=True))
    assert events[-1].type == "response.failed"


def test_errors_name_no_flags_and_repeat_no_values(live: Live) -> None:
    def message_of(**body: Any) -> str:
        message: str = error_of(live.post(**body))["message"]
        return message

    assert message_of(messages=messages_of("too long")) == (
        'the prompt has 9 tokens. Use "settings": {"overflow": "truncate"} to cut them, or name a'
        " model with a longer context."
    )
    assert message_of(messages=messages_of("breaks")) == "it broke"
    assert "-" not in message_of(documents=["x"], settings={"overflow": "split"})
    message = message_of(settings={"field": "a"})
    assert "'field' cannot be set" in message
    assert "mean field" not in message


def test_control_characters_of_an_answer_are_replaced(live: Live) -> None:
    completion = live.post(messages=messages_of("control")).json()
    content = completion["choices"][0]["message"]["content"]
    assert content == "The tide\u241b]0;pwned\u2407 at noon."


@pytest.mark.parametrize(
    ("path", "question"),
    [(CHAT, {"messages": messages_of("control")}), ("/v1/responses", {"input": "control"})],
)
def test_control_characters_of_a_stream_are_replaced(
    path: str, question: dict[str, Any], live: Live
) -> None:
    body = json.dumps({"model": "builtin", "stream": True, **question}).encode()
    streamed = live.raw(path, body).text
    assert "pwned" in streamed
    assert "u001b" not in streamed


# --- who may ask ---


def test_without_keys_another_user_is_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLIENT.get(f"{live.url}/health").status_code == 200
    monkeypatch.setattr(http_guard, "user_of", lambda *ends: os.geteuid() + 1)
    with httpx.Client(verify=False) as other:  # of another process, with a connection of its own
        for path in ("/", "/documents", "/v1/models", "/health"):
            response = other.get(live.url + path)
            assert response.status_code == 403
            assert error_of(response)["code"] == "wrong_user"


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs Linux")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_user_who_opened_a_connection_is_known(family: socket.AddressFamily) -> None:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((host, 0), family=family) as listening:
        assert http_guard.knows_users(listening)
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as client, listening.accept()[0] as accepted:
            ends = client.getsockname()[:2], accepted.getsockname()[:2]
            assert http_guard.user_of(*ends) == os.geteuid()
        assert http_guard.user_of(("127.0.0.1", 1), ("127.0.0.1", port)) is None
    with socket.socket(socket.AF_INET6) as mapped, socket.create_server(("127.0.0.1", 0)) as ipv4:
        mapped.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        mapped.connect(("::ffff:127.0.0.1", ipv4.getsockname()[1]))
        with ipv4.accept()[0] as accepted:
            ends = accepted.getpeername(), accepted.getsockname()
            assert http_guard.user_of(*ends) == os.geteuid()


def test_a_connection_that_its_process_has_closed_is_nobodys() -> None:
    """Linux lists it as root's: a server of root would take another user's request for its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        ends = client.getsockname(), client.getpeername()
        client.close()
        with accepted:
            assert http_guard.user_of(*ends) is None


class SlowLoad:
    """A function that reads documents once `may_continue` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_continue = threading.Event()
        self.calls = 0
        self._load = folder.load

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.may_continue.wait(60)
        return self._load(*arguments, **options)


def test_the_user_of_a_connection_is_looked_up_once_while_other_requests_are_answered(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tens of thousands of connections the look-up takes long."""
    begun = threading.Event()
    may_continue = threading.Event()
    calls: list[Any] = []

    def user_of(*ends: Any) -> int:
        calls.append(ends)
        if not begun.is_set():  # The first look-up takes long.
            begun.set()
            assert may_continue.wait(60)
        return os.geteuid()

    monkeypatch.setattr(http_guard, "user_of", user_of)
    with (
        httpx.Client(verify=False) as first,
        httpx.Client(verify=False) as other,
        ThreadPoolExecutor() as threads,
    ):
        waiting = threads.submit(first.get, f"{live.url}/health")
        assert begun.wait(60)
        for _ in range(3):
            assert other.get(f"{live.url}/health", timeout=30).status_code == 200
        may_continue.set()
        assert waiting.result(60).status_code == 200
    assert len(calls) == 2


def test_a_question_without_documents_does_not_wait_for_those_that_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    slow_load = SlowLoad()
    monkeypatch.setattr(folder, "load", slow_load)
    served = ServedFolder([str(tmp_path)], Settings())
    with closing(served), closing(Live(served)) as server:
        with httpx.Client(verify=False, timeout=60) as client, ThreadPoolExecutor(60) as threads:
            waiting = [threads.submit(client.get, f"{server.url}/documents") for _ in range(50)]
            assert slow_load.begun.wait(60)
            assert server.post().status_code == 200
            slow_load.may_continue.set()
            assert {response.result(60).status_code for response in waiting} == {200}
    assert slow_load.calls == 1


def get_models(live: Live, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return CLIENT.get(f"{live.url}/v1/models", headers=named)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "", "127.0.0.1.evil.example", "[::1"]
)
def test_a_request_for_another_host_is_refused(host: str, live: Live) -> None:
    assert get_models(live, host=host.format(port=live.port)).status_code == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]"])
def test_a_request_for_this_host_is_answered(host: str, live: Live) -> None:
    assert get_models(live, host=host.format(port=live.port)).status_code == 200


def test_a_request_with_two_hosts_is_refused(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_a_request_of_the_servers_own_page_is_answered(live: Live) -> None:
    assert get_models(live, origin=f"http://127.0.0.1:{live.port}").status_code == 200


def test_a_request_of_another_page_is_refused(live: Live) -> None:
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{live.port + 1}"):
        response = get_models(live, origin=origin)
        assert error_of(response)["code"] == "wrong_origin"
        assert "access-control-allow-origin" not in response.headers
    assert get_models(live, sec_fetch_site="cross-site").status_code == 403


FIRST_KEY = "k" * 32
SECOND_KEY = "l" * 32


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{FIRST_KEY}\n{SECOND_KEY}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def live_with_keys(key_file: Path) -> Iterator[Live]:
    with closing(Live(None, address_of("0", "0.0.0.0", key_file))) as live:
        yield live


def test_a_key_file_that_other_users_can_read_is_refused(key_file: Path) -> None:
    key_file.chmod(0o644)
    with pytest.raises(UsageError, match="other users"):
        address_of("8421", "0.0.0.0", key_file)


def test_a_key_file_with_a_short_key_is_refused(key_file: Path) -> None:
    key_file.write_text("short\n")
    with pytest.raises(UsageError, match="16 ASCII"):
        address_of("8421", "0.0.0.0", key_file)


def test_an_address_of_other_machines_needs_keys_and_an_own_flag(key_file: Path) -> None:
    with pytest.raises(UsageError, match="lets other machines in"):
        address_of("8421", "0.0.0.0", None)
    with pytest.raises(UsageError, match="not a loopback address"):
        address_of("0.0.0.0:8421", None, key_file)


def test_health_is_answered_without_a_key(live_with_keys: Live) -> None:
    assert CLIENT.get(f"{live_with_keys.url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer x", f"Basic {FIRST_KEY}", f"Bearer {FIRST_KEY}x"]
)
def test_a_request_without_a_key_is_refused(authorization: str, live_with_keys: Live) -> None:
    response = get_models(live_with_keys, authorization=authorization)
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"


def test_each_key_is_an_owner_whose_name_does_not_reveal_it(live_with_keys: Live) -> None:
    for key in (FIRST_KEY, SECOND_KEY):
        completions = live_with_keys.openai(api_key=key).chat.completions
        completions.create(model="builtin", messages=messages_of("Once"))

    first, second = [owner for _, owner in live_with_keys.answers.asked]
    assert first.startswith("http:")
    assert second.startswith("http:")
    assert first != second
    assert FIRST_KEY not in first


# --- leaving, and counting ---


def test_an_answer_ends_when_the_client_of_its_stream_leaves(live: Live) -> None:
    body = {"model": "builtin", "messages": messages_of("for ever"), "stream": True}
    with CLIENT.stream("POST", live.url + CHAT, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                break
    assert live.answers.ended.wait(10)


def test_an_answer_ends_when_its_client_waits_no_longer(live: Live) -> None:
    body = {"model": "builtin", "messages": messages_of("for ever")}
    with pytest.raises(httpx.ReadTimeout):
        CLIENT.post(live.url + CHAT, json=body, timeout=httpx.Timeout(60, read=0.3))
    assert live.answers.ended.wait(10)


def test_the_error_about_unreadable_documents_hides_their_path(tmp_path: Path) -> None:
    with closing(Live(ServedFolder([str(tmp_path / "gone")], Settings()))) as live:
        response = live.post(model="builtin+docs")
        assert response.status_code == 500
        assert error_of(response)["code"] == "documents_unreadable"
        assert str(tmp_path) not in response.text
        assert "gone" in live.warned[0]
