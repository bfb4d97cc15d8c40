"""The tools of the Model Context Protocol, called by the SDK's own client."""

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import IO, Any, cast

import anyio
import httpx
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.stdio import stdio_server
from mcp.types import TextContent

from ngtcli.cli.app import load
from ngtcli.cli.help import topics
from ngtcli.config import Settings
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.drafting.steps import Statistics, Step, Token
from ngtcli.engine.events import Ended, Event, Message, Part, Reading, Stepped
from ngtcli.engine.request import Request, Tasks
from ngtcli.errors import ModelError, NgtError
from ngtcli.prompts.preset import load_preset
from ngtcli.retrieval.ranking import Ranking, rank
from ngtcli.retrieval.search import Search
from ngtcli.server.answerer import Answerer
from ngtcli.server.client import NotServedError, Remote
from ngtcli.server.exchange import Threaded
from ngtcli.server.folder import ServedFolder
from ngtcli.server.http_guard import Address, read_keys
from ngtcli.server.mcp import Tools, mcp_routes, mcp_server
from ngtcli.server.places import Place
from ngtcli.server.service import Service
from ngtcli.system import reporting
from tests.support.helpers import ngt, without_note, write_files
from tests.support.recording_reporter import RecordingReporter
from tests.support.serving import CLIENT, LOCAL, RunningServer, ScriptedAnswers, Ticket
from tests.support.warm import Warm

TASKS = Tasks({task: (Settings(), load_preset(task)) for task in ("ask", "summarize")})
TIDES = "The harbour is dug.\n\nHigh tide is at nine.\n\nBarges carry slate."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(
        tmp_path / "notes", tides_txt=TIDES, sub__b_md="# Slate\n\nSlate is grey.", c_gif="x"
    )


class DocumentAnswers(ScriptedAnswers):
    """Answers that consist of the first document, a word in each step, and `more_words`."""

    def __init__(self, more_words: int = 0) -> None:
        super().__init__(self.answer)
        self.more_words = more_words
        self.steps = 0  # of all answers
        self.begun = threading.Event()

    def answer(self, question: Request, ticket: Ticket) -> Generator[Event]:
        yield Message("status", "Loading …")
        yield Message("warn", "not everything fits")
        yield Message("warn", "the pool in /home/someone/x is started again")
        for part in (1, 2):
            yield Part(f"Part {part} of 2")
            yield Reading(0, 40)
            yield Reading(30, 40)
        yield Part("")
        text = question.documents[0].text
        words = [f"{word} " for word in text.split()] + ["on "] * self.more_words
        for word in words:
            self.steps += 1
            if self.more_words:
                time.sleep(0.001)  # so that the answer cannot end before it is cancelled
            yield Stepped(Step((Token(1, word),)))
            self.begun.set()
        yield Ended(
            finish_reason="stop",
            steps=(Step(tuple(Token(1, word) for word in words)),),
            statistics=Statistics(prompt_tokens=40, new_tokens=len(words)),
            sources=sources_of(text, question.documents),
        )


def fail(question: Request, ticket: Ticket) -> Generator[Event]:
    raise ModelError("the model in /models/x is gone", hint="Use --no-serve. Name another.")
    yield


def with_client(
    folder: Path, work: Callable[[Client], Awaitable[None]], answers: ScriptedAnswers | None = None
) -> None:
    """Call `work` with a client of the tools over a folder."""
    served = ServedFolder([str(folder)], Settings())

    async def run() -> None:
        tools = Tools(Service("builtin", TASKS, served), answers or DocumentAnswers())
        async with Client(mcp_server(tools)) as client:
            await work(client)

    try:
        anyio.run(run)
    finally:
        served.close()


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured content that a tool returns."""
    return (await client.call_tool(tool, arguments)).structured_content


async def call_error(client: Client, tool: str, **arguments: Any) -> str:
    """The message of an error that a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is None
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_every_tool_declares_that_it_only_reads_and_describes_its_output(folder: Path) -> None:
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [*tools] == [
            "search_passages",
            "ask",
            "summarize",
            "list_documents",
            "show_passage",
        ]
        for tool in tools.values():
            assert tool.annotations
            assert tool.annotations.read_only_hint
            assert not tool.annotations.open_world_hint
            assert tool.output_schema
            assert tool.output_schema["required"]
            assert tool.description
            assert tool.description == tool.description.rstrip()
            assert "context" not in tool.input_schema["properties"]
        assert tools["ask"].input_schema["required"] == ["question"]
        assert tools["summarize"].input_schema.get("required", []) == []

    with_client(folder, work)


def test_documents_are_listed_as_structured_content_and_as_text(folder: Path) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("list_documents", {})
        listing = result.structured_content
        assert listing is not None
        assert [document["name"] for document in listing["documents"]] == ["sub/b.md", "tides.txt"]
        assert listing["left_out"] == []
        (content,) = result.content
        assert isinstance(content, TextContent)
        assert json.loads(content.text) == listing

    with_client(folder, work)


def test_passages_are_searched_in_all_documents_or_some(folder: Path) -> None:
    async def work(client: Client) -> None:
        result = await call(client, "search_passages", question="When is high tide?")
        passage = result["passages"][0]
        assert passage["document"] == "tides.txt"
        assert "High tide is at nine." in passage["text"]
        assert TIDES[passage["start"] : passage["end"]] == passage["text"]
        assert passage["score"] > 0
        assert result["of_documents"] == 2

        result = await call(
            client, "search_passages", question="slate", documents=["sub/b.md"], limit=1
        )
        (passage,) = result["passages"]
        assert passage["document"] == "sub/b.md"
        assert passage["heading"] == "Slate"

        result = await call(client, "search_passages", question="xylophone")
        assert not result["passages"]

    with_client(folder, work)


def test_a_passage_is_shown_by_its_offsets(folder: Path) -> None:
    async def work(client: Client) -> None:
        assert await call(client, "show_passage", document="tides.txt", start=21, end=42) == {
            "document": "tides.txt",
            "text": "High tide is at nine.",
            "start": 21,
            "end": 42,
            "characters": len(TIDES),
            "page": 0,
            "heading": "",
        }
        for start, end in ((10**12, 10**13), (10, 5)):
            message = await call_error(
                client, "show_passage", document="tides.txt", start=start, end=end
            )
            assert f"It has {len(TIDES)} characters." in message

    with_client(folder, work)


def test_warnings_of_a_search_come_with_the_passages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank_with_warning(search: Search) -> Ranking:
        reporting.warn("2 of 3 passages are longer\nthan the embedder reads")
        return rank(search)

    async def work(client: Client) -> None:
        result = await call(client, "search_passages", question="When is high tide?")
        assert result["passages"][0]["document"] == "tides.txt"
        assert result["remarks"] == ["2 of 3 passages are longer than the embedder reads"]

        monkeypatch.setattr("ngtcli.server.mcp.rank", rank)
        result = await call(client, "search_passages", question="When is high tide?")
        assert result["remarks"] == []

    monkeypatch.setattr("ngtcli.server.mcp.rank", rank_with_warning)
    with_client(folder, work)


def test_an_answer_comes_with_its_sources_warnings_and_statistics(folder: Path) -> None:
    answers = DocumentAnswers()

    async def work(client: Client) -> None:
        answer = await call(
            client, "ask", question=" When? ", documents=["tides.txt"], max_tokens=7
        )
        assert answer["text"].split() == TIDES.split()
        assert answer["finish_reason"] == "stop"
        assert answer["remarks"][0] == "not everything fits"
        assert answer["prompt_tokens"] == 40
        assert [source["document"] for source in answer["sources"]] == ["tides.txt"]

    with_client(folder, work, answers)

    ((request, _),) = answers.asked
    assert request.task == "ask"
    assert request.question == "When?"
    assert request.settings.answer.max_tokens == 7
    assert request.settings.retrieval.overflow == "retrieve"
    assert [document.name for document in request.documents] == ["tides.txt"]


def test_a_summary_is_of_all_documents_in_parts(folder: Path) -> None:
    answers = DocumentAnswers()

    async def work(client: Client) -> None:
        assert (await call(client, "summarize"))["text"]

    with_client(folder, work, answers)

    ((request, _),) = answers.asked
    assert request.task == "summarize"
    assert request.settings.retrieval.overflow == "split"
    assert len(request.documents) == 2


def test_progress_of_an_answer_is_reported_in_growing_numbers(folder: Path) -> None:
    numbers: list[float] = []
    messages: list[str | None] = []

    async def record_progress(done: float, total: float | None, message: str | None) -> None:
        numbers.append(done)
        messages.append(message)

    async def work(client: Client) -> None:
        result = await client.call_tool(
            "ask", {"question": "When?"}, progress_callback=record_progress
        )
        assert not result.is_error

    with_client(folder, work)

    assert messages[0] == "Loading …"
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask", {"question": "Who?"}, "the model in /models/x is gone. Name another."),
        ("ask", {}, "question: the argument is missing"),
        ("ask", {"question": "Who?", "foo": 1}, "ask has no argument 'foo'. Known: question, "),
        ("search_passages", {"query": "Who?"}, "search_passages has no argument 'query'."),
        ("ask", {"question": "Who?", "max_tokens": 0}, "max_tokens: input should be greater"),
        ("ask", {"question": " "}, "the question is empty. Ask something."),
        ("ask", {"question": "Who?", "documents": []}, "no document is named"),
        ("show_passage", {"document": "tide.txt"}, "Did you mean tides.txt?"),
        ("show_passage", {"document": "tides.txt", "page": 2}, "no page 2. It has no pages."),
    ],
)
def test_an_error_is_plain_words_without_flags(
    folder: Path, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async def work(client: Client) -> None:
        message = await call_error(client, tool, **arguments)
        assert words in message
        assert "pydantic" not in message
        assert "--" not in message

    with_client(folder, work, ScriptedAnswers(fail))


NAMES_OUTSIDE = [
    "out.txt",
    "../secret.txt",
    "{parent}/secret.txt",
    "up/secret.txt",
    "sub/../../secret.txt",
    ".hidden.txt",
    "/etc/passwd",
    "~/x",
    "",
    "\0",
]


def test_nothing_outside_the_folder_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    (folder / ".hidden.txt").write_text("a secret")
    (folder / "in.txt").symlink_to("sub/b.md")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)

    async def work(client: Client) -> None:
        listing = await call(client, "list_documents")
        assert [document["name"] for document in listing["documents"]] == ["sub/b.md", "tides.txt"]
        reasons = {Path(file["name"]).name: file["reason"] for file in listing["left_out"]}
        assert reasons["out.txt"] == "a link out of the folder"
        result = await call(client, "search_passages", question="secret")
        assert not result["passages"]

        for template in NAMES_OUTSIDE:
            name = template.format(parent=tmp_path)
            calls: list[tuple[str, dict[str, Any]]] = [
                ("show_passage", {"document": name}),
                ("search_passages", {"question": "secret", "documents": [name]}),
                ("ask", {"question": "secret?", "documents": ["tides.txt", name]}),
            ]
            for tool, arguments in calls:
                message = await call_error(client, tool, **arguments)
                assert "is not one of the documents" in message
                assert "a secret" not in message

    with_client(folder, work)


def test_a_call_that_is_cancelled_while_its_question_waits_is_given_up_at_once(
    folder: Path,
) -> None:
    """The question has no events before it is cancelled."""
    loaded = threading.Event()
    asked = threading.Event()
    cancelled = threading.Event()
    document_answers = DocumentAnswers()

    def answer_after_loading(question: Request, ticket: Ticket) -> Generator[Event]:
        asked.set()
        ticket.cancelled.wait()
        cancelled.set()
        loaded.wait()
        yield from document_answers.answer(question, ticket)

    async def work(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "ask", {"question": "Who?"})
            await anyio.to_thread.run_sync(asked.wait)
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(cancelled.wait)
        loaded.set()

    with_client(folder, work, ScriptedAnswers(answer_after_loading))


# The command, with a search that prints in each way that a program can.
PRINTING_COMMAND = """
import os, sys
from ngtcli.server import mcp

def printing_rank(search):
    print("python prints", flush=True)
    os.write(1, b"a library writes\\n")
    os.system("echo a child prints")
    sys.stdout.write("text that stays in a buffer")
    if "fail" in search.question:
        raise RuntimeError("a mistake")
    return rank(search)

rank = mcp.rank
mcp.rank = printing_rank
sys.argv = ["ngt", *sys.argv[1:]]
from ngtcli.cli.app import run
code = run()
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def test_standard_output_has_the_protocol_alone_and_torch_is_not_loaded(
    folder: Path, tmp_path: Path
) -> None:
    unexpected: list[object] = []

    async def record_message(message: object) -> None:
        unexpected.append(message)

    async def work() -> None:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-c", PRINTING_COMMAND, "mcp", "-d", str(folder)],
            env={**os.environ},
        )
        with open(tmp_path / "stderr", "w") as errors:
            streams = stdio_client(parameters, errors)
            async with Client(streams, message_handler=record_message) as client:
                assert client.server_info
                assert client.server_info.name == "ngt"
                assert len((await client.list_tools()).tools) == 5
                result = await call(client, "search_passages", question="When is high tide?")
                assert "High tide" in result["passages"][0]["text"]
                message = await call_error(client, "search_passages", question="fail")
                assert message == "Error executing tool search_passages"

    anyio.run(work)

    assert not unexpected
    stderr = (tmp_path / "stderr").read_text()
    assert "python prints" in stderr
    assert "a library writes" in stderr
    assert "a child prints" in stderr
    assert "RuntimeError" in stderr
    assert "False" in stderr  # torch is not loaded


class RecordedPipe:
    """A pipe in the form that the SDK reads, which keeps the lines that were read."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self.lines: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._pipe.readline):
            self.lines.append(line)
            yield line.decode()


def test_a_model_answers_over_standard_streams(folder: Path) -> None:
    with Warm("mcp", "-d", str(folder), stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        stdin = io.TextIOWrapper(io.BufferedWriter(cast(Any, process.stdin)))
        stdout = RecordedPipe(process.stdout)

        async def work() -> None:
            streams = stdio_server(cast(Any, stdout), anyio.wrap_file(stdin))
            async with Client(cast(Any, streams)) as client:
                question: Any = {"question": "When is high tide?", "max_tokens": 12}
                answer = await call(client, "ask", **question)
                assert answer["text"]
                assert answer["new_tokens"] <= 12
                assert answer["sources"][0]["document"] == "tides.txt"
                assert (await call(client, "ask", **question))["text"] == answer["text"]
                message = await call_error(client, "ask", question="Who?", documents=["x"])
                assert "not one of the documents" in message
                stdin.close()

        anyio.run(work)

        assert process.wait(10) == 0
        assert process.stdout.read() == b""
        assert all("jsonrpc" in json.loads(line) for line in stdout.lines)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


def test_the_process_exits_silently_when_its_client_leaves(folder: Path) -> None:
    with Warm("mcp", "-d", str(folder), stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(b"no protocol\n" + json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.close()
        assert process.wait(30) == 0
        assert without_note(process.stderr.read()) == b""


def test_a_running_server_is_asked_before_a_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server answers, the second is leaving; from then on the loaded model answers."""
    answers = DocumentAnswers()
    models: list[str] = []  # that were loaded, and "closed"
    leaving = Place("leaving")
    remotes = [Remote(Place("ready")), Remote(leaving), None]

    def ask_remote(place: Place, request: Request) -> Generator[Event]:
        if place is leaving:
            raise NotServedError
        yield from answers.answer(request, Ticket())

    class FakeResident:
        def __init__(self, settings: Settings) -> None:
            models.append(settings.model.model)

        def ask(self, request: Request, *, owner: str = "") -> Generator[Event]:
            return answers.answer(request, Ticket())

        def close(self) -> None:
            models.append("closed")

    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", ask_remote)
    monkeypatch.setattr(Remote, "of", lambda settings: remotes.pop(0))
    resident_module = SimpleNamespace(Resident=FakeResident)  # The real one would load torch.
    monkeypatch.setitem(sys.modules, "ngtcli.server.resident", cast(Any, resident_module))
    settings, preset = TASKS.by_name["ask"]
    documents = ServedFolder([str(folder)], settings).documents()
    request = Request(task="ask", settings=settings, preset=preset, loaded=documents)
    answerer = Answerer(threads=True)
    monkeypatch.setattr(answerer, "check", lambda _: None)

    for expected_models in ([], ["builtin"], ["builtin"], ["builtin"]):
        *_, last = answerer.ask(request)
        assert isinstance(last, Ended)
        assert models == expected_models
    assert len(remotes) == 1
    answerer.close()
    assert models == ["builtin", "closed"]


def test_the_entries_of_the_manual_are_json_and_start_the_server() -> None:
    page = topics()["mcp"].read_text("utf-8")
    entries = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    assert [next(iter(entry)) for entry in entries] == ["mcpServers", "servers"]
    for entry in entries:
        servers = next(iter(entry.values()))
        (server,) = servers.values()
        assert Path(server["command"]).name == "ngt"
        command, *arguments = server["args"]
        assert command == "mcp"
        context = load("mcp").make_context("mcp", arguments)
        assert context.params["docs"]
        StdioServerParameters(command=server["command"], args=server["args"])


def test_another_engine_is_refused(folder: Path) -> None:
    assert ngt("mcp", "-d", str(folder), NGT_ENGINE="vllm").returncode == 2


def test_a_missing_package_is_reported_before_a_client_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.cli.mcp.find_spec", lambda name: None)
    done = ngt("mcp", "-d", str(folder))
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == "pip install 'ngtcli[mcp]'"


class HttpTools(RunningServer):
    """The tools at `/mcp` of the HTTP server; the context is their URL."""

    def __init__(self, folder: Path, answers: ScriptedAnswers, address: Address = LOCAL) -> None:
        self.served = ServedFolder([str(folder)], Settings())
        reporter = RecordingReporter()
        self.warnings = reporter.warnings
        service = Service("builtin", TASKS, self.served)
        routes = mcp_routes(reporter.of(lambda: Tools(service, answers)))
        super().__init__(answers, service, address, mcp=routes)

    def __enter__(self) -> str:
        return f"{self.url}/mcp"

    def __exit__(self, *_: object) -> None:
        self.close()
        self.served.close()


def test_a_session_belongs_to_the_key_that_began_it(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a" * 32 + "\n" + "b" * 32 + "\n")
    keys.chmod(0o600)
    address = Address("127.0.0.1", 0, read_keys(keys))
    accept = {"accept": "application/json, text/event-stream"}
    owner = {"authorization": f"Bearer {'a' * 32}", **accept}
    stranger = {"authorization": f"Bearer {'b' * 32}", **accept}
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

    with HttpTools(folder, DocumentAnswers(), address) as url:
        response = CLIENT.post(url, json=INITIALIZE, headers=owner)
        session = {"mcp-session-id": response.headers["mcp-session-id"]}
        response = CLIENT.post(url, json=initialized, headers=owner | session)
        assert response.status_code == 202

        for response in (
            CLIENT.post(url, json=listing, headers=stranger | session),
            CLIENT.get(url, headers=stranger | session),
            CLIENT.delete(url, headers=stranger | session),
        ):
            assert response.status_code == 404
            assert response.text == "no such session"

        assert CLIENT.post(url, json=listing, headers=owner | session).status_code == 200
        assert CLIENT.delete(url, headers=owner | session).status_code == 200
        assert CLIENT.post(url, json=listing, headers=owner | session).status_code == 404
        unknown = {"mcp-session-id": "f" * 32}
        assert CLIENT.post(url, json=listing, headers=owner | unknown).status_code == 404


def test_the_http_server_has_the_same_tools(folder: Path) -> None:
    async def work(url: str) -> None:
        async with Client(url) as client:
            assert len((await client.list_tools()).tools) == 5
            result = await call(client, "search_passages", question="When is high tide?")
            assert result["passages"][0]["document"] == "tides.txt"
            answer = await call(client, "ask", question="When?", documents=["tides.txt"])
            assert answer["text"].split() == TIDES.split()
            assert answer["remarks"] == ["not everything fits"]  # The other warning has a path.

    with HttpTools(folder, DocumentAnswers()) as url:
        anyio.run(work, url)


def test_an_answer_ends_when_its_call_over_http_is_cancelled(folder: Path) -> None:
    answers = DocumentAnswers(more_words=1_000_000)

    async def work(url: str) -> None:
        async with Client(url) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "ask", {"question": "Who?"})
                await anyio.to_thread.run_sync(answers.begun.wait)
                assert (await client.list_tools()).tools  # The server listens meanwhile.
                group.cancel_scope.cancel()
            await anyio.to_thread.run_sync(answers.ended.wait)

    with HttpTools(folder, answers) as url:
        anyio.run(work, url)
    assert answers.steps < 1_000_000
    ((_, owner),) = answers.asked
    assert owner == "http"


def test_errors_over_http_hide_the_paths_of_this_machine(folder: Path) -> None:
    async def work(url: str) -> None:
        async with Client(url) as client:
            message = await call_error(client, "ask", question="When?")
            assert "the answer failed" in message
            assert "/models" not in message

            folder.rename(folder.with_name("gone"))
            calls: list[tuple[str, dict[str, Any]]] = [
                ("list_documents", {}),
                ("search_passages", {"question": "x"}),
            ]
            for tool, arguments in calls:
                message = await call_error(client, tool, **arguments)
                assert "documents cannot be read" in message
                assert str(folder) not in message

    tools = HttpTools(folder, ScriptedAnswers(fail))
    with tools as url:
        anyio.run(work, url)
    assert "/models/x" in tools.warnings[0]
    assert str(folder) in tools.warnings[1]


@pytest.mark.parametrize("accept", ["text/html", "text/event-stream"])
def test_a_refused_request_leaves_no_session(folder: Path, accept: str) -> None:
    with HttpTools(folder, DocumentAnswers()) as url:
        response = httpx.get(url, headers={"accept": accept})
        assert response.status_code in (400, 406)
        assert "mcp-session-id" not in response.headers


def test_a_panic_of_a_library_ends_a_question_that_is_answered_in_a_thread() -> None:
    class Panic(BaseException):
        """An exception such as PyO3 raises for a panic in Rust."""

    class Panics:
        def ask(self, request: Request, *, owner: str = "") -> Any:
            yield Message("status", "Loading …")
            raise Panic("index out of bounds")

        def close(self) -> None: ...

    events: SimpleQueue[Event | NgtError] = SimpleQueue()
    settings, preset = TASKS.by_name["ask"]
    request = Request(task="ask", settings=settings, preset=preset)

    Threaded(Panics()).submit(request, events.put)

    assert isinstance(events.get(timeout=10), Message)
    assert "index out of bounds" in str(events.get(timeout=10))
