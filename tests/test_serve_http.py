"""The HTTP API: what clients get, and what nobody gets."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ngtcli.config import Settings
from ngtcli.draft.steps import Statistics, Step, Token
from ngtcli.errors import ContextOverflowError, NgtError, UsageError
from ngtcli.grounding.sources import sources_of
from ngtcli.prompt.preset import load_preset
from ngtcli.serve.folder import ServedFolder
from ngtcli.serve.http import HttpServer, OpenAi, listen
from ngtcli.serve.http_guard import Address, address_of
from ngtcli.serve.openai_requests import Service
from ngtcli.session.events import Ended, Event, Prompted, Started, Stepped
from ngtcli.session.question import Question
from tests.support.helpers import wait_until

WORDS = ("The", " tide", " turns", " at", " noon", ".")
HEAD = {"content-type": "application/json"}
CLIENT = httpx.Client(verify=False)  # reading certificates takes long


@dataclass
class Scripted:
    """Answers every question with WORDS, or as it says; notes what was asked and cancelled."""

    asked: list[tuple[Question, str]] = field(default_factory=list)
    steps: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def submit(
        self, question: Question, on_event: Callable[[Event | NgtError], None],
        *, owner: str = "", wants: Any = None,
    ) -> "Scripted":  # fmt: skip
        self.asked.append((question, owner))
        self.cancelled.clear()
        threading.Thread(target=self._answer, args=(question, on_event), daemon=True).start()
        return self

    def cancel(self) -> None:
        self.cancelled.set()

    def _answer(self, question: Question, tell: Callable[[Event | NgtError], None]) -> None:
        if "too long" in question.question:
            return tell(ContextOverflowError("the prompt has 9 tokens", "Shorten it."))
        tell(Prompted(11))
        if "breaks" in question.question:
            return tell(UsageError("it broke"))
        tell(Started())
        tokens = [Token(i, word, "prompt" if i else "model") for i, word in enumerate(WORDS)]
        if "think" in question.question:
            tokens.insert(0, Token(9, "", "model", "So."))
        self.steps = 0
        if "for ever" in question.question:
            while not self.cancelled.wait(0.01):
                self.steps += 1
                tell(Stepped(Step((tokens[1],))))
            return None
        steps = [Step(tuple(tokens[:3]), nodes=4), Step(tuple(tokens[3:]), "stop", nodes=3)]
        for step in steps:
            tell(Stepped(step))
        done = Statistics(prompt_tokens=11, new_tokens=len(tokens), steps=2, drafted_tokens=7)
        done.accepted_tokens, done.prefill_s, done.decode_s = 4, 0.5, 0.25
        done.acceptance_histogram.update([1, 3])
        text = "".join(token.text for token in tokens)
        found = sources_of(text, question.documents)
        tell(Ended(finish_reason="stop", steps=tuple(steps), statistics=done, sources=found))
        return None


@dataclass
class Live:
    """A server that runs, and clients of it."""

    server: HttpServer
    port: int
    asked: Scripted
    warned: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, **more: Any) -> openai.OpenAI:
        own = {"api_key": "none", "max_retries": 0, "http_client": CLIENT, **more}
        return openai.OpenAI(base_url=f"{self.url}/v1", **own)

    def post(self, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        body = {"model": "builtin", "messages": [{"role": "user", "content": "When?"}], **more}
        return self.raw(path, json.dumps(body).encode())

    def raw(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return CLIENT.post(self.url + path, content=body, headers={**HEAD, **named})


def started(address: Address, folder: ServedFolder | None) -> Live:
    """A server on the scripted answers."""
    both = {task: (Settings(), load_preset("chat")) for task in ("chat", "generate", "complete")}
    tasks = {**both, "ask": (Settings(), load_preset("ask"))}
    asked, warned = Scripted(), list[str]()
    app = OpenAi(asked, Service("builtin", tasks, folder), warned.append).app(address)
    place = listen(address)
    return Live(HttpServer(app, place), place.getsockname()[1], asked, warned)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("served")
    (root / "deep").mkdir()
    (root / "deep" / "tides.txt").write_text("At the pier the tide turns at noon. Bring boots.")
    found = started(Address("127.0.0.1", 0), ServedFolder([str(root)], Settings()))
    yield found
    CLIENT.close()
    found.server.close()


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- the openai client ---


def test_chat_with_the_openai_client(live: Live) -> None:
    done = live.openai().chat.completions.create(
        model="builtin", seed=3, temperature=0.5, max_tokens=40, stop=["\n"],
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        ],
    )  # fmt: skip
    assert done.choices[0].message.content == "The tide turns at noon."
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None and done.usage.total_tokens == 17
    assert done.usage.prompt_tokens_details and done.usage.prompt_tokens_details.cached_tokens == 0
    question, owner = live.asked.asked[-1]
    assert (question.task, question.question, owner) == ("chat", "When?", "http")
    assert [(turn.role, turn.text) for turn in question.turns] == [
        ("user", "Hello"), ("assistant", "Hello!"),
    ]  # fmt: skip
    s = question.settings
    assert (s.system, s.seed, s.temperature, s.stop) == ("Be short.", 3, 0.5, ("\n",))
    assert s.max_tokens == 40
    own = done.model_extra
    assert own is not None
    assert own["timings"] == {
        "cache_n": 0, "prompt_n": 11, "prompt_ms": 500.0, "prompt_per_token_ms": 500 / 11,
        "prompt_per_second": 22.0, "predicted_n": 6, "predicted_ms": 250.0,
        "predicted_per_token_ms": 250 / 6, "predicted_per_second": 24.0,
        "draft_n": 7, "draft_n_accepted": 4,
    }  # fmt: skip
    assert own["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 3.0, "draft_acceptance_rate": 4 / 7,
        "acceptance_histogram": [0, 1, 0, 1], "num_spec_steps": 2,
        "num_accepted_draft_tokens": 4, "num_draft_tokens": 7, "num_spec_tokens": 32,
    }  # fmt: skip


def test_a_streamed_chat_has_the_same_text_and_the_usage_at_its_end(live: Live) -> None:
    chunks = list(
        live.openai().chat.completions.create(
            model="builtin", messages=[{"role": "user", "content": "think"}], stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "The tide turns at noon."
    assert [d.model_extra["reasoning_content"] for d in deltas if d.model_extra] == ["So."]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 7
    assert chunks[-1].model_extra and chunks[-1].model_extra["timings"]["draft_n"] == 7
    assert not any(chunk.usage for chunk in chunks[:-1])


def test_completions_go_on_with_a_text(live: Live) -> None:
    client = live.openai().completions
    done = client.create(model="builtin", prompt="Once", max_tokens=3, presence_penalty=0.5)
    assert done.choices[0].text == "The tide turns at noon."
    assert live.asked.asked[-1][0].task == "complete"
    assert live.asked.asked[-1][0].settings.presence_penalty == 0.5
    streamed = client.create(model="builtin", prompt=["Once"], stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "The tide turns at noon."


def test_responses_whole_and_streamed(live: Live) -> None:
    client = live.openai().responses
    done = client.create(model="builtin", input="think", instructions="Be short.")
    assert done.output_text == "The tide turns at noon."
    assert [item.type for item in done.output] == ["reasoning", "message"]
    assert done.status == "completed" and done.usage and done.usage.output_tokens == 7
    assert live.asked.asked[-1][0].settings.system == "Be short."
    before = [{"role": "user", "content": "Hi"}, *[item.model_dump() for item in done.output[1:]]]
    turns: Any = [*before, {"role": "user", "content": [{"type": "input_text", "text": "So?"}]}]
    with client.stream(model="builtin", input=turns) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "The tide turns at noon."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert live.asked.asked[-1][0].turns[1].text == "The tide turns at noon."


def test_models_and_their_names(live: Live) -> None:
    assert [model.id for model in live.openai().models.list()] == ["builtin", "builtin+docs"]
    with pytest.raises(openai.NotFoundError, match="Served: builtin, builtin"):
        live.openai().completions.create(model="gpt-4o", prompt="Once")


def test_the_folder_answers_with_its_sources(live: Live) -> None:
    messages: Any = [{"role": "user", "content": "When?"}]
    done = live.openai().chat.completions.create(model="builtin+docs", messages=messages)
    question = live.asked.asked[-1][0]
    assert question.task == "ask" and question.settings.overflow == "retrieve"
    assert [d.name for d in question.documents] == ["deep/tides.txt"]
    found: Any = done.choices[0].message.model_dump()["annotations"]
    assert found[0]["type"] == "file_citation"
    cited = found[0]["file_citation"]
    assert (cited["filename"], cited["page"]) == ("deep/tides.txt", None)
    assert "tide turns at noon" in cited["quote"]
    text = done.choices[0].message.content or ""
    assert "tide turns at noon" in text[cited["start_index"] : cited["end_index"]]
    answer = live.openai().responses.create(model="builtin+docs", input="When?")
    content: Any = answer.output[0]
    assert content.content[0].annotations[0].filename == "deep/tides.txt"


def test_documents_of_a_request(live: Live) -> None:
    own = live.openai().chat.completions
    own.create(
        model="builtin", messages=[{"role": "user", "content": "When?"}],
        extra_body={"documents": ["a text", {"name": "b", "text": "tide"}]},
    )  # fmt: skip
    documents = live.asked.asked[-1][0].documents
    assert [(d.name, d.text) for d in documents] == [("document 1", "a text"), ("b", "tide")]
    assert live.post(documents=[{"name": "b", "text": ""}]).status_code == 400
    assert live.post(model="builtin+docs", documents=["x"]).status_code == 400


def test_a_predicted_answer(live: Live) -> None:
    predicted = {"type": "content", "content": [{"type": "text", "text": "At noon"}]}
    assert live.post(prediction=predicted).status_code == 200
    assert live.asked.asked[-1][0].prediction == "At noon"


# --- errors ---


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"), ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 2}}, "logit_bias"), ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"temperature": "hot"}, "temperature"),
        ({"seed": 10**30}, "seed"), ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["x"] * 17}, "stop"), ({"stop": ""}, "stop"), ({"colour": "red"}, "colour"),
        ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, "prediction"),
        ({"settings": {"model": "other"}}, "settings"),
        ({"settings": {"system": "@/etc/passwd"}}, "settings.system"),
        ({"settings": {"top_k": "x"}}, "settings.top_k"),
        ({"documents": ["a"] * 10_001}, "documents"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "too long"}]}, "messages"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_here_is_refused(live: Live, more: Any, param: str) -> None:
    response = live.post(**more)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


def test_what_makes_no_difference_is_passed_over(live: Live) -> None:
    neutral = {
        "n": 1, "user": "me", "tools": None, "logprobs": False, "stream_options": None,
        "response_format": {"type": "text"}, "metadata": {"a": "b"}, "store": False,
    }  # fmt: skip
    assert live.post(**neutral).status_code == 200
    assert live.post(settings={"top_k": 5, "think": "off"}).status_code == 200
    assert live.asked.asked[-1][0].settings.top_k == 5


def test_bodies_that_are_none(live: Live) -> None:
    path = "/v1/chat/completions"
    bodies = b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": "\xff"}', b"[" * 100_000
    for body in (*bodies, b'{"model": "\\ud800"}'):
        assert error_of(live.raw(path, body))["code"] == "invalid_json"
    assert live.raw(path, b"{}", content_type="text/plain").status_code == 415
    assert error_of(live.raw(path, b" " * 8_000_001))["code"] == "too_large"
    assert error_of(CLIENT.get(live.url + path))["code"] == "unknown_url"
    assert CLIENT.get(live.url + "/v2").status_code == 404


def test_an_answer_that_breaks_says_so(live: Live) -> None:
    client = live.openai()
    messages: Any = [{"role": "user", "content": "breaks"}]
    with pytest.raises(openai.BadRequestError, match="it broke"):
        client.chat.completions.create(model="builtin", messages=messages)
    with pytest.raises(openai.APIError, match="it broke"):
        list(client.chat.completions.create(model="builtin", messages=messages, stream=True))
    events = list(client.responses.create(model="builtin", input="breaks", stream=True))
    assert events[-1].type == "response.failed"


# --- who may ask ---


def test_pages_of_other_origins_and_other_names_are_refused(live: Live) -> None:
    url, port = f"{live.url}/v1/models", live.port
    for host in ("evil.example", f"evil.example:{port}", "", "127.0.0.1.evil.example", "[::1"):
        assert CLIENT.get(url, headers={"host": host}).status_code == 403, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]"):
        assert CLIENT.get(url, headers={"host": host}).status_code == 200, host
    own = f"http://127.0.0.1:{port}"
    assert CLIENT.get(url, headers={"origin": own}).status_code == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}"):
        found = CLIENT.get(url, headers={"origin": origin})
        assert error_of(found)["code"] == "wrong_origin"
        assert "access-control-allow-origin" not in found.headers
    assert CLIENT.get(url, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


def test_keys(tmp_path: Path) -> None:
    keys, secret = tmp_path / "keys", "k" * 32
    keys.write_text(f"{secret}\n{'l' * 32}\n")
    keys.chmod(0o644)
    with pytest.raises(UsageError, match="other users"):
        address_of("8421", "0.0.0.0", keys)
    keys.chmod(0o600)
    with pytest.raises(UsageError, match="lets other machines in"):
        address_of("8421", "0.0.0.0", None)
    with pytest.raises(UsageError, match="not this machine"):
        address_of("0.0.0.0:8421", None, keys)
    live = started(address_of("0", "0.0.0.0", keys), None)
    try:
        assert CLIENT.get(f"{live.url}/health").json() == {"status": "ok"}
        for key in ("", "Bearer", "Bearer x", f"Basic {secret}", f"Bearer {secret}x"):
            found = CLIENT.get(f"{live.url}/v1/models", headers={"authorization": key})
            assert error_of(found)["code"] == "invalid_api_key" and found.status_code == 401
        for key in (secret, "l" * 32):
            live.openai(api_key=key).completions.create(model="builtin", prompt="Once")
        first, second = [owner for _, owner in live.asked.asked]
        assert first.startswith("http:") and second.startswith("http:") and first != second
        assert secret not in first
    finally:
        live.server.close()
    keys.write_text("short\n")
    with pytest.raises(UsageError, match="16 ASCII"):
        address_of("8421", "0.0.0.0", keys)


# --- leaving, and counting ---


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_generation(live: Live, stream: bool) -> None:
    body = {"model": "builtin", "prompt": "for ever", "stream": stream}
    with pytest.raises(httpx.ReadTimeout if not stream else _Left):
        with CLIENT.stream("POST", f"{live.url}/v1/completions", json=body, timeout=0.3) as got:
            for line in got.iter_lines():
                if line:
                    raise _Left
    assert live.asked.cancelled.wait(10)


class _Left(Exception):
    """A client that has seen enough."""


def test_metrics_count_requests_and_tokens(live: Live) -> None:
    def value(name: str) -> float:
        text = CLIENT.get(f"{live.url}/metrics").text
        return sum(
            float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(name)
        )

    ok = 'ngt_requests_total{path="/v1/completions",status="200"}'
    before = value(ok), value("ngt_new_tokens_total"), value("ngt_first_token_seconds_count")
    live.openai().completions.create(model="builtin", prompt="Once")
    wait_until(lambda: value(ok) != before[0])  # it is counted behind the last byte
    after = value(ok), value("ngt_new_tokens_total"), value("ngt_first_token_seconds_count")
    assert after == (before[0] + 1, before[1] + 6, before[2] + 1)
    assert value("ngt_requests_running") == 0


def test_unreadable_documents_tell_no_path(live: Live, tmp_path: Path) -> None:
    gone = started(Address("127.0.0.1", 0), ServedFolder([str(tmp_path / "gone")], Settings()))
    try:
        found = gone.post(model="builtin+docs")
        assert found.status_code == 500 and str(tmp_path) not in found.text
        assert error_of(found)["code"] == "documents_unreadable" and "gone" in gone.warned[0]
    finally:
        gone.server.close()
