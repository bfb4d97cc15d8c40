"""Many items answered together: each has one row, whatever the order of answers."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.batch.run import Item, ItemId, ListedItems, Work, answer_all
from ngtcli.engine.events import Drawn, Ended, Outcome
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
    size: int, random: Random, draw: Callable[[bool], Drawn | None]
) -> Generator[Outcome]:
    """Answer each question by itself in capitals, at most `size` at once, in any order."""
    running: list[Drawn] = []
    while True:
        while len(running) < size:
            drawn = draw(not running)
            if drawn is None:
                break
            running.append(drawn)
        if not running:
            return
        key, asked = running.pop(random.randrange(len(running)))
        assert isinstance(asked, Request)
        answer: Ended | NgtError = NgtError("no scores")
        if asked.question != FAILS:
            step = Step(tokens=(Token(1, asked.question.upper()),), nodes=0)
            answer = Ended(finish_reason="stop", steps=(step,))
        yield Outcome(key, asked, None, answer)


def answered(waves: Waves) -> object:
    """The row of an item, by asking one question after another."""
    if any(FAILS in wave for wave in waves):
        return None
    return [[question.upper() for question in wave] for wave in waves]


questions = st.lists(st.lists(st.sampled_from(["a", "b", "c", FAILS]), min_size=1), max_size=3)


@given(st.lists(questions, max_size=8), st.integers(1, 5), st.randoms())
def test_each_item_has_the_row_of_its_own_answers(
    every: list[Waves], size: int, random: Random
) -> None:
    rows = Rows()
    items = ListedItems(
        Item(ItemId(str(i)), str(i), partial(work, of)) for i, of in enumerate(every)
    )
    failures = answer_all(items, rows, partial(answer_drawn, size, random), rows)
    expected = {str(i): answered(waves) for i, waves in enumerate(every)}
    found = {k: None if isinstance(row, NgtError) else row for k, row in rows.rows.items()}
    assert found == expected
    assert failures == rows.failed == sum(row is None for row in expected.values())


def test_no_model_is_asked_for_items_without_a_question() -> None:
    def fail(draw: object) -> Generator[Outcome]:
        raise AssertionError("a model was loaded")
        yield

    rows = Rows()
    items = ListedItems(Item(ItemId(str(i)), str(i), partial(work, [])) for i in range(3))
    assert answer_all(items, rows, fail, rows) == 0
    assert rows.rows == {"0": [], "1": [], "2": []}


def test_an_item_whose_work_fails_is_its_own_failure() -> None:
    def broken(error: Exception) -> Work:
        yield [request("a")]
        raise error

    def recovers() -> Work:
        try:
            yield [request(FAILS)]
        except NgtError as error:
            return str(error)
        return "no error"

    rows = Rows()
    items: Sequence[Item] = (
        Item(ItemId("0"), "0", partial(broken, ValueError("no row"))),
        Item(ItemId("1"), "1", recovers),
        Item(ItemId("2"), "2", partial(work, [["b"]])),
    )
    assert answer_all(ListedItems(items), rows, partial(answer_drawn, 2, Random(0)), rows) == 1
    assert isinstance(rows.rows["0"], NgtError)
    assert rows.rows["1"] == "no scores"
    assert rows.rows["2"] == [["B"]]
