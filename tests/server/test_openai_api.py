"""The HTTP API: what clients get, and what nobody gets."""

import json
import os
import socket
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from ngtcli.server import folder as serve_folder
from ngtcli.server import http_guard
from ngtcli.server.folder import ServedFolder
from ngtcli.server.http_guard import Address, address_of
from ngtcli.server.service import Service
from tests.support.serving import CLIENT, LOCAL, RunningServer, ScriptedAnswers, Ticket

WORDS = ("The", " tide", " turns", " at", " noon", ".")
HEADERS = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


def script(question: Request, ticket: Ticket) -> Generator[Event]:
    """WORDS, or what the question says."""
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


def test_chat_with_the_openai_client(live: Live) -> None:
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


def test_responses_whole_and_streamed(live: Live) -> None:
    client = live.openai().responses
    done = client.create(model="builtin", input="think", instructions="Be short.")
    assert done.output_text == "The tide turns at noon."
    assert [item.type for item in done.output] == ["reasoning", "message"]
    assert done.status == "completed"
    assert done.usage
    assert done.usage.output_tokens == 7
    assert live.answers.last.settings.answer.system == "Be short."
    before = [{"role": "user", "content": "Hi"}, *[item.model_dump() for item in done.output[1:]]]
    turns: Any = [*before, {"role": "user", "content": [{"type": "input_text", "text": "So?"}]}]
    with client.stream(model="builtin", input=turns) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "The tide turns at noon."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert live.answers.last.turns[1].text == "The tide turns at noon."


def test_models_and_their_names(live: Live) -> None:
    assert [model.id for model in live.openai().models.list()] == ["builtin", "builtin+docs"]
    with pytest.raises(openai.NotFoundError, match="Served: builtin, builtin"):
        live.chat("Once", "gpt-4o")
    assert live.openai().models.retrieve("builtin+docs").id == "builtin+docs"
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


def test_documents_of_a_request(live: Live) -> None:
    live.chat("When?", extra_body={"documents": ["a text", {"name": "b", "text": "tide"}]})
    documents = live.answers.last.documents
    assert [(d.name, d.text) for d in documents] == [("document 1", "a text"), ("b", "tide")]
    assert live.post(documents=[{"name": "b", "text": ""}]).status_code == 400
    assert live.post(model="builtin+docs", documents=["x"]).status_code == 400


def test_a_predicted_answer(live: Live) -> None:
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
def test_what_is_wrong_or_not_here_is_refused(live: Live, more: Any, param: str) -> None:
    response = live.post(**more)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


def test_formats_of_the_answer_are_schemas_of_the_question(live: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    live.chat("When?", response_format=json_schema(schema))
    flat = {"type": "json_schema", "name": "x", "schema": schema}
    formats: list[Any] = [flat, {"type": "json_object"}, {"type": "text"}]
    for form in formats:
        done = live.openai().responses.create(model="builtin", input="?", text={"format": form})
        assert done.text is not None
        assert done.text.to_dict()["format"] == form
    asked = [question.settings.answer.schema for question, _ in live.answers.asked[-4:]]
    assert [json.loads(text or "0") for text in asked] == [schema, schema, {"type": "object"}, 0]
    with pytest.raises(openai.BadRequestError, match="recursion") as caught:
        wrong: Any = {"format": {**flat, "schema": {"$ref": "#"}}}
        live.openai().responses.create(model="builtin", input="When?", text=wrong)
    assert caught.value.param == "text"
    for text in "x", [{}], {"verbosity": "low"}, {"format": None}:
        body = json.dumps({"model": "builtin", "input": "?", "text": text}).encode()
        response = live.raw("/v1/responses", body)
        assert error_of(response)["param"] == "text"


def test_what_makes_no_difference_is_passed_over(live: Live) -> None:
    neutral = {
        "n": 1,
        "user": "me",
        "tools": None,
        "logprobs": False,
        "stream_options": None,
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
        "store": False,
    }
    assert live.post(**neutral).status_code == 200
    for newer in (
        {"max_tokens": 5, "max_completion_tokens": 9},
        {"max_completion_tokens": 9, "max_tokens": 5},
    ):
        assert live.post(**newer).status_code == 200
        assert live.answers.last.settings.answer.max_tokens == 9
    assert live.post(think="off").status_code == 200
    assert live.answers.last.settings.answer.think == "off"
    assert live.post(settings={"top_k": 5, "think": "off"}).status_code == 200
    assert live.answers.last.settings.answer.top_k == 5


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
def test_what_ordinary_clients_send_and_changes_nothing_is_accepted(
    more: dict[str, Any], live: Live
) -> None:
    assert live.post().status_code == 200
    before = live.answers.last
    assert live.post(**more).status_code == 200
    assert live.answers.last.settings == before.settings


def test_responses_accept_efforts_and_includes(live: Live) -> None:
    more = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["x"], "store": True}
    body = json.dumps({"model": "builtin", "input": "When?", **more}).encode()
    assert live.raw("/v1/responses", body).status_code == 200


def test_what_clients_of_other_servers_write_means_the_same_here(live: Live) -> None:
    seeds = set()
    for _ in range(3):
        assert live.post(seed=-1).status_code == 200
        seeds.add(live.answers.last.settings.answer.seed)
    assert len(seeds) == 3  # any seed
    assert live.post(seed=-2).status_code == 200 == live.post(seed=2**70).status_code
    assert live.post(max_tokens=-1).status_code == 200
    assert live.answers.last.settings.answer.max_tokens == 10**6
    assert live.post(repeat_penalty=1.1).status_code == 200
    assert live.answers.last.settings.answer.repetition_penalty == 1.1
    assert live.post(chat_template_kwargs={"enable_thinking": False, "x": "a"}).status_code == 200
    assert live.answers.last.settings.answer.template_arg == ("enable_thinking=false", 'x="a"')


def test_system_messages_stand_first_wherever_they_come(live: Live) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "c"},
    ]
    assert live.post(messages=messages).status_code == 200
    asked = live.answers.last
    assert asked.settings.answer.system == "Be kind.\n\nBe brief."
    assert asked.question == "c"
    assert [(turn.role, turn.text) for turn in asked.turns] == [("user", "a"), ("assistant", "b")]


def test_an_answer_that_is_begun_is_not_continued(live: Live) -> None:
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Sure,"}]
    error = error_of(live.post(messages=begun))
    assert "does not continue it" in error["message"]
    assert error["param"] == "messages[1]"
    begun[1]["content"] = ""  # where the answer is to come
    assert live.post(messages=begun).status_code == 200


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
def test_what_would_change_the_answer_is_refused(more: dict[str, Any], live: Live) -> None:
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
@pytest.mark.parametrize("way", ["response_format", "settings", "text"])
def test_no_schema_ends_the_server(bounds: dict[str, Any], way: str, live: Live) -> None:
    kind = "string" if "pattern" in bounds else "integer"
    schema = {
        "type": "object",
        "properties": {"i": {"type": kind, **bounds}},
        "required": ["i"],
    }
    if way == "text":
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        body = json.dumps({"model": "builtin", "input": "?", "text": text}).encode()
        response = live.raw("/v1/responses", body)
    elif way == "settings":
        response = live.post(settings={"schema": schema})
    else:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = live.post(response_format=form)
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


def test_an_answer_that_breaks_says_so(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="it broke"):
        live.chat("breaks")
    with pytest.raises(openai.APIError, match="it broke"):
        list(live.chat("breaks", stream=True))
    events = list(live.openai().responses.create(model="builtin", input="breaks", stream=True))
    assert events[-1].type == "response.failed"


def test_errors_name_no_flags_and_repeat_no_values(live: Live) -> None:
    long = error_of(live.post(messages=messages_of("too long")))["message"]
    assert long == (
        'the prompt has 9 tokens. Use "settings": {"overflow": "truncate"} to cut them, or name a'
        " model with a longer context."
    )
    assert error_of(live.post(messages=messages_of("breaks")))["message"] == "it broke"
    assert (
        "-" not in error_of(live.post(documents=["x"], settings={"overflow": "split"}))["message"]
    )
    field = error_of(live.post(settings={"field": "a"}))["message"]
    assert "'field' cannot be set" in field
    assert "mean field" not in field


def test_control_characters_are_shown_as_in_a_pipe(live: Live) -> None:
    whole = live.post(messages=messages_of("control")).json()
    assert whole["choices"][0]["message"]["content"] == "The tide\u241b]0;pwned\u2407 at noon."
    for path in (CHAT, "/v1/responses"):
        asks = {"input": "control"} if "responses" in path else {"messages": messages_of("control")}
        body = json.dumps({"model": "builtin", "stream": True, **asks}).encode()
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
    """Reads documents once it may `go_on`."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.calls = 0
        self._load = serve_folder.load

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.go_on.wait(60)
        return self._load(*arguments, **more)


def test_the_user_of_a_connection_is_looked_up_once_and_holds_up_no_other(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tens of thousands of connections it takes long, and must not hold up others."""
    begun = threading.Event()
    go_on = threading.Event()
    calls = list[Any]()

    def user_of(*ends: Any) -> int:
        calls.append(ends)
        if not begun.is_set():  # the first look-up takes long
            begun.set()
            assert go_on.wait(60)
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
        go_on.set()
        assert waiting.result(60).status_code == 200
    assert len(calls) == 2


def test_many_who_wait_for_the_documents_hold_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    folder = ServedFolder([str(tmp_path)], Settings())
    with pytest.MonkeyPatch.context() as patch:
        slow_load = SlowLoad()
        patch.setattr("ngtcli.server.folder.load", slow_load)
        served = Live(folder)
        with httpx.Client(verify=False, timeout=60) as client, ThreadPoolExecutor(60) as threads:
            waiting = [threads.submit(client.get, f"{served.url}/documents") for _ in range(50)]
            assert slow_load.begun.wait(60)
            assert served.post().status_code == 200  # it needs none of them
            slow_load.go_on.set()
            assert {response.result(60).status_code for response in waiting} == {200}
    served.close()
    folder.close()
    assert slow_load.calls == 1


def test_pages_of_other_origins_and_other_names_are_refused(live: Live) -> None:
    url = f"{live.url}/v1/models"
    port = int(live.url.rsplit(":")[-1])
    for host in ("evil.example", f"evil.example:{port}", "", "127.0.0.1.evil.example", "[::1"):
        assert CLIENT.get(url, headers={"host": host}).status_code == 403, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]"):
        assert CLIENT.get(url, headers={"host": host}).status_code == 200, host
    own_origin = f"http://127.0.0.1:{port}"
    assert CLIENT.get(url, headers={"origin": own_origin}).status_code == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}"):
        response = CLIENT.get(url, headers={"origin": origin})
        assert error_of(response)["code"] == "wrong_origin"
        assert "access-control-allow-origin" not in response.headers
    assert CLIENT.get(url, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


def test_only_clients_with_a_key_are_answered(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    secret = "k" * 32
    keys.write_text(f"{secret}\n{'l' * 32}\n")
    keys.chmod(0o644)
    with pytest.raises(UsageError, match="other users"):
        address_of("8421", "0.0.0.0", keys)
    keys.chmod(0o600)
    with pytest.raises(UsageError, match="lets other machines in"):
        address_of("8421", "0.0.0.0", None)
    with pytest.raises(UsageError, match="not a loopback address"):
        address_of("0.0.0.0:8421", None, keys)
    live = Live(None, address_of("0", "0.0.0.0", keys))
    try:
        assert CLIENT.get(f"{live.url}/health").json() == {"status": "ok"}
        for key in ("", "Bearer", "Bearer x", f"Basic {secret}", f"Bearer {secret}x"):
            response = CLIENT.get(f"{live.url}/v1/models", headers={"authorization": key})
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
        for key in (secret, "l" * 32):
            create = live.openai(api_key=key).chat.completions.create
            create(model="builtin", messages=messages_of("Once"))
        first, second = [owner for _, owner in live.answers.asked]
        assert first.startswith("http:")
        assert second.startswith("http:")
        assert first != second
        assert secret not in first
    finally:
        live.close()
    keys.write_text("short\n")
    with pytest.raises(UsageError, match="16 ASCII"):
        address_of("8421", "0.0.0.0", keys)


# --- leaving, and counting ---


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_generation(live: Live, stream: bool) -> None:
    body = {"model": "builtin", "messages": messages_of("for ever"), "stream": stream}
    with pytest.raises(httpx.ReadTimeout if not stream else _Left):
        patience = httpx.Timeout(60, read=60 if stream else 0.3)
        with CLIENT.stream("POST", live.url + CHAT, json=body, timeout=patience) as response:
            for line in response.iter_lines():
                if line:
                    raise _Left
    assert live.answers.ended.wait(10)


class _Left(Exception):
    """A client that has seen enough."""


def test_unreadable_documents_tell_no_path(live: Live, tmp_path: Path) -> None:
    gone = Live(ServedFolder([str(tmp_path / "gone")], Settings()))
    try:
        response = gone.post(model="builtin+docs")
        assert response.status_code == 500
        assert str(tmp_path) not in response.text
        assert error_of(response)["code"] == "documents_unreadable"
        assert "gone" in gone.warned[0]
    finally:
        gone.close()
