"""Passages found by their vectors: against brute force, from the cache, and from the command."""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import ModelError
from ngtcli.retrieval import ranking, vectors
from ngtcli.retrieval.encoders import Embedder, load_embedder, load_reranker
from ngtcli.retrieval.index import highest
from ngtcli.retrieval.ranking import Ranking, fuse, rank
from ngtcli.retrieval.search import Search
from ngtcli.retrieval.vectors import CODED, Vectors
from tests.encoder_models import make_embedder, make_meaning_embedder, make_reranker, with_modules
from tests.support.helpers import ngt
from tests.support.recording_reporter import RecordingReporter

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="no extra dense")
CONCEPTS = [
    ("ship", "vessel"),
    ("sank", "foundered"),
    ("storm", "gale"),
    ("doctor", "physician"),
    ("ill", "sick"),
    ("king", "monarch"),
    ("bread", "loaf"),
    ("tree", "oak"),
]
TEXTS = [
    "the monarch ate a loaf under the oak.",
    "a vessel foundered off the cape in a gale.",
    "the physician saw that the boy was sick.",
    "the quick fox went in and out all day.",
]
LETTERS = ["abc def", "a", "the tide came in at dawn", "a [SEP] b"]  # no control token


def settings_with(embedder: str = "", reranker: str = "", tokens: int = 16) -> Settings:
    return Settings.of(passage_tokens=tokens, embedder=embedder, reranker=reranker)


WORDS = settings_with()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("encoders")
    paths = {
        "meaning": make_meaning_embedder(folder / "meaning", CONCEPTS),
        "letters": make_embedder(folder / "letters"),
        "reranker": make_reranker(folder / "reranker"),
        "two labels": make_reranker(folder / "two", labels=2),
    }
    return {name: str(path) for name, path in paths.items()}


def documents_of(*texts: str) -> list[Document]:
    return [Document(f"{i}.txt", text, path=f"/docs/{i}.txt") for i, text in enumerate(texts)]


def ranked(
    texts: list[str], settings: Settings, question: str, wanted: int = 4, keep: bool = True
) -> Ranking:
    """The ranking of at least `wanted` passages."""
    return rank(Search(documents_of(*texts), settings, question, wanted, use_cache=keep))


# --- the models ---


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_vectors_are_the_models_own_pooled_as_its_folder_says(pooling: str, tmp_path: Path) -> None:
    path = make_embedder(tmp_path / "model", pooling)
    vectors, cut = load_embedder(str(path)).passages(LETTERS)
    assert cut == 0
    assert vectors.dtype == np.float32
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    for text, vector in zip(LETTERS, vectors, strict=True):
        inputs = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0].numpy()
        pooled = {
            "mean_tokens": hidden.mean(0),
            "cls_token": hidden[0],
            "max_tokens": hidden.max(0),
            "lasttoken": hidden[-1],
        }[pooling]
        np.testing.assert_allclose(vector, pooled / np.linalg.norm(pooled), atol=2e-5)


def test_scores_of_a_reranker_are_the_models_own(models: dict[str, str]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["reranker"])
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(models["reranker"]).eval()
    expected = []
    for text in LETTERS:
        inputs = tokenizer("when?", text, return_tensors="pt", split_special_tokens=True)
        with torch.no_grad():
            expected.append(model(**inputs).logits.item())
    scores = load_reranker(models["reranker"]).scores("when?", LETTERS)
    np.testing.assert_allclose(scores, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["document", "passage"])
def test_prompts_of_the_folder_stand_before_questions_and_passages(
    name: str, tmp_path: Path
) -> None:
    path = with_modules(make_embedder(tmp_path / "a"), query="ask: ", **{name: "text: "})
    plain = with_modules(make_embedder(tmp_path / "b"))
    with_prompts = load_embedder(str(path))
    without = load_embedder(str(plain))
    np.testing.assert_allclose(with_prompts.question("x"), without.question("ask: x"), atol=2e-5)
    passages, _ = with_prompts.passages(["x", "yy"])
    expected, _ = without.passages(["text: x", "text: yy"])
    np.testing.assert_allclose(passages, expected, atol=2e-5)


def replace_weight(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replace one of a model's weights, or leave it out if `tensor` is None."""
    weights = safetensors.torch.load_file(path / "model.safetensors")
    del weights[name]
    if tensor is not None:
        weights[name] = tensor
    safetensors.torch.save_file(weights, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "{", "cannot be loaded"),
        ("modules.json", '[{"name": "0", "path": "", "type": "os.System"}]', "cannot be loaded"),
        ("modules.json", '[{"name": "0", "path": "../x", "type": "x"}]', "cannot be loaded"),
        ("1_Pooling/config.json", '{"pooling_mode": "by magic"}', "cannot be loaded"),
        ("config_sentence_transformers.json", '{"model_type": "SparseEncoder"}', "is a Sparse"),
        ("sentence_bert_config.json", '{"max_seq_length": 80}', "does not run"),  # of 64
        ("embeddings.LayerNorm.weight", None, "the weights lack"),
        ("embeddings.LayerNorm.weight", torch.ones(3), "has shape 3"),
        ("embeddings.LayerNorm.weight", torch.full([32], torch.nan), "has NaN or infinity"),
    ],
)
def test_a_model_that_would_not_be_as_its_makers_meant_is_refused(
    name: str, content: Any, message: str, tmp_path: Path
) -> None:
    """`name` is a file with the text `content`, or a weight with this tensor."""
    path = make_embedder(tmp_path / "model")
    if name.endswith("json"):
        (path / name).write_text(content)
    else:
        replace_weight(path, name, content)
    with pytest.raises(ModelError, match=message) as caught:
        load_embedder(str(path)).passages(["a " * 300])
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_a_folder_without_modules_pools_by_the_mean(tmp_path: Path) -> None:
    path = make_embedder(tmp_path / "a")
    (path / "modules.json").unlink()
    with_modules = make_embedder(tmp_path / "b")
    expected, _ = load_embedder(str(with_modules)).passages(LETTERS)
    vectors, cut = load_embedder(str(path)).passages([*LETTERS, "a " * 300])
    np.testing.assert_allclose(vectors[:-1], expected, atol=2e-5)
    assert cut == 1
    assert load_embedder(str(path)).tokens == 64


# --- the search ---


class Numbers(list[str]):
    """An index whose passages are "0", "1", …"""

    text = list.__getitem__


class Rows:
    """An embedding model whose vector of "7" is rows[7]."""

    fingerprint = "rows"
    name = "rows"
    tokens = 9

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((count // 40, 16))
        rows = centres[rng.integers(len(centres), size=count)]
        rows = rows + 0.5 * rng.standard_normal((count, 16))
        self.rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def passages(self, texts: list[str]) -> Any:
        return self.rows[[int(text) for text in texts]], 0


def test_ivf_pq_finds_nearly_what_flat_search_finds_and_is_cached(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    faiss = pytest.importorskip("faiss")
    embedder: Any = Rows(5000)
    index: Any = Numbers(map(str, range(5000)))
    search = Search((), WORDS, "?", 10)
    monkeypatch.setattr(vectors, "BATCH", 1000)
    monkeypatch.setattr(vectors, "LISTS", 100)
    monkeypatch.setattr(vectors, "MAX_PARTS", 4)
    monkeypatch.setattr(vectors, "MAX_FLAT", 1000)
    built = Vectors(index, embedder, search)
    hits = 0
    for query in embedder.rows[:50]:
        nearest = highest(embedder.rows @ query, 10).tolist()
        candidates = built.candidates(query, [9])
        assert 9 in candidates
        assert len(candidates) <= 41
        assert (np.diff(candidates) > 0).all()
        assert (built.of(candidates) == embedder.rows[candidates]).all()
        hits += len({*nearest} & {*candidates.tolist()})
    assert hits / 500 > 0.9
    assert built.kind == "ivf-pq"
    assert built.embedded == 5000
    assert Vectors(index, embedder, replace(search, use_cache=False)).kind == "flat"

    (key,) = CODED.each()
    monkeypatch.setattr(faiss, "index_factory", None)  # any building would fail
    cached = Vectors(index, embedder, search)
    assert (cached.candidates(query, [9]) == candidates).all()
    assert cached.embedded == 0

    CODED.put(key, b"not an index")
    with pytest.raises(TypeError):
        Vectors(index, embedder, search).candidates(query, [])

    too_large = faiss.IndexFlatIP(16)
    too_large.add(np.concatenate([embedder.rows, embedder.rows]))
    CODED.put(key, faiss.serialize_index(too_large).tobytes())
    assert Vectors(index, embedder, search).candidates(query, []).max() < 5000


@given(st.lists(st.permutations(range(6)).map(lambda p: p[:4]), max_size=3))
def test_fusion_sums_reciprocal_ranks(rankings: list[list[int]]) -> None:
    scores = fuse(*rankings)
    for passage in range(6):
        ranks = [ranking.index(passage) + 1 for ranking in rankings if passage in ranking]
        expected = sum(1 / (60 + rank) for rank in ranks)
        assert scores.get(passage, 0) == pytest.approx(expected)


# --- ranking ---


def test_a_question_in_other_words_is_found_by_vectors_and_not_by_bm25(
    models: dict[str, str],
) -> None:
    question = "which ship sank and in which storm?"
    with_embedder = settings_with(models["meaning"])
    by_words = [match.passage for match in ranked(TEXTS, WORDS, question).passages]
    assert 1 in by_words  # by "in" alone
    assert by_words[0] != 1

    ranking = ranked(TEXTS, with_embedder, question)
    cosines = {match.passage: match.scores.dense or 0 for match in ranking.passages}
    assert max(cosines, key=lambda passage: cosines[passage]) == 1
    assert cosines[1] > 0.99
    assert ranking.dense == "flat"
    assert ranking.embedded == len(ranking.index)

    without_shared_words = "ship? sank? storm?"
    assert not ranked(TEXTS, WORDS, without_shared_words).passages
    assert ranked(TEXTS, with_embedder, without_shared_words).passages[0].passage == 1


def test_empty_documents_have_no_passages_to_find(models: dict[str, str]) -> None:
    assert not ranked([" \n", ""], settings_with(models["meaning"]), "ship?").passages


def test_scores_of_each_ranker_are_those_of_brute_force(models: dict[str, str]) -> None:
    question = "the doctor and the king"
    settings = settings_with(models["letters"], models["reranker"])
    matches = ranked(TEXTS, settings, question).passages
    embedder = load_embedder(models["letters"])
    reranker = load_reranker(models["reranker"])
    cosines = embedder.passages(TEXTS)[0] @ embedder.question(question)
    bm25 = dict(ranked(TEXTS, WORDS, question).index.rank(question))
    by_words = sorted(bm25, key=lambda passage: -bm25[passage])
    by_vectors = np.argsort(-cosines).tolist()
    for match in matches:
        scores = match.scores
        assert scores.bm25 == pytest.approx(bm25.get(match.passage, 0.0))
        assert scores.dense == pytest.approx(float(cosines[match.passage]), abs=1e-5)
        assert scores.fused == pytest.approx(fuse(by_words, by_vectors)[match.passage])
        reranked = reranker.scores(question, [TEXTS[match.passage]])[0]
        assert scores.reranked == pytest.approx(float(reranked), abs=1e-4)
        assert scores.score == scores.reranked
    final_scores = [match.scores.score for match in matches]
    assert final_scores == sorted(final_scores, reverse=True)


def test_a_reranker_works_without_an_embedder_and_on_the_best_alone(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    texts = [f"tide {'x ' * i}." for i in range(6)]
    by_words = [match.passage for match in ranked(texts, WORDS, "tide?", wanted=6).passages]
    with_reranker = settings_with(reranker=models["reranker"])
    matches = ranked(texts, with_reranker, "tide?", wanted=6).passages
    assert {match.passage for match in matches[:2]} == set(by_words[:2])
    assert [match.passage for match in matches[2:]] == by_words[2:]
    assert [match.scores.reranked is None for match in matches] == [False] * 2 + [True] * 4


# --- the cache ---


@settings(max_examples=8, deadline=None)
@given(turns=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=5))
def test_only_new_texts_are_embedded_whatever_was_ranked_before(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, str], turns: list[list[int]]
) -> None:
    question = "a ship in a storm?"
    embedded_texts = dict[str, set[str]](meaning=set(), letters=set())
    with patch.dict(os.environ, NGT_HOME=str(tmp_path_factory.mktemp("home"))):
        for index, turn in enumerate(turns):
            texts = [[*TEXTS, "a gale came."][i] for i in turn]
            model = ["meaning", "letters", "meaning"][index % 3]
            settings = settings_with(models[model])
            cached = ranked(texts, settings, question)
            fresh = ranked(texts, settings, question, keep=False)
            cached_cosines = {match.passage: match.scores.dense for match in cached.passages}
            fresh_cosines = {match.passage: match.scores.dense for match in fresh.passages}
            assert cached_cosines == pytest.approx(fresh_cosines, abs=1e-5)
            assert cached.embedded == len({*texts} - embedded_texts[model])
            assert fresh.embedded == len({*texts})
            embedded_texts[model] |= {*texts}


def test_vectors_made_before_an_interruption_are_cached(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setattr(vectors, "BATCH", 1)
    settings = settings_with(models["meaning"])
    embed = Embedder.passages
    calls = []

    def embed_twice(embedder: Embedder, texts: list[str]) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(texts)
        return embed(embedder, texts)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Embedder, "passages", embed_twice)
        ranked(TEXTS, settings, "a ship")
    assert ranked(TEXTS, settings, "a ship").embedded == 2


def test_passages_longer_than_the_model_reads_are_warned_of(models: dict[str, str]) -> None:
    settings = settings_with(models["meaning"], tokens=200)
    reported = RecordingReporter()
    reported.of(lambda: ranked([*TEXTS, "ship " * 60], settings, "a ship"))
    (warning,) = reported.warnings
    assert warning.startswith("1 of 5 passages are longer than the 40 tokens that ")


# --- the command ---


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    entries = [f"Entry {i}: barges of kind {i} were noted." for i in range(500)]
    (tmp_path / "days.md").write_text("\n\n".join(entries))
    (tmp_path / "end.md").write_text("# End\n\nA vessel foundered off the cape in a gale.\n")
    return str(tmp_path)


def test_a_folder_is_asked_with_embedder_and_reranker(harbour: str, models: dict[str, str]) -> None:
    embedder = f"embedder={models['meaning']}"
    command = ["ask", "-d", harbour, "Which ship sank?", "--set", embedder, "--dry-run"]
    done = ngt(*command, "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("ask")).validate(body)
    retrieval = body["retrieval"]
    (best,) = (passage for passage in retrieval["passages"] if passage["rank"] == 1)
    assert body["documents"][best["document"]]["name"] == "end.md"
    assert best["dense"] > 0.7
    assert retrieval["dense"] == "flat"
    assert retrieval["embedded"] > 20
    assert b"not everything fits: only 1 of " in done.stderr

    shown = ngt(*command, "--set", f"reranker={models['reranker']}", "--show-passages")
    lines = shown.stderr.decode().splitlines()
    first_rank = next(line for line in lines if "rank 1 (" in line)
    for score in ("BM25 ", "dense ", "fused ", "reranked "):
        assert score in first_rank


@pytest.mark.parametrize(
    ("flag", "model", "message"),
    [
        ("--set=embedder", "nowhere/at/all", "embedder nowhere/at/all: no such folder"),
        ("--set=embedder", "builtin", "is a LlamaForCausalLM, not an embedding model"),
        ("--set=embedder", "reranker", "is a BertForSequenceClassification, not an emb"),
        ("--set=reranker", "nowhere/at/all", "reranker nowhere/at/all: no such folder"),
        ("--set=reranker", "two labels", "has 2 labels"),
        ("--set=reranker", "meaning", "is a SentenceTransformer, not a cross-encoder"),
    ],
)
def test_models_of_another_kind_are_one_line_and_a_hint(
    flag: str, model: str, message: str, models: dict[str, str], harbour: str
) -> None:
    name = models.get(model, model)
    done = ngt("ask", "-d", harbour, "Which barges?", "--dry-run", f"{flag}={name}")
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 4, done.stderr
    assert not done.stdout
    assert message in lines[-2]
    assert lines[-1].startswith(("Give ", "Name ", "Did you "))


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    models: dict[str, str], harbour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.retrieval.encoders.find_spec", lambda name: None)
    done = ngt("ask", "-d", harbour, "Which?", "--set", f"embedder={models['meaning']}")
    assert done.returncode == 4
    assert done.stderr.decode().splitlines() == [
        "ngt: --set embedder needs sentence-transformers, which is not installed",
        "Install it: pip install 'ngtcli[dense]'",
    ]
