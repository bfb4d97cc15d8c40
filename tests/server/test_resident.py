"""A resident model: many threads, one model, each answer as it is alone."""

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
from ngtcli.decoding.sequence import Sequence as DecodedSequence
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


def asked(year: int = 1901, text: str = MILL, **changes: Any) -> Request:
    document = Document("a.txt", text.format(year=year) * 3)
    return Request(
        task="ask", settings=SETTINGS.replace(**changes), preset=load_preset("ask"),
        loaded=Loaded((document,)), question="When did the mill burn down?",
    )  # fmt: skip


def asked_for_remarks(**changes: Any) -> Request:
    return replace(asked(**changes), wants=frozenset({Want.SOURCES, Want.REMARKS}))


@pytest.fixture(scope="module")
def resident() -> Iterator[Resident]:
    made = Resident(SETTINGS, persist=False)
    yield made
    made.close()
    assert not any(thread.is_alive() for thread in made._threads)


@dataclass
class Heard:
    """The events of a question; `at` is called with each before it is kept."""

    at: Callable[[Event | NgtError], object] = lambda _: None
    events: list[Event | NgtError] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event | NgtError) -> None:
        self.at(event)
        self.events.append(event)
        if isinstance(event, Ended | NgtError):
            self.over.set()

    @property
    def last(self) -> Event | NgtError:
        assert self.over.wait(60)
        return self.events[-1]

    @property
    def ids(self) -> list[int]:
        assert isinstance(self.last, Ended)
        told = [s.step for s in self.events if isinstance(s, Stepped)]
        assert tuple(told) == self.last.steps
        return [token.id for token in self.last.tokens]


def ids_alone(resident: Resident, question: Request) -> list[int]:
    heard = Heard()
    resident.submit(question, heard)
    return heard.ids


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each pass of a batch served."""
    counts, score = list[int](), TargetModel.score

    def counted(model: TargetModel, layout: Any) -> Any:
        counts.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", counted)
    return counts


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
        first = Heard()
        resident.submit(asked_for_remarks(), first)
        assert isinstance(first.last, Ended if where == "close" else NgtError)
        wait_until(lambda: failed)
    assert ids_alone(resident, asked())


LONG: dict[str, Any] = {"temperature": 9.0, "max_tokens": 10}  # of random words, to the last


def is_ready(resident: Resident, ticket: Ticket) -> bool:
    return resident._queue.state_of(ticket) is State.READY


def behind(resident: Resident, *more: tuple[Request, Heard, str]) -> Callable[[Any], None]:
    """Holds the model's thread at the first step, until these questions have come as well."""
    left = [more]

    def hold(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and left:
            questions = left.pop()
            tickets = [resident.submit(q, h, owner=owner) for q, h, owner in questions]
            wait_until(lambda: all(is_ready(resident, ticket) for ticket in tickets))

    return hold


def test_events_come_in_order_and_what_loading_warned_of_is_told_again() -> None:
    made = Resident(SETTINGS.replace(background="english"), persist=False)
    made._warnings.append(Message("warn", "as it was"))
    # The background has a remark, whatever the forward passes take.
    heard = [*made.ask(asked_for_remarks(background="english"))]
    made.close()
    kinds = [type(event).__name__ for event in heard]
    wanted = ["Message", "Prompted", "Started", "Reading", "Stepped", "Ended"]
    assert [*dict.fromkeys(kinds)] == wanted
    assert heard[0].text == "as it was"  # type: ignore[union-attr]
    last = heard[-1]
    assert isinstance(last, Ended) and "1901" in last.text
    assert last.sources.verbatim_share == 1.0 and last.facts
    assert any("english" in remark for remark in last.remarks)


def test_answers_of_many_threads_are_those_of_each_alone(
    resident: Resident, together: list[int]
) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"temperature": 0.9, "seed": 3}, LONG, {**LONG, "seed": 5}, {"max_tokens": 3},
        {"stop": ("down",)}, {"repetition_penalty": 1.5}, {"method": "none"},
    ]  # fmt: skip
    questions = [asked(1900 + i, **more) for i, more in enumerate(changes)]
    alone = [ids_alone(resident, question) for question in questions]
    assert max(together) == 1
    rest = [(q, Heard(), f"owner {i % 3}") for i, q in enumerate(questions[:2] + questions[3:])]
    first = Heard(behind(resident, *rest))
    resident.submit(questions[2], first)
    assert first.ids == alone[2]
    assert [heard.ids for _, heard, _ in rest] == alone[:2] + alone[3:]
    assert max(together) > 3


def test_a_method_of_heads_runs_alone_and_auto_goes_on_without_them_beside_others(
    tmp_path: Path, together: list[int]
) -> None:
    model = load_model(ModelSpec("builtin", "cpu"))
    target = Target(model.hf, model.device, model.dtype)
    save_head(tmp_path, Medusa(target, 2).state_dict(), {})

    made = Resident(SETTINGS.replace(heads=(str(tmp_path),)), persist=False)
    for method, shared in (("medusa", False), ("auto", True)):
        own: Any = {**LONG, "heads": (str(tmp_path),), "method": method}
        questions = [asked(1901 + i, **own) for i in range(2)]
        alone = [ids_alone(made, question) for question in questions]
        together.clear()
        second = Heard()
        first = Heard(behind(made, (questions[1], second, "")))
        made.submit(questions[0], first)
        assert [first.ids, second.ids] == alone
        assert (2 in together) == shared
    made.close()


@pytest.mark.parametrize("others", [0, 2])
def test_cancelling_ends_an_answer_within_a_step(resident: Resident, others: int) -> None:
    rest = [(asked(1902 + i, **LONG), Heard(), "") for i in range(others)]
    tickets: list[Ticket] = []
    hold = behind(resident, *rest)

    def at(event: Event | NgtError) -> None:
        hold(event)
        if sum(isinstance(e, Stepped) for e in heard.events) == 4:
            tickets[0].cancel()

    heard = Heard(at)
    tickets.append(resident.submit(asked(**{**LONG, "max_tokens": 64}), heard))
    assert isinstance(heard.last, Ended) and heard.last.finish_reason == "interrupted"
    assert 4 <= len(heard.last.steps) <= 5
    for question, other, _ in rest:
        assert other.ids == ids_alone(resident, question)


def test_cancelling_before_an_answer_begins_stops_it(resident: Resident) -> None:
    waits, tickets = Heard(), list[Ticket]()

    def cancel(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and not tickets:
            tickets.append(resident.submit(asked(), waits))
            wait_until(lambda: is_ready(resident, tickets[0]))
            tickets[0].cancel()

    first = Heard(cancel)
    resident.submit(asked(**LONG), first)
    assert isinstance(first.last, Ended) and first.ids
    assert isinstance(waits.last, StoppedError) and len(waits.events) == 1


@pytest.mark.parametrize("beside", [False, True])
def test_cancelling_while_the_prompt_is_read_stops_it(resident: Resident, beside: bool) -> None:
    tickets: list[Ticket] = []
    late = Heard(lambda event: isinstance(event, Reading) and tickets[0].cancel())

    def begin(event: Event | NgtError) -> None:
        if isinstance(event, Stepped) and not tickets:
            tickets.append(resident.submit(asked(**LONG), late))
            wait_until(lambda: is_ready(resident, tickets[0]))

    first, other = Heard(begin), asked(1902, **LONG, exact="off" if beside else "on")
    resident.submit(other, first)
    assert isinstance(late.last, StoppedError) or not late.ids
    assert first.ids == ids_alone(resident, other)


def test_in_rounding_dtypes_the_users_own_answers_are_given_alone(resident: Resident) -> None:
    """Near ties may turn out otherwise beside others, and exact passes are over one text."""
    engine, batching = LocalEngine(resident._engine._base), Batching(0, SUPPORTED, rounds=True)
    for exact, owner, joins in (
        ("auto", "", False), ("off", "", True), ("on", "", False), ("auto", "http", True),
        ("on", "http", False),
    ):  # fmt: skip
        candidate = engine.candidate(Submission(asked(exact=exact), owner))
        assert (why_single(candidate, batching) == "") == joins


def test_leaving_an_answer_ends_it(resident: Resident) -> None:
    events = resident.ask(asked(**LONG))
    while not isinstance(next(events), Stepped):
        pass
    events.close()
    events = resident.ask(asked(**LONG))
    while not isinstance(next(events), Stepped):
        pass
    events.interrupt()
    *_, last = events
    assert isinstance(last, Ended) and last.finish_reason == "interrupted" and [*events] == []


class Panic(BaseException):
    """As a library in another language raises it."""


@pytest.mark.parametrize("alone", [False, True])
def test_an_error_of_one_hurts_no_other(
    resident: Resident, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """A pass over one text fails: the first in a batch, then, or else at once, also alone."""
    bad, step, failed = asked(1666, **LONG), step_module.run_step, list[int]()
    decode = resident._engine.session.model.tokenizer.decode

    def failing(model: Any, sequences: Any, *more: Any) -> bool:
        count = len(sequences)
        for sequence in sequences:
            is_bad = "1666" in decode(sequence.context.ids)
            if is_bad and sequence.token_ids and (count > 1 or not alone):
                failed.append(count)
                raise (Panic if alone else RuntimeError)("a kernel failed")
        return step(model, sequences, *more)

    good = [asked(1902, **LONG), asked(1903)]
    wanted = [ids_alone(resident, question) for question in good]
    unhurt = ids_alone(resident, bad)
    monkeypatch.setattr(step_module, "run_step", failing)
    too_long = asked(text=MILL * 3000, overflow="error"), Heard(), "o"
    rest = [(bad, Heard(), "o"), (good[1], Heard(), ""), too_long]
    first = Heard(behind(resident, *rest[:2]))
    tickets = [resident.submit(too_long[0], too_long[1]), resident.submit(good[0], first)]
    assert [first.ids, rest[1][1].ids] == wanted
    assert isinstance(too_long[1].last, ContextOverflowError)
    if alone:
        assert rest[0][1].ids == unhurt
    else:
        assert "a kernel failed" in str(rest[0][1].last)
    assert max(failed) > 1 and tickets


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
    other = Heard()
    first = Heard(behind(resident, (asked(1902, **LONG), other, "")))
    ticket = resident.submit(asked(**LONG), first)
    assert isinstance(first.last, Ended) and first.last.finish_reason == "interrupted"
    assert first.ids and len(other.ids) == LONG["max_tokens"]


@pytest.mark.parametrize("beside", [False, True])
def test_nothing_of_an_answer_that_has_ended_waits_for_the_garbage_collector(
    resident: Resident, beside: bool
) -> None:
    made: list[Any] = []
    hold = behind(resident, *[(asked(1902), Heard(), "")] * beside)

    def at(event: Event | NgtError) -> None:
        hold(event)
        if isinstance(event, Stepped) and resident._engine._jobs:
            made.append(weakref.ref(resident._engine._jobs[0].sequence))

    gc.disable()
    try:
        first = Heard(at)
        resident.submit(asked(**LONG), first)
        assert first.ids and ids_alone(resident, asked())  # the threads work for another now
        wait_until(lambda: made[0]() is None)
    finally:
        gc.enable()


def test_a_question_that_is_ready_when_the_model_has_gone_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, heard = Resident(SETTINGS, persist=False), Heard()
    prepared, closing = made._queue.prepared, threading.Thread(target=made.close)

    def late(ticket: Ticket, answer: Any) -> None:
        closing.start()
        made._threads[0].join()
        prepared(ticket, answer)

    monkeypatch.setattr(made._queue, "prepared", late)
    made.submit(asked(), heard)
    assert isinstance(heard.last, StoppedError)
    closing.join()


def test_the_trie_of_documents_is_stored_for_the_user_alone(
    resident: Resident, own_home: Path
) -> None:
    for owner in ("another", ""):
        assert [*resident.ask(asked(1777, method="trie", max_tokens=2), owner=owner)]
        assert bool([*own_home.rglob("tries/*")]) == (not owner)


SECRET = "The keeper wrote in his log that {year} zebras vexed a quartz fox by the pond."
HARMLESS = "The keeper wrote in his log that {year} boats came in with the morning tide."


def test_what_is_searched_of_texts_that_another_gives_is_neither_stored_nor_read(
    resident: Resident,
) -> None:
    long = " ".join(MILL.format(year=year) for year in range(1500, 1700))
    question = asked(text=long, overflow="retrieve", max_tokens=4)
    of_server = replace(question.documents[0], path="/served/a.txt")

    def stored() -> set[str]:
        return {*PASSAGES.each(), *VECTORS.each()}

    def index_for(owner: str, question: Request = question) -> str:
        found = [e for e in resident.ask(question, owner=owner) if isinstance(e, Prompted)]
        assert found[0].selection
        return found[0].selection.index

    assert index_for("another") == "built" and not stored()
    assert index_for("") == "built"
    kept = stored()
    assert kept and index_for("another") == "built" and stored() == kept
    with_file = replace(question, loaded=Loaded((of_server,)))
    assert [index_for("another", with_file) for _ in range(2)] == ["built", "cached"]
    kept = stored()
    both = replace(question, loaded=Loaded((of_server, *question.documents)))
    assert index_for("another", both) == "built" and stored() == kept


def test_memory_is_given_back_once_nobody_waits(
    resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    name = "ngtcli.server.resident.return_memory"
    monkeypatch.setattr(name, lambda: given.append(resident.waiting))
    ids_alone(resident, asked())
    wait_until(lambda: bool(given))
    assert given[0] == 0


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("owner", ["", "another"])
def test_no_text_of_one_owner_is_drafted_for_another(
    owner: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer said is drafted later for the user of this process, and for nobody else."""
    changes: dict[str, Any] = {"pool": True, "pool_documents": True, "num_draft": 64}
    made = Resident(SETTINGS.replace(**changes), persist=False)
    encode, drafted = made._engine.session.model.tokenizer.encode, list[list[int]]()
    secret = set(encode(SECRET.format(year=12))) - set(encode(HARMLESS.format(year=12)))
    emit = DecodedSequence.emit

    def watched(sequence: DecodedSequence, path: Any, tree: Any) -> int:
        if not secret & set(sequence.context.ids):
            drafted.append([*tree.tokens])
        return emit(sequence, path, tree)

    monkeypatch.setattr(DecodedSequence, "emit", watched)
    own = "What did the keeper write in his log?"
    first, second, long = (
        replace(asked(12, text, **changes, **more), question=own)
        for text, more in ((SECRET, {}), (HARMLESS, {}), (MILL, LONG))
    )
    *_, last = made.ask(first, owner=owner)
    assert isinstance(last, Ended) and "zebras" in last.text
    other, heard = "" if not owner else "one more", Heard()
    if beside:
        hold = Heard(behind(made, (second, heard, other)))
        made.submit(long, hold, owner=owner)
        assert isinstance(hold.last, Ended)
    else:
        made.submit(second, heard, owner=other)
    assert isinstance(heard.last, Ended) and "boats" in heard.last.text
    made.close()
    assert drafted and bool(secret & {t for tokens in drafted for t in tokens}) == (not owner)


def test_owners_take_turns_and_one_is_not_taken_before_it_is_ready() -> None:
    queue: FairQueue[int, str] = FairQueue()
    for owner, numbers in (("a", [0, 1, 2, 3]), ("b", [10]), ("c", [20]), ("b", [11])):
        for number in numbers:
            queue.put(number, owner)
    assert queue.take() is None
    for _ in range(7):
        number = queue.to_prepare()
        assert number is not None and queue.state_of(number) is State.PREPARING
        queue.prepared(number, None if number == 10 else "a prompt")
    order = [queue.take() for _ in range(7)]
    assert [one and one[0] for one in order] == [0, 11, 20, 1, 2, 3, None]
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
    assert queue.remove(0) and not queue.remove(0)
    queue.put(4, "c")
    assert queue.close() == [1, 3, 4]
    with pytest.raises(BusyError, match="the server is stopping"):
        queue.put(5, "d")


def test_what_others_ask_evicts_no_session_of_the_user() -> None:
    engine = LocalEngine(LocalSession(SETTINGS, persist=False))
    mine = engine.prepare(Submission(asked())).session
    for num_draft in range(1, 12):
        engine.prepare(Submission(asked(method="trie", num_draft=num_draft), "http"))
    again = engine.prepare(Submission(asked())).session
    assert isinstance(mine, LocalSession) and isinstance(again, LocalSession)
    assert again.memory is mine.memory
