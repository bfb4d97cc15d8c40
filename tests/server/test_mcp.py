"""The tools of the Model Context Protocol, by the SDK's own client: what they give and refuse."""

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


class Answering(ScriptedAnswers):
    """Answers with the first document, a word a step; `steps` counts what is done."""

    def __init__(self, many: int = 0) -> None:
        super().__init__(self.answer)
        self.many, self.steps, self.begun = many, 0, threading.Event()

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
        words = [f"{word} " for word in text.split()] + ["on "] * self.many
        for word in words:
            self.steps += 1
            time.sleep(0.001 if self.many else 0)  # so that it cannot end before it is cancelled
            yield Stepped(Step((Token(1, word),)))
            self.begun.set()
        tokens = Step(tuple(Token(1, word) for word in words))
        statistics = Statistics(prompt_tokens=40, new_tokens=len(words))
        sources = sources_of(text, question.documents)
        own: Any = {"steps": (tokens,), "statistics": statistics, "sources": sources}
        yield Ended(finish_reason="stop", **own)


def failing(question: Request, ticket: Ticket) -> Generator[Event]:
    raise ModelError("the model in /models/x is gone", hint="Use --no-serve. Name another.")
    yield


def called(folder: Path, work: Callable[[Client], Awaitable[None]], asked: Any = None) -> None:
    """Have `work` done by a client of the tools over a folder."""
    served = ServedFolder([str(folder)], Settings())

    async def run() -> None:
        server = mcp_server(Tools(Service("builtin", TASKS, served), asked or Answering()))
        async with Client(server) as client:
            await work(client)

    try:
        anyio.run(run)
    finally:
        served.close()


async def given(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured form of what a tool gives."""
    return (await client.call_tool(tool, arguments)).structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    return error_of(await client.call_tool(tool, arguments))


def error_of(result: Any) -> str:
    assert result.is_error and result.structured_content is None
    text: str = result.content[0].text
    return text


def test_every_tool_says_that_it_only_reads_and_what_it_gives(folder: Path) -> None:
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
            hints = tool.annotations
            assert hints and hints.read_only_hint and not hints.open_world_hint
            assert tool.output_schema and tool.output_schema["required"]
            assert tool.description and not tool.description.endswith((" ", "\n"))
            assert "context" not in tool.input_schema["properties"]
        assert tools["ask"].input_schema["required"] == ["question"]
        assert tools["summarize"].input_schema.get("required", []) == []

    called(folder, work)


def test_documents_are_listed_searched_and_shown_in_structured_form(folder: Path) -> None:
    async def work(client: Client) -> None:
        listed = await client.call_tool("list_documents", {})
        assert listed.structured_content == json.loads(listed.content[0].text)  # type: ignore[union-attr]
        names = [d["name"] for d in listed.structured_content["documents"]]
        assert names == ["sub/b.md", "tides.txt"]
        assert listed.structured_content["left_out"] == []

        found = await given(client, "search_passages", question="When is high tide?")
        first = found["passages"][0]
        assert first["document"] == "tides.txt" and "High tide is at nine." in first["text"]
        assert TIDES[first["start"] : first["end"]] == first["text"] and first["score"] > 0
        assert found["of_documents"] == 2

        among: Any = {"question": "slate", "documents": ["sub/b.md"], "limit": 1}
        (only,) = (await given(client, "search_passages", **among))["passages"]
        assert only["document"] == "sub/b.md" and only["heading"] == "Slate"
        assert not (await given(client, "search_passages", question="xylophone"))["passages"]

        assert await given(client, "show_passage", document="tides.txt", start=21, end=42) == {
            "document": "tides.txt",
            "text": "High tide is at nine.",
            "start": 21,
            "end": 42,
            "characters": len(TIDES),
            "page": 0,
            "heading": "",
        }
        for start, end in (10**12, 10**13), (10, 5):
            wrong: Any = {"document": "tides.txt", "start": start, "end": end}
            words = await refused(client, "show_passage", **wrong)
            assert f"It has {len(TIDES)} characters." in words

    called(folder, work)


def test_warnings_of_a_search_come_with_the_passages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank_with_warning(search: Search) -> Ranking:
        reporting.warn("2 of 3 passages are longer\nthan the embedder reads")
        return rank(search)

    async def work(client: Client) -> None:
        found = await given(client, "search_passages", question="When is high tide?")
        assert found["passages"][0]["document"] == "tides.txt"
        assert found["remarks"] == ["2 of 3 passages are longer than the embedder reads"]
        monkeypatch.undo()
        found = await given(client, "search_passages", question="When is high tide?")
        assert found["remarks"] == []

    monkeypatch.setattr("ngtcli.server.mcp.rank", rank_with_warning)
    called(folder, work)


def test_an_answer_comes_with_its_sources_and_with_what_was_remarked(folder: Path) -> None:
    answering, told = Answering(), []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append((done, message))

    async def work(client: Client) -> None:
        asked = {"question": " When? ", "documents": ["tides.txt"], "max_tokens": 7}
        answer = await client.call_tool("ask", asked, progress_callback=progress)
        assert not answer.is_error
        found = answer.structured_content
        assert found["text"].split() == TIDES.split() and found["finish_reason"] == "stop"
        assert found["remarks"][0] == "not everything fits" and found["prompt_tokens"] == 40
        assert [s["document"] for s in found["sources"]] == ["tides.txt"]
        summary = await client.call_tool("summarize", {})
        assert summary.structured_content["text"]

    called(folder, work, answering)
    ask, summary = (question for question, _ in answering.asked)
    assert (ask.task, ask.question, ask.settings.answer.max_tokens) == ("ask", "When?", 7)
    assert [d.name for d in ask.documents] == [
        "tides.txt"
    ] and ask.settings.retrieval.overflow == "retrieve"
    told_of = summary.task, summary.settings.retrieval.overflow, len(summary.documents)
    assert told_of == ("summarize", "split", 2)
    numbers = [done for done, _ in told]
    assert numbers == sorted(set(numbers)) and told[0][1] == "Loading …"  # they grow


def test_what_is_wrong_is_told_to_the_client_in_words(folder: Path) -> None:
    async def work(client: Client) -> None:
        for name, arguments, words in (
            ("ask", {"question": "Who?"}, "the model in /models/x is gone. Name another."),
            ("ask", {}, "question: the argument is missing"),
            ("ask", {"question": "Who?", "foo": 1}, "ask has no argument 'foo'. Known: question, "),
            ("search_passages", {"query": "Who?"}, "search_passages has no argument 'query'."),
            ("ask", {"question": "Who?", "max_tokens": 0}, "max_tokens: input should be greater"),
            ("ask", {"question": " "}, "the question is empty. Ask something."),
            ("ask", {"question": "Who?", "documents": []}, "no document is named"),
            ("show_passage", {"document": "tide.txt"}, "Did you mean tides.txt?"),
            ("show_passage", {"document": "tides.txt", "page": 2}, "no page 2. It has no pages."),
        ):
            said = error_of(await client.call_tool(name, arguments))
            assert words in said and "pydantic" not in said and "--" not in said, name

    called(folder, work, ScriptedAnswers(failing))


def test_nothing_outside_the_folder_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    (folder / ".hidden.txt").write_text("a secret")
    (folder / "in.txt").symlink_to("sub/b.md")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "up").symlink_to(tmp_path)

    async def work(client: Client) -> None:
        listed = await given(client, "list_documents")
        assert [d["name"] for d in listed["documents"]] == ["sub/b.md", "tides.txt"]
        reasons = {Path(one["name"]).name: one["reason"] for one in listed["left_out"]}
        assert reasons["out.txt"] == "a link out of the folder"
        for name in (
            "out.txt",
            "../secret.txt",
            str(tmp_path / "secret.txt"),
            "up/secret.txt",
            "sub/../../secret.txt",
            ".hidden.txt",
            "/etc/passwd",
            "~/x",
            "",
            "\0",
        ):
            for tool, arguments in (
                ("show_passage", {"document": name}),
                ("search_passages", {"question": "secret", "documents": [name]}),
                ("ask", {"question": "secret?", "documents": ["tides.txt", name]}),
            ):
                words = error_of(await client.call_tool(tool, arguments))
                assert "is not one of the documents" in words and "a secret" not in words
        assert not (await given(client, "search_passages", question="secret"))["passages"]

    called(folder, work)


async def cancelled(client: Client, answering: Answering) -> None:
    """Cancel a call whose endless answer has begun, and wait until that has ended."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "ask", {"question": "Who?"})
        await anyio.to_thread.run_sync(answering.begun.wait)
        assert (await client.list_tools()).tools  # it listens meanwhile
        group.cancel_scope.cancel()
    await anyio.to_thread.run_sync(answering.ended.wait)
    assert answering.steps < 1_000_000


def test_a_call_that_is_cancelled_while_it_waits_is_given_up_at_once(folder: Path) -> None:
    """Nothing is told of a question that waits: here until the very end."""
    loaded, asked, cancelled = threading.Event(), threading.Event(), threading.Event()

    answering = Answering()

    def waiting(question: Request, ticket: Ticket) -> Generator[Event]:
        asked.set()
        ticket.cancelled.wait()
        cancelled.set()
        loaded.wait()
        yield from answering.answer(question, ticket)

    async def work(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "ask", {"question": "Who?"})
            await anyio.to_thread.run_sync(asked.wait)
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(cancelled.wait)
        loaded.set()

    called(folder, work, ScriptedAnswers(waiting))


NOISY = """
import os, sys
from ngtcli.server import mcp

def noisy(search):
    print("python prints", flush=True)
    os.write(1, b"a library writes\\n")
    os.system("echo a child prints")
    sys.stdout.write("what stays in a buffer")
    if "fail" in search.question:
        raise RuntimeError("a mistake")
    return rank(search)

rank, mcp.rank = mcp.rank, noisy
sys.argv = ["ngt", *sys.argv[1:]]
from ngtcli.cli.app import run
code = run()
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""


def test_standard_output_has_the_protocol_alone_and_torch_is_not_loaded(
    folder: Path, tmp_path: Path
) -> None:
    """A process whose search prints in every way: the SDK's client takes what it sends."""
    wrong: list[object] = []

    async def work() -> None:
        server = [sys.executable, "-c", NOISY, "mcp", "-d", str(folder)]
        own = StdioServerParameters(command=server[0], args=server[1:], env={**os.environ})
        with open(tmp_path / "stderr", "w") as errors:

            async def told(message: object) -> None:
                wrong.append(message)

            async with Client(stdio_client(own, errors), message_handler=told) as client:
                assert client.server_info and client.server_info.name == "ngt"
                assert len((await client.list_tools()).tools) == 5
                found = await given(client, "search_passages", question="When is high tide?")
                assert "High tide" in found["passages"][0]["text"]
                failed = await refused(client, "search_passages", question="fail")
                assert failed == "Error executing tool search_passages"

    anyio.run(work)
    said = (tmp_path / "stderr").read_text()
    assert not wrong, wrong
    for words in ("python prints", "a library writes", "a child prints", "RuntimeError", "False"):
        assert words in said, said


class Wire:
    """The lines of a pipe, as the SDK reads them; `seen` has all."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self.seen = pipe, list[bytes]()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._pipe.readline):
            self.seen.append(line)
            yield line.decode()


def test_a_model_answers_over_standard_streams(folder: Path) -> None:
    with Warm("mcp", "-d", str(folder), stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        wire, out = Wire(process.stdout), io.TextIOWrapper(io.BufferedWriter(process.stdin))

        async def work() -> None:
            own: Any = stdio_server(wire, anyio.wrap_file(out))
            async with Client(own) as client:
                asked: Any = {"question": "When is high tide?", "max_tokens": 12}
                answer = await given(client, "ask", **asked)
                assert answer["text"] and answer["new_tokens"] <= 12
                assert answer["sources"][0]["document"] == "tides.txt"
                assert (await given(client, "ask", **asked))["text"] == answer["text"]
                wrong = await refused(client, "ask", question="Who?", documents=["x"])
                assert "not one of the documents" in wrong
                out.close()

        anyio.run(work)
        assert process.wait(10) == 0 and process.stdout.read() == b""
        assert all("jsonrpc" in json.loads(line) for line in wire.seen)


def test_a_client_that_leaves_ends_the_process_without_a_word(folder: Path) -> None:
    own = {"protocolVersion": "2025-06-18", "capabilities": {}}
    own |= {"clientInfo": {"name": "x", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": own}
    line = json.dumps(hello).encode() + b"\n"
    with Warm("mcp", "-d", str(folder), stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"no protocol\n" + line)
        process.stdin.close()
        assert process.wait(30) == 0
        assert without_note(process.stderr.read()) == b""


def test_the_resident_process_is_asked_where_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering, loaded = Answering(), list[str]()

    def ask(is_leaving: bool, question: Request) -> Generator[Event]:
        if is_leaving:
            raise NotServedError
        yield from answering.answer(question, Ticket())

    class Loaded:
        def __init__(self, settings: Settings) -> None:
            loaded.append(settings.model.model)

        def ask(self, question: Request, *, owner: str = "") -> Generator[Event]:
            return answering.answer(question, Ticket())

        def close(self) -> None:
            loaded.append("closed")

    served: list[Any] = [Remote(cast(Any, False)), Remote(cast(Any, True)), None]  # it is leaving
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", ask)
    monkeypatch.setattr(Remote, "of", lambda settings: served.pop(0))
    resident = SimpleNamespace(Resident=Loaded)  # without torch
    monkeypatch.setitem(sys.modules, "ngtcli.server.resident", cast(Any, resident))
    settings, preset = TASKS.by_name["ask"]
    documents = ServedFolder([str(folder)], settings).documents()
    question = Request(task="ask", settings=settings, preset=preset, loaded=documents)
    own = Answerer(threads=True)
    monkeypatch.setattr(own, "check", lambda _: None)
    for loads in (0, 1, 1, 1):  # what it has loaded itself it continues with
        assert isinstance([*own.ask(question)][-1], Ended)
        assert len(loaded) == loads
    assert len(served) == 1
    own.close()
    assert loaded == ["builtin", "closed"]


def test_the_manuals_entries_are_json_and_start_the_server() -> None:
    page = topics()["mcp"].read_text("utf-8")
    entries = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    assert [next(iter(entry)) for entry in entries] == ["mcpServers", "servers"]
    for entry in entries:
        (own,) = next(iter(entry.values())).values()
        assert Path(own["command"]).name == "ngt" and own["args"][0] == "mcp"
        context = load("mcp").make_context("mcp", own["args"][1:])
        assert context.params["docs"]
        StdioServerParameters(command=own["command"], args=own["args"])


def test_another_engine_and_a_missing_package_are_told_before_a_client_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = ngt("mcp", "-d", str(folder), NGT_ENGINE="vllm")
    assert vllm.returncode == 2
    monkeypatch.setattr("ngtcli.cli.mcp.find_spec", lambda name: None)
    done = ngt("mcp", "-d", str(folder))
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == "pip install 'ngtcli[mcp]'"


class Over(RunningServer):
    """The tools at `/mcp` of the HTTP server."""

    def __init__(self, folder: Path, answers: ScriptedAnswers, address: Address = LOCAL) -> None:
        self.served = ServedFolder([str(folder)], Settings())
        reported = RecordingReporter()
        self.said = reported.warnings
        service = Service("builtin", TASKS, self.served)
        own = mcp_routes(reported.of(lambda: Tools(service, answers)))
        super().__init__(answers, service, address, mcp=own)

    def __enter__(self) -> str:
        return f"{self.url}/mcp"

    def __exit__(self, *_: object) -> None:
        self.close()
        self.served.close()


def test_a_session_belongs_to_the_key_that_began_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a" * 32 + "\n" + "b" * 32 + "\n")
    (tmp_path / "keys").chmod(0o600)
    address = Address("127.0.0.1", 0, read_keys(tmp_path / "keys"))
    accept = {"accept": "application/json, text/event-stream"}
    first, other = ({"authorization": f"Bearer {letter * 32}", **accept} for letter in "ab")
    own: Any = {"protocolVersion": "2025-06-18", "capabilities": {}}
    own |= {"clientInfo": {"name": "x", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": own}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    with Over(folder, Answering(), address) as url:
        began = CLIENT.post(url, json=hello, headers=first)
        session = {"mcp-session-id": began.headers["mcp-session-id"]}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert CLIENT.post(url, json=ready, headers={**first, **session}).status_code == 202
        for made in (
            CLIENT.post(url, json=listing, headers={**other, **session}),
            CLIENT.get(url, headers={**other, **session}),
            CLIENT.delete(url, headers={**other, **session}),
        ):
            assert (made.status_code, made.text) == (404, "no such session")
        assert CLIENT.post(url, json=listing, headers={**first, **session}).status_code == 200
        assert CLIENT.delete(url, headers={**first, **session}).status_code == 200
        assert CLIENT.post(url, json=listing, headers={**first, **session}).status_code == 404
        unknown = {"mcp-session-id": "f" * 32}
        assert CLIENT.post(url, json=listing, headers={**first, **unknown}).status_code == 404


def test_the_http_server_has_the_same_tools(folder: Path) -> None:
    answering = Answering()

    async def work(url: str) -> None:
        async with Client(url) as client:
            assert len((await client.list_tools()).tools) == 5
            found = await given(client, "search_passages", question="When is high tide?")
            assert found["passages"][0]["document"] == "tides.txt"
            answer = await given(client, "ask", question="When?", documents=["tides.txt"])
            assert answer["text"].split() == TIDES.split()
            assert answer["remarks"] == ["not everything fits"]  # no path
            answering.many = 1_000_000
            answering.ended.clear()
            answering.begun.clear()
            await cancelled(client, answering)
            assert answering.asked[-1][1] == "http"

    with Over(folder, answering) as url:
        anyio.run(work, url)


def test_over_http_no_paths_of_this_machine_are_told(folder: Path) -> None:
    over = Over(folder, ScriptedAnswers(failing))

    async def work(url: str) -> None:
        async with Client(url) as client:
            words = error_of(await client.call_tool("ask", {"question": "When?"}))
            assert "the answer failed" in words and "/models" not in words
            folder.rename(folder.with_name("gone"))
            for tool, own in (("list_documents", {}), ("search_passages", {"question": "x"})):
                words = error_of(await client.call_tool(tool, own))
                assert "documents cannot be read" in words and str(folder) not in words

    with over as url:
        anyio.run(work, url)
    assert "/models/x" in over.said[0] and str(folder) in over.said[1]


def test_a_request_that_is_refused_leaves_no_session(folder: Path) -> None:
    with Over(folder, Answering()) as url:
        for headers in ({"accept": "text/html"}, {"accept": "text/event-stream"}):
            refused = httpx.get(url, headers=headers)
            assert refused.status_code in (400, 406) and "mcp-session-id" not in refused.headers


def test_a_panic_of_a_library_ends_a_question_that_is_made_in_a_thread() -> None:
    class Panic(BaseException):
        """As a library in another language raises it."""

    class Panics:
        def ask(self, request: Request, *, owner: str = "") -> Any:
            yield Message("status", "Loading …")
            raise Panic("index out of bounds")

        def close(self) -> None: ...

    told: SimpleQueue[Event | NgtError] = SimpleQueue()
    settings, preset = TASKS.by_name["ask"]
    question = Request(task="ask", settings=settings, preset=preset)
    Threaded(Panics()).submit(question, told.put)
    assert isinstance(told.get(timeout=10), Message)
    assert "index out of bounds" in str(told.get(timeout=10))
