"""The engine and its drivers: the events of an answer, interruptions, errors and parts."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

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


def request_of(text: str = TIDE) -> Request:
    """A request to summarize a text."""
    return Request(
        task="summarize",
        settings=Settings.of(max_tokens=40, overflow="split"),
        preset=load_preset("summarize"),
        loaded=Loaded((Document("a.txt", text),)),
    )


def make_engine(
    before: Callable[[str], None] = lambda _: None,
    size: int = 4,
    reported: list[Event] | None = None,
) -> FakeEngine:
    """An engine of fake answers.

    Args:
        before: A function that is called with each prompt before it is answered.
        size: The number of questions that are answered together.
        reported: A list to which the engine's messages are appended.
    """
    with reporting_to(EventsOf([] if reported is None else reported)):
        return FakeEngine(Settings(), FakeAnswers(before), size)


def run_all(engine: FakeEngine, requests: Iterable[Request]) -> list[Ended | NgtError]:
    """Answer all requests; return the answers in their order."""
    remaining = iter(enumerate(requests))
    outcomes = run(engine, lambda _: next(remaining, None))
    answers = {outcome.key: outcome.answer for outcome in outcomes}
    return [answers[index] for index in sorted(answers)]


def messages_in(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Message)]


def test_the_events_of_an_answer_come_in_order() -> None:
    events = list(Answering(make_engine(), request_of()))
    assert [type(event) for event in events] == [Prompted, Stepped, Ended]
    last = events[-1]
    assert isinstance(last, Ended)
    assert last.finish_reason == "stop"
    assert last.facts
    assert last.sources.verbatim_share > 0


def test_an_interrupt_during_the_search_for_sources_loses_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submissions_module, "with_sources", interrupt)
    reported: list[Event] = []
    *_, last = Answering(make_engine(reported=reported), request_of())

    assert isinstance(last, Ended)
    assert last.text
    assert last.finish_reason == "stop"
    assert any("sources" in text for text in messages_in(reported))


def test_an_interrupt_after_the_last_step_loses_no_answer() -> None:
    events = Answering(make_engine(), request_of())
    while not isinstance(next(events), Stepped):
        pass

    events.interrupt()

    (last,) = events
    assert isinstance(last, Ended)
    assert last.text
    assert last.finish_reason == "stop"


def fail(*_: object, **__: object) -> None:
    raise MemoryError("no memory")


def test_a_failed_search_for_sources_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions_module, "with_sources", fail)
    *_, last = Answering(make_engine(), request_of())
    assert isinstance(last, Ended)
    assert last.text
    assert last.finish_reason == "stop"
    assert not last.sources.spans


def test_a_failed_search_for_sources_is_a_warning_and_the_file_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(submissions_module, "with_sources", fail)
    out = tmp_path / "out.txt"
    done = ngt("summarize", HARBOUR, "-o", str(out), "--cite", "--max-tokens", "8")
    assert done.returncode == 0
    assert out.read_text()
    warning = "the answer is complete, but its sources could not be found: "
    assert warning in done.stderr.decode()


def test_an_error_after_an_answer_was_delivered_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Event] = []
    engine = make_engine(reported=reported)
    finish = engine.finish

    def finish_and_fail(*, store_prefixes: bool) -> None:
        finish(store_prefixes=store_prefixes)
        raise MemoryError("no memory")

    monkeypatch.setattr(engine, "finish", finish_and_fail)
    (answer,) = run_all(engine, [request_of()])

    assert isinstance(answer, Ended)
    assert any("was not stored" in text for text in messages_in(reported))


@pytest.mark.parametrize("broken", ["add", "prepare", "remarks"])
def test_a_question_that_cannot_begin_ends_with_an_error_and_others_go_on(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise MemoryError("no memory")

    engine = make_engine()
    if broken == "remarks":
        monkeypatch.setattr(engine_module, "look_alikes", fail_once)
    else:
        monkeypatch.setattr(engine, broken, fail_once)
    request = replace(request_of(), wants=frozenset({Want.SOURCES, Want.REMARKS}))

    first, second = run_all(engine, [request, request])

    assert isinstance(first, NgtError)
    assert isinstance(second, Ended)


def test_an_interrupt_before_an_answer_begins_reports_how_many_parts_are_kept() -> None:
    prompts: list[str] = []

    def interrupt_third(prompt: str) -> None:
        prompts.append(prompt)
        if len(prompts) == 3:
            raise KeyboardInterrupt

    events = Answering(make_engine(interrupt_third), request_of(LONG))
    with pytest.raises(KeyboardInterrupt):
        next(events)
    events.interrupt()
    with pytest.raises(StoppedError, match=r"interrupted; kept 2 of \d+ parts"):
        next(events)
    assert len(PARTS.each()) == 2


def test_a_long_text_is_answered_in_parts() -> None:
    reported: list[Event] = []
    *_, last = Answering(make_engine(reported=reported), request_of(TIDE * 1000))
    assert isinstance(last, Ended)
    assert len(last.parts) > 3
    assert 1 in {part.level for part in last.parts}
    parts = [event.words for event in reported if isinstance(event, Part)]
    assert parts[0].startswith("Part 1 of")
    assert parts[-1] == ""


def test_answering_in_parts_does_not_change_the_signal_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the server answers in parts, too, and a thread may not change them."""

    def fail_if_called() -> None:
        raise AssertionError

    monkeypatch.setattr(process, "unwind_on_interrupt", fail_if_called)
    *_, last = Answering(make_engine(), request_of(TIDE * 1000))
    assert isinstance(last, Ended)


def test_the_progress_of_reading_a_long_text_is_reported_to_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "_INTERVAL_S", 0.0)
    reported: list[Event] = []
    make_engine().prepare(Submission(request_of(TIDE * 10_000), report=reported.append))
    statuses = [
        event.text for event in reported if isinstance(event, Message) and event.kind == "status"
    ]
    assert any(status.startswith("Reading ") for status in statuses)


def answer_three_parts(owner: str) -> list[str]:
    """Interrupt a question of this owner after three parts; return the messages."""
    reported: list[Event] = []
    engine = make_engine()
    submissions = Submissions(engine)
    submission = Submission(request_of(LONG), owner, report=reported.append)
    submissions.add(engine.prepare(submission))
    while len(engine._answers.asked) < 3:
        submissions.step()
    submissions.interrupt()
    return messages_in(reported)


def test_parts_are_kept_for_the_user_alone() -> None:
    answer_three_parts("another")
    assert not PARTS.each()

    answer_three_parts("")
    kept = PARTS.each()
    assert len(kept) == 3

    messages = answer_three_parts("another")
    assert not any("earlier run" in message for message in messages)
    assert PARTS.each() == kept


def test_kept_parts_are_deleted_after_the_answer_was_delivered() -> None:
    events = Answering(make_engine(), request_of(TIDE * (3 * CONTEXT // len(TIDE))))
    while not isinstance(next(events), Ended):
        pass
    assert PARTS.each()

    assert next(events, None) is None
    assert not PARTS.each()


@pytest.mark.parametrize("size", [1, 3])
def test_a_long_question_has_the_same_answer_in_a_batch_and_alone(size: int) -> None:
    texts = [f"{index} {TIDE * repeats}" for index, repeats in enumerate([1, 600, 1, 600, 1])]
    requests = [request_of(text) for text in texts]

    batch = run_all(make_engine(size=size), requests)

    for request, answer in zip(requests, batch, strict=True):
        *_, expected = Answering(make_engine(size=size), request)
        assert isinstance(expected, Ended)
        assert isinstance(answer, Ended)
        assert answer.text == expected.text
        assert [part.text for part in answer.parts] == [part.text for part in expected.parts]


def test_an_error_of_a_part_ends_its_question_alone() -> None:
    def fail_for_wrong(prompt: str) -> None:
        if "Wrong" in prompt:
            raise NgtError("no scores", hint="Try again.")

    texts = [TIDE, f"{TIDE * 400} Wrong. {TIDE * 400}", TIDE * 400]
    engine = make_engine(fail_for_wrong, size=2)

    short, wrong, long = run_all(engine, [request_of(text) for text in texts])

    assert isinstance(short, Ended)
    assert str(wrong) == "no scores"
    assert isinstance(long, Ended)
