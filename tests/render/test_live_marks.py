"""Marks of sources in an answer that is shown as it comes."""

import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import SourceFinder, sources_of
from ngtcli.render.answer_view import with_marks
from ngtcli.render.live_marks import LiveMarks
from tests.support.helpers import HARBOUR, in_terminal, ngt

DOCUMENTS = [
    Document("tide.txt", "The tide is high at noon today. The quay was built in 1871 by the town."),
    Document("ships.txt", "Nine ships came in the autumn. The quay was built in 1871 of slate."),
]
SENTENCES = [
    "The tide is high at noon today. ",
    "The tide is high at night. ",
    "Nobody knows. ",
    "The quay was built in 1871 by the town. ",
    "The quay was built in 1871 of slate. ",
    "Nine ships came in the autumn. ",
    "He said nine ships came in the autumn of that year.\n",
]


def text_of(runs: Sequence[tuple[str, str]]) -> str:
    """The text of runs, which each have a text and a style."""
    return "".join(text for text, _ in runs)


def show_live(
    answer: str, seed: int, documents: Sequence[Document] = DOCUMENTS
) -> tuple[str, LiveMarks]:
    """Feed an answer in random pieces; return the text that is shown, and its marks."""
    rng = random.Random(seed)
    marks = LiveMarks(SourceFinder(documents))
    shown = ""
    start = 0
    while start < len(answer):
        end = start + rng.randint(1, 12)
        shown += text_of(marks.feed([(answer[start:end], "")]))
        start = end
    shown += text_of(marks.flush())
    return shown, marks


MARK = re.compile(r" \[(\d+)\]")


@given(st.lists(st.sampled_from(SENTENCES), max_size=6), st.integers(0, 999))
def test_the_text_is_complete_and_each_mark_follows_its_quotation(
    sentences: list[str], seed: int
) -> None:
    answer = "".join(sentences)
    shown, marks = show_live(answer, seed)
    assert MARK.sub("", shown) == answer.rstrip()

    quotes = {source.number: source.quote for source in marks.places}
    assert sorted(quotes) == list(range(1, len(quotes) + 1))
    for mark in MARK.finditer(shown):
        text_before = MARK.sub("", shown[: mark.start()])
        last_words = text_before.split()[-3:]
        assert quotes[int(mark[1])].endswith(" ".join(last_words))


def draw_quoting_answer(rng: random.Random) -> tuple[list[Document], str]:
    """Draw documents of few words, and an answer that is put together from them."""
    words = ["oak", "elm", "ash", ".", ".\n", "fir", "yew", "don't", "3.14", ","]
    words = words[: rng.randint(4, len(words))]
    texts = [rng.choices(words, k=rng.randint(5, 60)) for _ in range(rng.randint(1, 3))]
    answer: list[str] = []
    for _ in range(rng.randint(0, 9)):
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        answer += text[start : start + rng.randint(3, 25)]
        answer += rng.choices(words, k=rng.randint(0, 4))
    documents = [Document(f"{i}.txt", " ".join(text)) for i, text in enumerate(texts)]
    return documents, " ".join(answer)


@settings(max_examples=500)
@given(st.integers(0, 1 << 32))
def test_marks_of_any_answer_are_those_of_the_whole_answer(seed: int) -> None:
    documents, answer = draw_quoting_answer(random.Random(seed))
    shown, marks = show_live(answer, seed, documents)
    sources = sources_of(answer, documents)
    assert shown == text_of(with_marks([(answer, "")], sources))
    assert marks.places == sources.places()


@pytest.mark.parametrize(
    "answer",
    [
        "The tide is high at noon today. Nobody knows. Nine ships came in the autumn.",
        "The quay was built in 1871 by the town. The quay was built in 1871 of slate.",
        "The tide is high at noon today. The quay was built in 1871 by the town. And then?",
        "Nobody knows.",
        "",
    ],
)
def test_marks_are_those_of_the_whole_answer(answer: str) -> None:
    expected = text_of(with_marks([(answer, "")], sources_of(answer, DOCUMENTS)))
    for seed in range(20):
        shown, _ = show_live(answer, seed)
        assert shown == expected


def test_a_sentence_is_shown_before_the_next_one_is_complete() -> None:
    marks = LiveMarks(SourceFinder(DOCUMENTS))
    assert marks.feed([("Nobody knows. The tide ", "")]) == [("Nobody knows.", "")]
    assert not marks.feed([("is high at noon today", "")])
    last_runs = marks.feed([(". It ", ""), ("is so. ", "")])
    assert text_of(last_runs) == " The tide is high at noon today. [1] It is so."


def test_styles_of_runs_are_kept() -> None:
    marks = LiveMarks(SourceFinder(DOCUMENTS))
    runs = marks.feed([("The tide is", "document"), (" high at noon today. I", "prompt")])
    runs += marks.flush()
    assert [style for _, style in runs if style] == ["document", "prompt", "prompt"]
    assert text_of(runs) == "The tide is high at noon today. [1] I"


def test_a_terminal_shows_the_marks_of_a_pipe_and_the_sources() -> None:
    command = ("summarize", HARBOUR, "--cite", "--max-tokens", "40", "--color", "never")
    piped = ngt(*command).stdout.decode()
    screen, code = in_terminal(*command)
    assert code == 0
    answer = " ".join(piped.partition("\n\n")[0].split())
    assert "[1]" in answer
    assert answer in " ".join(screen.split())
    assert "[1] harbour.txt: “" in screen
