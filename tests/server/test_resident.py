"""A resident model: many threads, one model, each answer as if it were the only one."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.decoding import step as step_module
from ngtcli.decoding.grouping import Batching, why_single
from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.decoding.support import SUPPORTED
from ngtcli.documents.load import Document, Loaded
from ngtcli.engine import engine as engine_module
from ngtcli.engine.engine import Submission
from ngtcli.engine.events import Ended, Event, Message, Prompted, Reading, Stepped
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.request import Request, Want
from ngtcli.errors import BusyError, ContextOverflowError, NgtError, StoppedError
from ngtcli.heads.files import Target
from ngtcli.heads.perceptrons import Medusa
from ngtcli.prompts.preset import load_preset
from ngtcli.retrieval.index import PASSAGES
from ngtcli.retrieval.vectors import VECTORS
from ngtcli.server import fair_queue
from ngtcli.server.fair_queue import FairQueue, State
from ngtcli.server.resident import Resident
from ngtcli.server.ticket import Ticket
from tests.support.head_files import save_head
from tests.support.helpers import wait_until

MILL = "The mill burnt down in {year}. The tide came in at noon. Anna wrote to the keeper."
SETTINGS = Settings.of(
    max_tokens=24, overflow="truncate", calibrate=False, background="none", pool=False
)


def question_about(year: int = 1901, text: str = MILL, **changes: Any) -> Request:
    document = Document("a.txt", text.format(year=year) * 3)
    return Request(
        task="ask",
        settings=SETTINGS.replace(**changes),
        preset=load_preset("ask"),
        loaded=Loaded((document,)),
        question="When did the mill burn down?",
    )


def question_with_remarks(**changes: Any) -> Request:
    return replace(question_about(**changes), wants=frozenset({Want.SOURCES, Want.REMARKS}))


@pytest.fixture(scope="module")
def resident() -> Iterator[Resident]:
    server = Resident(SETTINGS, persist=False)
    yield server
    server.close()
    assert not any(thread.is_alive() for thread in server._threads)


@dataclass
class Listener:
    """Collects the events of a question; calls `on_event` with each before it is collected."""

    on_event: Callable[[Event | NgtError], object] = lambda _: None
    events: list[Event | NgtError] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event | NgtError) -> None:
        self.on_event(event)
        self.events.append(event)
        if isinstance(event, Ended | NgtError):
            self.ended.set()

    @property
    def last(self) -> Event | NgtError:
        assert self.ended.wait(60)
        return self.events[-1]

    @property
    def token_ids(self) -> list[int]:
        assert isinstance(self.last, Ended)
        steps = [event.step for event in self.events if isinstance(event, Stepped)]
        assert tuple(steps) == self.last.steps
        return [token.id for token in self.last.tokens]


def single_output(resident: Resident, question: Request) -> list[int]:
    listener = Listener()
    resident.submit(question, listener)
    return listener.token_ids


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences in each forward pass."""
    sizes = list[int]()
    score = TargetModel.score

    def measured_score(model: TargetModel, layout: Any) -> Any:
        sizes.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", measured_score)
    return sizes


@pytest.mark.parametrize("where", ["look_alikes", "has_room", "add", "close"])
def test_each_question_ends_whatever_fails_in_the_models_thread(
    where: str, monkeypatch: pytest.MonkeyPatch, resident: Resident
) -> None:
    """What fails between the queue and the model has an end as well, and other questions too."""

    def fails(*_: object, **__: object) -> None:
        failed.append(where)
        raise MemoryError("no memory")

    failed: list[str] = []
    target, name = {
        "look_alikes": (engine_module, "look_alikes"),
        "has_room": (LocalEngine, "has_room"),
        "add": (LocalEngine, "add"),
        "close": (LocalSession, "save"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, fails)
        first = Listener()
        resident.submit(question_with_remarks(), first)
        assert isinstance(first.last, Ended if where == "close" else NgtError)
        wait_until(lambda: failed)
    assert single_output(resident, question_about())


LONG: dict[str, Any] = {"temperature": 9.0, "max_tokens": 10}  # of random words, to the last


def is_ready(resident: Resident, ticket: Ticket) -> bool:
    return resident._queue.state_of(ticket) is State.READY


def behind(resident: Resident, *more: tuple[Request, Listener, str]) -> Callable[[Any], None]:
    """A callback that holds the model's thread at the first step until these questions wait."""
    unsubmitted = [more]

    def hold(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and unsubmitted:
            tickets = [
                resident.submit(question, listener, owner=owner)
                for question, listener, owner in unsubmitted.pop()
            ]
            wait_until(lambda: all(is_ready(resident, ticket) for ticket in tickets))

    return hold


def test_events_come_in_order_and_warnings_of_loading_are_repeated() -> None:
    server = Resident(SETTINGS.replace(background="english"), persist=False)
    server._warnings.append(Message("warn", "as it was"))
    # The background has a remark, whatever the forward passes take.
    events = [*server.ask(question_with_remarks(background="english"))]
    server.close()
    kinds = [type(event).__name__ for event in events]
    expected = ["Message", "Prompted", "Started", "Reading", "Stepped", "Ended"]
    assert [*dict.fromkeys(kinds)] == expected
    assert events[0].text == "as it was"  # type: ignore[union-attr]
    last = events[-1]
    assert isinstance(last, Ended)
    assert "1901" in last.text
    assert last.sources.verbatim_share == 1.0
    assert last.facts
    assert any("english" in remark for remark in last.remarks)


def test_answers_of_many_threads_are_those_of_each_alone(
    resident: Resident, batch_sizes: list[int]
) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 3},
        LONG,
        {**LONG, "seed": 5},
        {"max_tokens": 3},
        {"stop": ("down",)},
        {"repetition_penalty": 1.5},
        {"method": "none"},
    ]
    questions = [question_about(1900 + i, **more) for i, more in enumerate(changes)]
    single_outputs = [single_output(resident, question) for question in questions]
    assert max(batch_sizes) == 1

    rest = [
        (question, Listener(), f"owner {i % 3}")
        for i, question in enumerate(questions[:2] + questions[3:])
    ]
    first = Listener(behind(resident, *rest))
    resident.submit(questions[2], first)
    assert first.token_ids == single_outputs[2]
    rest_outputs = [listener.token_ids for _, listener, _ in rest]
    assert rest_outputs == single_outputs[:2] + single_outputs[3:]
    assert max(batch_sizes) > 3


def test_a_method_of_heads_runs_alone_and_auto_goes_on_without_them_beside_others(
    tmp_path: Path, batch_sizes: list[int]
) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    target = Target(model.hf, model.device, model.dtype)
    save_head(tmp_path, Medusa(target, 2).state_dict(), {})

    server = Resident(SETTINGS.replace(heads=(str(tmp_path),)), persist=False)
    for method, is_batched in (("medusa", False), ("auto", True)):
        changes: Any = {**LONG, "heads": (str(tmp_path),), "method": method}
        questions = [question_about(1901 + i, **changes) for i in range(2)]
        single_outputs = [single_output(server, question) for question in questions]
        batch_sizes.clear()
        second = Listener()
        first = Listener(behind(server, (questions[1], second, "")))
        server.submit(questions[0], first)
        assert [first.token_ids, second.token_ids] == single_outputs
        assert (2 in batch_sizes) == is_batched
    server.close()


@pytest.mark.parametrize("others", [0, 2])
def test_cancelling_ends_an_answer_within_a_step(resident: Resident, others: int) -> None:
    rest = [(question_about(1902 + i, **LONG), Listener(), "") for i in range(others)]
    tickets: list[Ticket] = []
    hold = behind(resident, *rest)

    def cancel_at_fifth_step(event: Event | NgtError) -> None:
        hold(event)
        if sum(isinstance(event, Stepped) for event in listener.events) == 4:
            tickets[0].cancel()

    listener = Listener(cancel_at_fifth_step)
    tickets.append(resident.submit(question_about(**{**LONG, "max_tokens": 64}), listener))
    assert isinstance(listener.last, Ended)
    assert listener.last.finish_reason == "interrupted"
    assert 4 <= len(listener.last.steps) <= 5
    for question, other, _ in rest:
        assert other.token_ids == single_output(resident, question)


def test_cancelling_before_an_answer_begins_stops_it(resident: Resident) -> None:
    waiting = Listener()
    tickets = list[Ticket]()

    def cancel(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and not tickets:
            tickets.append(resident.submit(question_about(), waiting))
            wait_until(lambda: is_ready(resident, tickets[0]))
            tickets[0].cancel()

    first = Listener(cancel)
    resident.submit(question_about(**LONG), first)
    assert isinstance(first.last, Ended)
    assert first.token_ids
    assert isinstance(waiting.last, StoppedError)
    assert len(waiting.events) == 1


@pytest.mark.parametrize("beside", [False, True])
def test_cancelling_while_the_prompt_is_read_stops_it(resident: Resident, beside: bool) -> None:
    tickets: list[Ticket] = []
    late = Listener(lambda event: isinstance(event, Reading) and tickets[0].cancel())

    def begin(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and not tickets:
            tickets.append(resident.submit(question_about(**LONG), late))
            wait_until(lambda: is_ready(resident, tickets[0]))

    first = Listener(begin)
    other = question_about(1902, **LONG, exact="off" if beside else "on")
    resident.submit(other, first)
    assert isinstance(late.last, StoppedError) or not late.token_ids
    assert first.token_ids == single_output(resident, other)


def test_in_rounding_dtypes_the_users_own_answers_are_given_alone(resident: Resident) -> None:
    """Near ties may turn out otherwise beside others, and exact passes are over one text."""
    engine = LocalEngine(resident._engine._base)
    batching = Batching(0, SUPPORTED, rounds=True)
    for exact, owner, joins in (
        ("auto", "", False),
        ("off", "", True),
        ("on", "", False),
        ("auto", "http", True),
        ("on", "http", False),
    ):
        candidate = engine.candidate(Submission(question_about(exact=exact), owner))
        assert (why_single(candidate, batching) == "") == joins


def test_leaving_an_answer_ends_it(resident: Resident) -> None:
    events = resident.ask(question_about(**LONG))
    while not isinstance(next(events), Stepped):
        pass
    events.close()
    events = resident.ask(question_about(**LONG))
    while not isinstance(next(events), Stepped):
        pass
    events.interrupt()
    *_, last = events
    assert isinstance(last, Ended)
    assert last.finish_reason == "interrupted"
    assert [*events] == []


class Panic(BaseException):
    """As a library in another language raises it."""


@pytest.mark.parametrize("alone", [False, True])
def test_an_error_of_one_hurts_no_other(
    resident: Resident, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """A pass over one text fails: the first in a batch, then, or else at once, also alone."""
    bad = question_about(1666, **LONG)
    step = step_module.run_step
    failed = list[int]()
    decode = resident._engine.session.model.tokenizer.decode

    def failing(model: Any, sequences: Any, *more: Any) -> bool:
        count = len(sequences)
        for sequence in sequences:
            is_bad = "1666" in decode(sequence.context.ids)
            if is_bad and sequence.token_ids and (count > 1 or not alone):
                failed.append(count)
                raise (Panic if alone else RuntimeError)("a kernel failed")
        return step(model, sequences, *more)

    good = [question_about(1902, **LONG), question_about(1903)]
    good_outputs = [single_output(resident, question) for question in good]
    unhurt = single_output(resident, bad)
    monkeypatch.setattr(step_module, "run_step", failing)
    bad_listener = Listener()
    too_long_listener = Listener()
    first = Listener()
    second = Listener()
    first.on_event = behind(resident, (bad, bad_listener, "o"), (good[1], second, ""))
    too_long = question_about(text=MILL * 3000, overflow="error")
    tickets = [resident.submit(too_long, too_long_listener), resident.submit(good[0], first)]
    assert [first.token_ids, second.token_ids] == good_outputs
    assert isinstance(too_long_listener.last, ContextOverflowError)
    if alone:
        assert bad_listener.token_ids == unhurt
    else:
        assert "a kernel failed" in str(bad_listener.last)
    assert max(failed) > 1
    assert tickets


def test_an_answer_that_is_cancelled_where_its_batch_fails_keeps_its_steps(
    resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_module.run_step

    def failing(model: Any, sequences: Any, *more: Any) -> bool:
        if len(sequences) > 1:
            ticket.cancel()
            raise RuntimeError("a kernel failed")
        return step(model, sequences, *more)

    monkeypatch.setattr(step_module, "run_step", failing)
    other = Listener()
    first = Listener(behind(resident, (question_about(1902, **LONG), other, "")))
    ticket = resident.submit(question_about(**LONG), first)
    assert isinstance(first.last, Ended)
    assert first.last.finish_reason == "interrupted"
    assert first.token_ids
    assert len(other.token_ids) == LONG["max_tokens"]


@pytest.mark.parametrize("beside", [False, True])
def test_nothing_of_an_answer_that_has_ended_waits_for_the_garbage_collector(
    resident: Resident, beside: bool
) -> None:
    sequences: list[Any] = []
    others = [(question_about(1902), Listener(), "")] if beside else []
    hold = behind(resident, *others)

    def refer_to_sequence(event: Event | NgtError) -> None:
        hold(event)
        if isinstance(event, Stepped) and resident._engine._jobs:
            sequences.append(weakref.ref(resident._engine._jobs[0].sequence))

    gc.disable()
    try:
        first = Listener(refer_to_sequence)
        resident.submit(question_about(**LONG), first)
        assert first.token_ids
        assert single_output(resident, question_about())  # the threads work for another now
        wait_until(lambda: sequences[0]() is None)
    finally:
        gc.enable()


def test_a_question_that_is_ready_when_the_model_has_gone_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Resident(SETTINGS, persist=False)
    listener = Listener()
    prepared = server._queue.prepared
    closing = threading.Thread(target=server.close)

    def prepared_late(ticket: Ticket, answer: Any) -> None:
        closing.start()
        server._threads[0].join()
        prepared(ticket, answer)

    monkeypatch.setattr(server._queue, "prepared", prepared_late)
    server.submit(question_about(), listener)
    assert isinstance(listener.last, StoppedError)
    closing.join()


def test_the_trie_of_documents_is_stored_for_the_user_alone(
    resident: Resident, own_home: Path
) -> None:
    for owner in ("another", ""):
        assert [*resident.ask(question_about(1777, method="trie", max_tokens=2), owner=owner)]
        assert bool([*own_home.rglob("tries/*")]) == (not owner)


SECRET = "The keeper wrote in his log that {year} zebras vexed a quartz fox by the pond."
HARMLESS = "The keeper wrote in his log that {year} boats came in with the morning tide."


def test_what_is_searched_of_texts_that_another_gives_is_neither_stored_nor_read(
    resident: Resident,
) -> None:
    long = " ".join(MILL.format(year=year) for year in range(1500, 1700))
    question = question_about(text=long, overflow="retrieve", max_tokens=4)
    of_server = replace(question.documents[0], path="/served/a.txt")

    def stored() -> set[str]:
        return {*PASSAGES.each(), *VECTORS.each()}

    def index_for(owner: str, question: Request = question) -> str:
        events = [*resident.ask(question, owner=owner)]
        prompted = next(event for event in events if isinstance(event, Prompted))
        assert prompted.selection
        return prompted.selection.index

    assert index_for("another") == "built"
    assert not stored()
    assert index_for("") == "built"
    of_user = stored()
    assert of_user
    assert index_for("another") == "built"
    assert stored() == of_user

    with_file = replace(question, loaded=Loaded((of_server,)))
    assert [index_for("another", with_file) for _ in range(2)] == ["built", "cached"]
    with_files_of_server = stored()
    both = replace(question, loaded=Loaded((of_server, *question.documents)))
    assert index_for("another", both) == "built"
    assert stored() == with_files_of_server


def test_memory_is_given_back_once_nobody_waits(
    resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    name = "ngtcli.server.resident.return_memory"
    monkeypatch.setattr(name, lambda: waiting.append(resident.waiting))
    single_output(resident, question_about())
    wait_until(lambda: bool(waiting))
    assert waiting[0] == 0


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("owner", ["", "another"])
def test_no_text_of_one_owner_is_drafted_for_another(
    owner: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer said is drafted later for the user of this process, and for nobody else."""
    changes: dict[str, Any] = {
        "pool": True,
        "pool_documents": True,
        "num_draft": 64,
        "method": "auto:loglinear=false",  # its tree has room for what only the pool knows
    }
    server = Resident(SETTINGS.replace(**changes), persist=False)
    encode = server._engine.session.model.tokenizer.encode
    drafted = set[int]()
    secret = set(encode(SECRET.format(year=12))) - set(encode(HARMLESS.format(year=12)))
    emit = DecodedSequence.emit
    emitted: list[DecodedSequence] = []

    def watched_emit(sequence: DecodedSequence, path: Any, tree: Any) -> int:
        if not secret & set(sequence.context.ids):
            emitted.append(sequence)
            drafted.update(tree.tokens)
        return emit(sequence, path, tree)

    monkeypatch.setattr(DecodedSequence, "emit", watched_emit)
    first, second, long = (
        replace(
            question_about(12, text, **changes, **more),
            question="What did the keeper write in his log?",
        )
        for text, more in ((SECRET, {}), (HARMLESS, {}), (MILL, LONG))
    )
    *_, last = server.ask(first, owner=owner)
    assert isinstance(last, Ended)
    assert "zebras" in last.text

    other_owner = "one more" if owner else ""
    listener = Listener()
    if beside:
        hold = Listener(behind(server, (second, listener, other_owner)))
        server.submit(long, hold, owner=owner)
        assert isinstance(hold.last, Ended)
    else:
        server.submit(second, listener, owner=other_owner)
    assert isinstance(listener.last, Ended)
    assert "boats" in listener.last.text
    server.close()
    assert emitted
    assert bool(secret & drafted) == (not owner)


def test_owners_take_turns_and_one_is_not_taken_before_it_is_ready() -> None:
    queue: FairQueue[int, str] = FairQueue()
    for owner, numbers in (("a", [0, 1, 2, 3]), ("b", [10]), ("c", [20]), ("b", [11])):
        for number in numbers:
            queue.put(number, owner)
    assert queue.take() is None
    for _ in range(7):
        number = queue.to_prepare()
        assert number is not None
        assert queue.state_of(number) is State.PREPARING
        queue.prepared(number, None if number == 10 else "a prompt")
    order = [queue.take() for _ in range(7)]
    numbers_in_order = [taken[0] if taken else None for taken in order]
    assert numbers_in_order == [0, 11, 20, 1, 2, 3, None]
    assert len(queue) == 0


def test_a_full_queue_takes_no_more_of_that_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MAX_WAITING_OF_OWNER", 2)
    monkeypatch.setattr(fair_queue, "MAX_WAITING", 3)
    queue: FairQueue[int, str] = FairQueue()
    queue.put(0, "a")
    queue.put(1, "a")
    with pytest.raises(BusyError, match="2 requests wait"):
        queue.put(2, "a")
    queue.put(3, "b")
    with pytest.raises(BusyError, match="3 requests wait"):
        queue.put(4, "c")
    assert queue.remove(0)
    assert not queue.remove(0)
    queue.put(4, "c")
    assert queue.close() == [1, 3, 4]
    with pytest.raises(BusyError, match="the server is stopping"):
        queue.put(5, "d")


def test_what_others_ask_evicts_no_session_of_the_user() -> None:
    engine = LocalEngine(LocalSession(SETTINGS, persist=False))
    mine = engine.prepare(Submission(question_about())).session
    for num_draft in range(1, 12):
        engine.prepare(Submission(question_about(method="trie", num_draft=num_draft), "http"))
    again = engine.prepare(Submission(question_about())).session
    assert isinstance(mine, LocalSession)
    assert isinstance(again, LocalSession)
    assert again.memory is mine.memory
