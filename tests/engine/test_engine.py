"""The engine and its drivers: what comes of a question, whatever interrupts it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.engine import engine as engine_module
from ngtcli.engine import submissions as submissions_module
from ngtcli.engine.drivers import Answering, run
from ngtcli.engine.engine import Submission
from ngtcli.engine.events import Ended, Event, Message, Part, Prompted, Stepped
from ngtcli.engine.parts import PARTS
from ngtcli.engine.request import Request, Want
from ngtcli.engine.submissions import Submissions
from ngtcli.errors import NgtError, StoppedError
from ngtcli.prompts import fitting
from ngtcli.prompts.preset import load_preset
from ngtcli.system import process
from ngtcli.system.reporting import reporting_to
from tests.support.fakes import CONTEXT, FakeAnswers, FakeEngine
from tests.support.helpers import HARBOUR, ngt
from tests.support.recording_reporter import EventsOf

TIDE = "The tide came in at noon. "
LONG = "".join(f"{i}. {TIDE}" for i in range(1000))


def question(text: str = TIDE, **changes: Any) -> Request:
    settings = Settings.of(max_tokens=40, overflow="split").replace(**changes)
    loaded = Loaded((Document("a.txt", text),))
    return Request(
        task="summarize", settings=settings, preset=load_preset("summarize"), loaded=loaded
    )


def engine(
    before: Callable[[str], None] = lambda _: None, size: int = 4, said: list[Event] | None = None
) -> FakeEngine:
    told: list[Event] = [] if said is None else said
    with reporting_to(EventsOf(told)):
        return FakeEngine(Settings(), FakeAnswers(before), size)


def test_the_events_of_a_question_come_in_order() -> None:
    events = [*Answering(engine(), question())]
    assert [type(event) for event in events] == [Prompted, Stepped, Ended]
    last = events[-1]
    assert isinstance(last, Ended)
    assert last.finish_reason == "stop"
    assert last.facts
    assert last.sources.verbatim_share > 0


@pytest.mark.parametrize("where", ["meanwhile", "before"])
def test_an_interrupt_while_sources_are_looked_up_loses_no_answer(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    said: list[Event] = []
    events = Answering(engine(said=said), question())
    if where == "meanwhile":
        monkeypatch.setattr(submissions_module, "with_sources", interrupted)
        *_, last = events
        assert any(isinstance(e, Message) and "sources" in e.text for e in said)
    else:
        while not isinstance(next(events), Stepped):
            pass
        events.interrupt()
        (last,) = events
    assert isinstance(last, Ended)
    assert last.text
    assert last.finish_reason == "stop"


def fails(*_: object, **__: object) -> None:
    raise MemoryError("no memory")


def test_a_failed_comparison_with_the_documents_loses_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submissions_module, "with_sources", fails)
    events = [*Answering(engine(), question())]
    last = events[-1]
    assert isinstance(last, Ended)
    assert last.text
    assert last.finish_reason == "stop"
    assert not last.sources.spans


def test_a_failed_comparison_is_a_warning_and_the_file_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(submissions_module, "with_sources", fails)
    out = str(tmp_path / "out.txt")
    done = ngt("summarize", HARBOUR, "-o", out, "--cite", "--max-tokens", "8")
    assert done.returncode == 0
    assert (tmp_path / "out.txt").read_text()
    says = "the answer is complete, but its sources could not be found: "
    assert says in done.stderr.decode()


def test_what_fails_after_an_answer_was_delivered_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finish_fails(*, store: bool) -> None:
        finish(store=store)
        raise MemoryError("no memory")

    said: list[Event] = []
    own = engine(said=said)
    finish = own.finish
    monkeypatch.setattr(own, "finish", finish_fails)
    coming = iter([(0, question())])
    found = [*run(own, lambda _: next(coming, None))]
    assert [type(one.answer) for one in found] == [Ended]
    assert any(isinstance(e, Message) and "was not stored" in e.text for e in said)


@pytest.mark.parametrize("broken", ["add", "prepare", "remarks"])
def test_a_question_that_cannot_begin_ends_with_an_error_and_others_go_on(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise MemoryError("no memory")

    own = engine()
    if broken == "remarks":
        monkeypatch.setattr(engine_module, "look_alikes", fails_once)
    else:
        monkeypatch.setattr(own, broken, fails_once)
    request = replace(question(), wants=frozenset({Want.SOURCES, Want.REMARKS}))
    coming = iter([(0, request), (1, request)])
    found = {o.key: o.answer for o in run(own, lambda _: next(coming, None))}
    assert isinstance(found[0], NgtError)
    assert isinstance(found[1], Ended)


def test_an_interrupt_before_an_answer_begins_says_what_is_kept() -> None:
    def before(text: str) -> None:
        asked.append(text)
        if len(asked) == 3:
            raise KeyboardInterrupt

    asked: list[str] = []
    events = Answering(engine(before), question(LONG))
    with pytest.raises(KeyboardInterrupt):
        next(events)
    events.interrupt()
    with pytest.raises(StoppedError, match=r"interrupted; kept 2 of \d+ parts"):
        next(events)
    assert len(PARTS.each()) == 2


def test_parts_change_nothing_of_how_the_process_hears_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server's thread answers them, too."""

    def never() -> None:
        raise AssertionError

    monkeypatch.setattr(process, "unwind_on_interrupt", never)
    said: list[Event] = []
    *_, last = Answering(engine(said=said), question(TIDE * 1000))
    assert isinstance(last, Ended)
    assert len(last.parts) > 3
    assert {part.level for part in last.parts} >= {1}
    parts = [event.words for event in said if isinstance(event, Part)]
    assert parts[0].startswith("Part 1 of")
    assert parts[-1] == ""


def test_how_much_of_a_long_text_is_read_is_reported_to_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "_INTERVAL_S", 0.0)
    reported = list[Event]()
    engine().prepare(Submission(question(TIDE * 10_000), report=reported.append))
    statuses = [e.text for e in reported if isinstance(e, Message) and e.kind == "status"]
    assert any(words.startswith("Reading ") for words in statuses)


def test_parts_are_kept_for_the_user_alone() -> None:
    def three_parts(owner: str) -> list[str]:
        reported, own = list[Event](), engine()
        requests = Submissions(own)
        requests.add(own.prepare(Submission(question(LONG), owner, report=reported.append)))
        while len(own._answers.asked) < 3:
            requests.step()
        requests.interrupt()
        return [event.text for event in reported if isinstance(event, Message)]

    three_parts("another")
    assert not PARTS.each()
    three_parts("")
    kept = PARTS.each()
    assert len(kept) == 3
    assert not any("earlier run" in words for words in three_parts("another"))
    assert PARTS.each() == kept


def test_what_is_kept_of_parts_goes_once_the_answer_was_taken() -> None:
    text = TIDE * (3 * CONTEXT // len(TIDE))
    events = Answering(engine(), question(text))
    while not isinstance(next(events), Ended):
        pass
    assert PARTS.each()
    assert next(events, None) is None
    assert not PARTS.each()


@pytest.mark.parametrize("size", [1, 3])
def test_a_long_question_beside_others_has_the_answer_that_it_has_alone(size: int) -> None:
    questions = [question(f"{i} {TIDE * 600}" if i % 2 else f"{i} {TIDE}") for i in range(5)]
    alone = []
    for one in questions:
        *_, last = Answering(engine(size=size), one)
        alone.append(last)
    coming = iter(enumerate(questions))
    found = {o.key: o.answer for o in run(engine(size=size), lambda _: next(coming, None))}
    for i, one in enumerate(alone):
        own = found[i]
        assert isinstance(one, Ended)
        assert isinstance(own, Ended)
        assert own.text == one.text
        assert [p.text for p in own.parts] == [p.text for p in one.parts]


def test_an_error_of_a_part_ends_its_question_alone() -> None:
    def before(text: str) -> None:
        if "Wrong" in text:
            raise NgtError("no scores", hint="Try again.")

    bad = question(f"{TIDE * 400} Wrong. {TIDE * 400}")
    coming = iter([(0, question()), (1, bad), (2, question(TIDE * 400))])
    found = {o.key: o.answer for o in run(engine(before, 2), lambda _: next(coming, None))}
    assert str(found[1]) == "no scores"
    assert isinstance(found[0], Ended)
    assert isinstance(found[2], Ended)
