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
ASKED = "When is high tide?"


@dataclass
class Live:
    """A server, what answers after it, and a client."""

    resident: Resident
    service: Service
    url: str
    client: openai.OpenAI

    def alone(self, question: Request) -> str:
        """The answer that the model gives without a server in between."""
        *_, last = self.resident.ask(question, owner="alone")
        assert isinstance(last, Ended)
        return last.text


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
    own: Any = {"api_key": "none", "max_retries": 0, "http_client": CLIENT}
    client = openai.OpenAI(base_url=f"{server.url}/v1", **own)
    yield Live(resident, service, server.url, client)
    server.close()
    folder.close()
    resident.close()


def test_the_folder_answers_as_ngt_ask_does(live: Live) -> None:
    messages: Any = [{"role": "user", "content": ASKED}]
    done = live.client.chat.completions.create(model="builtin+docs", messages=messages)
    assert live.service.folder is not None
    asked = live.service.tasks.request("ask", ASKED, loaded=live.service.folder.documents())
    assert done.choices[0].message.content == live.alone(asked)
    found: Any = done.choices[0].message.model_dump()["annotations"]
    cited = found[0]["file_citation"]
    assert cited["filename"] == "harbour.txt"
    quote = " ".join((done.choices[0].message.content or "").split())
    assert cited["quote"] in quote and cited["quote"] in Path(HARBOUR).read_text("utf-8")
    assert done.usage and done.usage.prompt_tokens > 20


def test_a_request_has_a_method_and_a_budget_of_its_own(live: Live) -> None:
    """They decide how many nodes are drafted, and nothing of the text."""
    messages: Any = [{"role": "user", "content": ASKED}]
    asked: Any = {"model": "builtin+docs", "messages": messages}

    def answer(**more: Any) -> tuple[str, int]:
        done = live.client.chat.completions.create(**asked, extra_body=more)
        return done.choices[0].message.content or "", done.model_extra["timings"]["draft_n"]  # type: ignore[index]

    text, _ = answer()
    for more, drafts in (
        ({"method": "none"}, False),
        ({"num_draft": 0}, False),
        ({"method": "trie"}, True),
        ({"settings": {"method": "prompt-lookup", "num_draft": 4}}, True),
    ):
        other, drafted = answer(**more)
        assert other == text
        assert bool(drafted) == drafts, more


def test_requests_with_methods_of_their_own_are_answered_beside_others(live: Live) -> None:
    messages: Any = [{"role": "user", "content": ASKED}]

    def answer(method: str) -> str:
        done = live.client.chat.completions.create(
            model="builtin+docs", messages=messages, extra_body={"method": method}
        )
        return done.choices[0].message.content or ""

    with ThreadPoolExecutor(6) as threads:
        texts = set(threads.map(answer, ("none", "auto", "trie", "llma", "none", "trie")))
    assert texts == {answer("none")}


@pytest.mark.parametrize(
    ("given", "param", "said"),
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
def test_a_method_that_a_client_cannot_have_is_refused(
    given: Any, param: str, said: str, live: Live
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        live.client.chat.completions.create(
            model="builtin", messages=[{"role": "user", "content": "Hello"}], extra_body=given
        )
    assert error.value.param == param
    assert said in error.value.message


def test_a_conversation_and_a_prompt_that_is_too_long(live: Live) -> None:
    said = [("user", "Hello"), ("assistant", "Hello!"), ("user", "And the sea?")]
    messages: Any = [{"role": role, "content": text} for role, text in said]
    done = live.client.chat.completions.create(model="builtin", messages=messages, max_tokens=4)
    assert done.usage and done.usage.completion_tokens <= 4
    long: Any = [{"role": "user", "content": "sea " * 9000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            live.client.chat.completions.create(model="builtin", messages=long, stream=stream)
        assert error.value.code == "context_length_exceeded"
    turns: Any = [{"role": "user", "content": "sea " * 5000}, *messages[1:]]
    with pytest.raises(openai.BadRequestError) as error:
        live.client.chat.completions.create(model="builtin", messages=turns)
    assert error.value.code == "context_length_exceeded"
    own: Any = {"model": "builtin", "messages": turns, "max_tokens": 4}
    assert live.client.chat.completions.create(**own, extra_body={"truncation": "auto"}).usage


def test_the_manuals_examples(live: Live) -> None:
    page = MANUAL.read_text("utf-8").replace("http://127.0.0.1:8421", live.url)
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    command = re.search(r"```\ncurl (.*?)```", page, re.DOTALL)
    assert program and command
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program[1], {})
    assert out.getvalue().strip()
    url, _, header, _, data = shlex.split(command[1].replace("\\\n", " "))
    name, _, value = header.partition(": ")
    answer = httpx.post(url, content=data.encode(), headers={name: value}).json()
    assert answer["choices"][0]["message"]["content"]
