"""The HTTP API over the built-in model: the same answers as without a server, and the manual's."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ngtcli.config import Settings
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Request, Tasks
from ngtcli.prompts.preset import load_preset
from ngtcli.server.folder import ServedFolder
from ngtcli.server.resident import Resident
from ngtcli.server.service import Service
from tests.support.helpers import HARBOUR, ROOT_FOLDER
from tests.support.serving import CLIENT, RunningServer

MANUAL = ROOT_FOLDER / "ngtcli" / "manual" / "http.md"
QUESTION = "When is high tide?"


def messages_of(text: str) -> Any:
    """The messages of a conversation that begins with this text."""
    return [{"role": "user", "content": text}]


@dataclass
class Live:
    """A running HTTP server, its resident model and a client."""

    resident: Resident
    service: Service
    url: str
    client: openai.OpenAI

    def answer_without_http(self, request: Request) -> str:
        *_, last = self.resident.ask(request, owner="without HTTP")
        assert isinstance(last, Ended)
        return last.text

    def answer_from_folder(self, **extra: Any) -> Any:
        """The completion of QUESTION about the folder, with further members of the body."""
        return self.client.chat.completions.create(
            model="builtin+docs", messages=messages_of(QUESTION), extra_body=extra
        )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("served")
    (root / "harbour.txt").write_text(Path(HARBOUR).read_text("utf-8"), "utf-8")
    settings = Settings.of(background="none", calibrate=False, max_tokens=24, whole_tokens=0)
    presets = {name: load_preset(name) for name in ("ask", "chat", "generate", "summarize")}
    tasks = Tasks({name: (settings, preset) for name, preset in presets.items()})
    resident = Resident(settings, persist=False)
    folder = ServedFolder([str(root)], settings)
    service = Service("builtin", tasks, folder)
    server = RunningServer(resident, service)
    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=CLIENT
    )
    yield Live(resident, service, server.url, client)
    server.close()
    folder.close()
    resident.close()


def test_the_folder_answers_as_ngt_ask_does(live: Live) -> None:
    completion = live.answer_from_folder()
    message = completion.choices[0].message

    assert live.service.folder is not None
    documents = live.service.folder.documents()
    request = live.service.tasks.request("ask", QUESTION, loaded=documents)
    assert message.content == live.answer_without_http(request)
    assert completion.usage.prompt_tokens > 20

    citation = message.model_dump()["annotations"][0]["file_citation"]
    assert citation["filename"] == "harbour.txt"
    assert citation["quote"] in " ".join(message.content.split())
    assert citation["quote"] in Path(HARBOUR).read_text("utf-8")


@pytest.mark.parametrize(
    ("extra", "is_drafted"),
    [
        ({"method": "none"}, False),
        ({"num_draft": 0}, False),
        ({"method": "trie"}, True),
        ({"settings": {"method": "prompt-lookup", "num_draft": 4}}, True),
    ],
)
def test_the_method_of_a_request_decides_the_drafts_and_not_the_text(
    extra: dict[str, Any], is_drafted: bool, live: Live
) -> None:
    expected = live.answer_from_folder().choices[0].message.content

    completion = live.answer_from_folder(**extra)

    assert completion.choices[0].message.content == expected
    assert (completion.model_extra["timings"]["draft_n"] > 0) == is_drafted


def test_requests_with_different_methods_are_answered_at_once(live: Live) -> None:
    def answer(method: str) -> str:
        content: str = live.answer_from_folder(method=method).choices[0].message.content
        return content

    with ThreadPoolExecutor(6) as threads:
        texts = set(threads.map(answer, ("none", "auto", "trie", "llma", "none", "trie")))
    assert texts == {answer("none")}


@pytest.mark.parametrize(
    ("extra", "param", "words"),
    [
        ({"method": "nonsense"}, "method", "nonsense"),
        ({"method": "medusa"}, "method", "no head"),
        ({"method": "rest"}, "method", "rest"),
        ({"method": "trie:n=4"}, "method", "has options"),
        ({"settings": {"method": "auto:trust=1.0001"}}, "method", "has options"),
        ({"num_draft": 33}, "num_draft", "32"),
        ({"num_draft": "many"}, "num_draft", "num_draft"),
    ],
)
def test_a_method_that_a_client_may_not_choose_is_refused(
    extra: dict[str, Any], param: str, words: str, live: Live
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        live.client.chat.completions.create(
            model="builtin", messages=messages_of("Hello"), extra_body=extra
        )
    assert error.value.param == param
    assert words in error.value.message


def conversation(first: str) -> Any:
    """The messages of a conversation of two questions, the first of which is this text."""
    return [
        *messages_of(first),
        {"role": "assistant", "content": "Hello!"},
        *messages_of("And the sea?"),
    ]


def test_a_conversation_is_continued(live: Live) -> None:
    completion = live.client.chat.completions.create(
        model="builtin", messages=conversation("Hello"), max_tokens=4
    )
    assert completion.usage
    assert 0 < completion.usage.completion_tokens <= 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused(stream: bool, live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        live.client.chat.completions.create(
            model="builtin", messages=messages_of("sea " * 9000), stream=stream
        )
    assert error.value.code == "context_length_exceeded"


def test_a_conversation_that_is_too_long_is_refused_or_truncated(live: Live) -> None:
    long: Any = {"model": "builtin", "messages": conversation("sea " * 5000), "max_tokens": 4}
    with pytest.raises(openai.BadRequestError) as error:
        live.client.chat.completions.create(**long)
    assert error.value.code == "context_length_exceeded"

    completion = live.client.chat.completions.create(**long, extra_body={"truncation": "auto"})
    assert completion.usage


@pytest.fixture
def manual(live: Live) -> str:
    """The manual's page on HTTP, with the address of the running server."""
    return MANUAL.read_text("utf-8").replace("http://127.0.0.1:8421", live.url)


def test_the_python_program_of_the_manual_prints_an_answer(manual: str) -> None:
    program = re.search(r"```python\n(.*?)```", manual, re.DOTALL)
    assert program
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        exec(program[1], {})
    assert stdout.getvalue().strip()


def test_the_curl_command_of_the_manual_is_answered(manual: str) -> None:
    command = re.search(r"```\ncurl (.*?)```", manual, re.DOTALL)
    assert command
    url, _, header, _, data = shlex.split(command[1].replace("\\\n", " "))
    name, _, value = header.partition(": ")
    completion = httpx.post(url, content=data.encode(), headers={name: value}).json()
    assert completion["choices"][0]["message"]["content"]
