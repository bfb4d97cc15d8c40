"""Who answers a question: a server, or a model here; and how an answer is interrupted."""

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
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, and answers in place of a model's."""
    monkeypatch.setattr(Remote, "of", lambda settings: None)
    monkeypatch.setattr(Answerer, "check", lambda own, settings: None)
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
    assert isinstance(last, Ended) and last.text


class Leaving:
    """A server that takes no more questions."""

    def __init__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        raise NotServedError


def test_a_model_here_answers_where_the_server_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("nobody")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", Leaving)
    own = Answerer()
    *_, last = own.ask(QUESTION)
    assert isinstance(last, Ended) and own.loaded


class Other(Leaving):
    """A server of another installation."""

    def __next__(self) -> Event:
        raise OtherStampError


def test_a_model_here_answers_where_the_server_is_of_another_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("nobody")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", Other)
    own = Answerer()
    remark, *_, last = own.ask(QUESTION)
    assert isinstance(remark, Message) and "another installation" in remark.text
    assert isinstance(last, Ended) and own.loaded


class Serving:
    """A server that answers with an empty text."""

    def __init__(self, *_: object) -> None:
        self._events = iter([Ended(finish_reason="stop")])

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)


def fail_to_load(*_: object, **more: object) -> None:
    raise ModelError("no memory", hint="Choose a smaller model.")


def test_a_model_that_could_not_be_loaded_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(opening, "open_engine", fail_to_load)
        answerer = Answerer(stays=True)
        with pytest.raises(ModelError, match="no memory"):
            list(answerer.ask(QUESTION))
        assert not answerer.loaded
    *_, last = answerer.ask(QUESTION)
    assert isinstance(last, Ended)
    assert answerer.loaded


def test_after_a_model_could_not_be_loaded_a_server_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "open_engine", fail_to_load)
    answerer = Answerer(stays=True)
    with pytest.raises(ModelError, match="no memory"):
        list(answerer.ask(QUESTION))
    monkeypatch.setattr(Remote, "of", lambda settings: Remote(Place("started meanwhile")))
    monkeypatch.setattr("ngtcli.server.client.RemoteAnswer", Serving)
    assert list(answerer.ask(QUESTION)) == [Ended(finish_reason="stop")]
