"""Passages ranked by BM25 against the formula itself, their pieces, and prompts that fit."""

import gc
import json
import math
import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages
from ngtcli.errors import ContextOverflowError, UsageError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Task
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.selecting import prompt_for
from ngtcli.retrieval import index as index_module
from ngtcli.retrieval.index import EARLIER, K1, B, index_of, words
from tests.support.helpers import FakeBackend, ngt
from tests.support.recording_reporter import RecordingReporter

SMALL = Cutting(16)
TOKENIZER = Tokenizer(FakeBackend())  # a token a letter


def bm25(question: list[str], texts: list[list[str]]) -> list[float]:
    """The formula of Lucene, word by word."""
    mean = sum(map(len, texts)) / len(texts) or 1.0
    scores = []
    for text in texts:
        counts, score = Counter(text), 0.0
        for word in question:
            has = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - has + 0.5) / (has + 0.5))
            tf = counts[word]
            score += idf * tf / (tf + K1 * (1 - B + B * len(text) / mean))
        scores.append(score)
    return scores


LETTERS = st.text(st.sampled_from(list("abcde \n潮位é.")), max_size=200)


@settings(max_examples=40, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=5), LETTERS, LETTERS)
def test_scores_are_those_of_the_formula(texts: list[str], question: str, earlier: str) -> None:
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    index = index_of(documents, SMALL)
    own = [d.text[p.start : p.end] for d in documents for p in passages(d, SMALL)]
    assert [index.text(i) for i in range(len(index))] == own
    if own:
        split = [words(text) for text in own]
        wanted = bm25(words(question), split)
        np.testing.assert_allclose(index.scores(question), wanted, rtol=1e-4, atol=1e-5)
        both = np.add(wanted, EARLIER * np.array(bm25(words(earlier), split)))
        np.testing.assert_allclose(index.scores(question, [earlier]), both, rtol=1e-4, atol=1e-5)
        ranked = index.rank(question)
        assert ranked == sorted(ranked, key=lambda one: (-one[1], one[0]))  # ties in order
        for most in range(1, len(ranked) + 2):
            assert index.rank(question, most) == ranked[:most]
        assert {i for i, _ in ranked} == {i for i, s in enumerate(wanted) if s > 0}


def test_words_of_scripts_without_spaces_are_pairs_of_characters() -> None:
    found = "潮位 位表 表は 3 つ uber grosse हिन्दी dont".split()
    assert words("潮位表は3つ Über-Größe हिन्दी don’t") == found and words("…!") == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), max_size=6), max_size=6),
    st.text(st.sampled_from("abcd "), max_size=9),
)
def test_any_sets_of_documents_in_turn_are_indexed_as_at_first_and_none_is_cut_twice(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[int, int]]], question: str
) -> None:
    """A document is one of five files in one of two versions."""
    texts = [[f"a b{'c' * i} d. " * 9, f"c{i} b a. "] for i in range(5)]
    cut = set[tuple[int, int]]()
    with patch.dict(os.environ, NGT_HOME=str(tmp_path_factory.mktemp("kept"))):
        for turn in turns:
            documents = [Document(f"{i}", texts[i][v], path=f"/docs/{i}.txt") for i, v in turn]
            found, fresh = index_of(documents, SMALL), index_of(documents, SMALL, use_cache=False)
            assert found.scores(question).tolist() == fresh.scores(question).tolist()
            assert [found.place(i) for i in range(len(found))] == [
                fresh.place(i) for i in range(len(fresh))
            ]
            assert found.cut == len({*turn} - cut) and fresh.cut == len({*turn})
            assert found.status == (
                "cached" if not found.cut else "updated" if {*turn} & cut else "built"
            )
            cut |= {*turn}


def test_what_decides_how_a_text_is_cut_is_in_the_key(own_home: Path) -> None:
    first = Document("a", "# A\n\nb.\n\n# C\n\nd.", path="/docs/a.md")
    assert index_of([first], SMALL).cut == 1
    assert index_of([replace(first, name="b", path="/x/b.md")], SMALL).cut == 0
    assert index_of([first], Cutting(17)).cut == index_of([first], Cutting(16, 4)).cut == 1
    headed = replace(first, about=About(sections=(Section(8, 1, "Head"),)))
    others = [replace(first, path="a.txt"), replace(first, text=f"{first.text} "), headed]
    assert [index_of([other], SMALL).cut for other in others] == [1, 1, 1]


# --- prompts ---


def fitted(documents: list[Document], question: str, context: int, **values: Any) -> Any:
    reported = RecordingReporter()
    own = Settings.of(overflow="retrieve", **{"passage_tokens": 16, "passages": 0, **values})
    task = Task(load_preset("ask"), documents, question, TOKENIZER, context, own.answer.max_tokens)
    prompt = reported.of(lambda: prompt_for(task, own))
    return prompt, reported.warnings


@settings(max_examples=60, deadline=None)
@given(
    st.lists(LETTERS.filter(str.strip), min_size=1, max_size=5),
    st.integers(150, 900),
    st.integers(1, 400),
    st.integers(0, 3),
)
def test_a_fitted_prompt_never_exceeds_the_context(
    texts: list[str], context: int, answer: int, most: int
) -> None:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    room = context - min(answer, context // 4)
    try:
        prompt, said = fitted(documents, "a b é?", context, max_tokens=answer, passages=most)
    except ContextOverflowError:
        return
    assert len(prompt.ids) <= room
    if prompt.selection is None:
        assert not said and list(prompt.documents) == documents
        return
    chosen = prompt.selection
    assert said and (not most or len(chosen.passages) <= most)
    places = [(e.document, e.start) for e in chosen.excerpts]
    assert places == sorted(places) and len(prompt.documents) == len(chosen.excerpts)
    for excerpt, document in zip(chosen.excerpts, prompt.documents, strict=True):
        assert texts[excerpt.document][excerpt.start : excerpt.end] == document.text
    within = [
        (e.document, p.rank)
        for p in chosen.passages
        for e in chosen.excerpts
        if e.document == p.document and e.start <= p.start < p.end <= e.end
    ]
    assert len(within) == len(chosen.passages)


def test_no_passages_are_reported_as_read_where_the_model_is_not_asked() -> None:
    """The built-in model is not, as it quotes a sentence for any question."""
    documents = town(20)

    def warnings_of(model: str) -> list[str]:
        own = Settings.of(overflow="retrieve", passage_tokens=16, model=model)
        question = "What is the capital of France?"
        task = Task(load_preset("ask"), documents, question, TOKENIZER, 300, 20, compares=True)
        reported = RecordingReporter()
        reported.of(lambda: prompt_for(task, own))
        return reported.warnings

    assert warnings_of("builtin") == []
    (warning,) = warnings_of("another")
    assert "read the best" in warning


def test_passages_without_a_word_of_the_question_are_reported() -> None:
    _, (first, second) = fitted(town(20), "Xylophones?", 300)
    assert first == "no passage has a word of the question; the first ones are read"
    assert "read the best" in second


def test_of_a_single_document_the_passages_alone_are_counted() -> None:
    text = "A pilot came.\n\n" + "Rain fell on the empty quay again.\n\n" * 20
    prompt, said = fitted([Document("b.txt", text)], "Which pilot came?", 300, passages=1)
    total = prompt.selection.of_passages
    assert said == [
        f"not everything fits: read the best 1 of {total} passages; --passages 5 reads more"
    ]


def test_the_best_passages_are_read_in_the_documents_order_under_their_places() -> None:
    log = Document(
        "log.pdf",
        "Nothing was seen at sea that day.\n\n" * 9 + "The pilot came aboard at dawn.",
        About(pages=2, sections=(Section(0, 1), Section(200, 2))),
    )
    other = Document("b.txt", "A pilot came.\n\n" + "Rain fell on the empty quay again.\n\n" * 9)
    prompt, said = fitted([other, log], "Which pilot came aboard?", 420, max_tokens=20, passages=2)
    assert [d.name for d in prompt.documents] == ["b.txt", "log.pdf, page 2"]
    assert "log.pdf, page 2\n" in prompt.text and "aboard at dawn" in prompt.text
    total = prompt.selection.of_passages
    assert said == [
        f"not everything fits: read the best 2 of {total} passages, from 2 of 2 documents;"
        " --passages 5 reads more"
    ]


def test_no_flag_is_named_where_every_passage_is_read() -> None:
    documents = [Document("a.txt", "The pilot came in.\n\n" * 8)]
    _, some = fitted(documents, "Which pilot?", 4000, whole_tokens=20, passages=2)
    _, every = fitted(documents, "Which pilot?", 4000, whole_tokens=20, passages=90)
    assert "--passages 5 reads more" in some[0]
    assert "--passages" not in every[0]


def town(passages: int) -> list[Document]:
    """One document of so many passages of 200 letters, all of which have the question's word."""
    paragraphs = [
        f"Pilot {at:04} " + "came in from the sea at dawn and " * 5 for at in range(passages)
    ]
    return [Document("log.txt", "\n\n".join(text[:180] for text in paragraphs))]


def read_of(context: int, **values: Any) -> tuple[int, int]:
    """How many passages of a long text are read in such a context, and the tokens of all."""
    own = {"passage_tokens": 50, "passages": -1, "max_tokens": 20, **values}
    prompt, _ = fitted(town(2000), "Which pilot?", context, **own)
    return len(prompt.selection.passages), len(prompt.ids)


def test_passages_fill_a_quarter_of_the_room_where_their_number_is_left_open() -> None:
    """Up to 4,000 tokens; there are five at least, and a number that is given holds."""
    few, tokens = read_of(9000)
    assert few > 5 and 0.2 * 9000 < tokens < 0.3 * 9000
    more, tokens = read_of(15_000)
    assert more > few and 0.2 * 15_000 < tokens < 0.3 * 15_000
    most, tokens = read_of(60_000)
    assert most > more and 3500 < tokens < 4500
    assert read_of(120_000)[0] == most
    assert read_of(2000)[0] == 5
    for context in (9000, 60_000):
        assert read_of(context, passages=7)[0] == 7
    filled, tokens = read_of(9000, passages=0)
    assert filled > 3 * few and tokens > 0.9 * 9000


def test_no_more_is_read_in_passages_than_what_is_read_whole() -> None:
    assert read_of(60_000, whole_tokens=1500)[1] < 2000


def test_each_query_has_a_passage_where_the_number_is_left_open() -> None:
    names = [f"Name{at}" for at in range(12)]
    texts = [f"{name} was a pilot. " + "He came in at dawn. " * 8 for name in names]
    documents = [Document("crew.txt", "\n\n".join(texts) + "\n\nRain fell. " * 400)]
    own = Settings.of(overflow="retrieve", passage_tokens=50)
    task = Task(load_preset("ask"), documents, "Who?", TOKENIZER, 6000, 20, queries=names)
    prompt = prompt_for(task, own)
    assert prompt.selection is not None and len(prompt.selection.passages) >= 12
    assert all(name in prompt.text for name in names)


def test_the_index_is_made_once_for_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = index_module.index_of

    def counted(*given: Any) -> Any:
        made.append(1)
        return real(*given)

    monkeypatch.setattr(index_module, "index_of", counted)
    queries = [f"pilot {at}" for at in range(12)]
    own = Settings.of(overflow="retrieve", passage_tokens=50)
    task = Task(load_preset("ask"), town(200), "Who?", TOKENIZER, 6000, 20, queries=queries)
    prompt_for(task, own)
    assert len(made) == 1


def test_each_word_of_questions_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(town(20), SMALL)
    hashed: list[str] = []
    real = index_module._hash

    def counted(word: str) -> int:
        hashed.append(word)
        return real(word)

    monkeypatch.setattr(index_module, "_hash", counted)
    index.scores("pilot dawn pilot pilot dawn", ["the pilot"])
    assert sorted(hashed) == ["dawn", "pilot", "the"]
    index.scores("the dawn")
    assert len(hashed) == 3


def test_nothing_of_the_words_stays_in_memory() -> None:
    text = " ".join(f"word{at}" for at in range(30_000))
    index_of([Document("a.txt", "once")], SMALL, use_cache=False)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index_of([Document("b.txt", text)], SMALL, use_cache=False)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500_000


def test_a_question_whose_words_stand_nowhere_is_answered_with_a_warning() -> None:
    prompt, said = fitted([Document("a", "The tide came in. " * 60)], "Zzz?", 420, max_tokens=20)
    assert prompt.selection.passages[0].start == 0 and "no passage has a word" in said[0]


def test_passages_that_are_too_long_are_refused_with_the_numbers() -> None:
    with pytest.raises(ContextOverflowError) as caught:
        fitted([Document("a", "tide " * 900)], "tide?", 220, passage_tokens=500)
    assert "no passage fits" in str(caught.value) and "passage_tokens" in caught.value.hint
    with pytest.raises(UsageError, match="question"):
        fitted([Document("a", "tide " * 900)], " ", 220)


# --- the command ---


@pytest.fixture
def harbour(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    log.mkdir()
    for i in range(12):
        noted = (f"Entry {i}.{j}: the master noted {i * j} barges of kind {j}." for j in range(40))
        (log / f"day{i}.md").write_text("\n\n".join([f"# Day {i}", *noted]))
    (log / "pilot.md").write_text("# Pilots\n\nThe pilot Imre Sandoval came aboard at dawn.\n")
    return log


def test_a_folder_that_does_not_fit_is_answered_from_its_best_passages(harbour: Path) -> None:
    asked = ["ask", "-d", str(harbour), "Who is the pilot Imre Sandoval?", "--max-tokens", "12"]
    done = ngt(*asked, "--json")
    assert done.returncode == 0, done.stderr
    assert b"passages, from " in done.stderr and b" of 13 documents" in done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("ask")).validate(body)
    assert body["settings"]["overflow"] == "retrieve"
    best = max(body["retrieval"]["passages"], key=lambda p: p["score"])
    assert body["documents"][best["document"]]["name"] == "pilot.md"
    assert best["heading"] == "Pilots" and len(body["retrieval"]["passages"]) <= 5
    assert best["dense"] is None and best["score"] == best["bm25"]
    for span in body["sources"]["spans"]:
        text = (harbour / body["documents"][span["document"]]["name"]).read_text()
        quote = text[span["source_start"] : span["source_end"]].split()
        assert quote == body["text"][span["start"] : span["end"]].split()
    page = harbour.parent / "out.html"
    shown = ngt(*asked, "--show-passages", "--passages", "2", "--html", str(page))
    assert b"pilot.md, Pilots: characters 0" in shown.stderr and b"score" in shown.stderr
    assert page.read_text().count("<details") <= 2
    dry = ngt(*asked, "--dry-run", "--json")
    Draft202012Validator(build("ask")).validate(json.loads(dry.stdout))
    assert json.loads(dry.stdout)["retrieval"]["index"] == "cached"
