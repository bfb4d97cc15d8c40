"""Marks of sources in an answer that is shown as it comes."""

import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import SourceFinder, Sources, sources_of
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


def sources(text: str) -> Sources:
    return sources_of(text, DOCUMENTS)


def live(
    answer: str, seed: int, documents: Sequence[Document] = DOCUMENTS
) -> tuple[list[str], LiveMarks]:
    """What is shown after each piece of an answer, and at its end."""
    rng = random.Random(seed)
    marks = LiveMarks(SourceFinder(documents))
    shown = list[str]()
    at = 0
    while at < len(answer):
        end = at + rng.randint(1, 12)
        shown.append("".join(text for text, _ in marks.feed([(answer[at:end], "")])))
        at = end
    shown.append("".join(text for text, _ in marks.flush()))
    return shown, marks


@given(st.lists(st.sampled_from(SENTENCES), max_size=6), st.integers(0, 999))
def test_the_text_is_whole_and_each_mark_stands_behind_its_quotation(
    sentences: list[str], seed: int
) -> None:
    answer = "".join(sentences)
    shown, marks = live(answer, seed)
    whole = "".join(shown)
    assert re.sub(r" \[\d+\]", "", whole) == answer.rstrip()
    quotes = {source.number: source.quote for source in marks.places}
    assert sorted(quotes) == list(range(1, len(quotes) + 1))
    for mark in re.finditer(r" \[(\d+)\]", whole):
        before = re.sub(r" \[\d+\]", "", whole[: mark.start()])
        last_words = before.split()[-3:]
        assert quotes[int(mark[1])].endswith(" ".join(last_words))


def quoting(rng: random.Random) -> tuple[list[Document], str]:
    """Draw documents of few words, and an answer that is put together from them."""
    words = ["oak", "elm", "ash", ".", ".\n", "fir", "yew", "don't", "3.14", ","]
    words = words[: rng.randint(4, len(words))]
    texts = [rng.choices(words, k=rng.randint(5, 60)) for _ in range(rng.randint(1, 3))]
    answer = list[str]()
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
    documents, answer = quoting(random.Random(seed))
    shown, marks = live(answer, seed, documents)
    whole = sources_of(answer, documents)
    assert "".join(shown) == "".join(text for text, _ in with_marks([(answer, "")], whole))
    assert marks.places == whole.places()


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
    whole = "".join(text for text, _ in with_marks([(answer, "")], sources(answer)))
    for seed in range(20):
        assert "".join(live(answer, seed)[0]) == whole


def test_a_sentence_is_shown_before_the_next_one_is_complete() -> None:
    marks = LiveMarks(SourceFinder(DOCUMENTS))
    first = marks.feed([("Nobody knows. The tide ", "")])
    assert first == [("Nobody knows.", "")]
    assert not marks.feed([("is high at noon today", "")])
    rest = marks.feed([(". It ", ""), ("is so. ", "")])
    assert "".join(text for text, _ in rest) == " The tide is high at noon today. [1] It is so."


def test_styles_of_runs_are_kept() -> None:
    marks = LiveMarks(SourceFinder(DOCUMENTS))
    runs = marks.feed([("The tide is", "document"), (" high at noon today. I", "prompt")])
    runs += marks.flush()
    assert [style for _, style in runs if style] == ["document", "prompt", "prompt"]
    assert "".join(text for text, _ in runs) == "The tide is high at noon today. [1] I"


def test_a_terminal_shows_what_a_pipe_gets_marks_and_sources() -> None:
    command = ("summarize", HARBOUR, "--cite", "--max-tokens", "40", "--color", "never")
    piped = ngt(*command).stdout.decode()
    shown, code = in_terminal(*command)
    assert code == 0
    marked = " ".join(piped.partition("\n\n")[0].split())
    assert "[1]" in marked
    assert marked in " ".join(shown.split())
    assert "[1] harbour.txt: “" in shown
