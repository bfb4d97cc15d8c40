"""Many items answered together: each has one row, whatever the order of answers."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.batch.run import Item, ItemId, ListedItems, Work, answer_all
from ngtcli.engine.events import BatchItem, Ended, Outcome
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError
from ngtcli.prompts.preset import load_preset

PRESET = load_preset("ask")
SETTINGS = Settings()
FAILS = "fails"  # a question whose answer is an error
Waves = list[list[str]]  # the questions of an item: those of a list are asked at once


def request(question: str) -> Request:
    return Request(task="ask", settings=SETTINGS, preset=PRESET, question=question)


def work(waves: Waves) -> Work:
    answered = []
    for wave in waves:
        answers = yield [request(question) for question in wave]
        answered.append([answer.text for answer in answers])
    return answered


@dataclass
class Rows:
    """Results in memory, which are the progress of a run as well."""

    rows: dict[str, object] = field(default_factory=dict)
    answers: int = 0
    failed: int = 0

    def put(self, item: Item, row: object) -> bool:
        assert item.id.source not in self.rows
        self.rows[item.id.source] = row
        return isinstance(row, NgtError)

    def answered(self, item: Item, request: Request, answer: Ended) -> None:
        self.answers += 1

    def finished(self, *, failed: bool, documents: int = 0) -> None:
        self.failed += failed


def answer_drawn(
    size: int, random: Random, draw: Callable[[bool], BatchItem | None]
) -> Generator[Outcome]:
    """Answer each question by itself in capitals, at most `size` at once, in any order."""
    running: list[BatchItem] = []
    while True:
        while len(running) < size:
            drawn = draw(not running)
            if drawn is None:
                break
            running.append(drawn)
        if not running:
            return
        key, request = running.pop(random.randrange(len(running)))
        assert isinstance(request, Request)
        answer: Ended | NgtError = NgtError("no scores")
        if request.question != FAILS:
            step = Step(tokens=(Token(1, request.question.upper()),), nodes=0)
            answer = Ended(finish_reason="stop", steps=(step,))
        yield Outcome(key, request, None, answer)


def row_of(waves: Waves) -> object:
    """The row of an item whose questions are answered one after another; None for an error."""
    if any(FAILS in wave for wave in waves):
        return None
    return [[question.upper() for question in wave] for wave in waves]


WAVES = st.lists(st.lists(st.sampled_from(["a", "b", "c", FAILS]), min_size=1), max_size=3)


def make_item(name: str, work_of_item: Callable[[], Work]) -> Item:
    return Item(ItemId(name), name, work_of_item)


@given(st.lists(WAVES, max_size=8), st.integers(1, 5), st.randoms())
def test_each_item_has_the_row_of_its_own_answers(
    waves_of_items: list[Waves], size: int, random: Random
) -> None:
    names = [str(number) for number in range(len(waves_of_items))]
    work_by_name = {
        name: partial(work, waves) for name, waves in zip(names, waves_of_items, strict=True)
    }
    items = ListedItems(make_item(name, function) for name, function in work_by_name.items())
    results = Rows()

    failures = answer_all(items, results, partial(answer_drawn, size, random), results)

    rows = {name: None if isinstance(row, NgtError) else row for name, row in results.rows.items()}
    expected = [row_of(waves) for waves in waves_of_items]
    assert rows == dict(zip(names, expected, strict=True))
    assert failures == expected.count(None)
    assert results.failed == failures


def test_no_model_is_asked_for_items_without_a_question() -> None:
    def fail(draw: object) -> Generator[Outcome]:
        raise AssertionError("a model was loaded")
        yield

    rows = Rows()
    items = ListedItems(make_item(name, partial(work, [])) for name in "012")
    assert answer_all(items, rows, fail, rows) == 0
    assert rows.rows == {"0": [], "1": [], "2": []}


def test_an_item_whose_work_fails_is_its_own_failure() -> None:
    def fail_after_answer() -> Work:
        yield [request("a")]
        raise ValueError("no row")

    def recover() -> Work:
        try:
            yield [request(FAILS)]
        except NgtError as error:
            return str(error)
        return "no error"

    rows = Rows()
    items = [
        make_item("fails", fail_after_answer),
        make_item("recovers", recover),
        make_item("succeeds", partial(work, [["b"]])),
    ]
    assert answer_all(ListedItems(items), rows, partial(answer_drawn, 2, Random(0)), rows) == 1
    assert isinstance(rows.rows["fails"], NgtError)
    assert rows.rows["recovers"] == "no scores"
    assert rows.rows["succeeds"] == [["B"]]
