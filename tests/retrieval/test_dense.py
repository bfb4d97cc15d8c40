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
from ngtcli.retrieval.index import best
from ngtcli.retrieval.ranking import Ranking, fused, rank
from ngtcli.retrieval.search import Search
from ngtcli.retrieval.vectors import CODED, Vectors
from tests.encoder_models import make_embedder, make_meaning_embedder, make_reranker, with_modules
from tests.support.helpers import ngt
from tests.support.reported import Reported

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="no extra dense")
CONCEPTS = [
    ("ship", "vessel"), ("sank", "foundered"), ("storm", "gale"), ("doctor", "physician"),
    ("ill", "sick"), ("king", "monarch"), ("bread", "loaf"), ("tree", "oak"),
]  # fmt: skip
TEXTS = [
    "the monarch ate a loaf under the oak.", "a vessel foundered off the cape in a gale.",
    "the physician saw that the boy was sick.", "the quick fox went in and out all day.",
]  # fmt: skip
LETTERS = ["abc def", "a", "the tide came in at dawn", "a [SEP] b"]  # no control token


def by(embedder: str = "", reranker: str = "", tokens: int = 16) -> Settings:
    return Settings.of(passage_tokens=tokens, embedder=embedder, reranker=reranker)


WORDS = by()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    at = tmp_path_factory.mktemp("encoders")
    made = {
        "meaning": make_meaning_embedder(at / "meaning", CONCEPTS),
        "letters": make_embedder(at / "letters"),
        "reranker": make_reranker(at / "reranker"),
        "two labels": make_reranker(at / "two", labels=2),
    }
    return {name: str(path) for name, path in made.items()}


def folder(*texts: str) -> list[Document]:
    return [Document(f"{i}.txt", text, path=f"/docs/{i}.txt") for i, text in enumerate(texts)]


def ranked(texts: list[str], how: Settings, question: str, **more: Any) -> Ranking:
    """The ranking of four passages at least."""
    return rank(Search(folder(*texts), how, question, more.pop("most", 4), **more))


# --- the models ---


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_vectors_are_the_models_own_pooled_as_its_folder_says(pooling: str, tmp_path: Path) -> None:
    path = make_embedder(tmp_path / "model", pooling)
    found, cut = load_embedder(str(path)).passages(LETTERS)
    assert cut == 0 and found.dtype == np.float32
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    for text, row in zip(LETTERS, found, strict=True):
        coded = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        with torch.no_grad():
            hidden = model(**coded).last_hidden_state[0].numpy()
        wanted = {"mean_tokens": hidden.mean(0), "cls_token": hidden[0],
                  "max_tokens": hidden.max(0), "lasttoken": hidden[-1]}[pooling]  # fmt: skip
        np.testing.assert_allclose(row, wanted / np.linalg.norm(wanted), atol=2e-5)


def test_scores_of_a_reranker_are_the_models_own(models: dict[str, str]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["reranker"])
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(models["reranker"]).eval()
    how = {"return_tensors": "pt", "split_special_tokens": True}
    with torch.no_grad():
        wanted = [model(**tokenizer("when?", text, **how)).logits.item() for text in LETTERS]
    scores = load_reranker(models["reranker"]).scores("when?", LETTERS)
    np.testing.assert_allclose(scores, wanted, atol=2e-5)


@pytest.mark.parametrize("name", ["document", "passage"])
def test_prompts_of_the_folder_stand_before_questions_and_passages(
    name: str, tmp_path: Path
) -> None:
    path = with_modules(make_embedder(tmp_path / "a"), query="ask: ", **{name: "text: "})
    plain = with_modules(make_embedder(tmp_path / "b"))
    with_prompts, without = load_embedder(str(path)), load_embedder(str(plain))
    same = {"atol": 2e-5}
    np.testing.assert_allclose(with_prompts.question("x"), without.question("ask: x"), **same)
    np.testing.assert_allclose(
        with_prompts.passages(["x", "yy"])[0], without.passages(["text: x", "text: yy"])[0], **same
    )


def lose(path: Path, name: str, found: Any) -> None:
    """Put something else, or None, in the place of one of a model's weights."""
    weights = safetensors.torch.load_file(path / "model.safetensors")
    weights |= {name: found}
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    safetensors.torch.save_file(kept, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("modules.json", "{", "cannot be loaded"),
        ("modules.json", '[{"name": "0", "path": "", "type": "os.System"}]', "cannot be loaded"),
        ("modules.json", '[{"name": "0", "path": "../x", "type": "x"}]', "cannot be loaded"),
        ("1_Pooling/config.json", '{"pooling_mode": "by magic"}', "cannot be loaded"),
        ("config_sentence_transformers.json", '{"model_type": "SparseEncoder"}', "is a Sparse"),
        ("sentence_bert_config.json", '{"max_seq_length": 80}', "does not run"),  # of 64
        ("embeddings.LayerNorm.weight", None, "the weights lack"),
        ("embeddings.LayerNorm.weight", torch.ones(3), "has shape 3"),
        ("embeddings.LayerNorm.weight", torch.full([32], torch.nan), "are not numbers"),
    ],
)
def test_a_model_that_would_not_be_as_its_makers_meant_is_refused(
    name: str, found: Any, message: str, tmp_path: Path
) -> None:
    path = make_embedder(tmp_path / "model")
    (path / name).write_text(found) if name.endswith("json") else lose(path, name, found)
    with pytest.raises(ModelError, match=message) as caught:
        load_embedder(str(path)).passages(["a " * 300])
    assert str(path) in str(caught.value) and caught.value.hint


def test_without_modules_it_is_the_mean(tmp_path: Path) -> None:
    path, same = make_embedder(tmp_path / "a"), make_embedder(tmp_path / "b")
    (path / "modules.json").unlink()
    wanted, _ = load_embedder(str(same)).passages(LETTERS)
    found, cut = load_embedder(str(path)).passages([*LETTERS, "a " * 300])
    np.testing.assert_allclose(found[:-1], wanted, atol=2e-5)
    assert cut == 1 and load_embedder(str(path)).tokens == 64


# --- the search ---


class Numbers(list[str]):
    """Passages "0", "1", …"""

    text = list.__getitem__


class Rows:
    """Stands for an embedding model: the vector of "7" is rows[7]."""

    fingerprint, name, tokens = "rows", "rows", 9

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((count // 40, 16))
        rows = centres[rng.integers(len(centres), size=count)]
        rows = rows + 0.5 * rng.standard_normal((count, 16))
        self.rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def passages(self, texts: list[str]) -> Any:
        return self.rows[[int(text) for text in texts]], 0


def test_ivf_pq_finds_nearly_what_flat_search_finds_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    faiss = pytest.importorskip("faiss")
    embedder: Any = Rows(5000)
    index: Any = Numbers(map(str, range(5000)))
    search = Search((), WORDS, "?", 10)
    monkeypatch.setattr(vectors, "BATCH", 1000)
    monkeypatch.setattr(vectors, "LISTS", 100)
    monkeypatch.setattr(vectors, "PARTS", 4)
    monkeypatch.setattr(vectors, "FLAT_MOST", 1000)
    some, hits = Vectors(index, embedder, search), 0
    for asked in embedder.rows[:50]:
        wanted = best(embedder.rows @ asked, 10).tolist()
        found = some.candidates(asked, [9])
        assert 9 in found and len(found) <= 41 and (np.diff(found) > 0).all()
        assert (some.of(found) == embedder.rows[found]).all()
        hits += len({*wanted} & {*found.tolist()})
    assert hits / 500 > 0.9 and (some.kind, some.embedded) == ("ivf-pq", 5000)
    assert Vectors(index, embedder, replace(search, keep=False)).kind == "flat"
    (key,) = CODED.each()
    monkeypatch.setattr(faiss, "index_factory", None)  # any building would fail
    again = Vectors(index, embedder, search)
    assert (again.candidates(asked, [9]) == found).all() and again.embedded == 0
    CODED.put(key, b"not an index")
    with pytest.raises(TypeError):
        Vectors(index, embedder, search).candidates(asked, [])
    other = faiss.IndexFlatIP(16)
    other.add(np.concatenate([embedder.rows, embedder.rows]))
    CODED.put(key, faiss.serialize_index(other).tobytes())  # it has passages that are not there
    assert Vectors(index, embedder, search).candidates(asked, []).max() < 5000


@given(st.lists(st.permutations(range(6)).map(lambda p: p[:4]), max_size=3))
def test_fusion_sums_reciprocal_ranks(rankings: list[list[int]]) -> None:
    found = fused(*rankings)
    for passage in range(6):
        terms = [1 / (60 + 1 + r.index(passage)) for r in rankings if passage in r]
        assert found.get(passage, 0) == pytest.approx(sum(terms))


# --- ranking ---


def test_a_question_in_other_words_is_found_by_vectors_and_not_by_bm25(
    models: dict[str, str],
) -> None:
    question = "which ship sank and in which storm?"
    words = ranked(TEXTS, WORDS, question).found
    assert 1 in [one.passage for one in words] and words[0].passage != 1  # by "in" alone
    both = ranked(TEXTS, by(models["meaning"]), question)
    dense = {one.passage: one.scores.dense or 0 for one in both.found}
    assert max(dense, key=lambda p: dense[p]) == 1 and dense[1] > 0.99
    assert both.dense == "flat" and both.embedded == len(both.index)
    assert not ranked(TEXTS, WORDS, "ship? sank? storm?").found
    assert not ranked([" \n", ""], by(models["meaning"]), "ship?").found
    assert ranked(TEXTS, by(models["meaning"]), "ship? sank? storm?").found[0].passage == 1


def test_scores_of_each_ranker_are_those_of_brute_force(models: dict[str, str]) -> None:
    question = "the doctor and the king"
    found = ranked(TEXTS, by(models["letters"], models["reranker"]), question).found
    embedder, reranker = load_embedder(models["letters"]), load_reranker(models["reranker"])
    cosines = embedder.passages(TEXTS)[0] @ embedder.question(question)
    words = dict(ranked(TEXTS, WORDS, question).index.ranked(question))
    order = [sorted(words, key=lambda p: -words[p]), np.argsort(-cosines).tolist()]
    for one in found:
        assert one.scores.bm25 == pytest.approx(words.get(one.passage, 0.0))
        assert one.scores.dense == pytest.approx(float(cosines[one.passage]), abs=1e-5)
        assert one.scores.fused == pytest.approx(fused(*order)[one.passage])
        wanted = reranker.scores(question, [TEXTS[one.passage]])[0]
        assert one.scores.score == one.scores.reranked == pytest.approx(float(wanted), abs=1e-4)
    scores = [one.scores.score for one in found]
    assert scores == sorted(scores, reverse=True)


def test_a_reranker_works_without_an_embedder_and_on_the_best_alone(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    texts = [f"tide {'x ' * i}." for i in range(6)]
    words = [one.passage for one in ranked(texts, WORDS, "tide?", most=6).found]
    found = ranked(texts, by(reranker=models["reranker"]), "tide?", most=6).found
    assert {one.passage for one in found[:2]} == set(words[:2])
    assert [one.passage for one in found[2:]] == words[2:]
    assert [one.scores.reranked is None for one in found] == [False] * 2 + [True] * 4


# --- the cache ---


@settings(max_examples=8, deadline=None)
@given(turns=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=5))
def test_of_any_documents_in_turn_only_new_texts_are_embedded(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, str], turns: list[list[int]]
) -> None:
    asked, known = "a ship in a storm?", dict[str, set[str]](meaning=set(), letters=set())
    with patch.dict(os.environ, NGT_HOME=str(tmp_path_factory.mktemp("kept"))):
        for at, turn in enumerate(turns):
            texts = [[*TEXTS, "a gale came."][i] for i in turn]
            model = ["meaning", "letters", "meaning"][at % 3]
            found = ranked(texts, by(models[model]), asked)
            fresh = ranked(texts, by(models[model]), asked, keep=False)
            cosines = [{one.passage: one.scores.dense for one in r.found} for r in (found, fresh)]
            assert cosines[0] == pytest.approx(cosines[1], abs=1e-5)
            assert found.embedded == len({*texts} - known[model])
            assert fresh.embedded == len({*texts})
            known[model] |= {*texts}


def test_what_is_embedded_is_kept_when_it_is_interrupted(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setattr(vectors, "BATCH", 1)
    how, real, left = by(models["meaning"]), Embedder.passages, iter(range(2))

    def passages(embedder: Embedder, texts: list[str]) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(embedder, texts)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Embedder, "passages", passages)
        ranked(TEXTS, how, "a ship")
    assert ranked(TEXTS, how, "a ship").embedded == 2


def test_passages_longer_than_the_model_reads_are_told(models: dict[str, str]) -> None:
    reported = Reported()
    reported.of(lambda: ranked([*TEXTS, "ship " * 60], by(models["meaning"], tokens=200), "a ship"))
    said = reported.warnings
    assert len(said) == 1 and said[0].startswith(
        "1 of 5 passages are longer than the 40 tokens that "
    )


# --- the command ---


@pytest.fixture
def harbour(tmp_path: Path) -> str:
    noted = (f"Entry {i}: barges of kind {i} were noted." for i in range(500))
    (tmp_path / "days.md").write_text("\n\n".join(noted))
    (tmp_path / "end.md").write_text("# End\n\nA vessel foundered off the cape in a gale.\n")
    return str(tmp_path)


def test_a_folder_is_asked_with_embedder_and_reranker(harbour: str, models: dict[str, str]) -> None:
    embedder = f"embedder={models['meaning']}"
    asked = ["ask", "-d", harbour, "Which ship sank?", "--set", embedder, "--dry-run"]
    done = ngt(*asked, "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("ask")).validate(body)
    (best,) = (p for p in body["retrieval"]["passages"] if p["rank"] == 1)
    assert body["documents"][best["document"]]["name"] == "end.md" and best["dense"] > 0.7
    assert body["retrieval"]["dense"] == "flat" and body["retrieval"]["embedded"] > 20
    assert b"not everything fits: read the best 1 of " in done.stderr
    shown = ngt(*asked, "--set", f"reranker={models['reranker']}", "--show-passages")
    line = next(n for n in shown.stderr.decode().splitlines() if "rank 1 (" in n)
    assert all(word in line for word in ("BM25 ", "dense ", "fused ", "reranked "))


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
    assert done.returncode == 4 and not done.stdout, done.stderr
    assert message in lines[-2] and lines[-1].startswith(("Give ", "Name ", "Did you "))


def test_without_the_extra_it_is_named(
    models: dict[str, str], harbour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.retrieval.encoders.find_spec", lambda name: None)
    done = ngt("ask", "-d", harbour, "Which?", "--set", f"embedder={models['meaning']}")
    assert done.returncode == 4 and done.stderr.decode().splitlines() == [
        "ngt: --set embedder needs sentence-transformers, which is not installed",
        "Install it: pip install 'ngtcli[dense]'",
    ]
