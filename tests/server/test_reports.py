"""Who hears what is reported: each user what concerns their own requests, and nobody else's."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ngtcli.config import Settings
from ngtcli.decoding import step
from ngtcli.documents.load import Document, Loaded
from ngtcli.drafting.pool import pool_path
from ngtcli.engine import session
from ngtcli.engine.events import Message, report_to
from ngtcli.engine.local import LocalSession
from ngtcli.engine.request import Request, Tasks
from ngtcli.prompts.build import Prompt, Task
from ngtcli.prompts.preset import load_preset
from ngtcli.server.app import Entrance
from ngtcli.server.http_guard import Address, Connection, read_keys
from ngtcli.server.resident import Resident
from ngtcli.server.service import Service
from ngtcli.server.wire import decode
from ngtcli.system import reporting
from ngtcli.system.reporting import reporting_to
from tests.support.recording_reporter import RecordingReporter
from tests.support.serving import RunningServer
from tests.support.tiny_models import make_target

SETTINGS = Settings.of(max_tokens=4, calibrate=False, background="none", pool=False)
TEXT = "The mill burnt down in 1901. The tide came in at noon. Anna wrote to the keeper."
QUESTION = "When did the mill burn down?"
USERS = ("ann", "bob")
KEYS = {"ann": "a" * 32, "bob": "b" * 32}


def request_of(user: str) -> Request:
    return Request(
        task="ask",
        settings=SETTINGS,
        preset=load_preset("ask"),
        loaded=Loaded((Document(f"{user}.txt", TEXT),)),
        question=QUESTION,
    )


def lines_for(user: str) -> list[str]:
    """What is reported while the prompt of a user is made; see `reported_at_once`."""
    return [f"status for {user}.txt", f"warning for {user}.txt"]


def at_once(ask: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """Have all users ask at once; return what each of them gets."""
    with ThreadPoolExecutor(len(USERS)) as pool:
        return dict(zip(USERS, pool.map(ask, USERS), strict=True))


@pytest.fixture
def reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While prompts of all users are being made, each is reported; so is every forward pass."""
    make_prompt = session.prompt_for
    run_step = step.run_step
    all_are_inside = threading.Barrier(len(USERS))

    def reporting_prompt(task: Task, settings: Settings) -> Prompt:
        name = task.documents[0].name
        all_are_inside.wait(timeout=120)
        reporting.status(f"status for {name}")
        all_are_inside.wait(timeout=120)
        reporting.warn(f"warning for {name}")
        all_are_inside.wait(timeout=120)
        return make_prompt(task, settings)

    def reporting_step(*args: Any, **options: Any) -> Any:
        reporting.warn("a forward pass for everybody")
        return run_step(*args, **options)

    monkeypatch.setattr(session, "prompt_for", reporting_prompt)
    monkeypatch.setattr(step, "run_step", reporting_step)


def test_users_of_a_resident_model_who_ask_at_once_get_their_own_reports(
    reported_at_once: None,
) -> None:
    operator = RecordingReporter()
    resident = operator.of(lambda: Resident(SETTINGS, persist=False))

    def ask(user: str) -> list[str]:
        events = resident.ask(request_of(user), owner=user)
        return [event.text for event in events if isinstance(event, Message)]

    with closing(resident):
        messages = at_once(ask)
    for user in USERS:
        assert [text for text in messages[user] if " for " in text] == lines_for(user)
    concerns_requests = [text for text in operator.statuses if "status for" in text]
    assert not concerns_requests
    assert {*operator.warnings} == {"a forward pass for everybody"}


def test_users_over_http_who_ask_at_once_get_their_own_reports(
    reported_at_once: None, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n".join(KEYS.values()))
    keys.chmod(0o600)
    operator = RecordingReporter()
    resident = operator.of(lambda: Resident(SETTINGS, persist=False))
    service = Service("builtin", Tasks({"ask": (SETTINGS, load_preset("ask"))}))
    server = RunningServer(resident, service, Address("127.0.0.1", 0, read_keys(keys)))

    def ask(user: str) -> list[str]:
        documents = [{"name": f"{user}.txt", "text": TEXT}]
        body = {"task": "ask", "question": QUESTION, "documents": documents}
        headers = {"authorization": f"Bearer {KEYS[user]}"}
        response = httpx.post(f"{server.url}/answer", json=body, headers=headers, timeout=120)
        response.raise_for_status()
        return response.text.splitlines()

    with closing(resident), closing(server):
        replies = at_once(ask)
    for user in USERS:
        events = [decode(line.encode()) for line in replies[user] if line]
        texts = [event.text for event in events if isinstance(event, Message)]
        assert [text for text in texts if " for " in text] == lines_for(user)
    assert server.warned == []
    assert {*operator.warnings} == {"a forward pass for everybody"}


def test_a_request_is_not_reported_to_who_runs_the_server() -> None:
    operator = RecordingReporter()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reporting.status("reading a document of a client")
        reporting.warn("a page of it has no text")

    async def run() -> None:
        scope: Any = {"type": "http", "state": Connection(True).state()}
        nothing: Any = None
        await Entrance(nothing, app, None)(scope, nothing, nothing)
        reporting.warn("the server goes on")

    with reporting_to(operator):
        asyncio.run(run())
    assert operator.statuses == []
    assert operator.warnings == ["the server goes on"]


def test_what_auto_learned_is_reported_to_who_loaded_the_model_and_to_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_target()
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: model)
    settings = Settings.of(background="none", calibrate=False)
    loader = RecordingReporter()
    client = RecordingReporter()
    loaded = loader.of(lambda: LocalSession(settings))
    path = pool_path(model.tokenizer.fingerprint, settings.model.model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no pool")
    of_client = loaded.with_settings(settings, report=report_to(client))
    client.of(of_client.memory.load)
    assert client.warnings == []
    (warning,) = loader.warnings
    assert warning.startswith("the pool of earlier answers is started again")
