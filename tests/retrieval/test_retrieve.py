"""Passages ranked by BM25, compared with the formula itself, and the prompts they are fitted to."""

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
from ngtcli.retrieval.index import EARLIER, K1, B, Index, index_of, words
from tests.support.helpers import FakeBackend, ngt
from tests.support.recording_reporter import RecordingReporter

SMALL = Cutting(16)
TOKENIZER = Tokenizer(FakeBackend())  # a token a letter


def bm25(question: list[str], passages: list[list[str]]) -> list[float]:
    """Score passages, given as words, by the formula of Lucene."""
    mean_length = sum(map(len, passages)) / len(passages) or 1.0
    scores = []
    for passage in passages:
        counts = Counter(passage)
        score = 0.0
        for word in question:
            frequency = counts[word]
            containing = sum(word in other for other in passages)
            idf = math.log(1 + (len(passages) - containing + 0.5) / (containing + 0.5))
            norm = K1 * (1 - B + B * len(passage) / mean_length)
            score += idf * frequency / (frequency + norm)
        scores.append(score)
    return scores


TEXTS = st.text(st.sampled_from(list("abcde \n潮位é.")), max_size=200)


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS, TEXTS)
def test_scores_are_those_of_the_formula(texts: list[str], question: str, earlier: str) -> None:
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    index = index_of(documents, SMALL)

    passage_texts = [
        document.text[passage.start : passage.end]
        for document in documents
        for passage in passages(document, SMALL)
    ]
    assert [index.text(i) for i in range(len(index))] == passage_texts
    if not passage_texts:
        return

    passage_words = [words(text) for text in passage_texts]
    expected = np.array(bm25(words(question), passage_words))
    expected_earlier = EARLIER * np.array(bm25(words(earlier), passage_words))
    with_earlier = index.scores(question, [earlier])
    np.testing.assert_allclose(index.scores(question), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(with_earlier, expected + expected_earlier, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_passages_with_a_score_are_ranked_by_it_and_ties_in_order(
    texts: list[str], question: str
) -> None:
    index = index_of([Document(str(i), text) for i, text in enumerate(texts)], SMALL)
    if len(index) == 0:
        return

    ranked = index.rank(question)

    scores = index.scores(question)
    assert {i for i, _ in ranked} == {i for i, score in enumerate(scores) if score > 0}
    assert ranked == sorted(ranked, key=lambda entry: (-entry[1], entry[0]))
    for limit in range(1, len(ranked) + 2):
        assert index.rank(question, limit) == ranked[:limit]


def test_words_of_scripts_without_spaces_are_pairs_of_characters() -> None:
    expected = "潮位 位表 表は 3 つ uber grosse हिन्दी dont".split()
    assert words("潮位表は3つ Über-Größe हिन्दी don’t") == expected
    assert words("…!") == []


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), max_size=6), max_size=6),
    st.text(st.sampled_from("abcd "), max_size=9),
)
def test_only_new_texts_are_cut_and_the_index_equals_a_fresh_one(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[int, int]]], question: str
) -> None:
    """Index sets of documents in turn; a document is one of five files in one of two versions."""
    texts = [[f"a b{'c' * i} d. " * 9, f"c{i} b a. "] for i in range(5)]
    already_cut: set[tuple[int, int]] = set()
    with patch.dict(os.environ, NGT_HOME=str(tmp_path_factory.mktemp("home"))):
        for turn in turns:
            documents = [
                Document(str(file), texts[file][version], path=f"/docs/{file}.txt")
                for file, version in turn
            ]
            cached = index_of(documents, SMALL)
            fresh = index_of(documents, SMALL, use_cache=False)

            assert cached.scores(question).tolist() == fresh.scores(question).tolist()
            assert places_of(cached) == places_of(fresh)
            assert fresh.cut == len(set(turn))
            assert cached.cut == len(set(turn) - already_cut)
            if cached.cut == 0:
                assert cached.status == "cached"
            elif already_cut.isdisjoint(turn):
                assert cached.status == "built"
            else:
                assert cached.status == "updated"
            already_cut.update(turn)


def places_of(index: Index) -> list[Any]:
    return [index.place(i) for i in range(len(index))]


def test_all_that_decides_how_a_text_is_cut_is_in_the_cache_key(own_home: Path) -> None:
    document = Document("a", "# A\n\nb.\n\n# C\n\nd.", path="/docs/a.md")
    assert index_of([document], SMALL).cut == 1
    assert index_of([replace(document, name="b", path="/x/b.md")], SMALL).cut == 0

    for cutting in (Cutting(17), Cutting(16, 4)):
        assert index_of([document], cutting).cut == 1
    for changed in (
        replace(document, path="a.txt"),
        replace(document, text=f"{document.text} "),
        replace(document, about=About(sections=(Section(8, 1, "Head"),))),
    ):
        assert index_of([changed], SMALL).cut == 1


# --- prompts ---


def fit(
    documents: list[Document], question: str, context: int, **values: Any
) -> tuple[Any, list[str]]:
    """Fit a prompt of passages to a context; return it and the warnings."""
    defaults = {"passage_tokens": 16, "passages": 0}
    settings = Settings.of(overflow="retrieve", **{**defaults, **values})
    max_tokens = settings.answer.max_tokens
    task = Task(load_preset("ask"), documents, question, TOKENIZER, context, max_tokens)
    reporter = RecordingReporter()
    prompt = reporter.of(lambda: prompt_for(task, settings))
    return prompt, reporter.warnings


@settings(max_examples=60, deadline=None)
@given(
    st.lists(TEXTS.filter(str.strip), min_size=1, max_size=5),
    st.integers(150, 900),
    st.integers(1, 400),
    st.integers(0, 3),
)
def test_a_fitted_prompt_never_exceeds_the_context(
    texts: list[str], context: int, max_tokens: int, max_passages: int
) -> None:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    try:
        prompt, warnings = fit(
            documents, "a b é?", context, max_tokens=max_tokens, passages=max_passages
        )
    except ContextOverflowError:
        return

    assert len(prompt.ids) <= context - min(max_tokens, context // 4)
    selection = prompt.selection
    if selection is None:
        assert not warnings
        assert list(prompt.documents) == documents
        return

    assert warnings
    if max_passages:
        assert len(selection.passages) <= max_passages
    starts = [(excerpt.document, excerpt.start) for excerpt in selection.excerpts]
    assert starts == sorted(starts)
    for excerpt, document in zip(selection.excerpts, prompt.documents, strict=True):
        assert texts[excerpt.document][excerpt.start : excerpt.end] == document.text
    for passage in selection.passages:
        containing = [
            excerpt
            for excerpt in selection.excerpts
            if excerpt.document == passage.document
            and excerpt.start <= passage.start < passage.end <= excerpt.end
        ]
        assert len(containing) == 1


@pytest.mark.parametrize(("model", "is_reported"), [("builtin", False), ("another", True)])
def test_passages_are_reported_as_read_unless_the_built_in_model_answers(
    model: str, is_reported: bool
) -> None:
    """The built-in model is not asked: it quotes a sentence for any question."""
    settings = Settings.of(overflow="retrieve", passage_tokens=16, model=model)
    question = "What is the capital of France?"
    task = Task(
        load_preset("ask"), harbour_log(20), question, TOKENIZER, 300, 20, with_coverage=True
    )
    reporter = RecordingReporter()

    reporter.of(lambda: prompt_for(task, settings))

    assert ["not everything fits: only" in warning for warning in reporter.warnings] == [
        True
    ] * is_reported


def test_passages_without_a_word_of_the_question_are_reported() -> None:
    _, (first, second) = fit(harbour_log(20), "Xylophones?", 300)
    assert first == "no passage has a word of the question; the first ones are read"
    assert "not everything fits: only" in second


def test_passages_of_a_single_document_are_counted_without_documents() -> None:
    text = "A pilot came.\n\n" + "Rain fell on the empty quay again.\n\n" * 20
    prompt, warnings = fit([Document("b.txt", text)], "Which pilot came?", 300, passages=1)
    total = prompt.selection.of_passages
    assert warnings == [
        f"not everything fits: only 1 of {total} passages is read; --passages 5 reads more"
    ]


def test_the_best_passages_are_read_in_the_order_of_documents_with_their_places() -> None:
    log = Document(
        "log.pdf",
        "Nothing was seen at sea that day.\n\n" * 9 + "The pilot came aboard at dawn.",
        About(pages=2, sections=(Section(0, 1), Section(200, 2))),
    )
    rain = Document("b.txt", "A pilot came.\n\n" + "Rain fell on the empty quay again.\n\n" * 9)

    prompt, warnings = fit([rain, log], "Which pilot came aboard?", 420, max_tokens=20, passages=2)

    assert [document.name for document in prompt.documents] == ["b.txt", "log.pdf, page 2"]
    assert "log.pdf, page 2\n" in prompt.text
    assert "aboard at dawn" in prompt.text
    total = prompt.selection.of_passages
    assert warnings == [
        f"not everything fits: only 2 of {total} passages are read, from 2 of 2 documents;"
        " --passages 5 reads more"
    ]


def test_no_flag_is_named_where_every_passage_is_read() -> None:
    documents = [Document("a.txt", "The pilot came in.\n\n" * 8)]
    _, (some_read,) = fit(documents, "Which pilot?", 4000, whole_tokens=20, passages=2)
    _, (all_read,) = fit(documents, "Which pilot?", 4000, whole_tokens=20, passages=90)
    assert "--passages 5 reads more" in some_read
    assert "--passages" not in all_read


def harbour_log(passages: int) -> list[Document]:
    """One document of so many passages of 180 letters, each with the word "pilot"."""
    paragraphs = [
        f"Pilot {i:04} " + "came in from the sea at dawn and " * 5 for i in range(passages)
    ]
    return [Document("log.txt", "\n\n".join(paragraph[:180] for paragraph in paragraphs))]


def read_passages(context: int, **values: Any) -> tuple[int, int]:
    """Fit a long text to a context; return the number of passages and of prompt tokens."""
    defaults = {"passage_tokens": 50, "passages": -1, "max_tokens": 20}
    prompt, _ = fit(harbour_log(2000), "Which pilot?", context, **{**defaults, **values})
    return len(prompt.selection.passages), len(prompt.ids)


def test_passages_fill_a_quarter_of_the_context_by_default() -> None:
    passages_of_9000, tokens = read_passages(9000)
    assert passages_of_9000 > 5
    assert 0.2 * 9000 < tokens < 0.3 * 9000

    passages_of_15000, tokens = read_passages(15_000)
    assert passages_of_15000 > passages_of_9000
    assert 0.2 * 15_000 < tokens < 0.3 * 15_000


def test_passages_take_at_most_about_4000_tokens_by_default() -> None:
    passages_of_60000, tokens = read_passages(60_000)
    assert passages_of_60000 > read_passages(15_000)[0]
    assert 3500 < tokens < 4500
    assert read_passages(120_000)[0] == passages_of_60000


def test_at_least_five_passages_are_read_by_default() -> None:
    assert read_passages(2000)[0] == 5


@pytest.mark.parametrize("context", [9000, 60_000])
def test_as_many_passages_are_read_as_the_user_asks_for(context: int) -> None:
    assert read_passages(context, passages=7)[0] == 7


def test_passages_fill_the_context_if_the_user_sets_no_limit() -> None:
    passages, tokens = read_passages(9000, passages=0)
    assert passages > 3 * read_passages(9000)[0]
    assert tokens > 0.9 * 9000


def test_passages_do_not_exceed_the_size_up_to_which_documents_are_read_completely() -> None:
    assert read_passages(60_000, whole_tokens=1500)[1] < 2000


def test_each_query_has_a_passage_by_default() -> None:
    names = [f"Name{i}" for i in range(12)]
    texts = [f"{name} was a pilot. " + "He came in at dawn. " * 8 for name in names]
    documents = [Document("crew.txt", "\n\n".join(texts) + "\n\nRain fell. " * 400)]
    settings = Settings.of(overflow="retrieve", passage_tokens=50)
    task = Task(load_preset("ask"), documents, "Who?", TOKENIZER, 6000, 20, queries=names)

    prompt = prompt_for(task, settings)

    assert prompt.selection is not None
    assert len(prompt.selection.passages) >= 12
    assert all(name in prompt.text for name in names)


def test_the_index_is_made_once_for_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    make_index = index_module.index_of

    def counting_index_of(*arguments: Any) -> Any:
        calls.append(arguments)
        return make_index(*arguments)

    monkeypatch.setattr(index_module, "index_of", counting_index_of)
    queries = [f"pilot {i}" for i in range(12)]
    settings = Settings.of(overflow="retrieve", passage_tokens=50)
    task = Task(load_preset("ask"), harbour_log(200), "Who?", TOKENIZER, 6000, 20, queries=queries)

    prompt_for(task, settings)

    assert len(calls) == 1


def test_each_word_of_questions_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(harbour_log(20), SMALL)
    hashed_words: list[str] = []
    hash_word = index_module._hash

    def recording_hash(word: str) -> int:
        hashed_words.append(word)
        return hash_word(word)

    monkeypatch.setattr(index_module, "_hash", recording_hash)

    index.scores("pilot dawn pilot pilot dawn", ["the pilot"])
    assert sorted(hashed_words) == ["dawn", "pilot", "the"]

    index.scores("the dawn")
    assert len(hashed_words) == 3


def test_an_index_does_not_keep_the_words_in_memory() -> None:
    text = " ".join(f"word{i}" for i in range(30_000))
    index_of([Document("a.txt", "once")], SMALL, use_cache=False)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index_of([Document("b.txt", text)], SMALL, use_cache=False)
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert growth < 500_000


def test_the_first_passages_are_read_if_none_has_a_word_of_the_question() -> None:
    document = Document("a", "The tide came in. " * 60)
    prompt, warnings = fit([document], "Zzz?", 420, max_tokens=20)
    assert prompt.selection.passages[0].start == 0
    assert "no passage has a word" in warnings[0]


def test_passages_that_are_too_long_are_refused() -> None:
    with pytest.raises(ContextOverflowError, match="no passage fits") as caught:
        fit([Document("a", "tide " * 900)], "tide?", 220, passage_tokens=500)
    assert "passage_tokens" in caught.value.hint


def test_an_empty_question_is_refused() -> None:
    with pytest.raises(UsageError, match="question"):
        fit([Document("a", "tide " * 900)], " ", 220)


# --- the command ---


@pytest.fixture
def harbour(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    for day in range(12):
        entries = [
            f"Entry {day}.{kind}: the master noted {day * kind} barges of kind {kind}."
            for kind in range(40)
        ]
        (folder / f"day{day}.md").write_text("\n\n".join([f"# Day {day}", *entries]))
    (folder / "pilot.md").write_text("# Pilots\n\nThe pilot Imre Sandoval came aboard at dawn.\n")
    return folder


def test_a_folder_that_does_not_fit_is_answered_from_its_best_passages(harbour: Path) -> None:
    command = ["ask", "-d", str(harbour), "Who is the pilot Imre Sandoval?", "--max-tokens", "12"]

    done = ngt(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert b"passages is read, from " in done.stderr
    assert b" of 13 documents" in done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("ask")).validate(body)
    assert body["settings"]["overflow"] == "retrieve"
    check_passages_and_sources(body, harbour)

    page = harbour.parent / "out.html"
    done = ngt(*command, "--show-passages", "--passages", "2", "--html", str(page))
    assert b"pilot.md, Pilots: characters 0" in done.stderr
    assert b"score" in done.stderr
    assert page.read_text().count("<details") <= 2

    dry_run = json.loads(ngt(*command, "--dry-run", "--json").stdout)
    Draft202012Validator(build("ask")).validate(dry_run)
    assert dry_run["retrieval"]["index"] == "cached"


def check_passages_and_sources(body: Any, folder: Path) -> None:
    passages = body["retrieval"]["passages"]
    best = max(passages, key=lambda passage: passage["score"])
    assert len(passages) <= 5
    assert body["documents"][best["document"]]["name"] == "pilot.md"
    assert best["heading"] == "Pilots"
    assert best["dense"] is None
    assert best["score"] == best["bm25"]

    for span in body["sources"]["spans"]:
        text = (folder / body["documents"][span["document"]]["name"]).read_text()
        quote = text[span["source_start"] : span["source_end"]]
        answer = body["text"][span["start"] : span["end"]]
        assert quote.split() == answer.split()
