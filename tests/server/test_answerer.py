"""The answerer: whether a server or a model of this process answers, and interrupted answers."""

from collections.abc import Iterator

import pytest

from ngtcli.config import Settings
from ngtcli.engine import opening
from ngtcli.engine.events import Ended, Event, Message, Stepped
from ngtcli.engine.request import Request
from ngtcli.errors import ModelError, StoppedError
from ngtcli.prompts.preset import load_preset
from ngtcli.server.answerer import Answerer
from ngtcli.server.client import NotServedError, OtherStampError, Remote
from ngtcli.server.places import Place
from tests.support.fakes import FakeAnswers, answer_with

QUESTION = Request(
    task="generate",
    settings=Settings.of(max_tokens=40),
    preset=load_preset("generate"),
    question="The tide came in at noon.",
)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server runs, and this process answers with fake answers."""
    monkeypatch.setattr(Remote, "of", lambda settings: None)
    monkeypatch.setattr(Answerer, "check", lambda answerer, settings: None)
    answer_with(monkeypatch, FakeAnswers())


def test_an_answer_that_is_interrupted_before_it_begins_is_stopped() -> None:
    events = Answerer().ask(QUESTION)
    events.interrupt()
    with pytest.raises(StoppedError):
        next(events)


def test_an_interrupted_answer_still_has_its_last_event() -> None:
    events = Answerer().ask(QUESTION)
    while not isinstance(next(events), Stepped):
        pass
    events.interrupt()
    (last,) = events
    assert isinstance(last, Ended)
    assert last.text


class LeavingServer:
    """The answer of a server that takes no more questions."""

    def __init__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        raise NotServedError


def test_this_process_answers_if_the_server_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("nobody")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", LeavingServer)
    answerer = Answerer()
    *_, last = answerer.ask(QUESTION)
    assert isinstance(last, Ended)
    assert answerer.loaded


class OtherServer(LeavingServer):
    """The answer of a server of another installation."""

    def __next__(self) -> Event:
        raise OtherStampError


def test_this_process_answers_if_the_server_is_of_another_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("nobody")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", OtherServer)
    answerer = Answerer()
    message, *_, last = answerer.ask(QUESTION)
    assert isinstance(message, Message)
    assert "another installation" in message.text
    assert isinstance(last, Ended)
    assert answerer.loaded


class ReadyServer:
    """The answer of a server, which is an empty text."""

    def __init__(self, *_: object) -> None:
        self._events = iter([Ended(finish_reason="stop")])

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)


def fail_to_load(*_: object, **__: object) -> None:
    raise ModelError("no memory", hint="Choose a smaller model.")


def test_loading_is_tried_again_after_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(opening, "open_engine", fail_to_load)
        answerer = Answerer(stays=True)
        with pytest.raises(ModelError, match="no memory"):
            list(answerer.ask(QUESTION))
        assert not answerer.loaded
    *_, last = answerer.ask(QUESTION)
    assert isinstance(last, Ended)
    assert answerer.loaded


def test_a_server_is_looked_for_again_after_loading_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "open_engine", fail_to_load)
    answerer = Answerer(stays=True)
    with pytest.raises(ModelError, match="no memory"):
        list(answerer.ask(QUESTION))
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("started meanwhile")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", ReadyServer)
    assert list(answerer.ask(QUESTION)) == [Ended(finish_reason="stop")]
