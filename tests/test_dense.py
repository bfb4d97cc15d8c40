"""Passages found by their vectors: against brute force, from the cache, and from the command."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from encoder_models import make_embedder, make_meaning_embedder, make_reranker, with_modules
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.retrieve import ranking, vectors
from ngtcli.retrieve.encoders import Embedder, load_embedder, load_reranker
from ngtcli.retrieve.ranking import fused, rank
from ngtcli.retrieve.vectors import Nearest, Vectors, nearest_of
from tests.support.helpers import ngt

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="no faiss")
needs_model = pytest.mark.skipif(not BUILTIN_PATH.exists(), reason="no built-in model")
CONCEPTS = [
    ("ship", "vessel"), ("sank", "foundered"), ("storm", "gale"), ("doctor", "physician"),
    ("ill", "sick"), ("king", "monarch"), ("bread", "loaf"), ("tree", "oak"),
]  # fmt: skip
TEXTS = [
    "the monarch ate a loaf under the oak.",
    "a vessel foundered off the cape in a gale.",
    "the physician saw that the boy was sick.",
    "the quick fox went in and out all day.",
]


def by(embedder: str = "", reranker: str = "", tokens: int = 16) -> Settings:
    return Settings(passage_tokens=tokens, embedder=embedder, reranker=reranker)


WORDS = by()


@pytest.fixture(autouse=True)
def signals_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.system.process.unwind_on_interrupt", lambda: None)


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


# --- the models ---


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_vectors_are_the_models_own_pooled_as_its_folder_says(pooling: str, tmp_path: Path) -> None:
    path = make_embedder(tmp_path / "model", pooling)
    texts = ["abc def", "a", "the tide came in at dawn"]
    found, cut = load_embedder(str(path)).passages(texts)
    assert cut == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    for text, row in zip(texts, found, strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        wanted = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0),
                  "lasttoken": hidden[-1]}[pooling]  # fmt: skip
        np.testing.assert_allclose(row, wanted / np.linalg.norm(wanted), atol=2e-5)


def test_prompts_of_the_folder_stand_before_questions_and_passages(tmp_path: Path) -> None:
    path = with_modules(make_embedder(tmp_path / "a"), query="ask: ", document="text: ")
    plain = with_modules(make_embedder(tmp_path / "b"))
    with_prompts, without = load_embedder(str(path)), load_embedder(str(plain))
    same = {"atol": 2e-5}
    np.testing.assert_allclose(with_prompts.question("x"), without.question("ask: x"), **same)
    np.testing.assert_allclose(
        with_prompts.passages(["x", "yy"])[0], without.passages(["text: x", "text: yy"])[0], **same
    )


def test_text_never_becomes_a_control_token_of_the_embedder(models: dict[str, str]) -> None:
    embedder = load_embedder(models["letters"])
    coded, _ = embedder.encode(["a [SEP] b"])
    assert coded["input_ids"][0].tolist().count(embedder.tokenizer.sep_token_id) == 1


def test_scores_of_a_reranker_are_the_models_own(models: dict[str, str]) -> None:
    texts = ["abc", "the tide came in", "x"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["reranker"])
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(models["reranker"]).eval()
    with torch.no_grad():
        wanted = [model(**tokenizer("when?", t, return_tensors="pt")).logits.item() for t in texts]
    np.testing.assert_allclose(
        load_reranker(models["reranker"]).scores("when?", texts), wanted, atol=2e-5
    )


def test_texts_that_a_models_tokenizer_cannot_encode_are_an_error_of_the_model(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, reranker = load_embedder(models["letters"]), load_reranker(models["reranker"])

    def fail(*_: object, **__: object) -> None:
        raise ValueError("Asking to pad but the tokenizer does not have a padding token")

    for model in (embedder, reranker):
        monkeypatch.setattr(type(model), "encode", fail)
    with pytest.raises(ModelError, match="padding token"):
        embedder.question("x")
    with pytest.raises(ModelError, match="padding token"):
        reranker.scores("x", ["y"])


def test_a_folder_that_says_what_is_not_known_is_refused(tmp_path: Path) -> None:
    path = make_embedder(tmp_path / "model")
    whole = {p: (path / p).read_text() for p in ("modules.json", "1_Pooling/config.json")}
    dense = json.loads(whole["modules.json"])
    dense.append({"path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    for name, text in [
        ("modules.json", json.dumps(dense)),
        ("modules.json", "{"),
        ("modules.json", json.dumps([{"type": "x.CLIPModel", "path": ""}])),
        ("modules.json", '[1, {"type": "Transformer", "path": "a"}, {"type": "Pooling"}]'),
        ("1_Pooling/config.json", json.dumps({"pooling_mode_weightedmean_tokens": True})),
        ("1_Pooling/config.json", json.dumps({"pooling_mode": "mean", "include_prompt": False})),
    ]:
        (path / name).write_text(text)
        load_embedder.cache_clear()
        with pytest.raises(ModelError) as caught:
            load_embedder(str(path))
        assert str(caught.value).startswith(f"embedder {path}: ") and caught.value.hint
        (path / name).write_text(whole[name])


# --- the search ---


@needs_faiss
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_flat_search_is_that_of_brute_force(count: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 8)).astype(np.float32)
    rows[rng.integers(count)] = rows[0]  # two equal ones
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    asked = rows[0]
    found = Nearest(rows).search(asked, most)
    cosines = [float((row * asked).sum()) for row in rows]
    wanted = sorted(range(count), key=lambda i: (-round(cosines[i], 5), i))[:most]
    np.testing.assert_allclose([c for _, c in found], [cosines[i] for i in wanted], atol=1e-5)
    assert len({p for p, _ in found}) == len(wanted) and (rows[found[0][0]] == asked).all()


def clustered(count: int, width: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count // 40, width))
    rows = centres[rng.integers(len(centres), size=count)] + 0.5 * rng.standard_normal(
        (count, width)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_passages_that_a_damaged_index_invents_are_not_found() -> None:
    coded: Any = SimpleNamespace(search=lambda *_: (None, np.array([[1, 7, -1, 0, 2**40]])))
    rows = np.eye(2, dtype=np.float32)
    assert Nearest(rows, coded).search(rows[1], 2) == [(1, 1.0), (0, 0.0)]


@needs_faiss
def test_ivf_pq_finds_nearly_what_flat_search_finds_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    rows = clustered(10_000, 16)
    monkeypatch.setattr(vectors, "PARTS", 4)
    flat = Nearest(rows)
    monkeypatch.setattr(vectors, "FLAT_MOST", 1000)
    coded = nearest_of(Vectors(rows, "name", "key"))
    assert (flat.kind, coded.kind) == ("flat", "ivf-pq")
    hits = 0
    for asked in rows[:50]:
        wanted = flat.search(asked, 10)
        found = coded.search(asked, 10)
        hits += len(dict(wanted).keys() & dict(found).keys())
        assert all(abs(c - float(rows[p] @ asked)) < 1e-5 for p, c in found)
    assert hits / 500 > 0.9
    nearest_of(Vectors(rows[:4000].copy(), "small", "key"))
    said: list[str] = []
    monkeypatch.setattr(vectors, "ivf_pq", None)  # any building would fail
    for many, key in ((8001, "fourth"), (10_000, "fifth")):  # more than twice as many
        with pytest.raises(TypeError):
            nearest_of(Vectors(rows[:many].copy(), "small", key))
    again = nearest_of(Vectors(rows, "name", "key"))
    assert again.search(rows[7], 10) == coded.search(rows[7], 10)
    fewer = Vectors(rows[:9000].copy(), "name", "other")
    assert nearest_of(fewer).search(rows[7], 10) == nearest_of(fewer).search(rows[7], 10)
    assert all(p < 9000 for p, _ in nearest_of(fewer).search(rows[9500], 10))
    with pytest.raises(TypeError):  # far fewer: it is learned again
        nearest_of(Vectors(rows[:3000], "name", "third"))
    monkeypatch.setattr(vectors, "ivf_pq", lambda rows: again._coded)
    (path,) = (own_home / "cache" / "passages").glob("name.key.ivf-pq.safetensors")
    path.write_bytes(path.read_bytes()[:-9])
    rebuilt = nearest_of(Vectors(rows, "name", "key"), warn=said.append)
    assert "made again" in said[0] and rebuilt.search(rows[7], 1)[0][0] == 7


@given(st.lists(st.permutations(range(6)).map(lambda p: p[:4]), max_size=3))
def test_fusion_sums_reciprocal_ranks(rankings: list[list[int]]) -> None:
    found = fused(*rankings)
    for passage in range(6):
        terms = [1 / (60 + 1 + r.index(passage)) for r in rankings if passage in r]
        assert found.get(passage, 0) == pytest.approx(sum(terms))


# --- ranking ---


@needs_faiss
def test_a_question_in_other_words_is_found_by_vectors_and_not_by_bm25(
    models: dict[str, str],
) -> None:
    documents = folder(*TEXTS)
    question = "which ship sank and in which storm?"
    words = rank(documents, WORDS, question, 4).found
    assert 1 in [one.passage for one in words] and words[0].passage != 1  # by "in" alone
    both = rank(documents, by(models["meaning"]), question, 4)
    dense = {one.passage: one.scores.dense or 0 for one in both.found}
    assert max(dense, key=lambda p: dense[p]) == 1 and dense[1] > 0.99
    assert both.dense == "flat" and both.embedded == len(both.index)
    meant = rank(documents, WORDS, "ship? sank? storm?", 4)
    assert not meant.found
    found = rank(documents, by(models["meaning"]), "ship? sank? storm?", 4)
    assert found.found[0].passage == 1


@needs_faiss
def test_scores_of_each_ranker_are_those_of_brute_force(models: dict[str, str]) -> None:
    documents, question = folder(*TEXTS), "the doctor and the king"
    both = by(models["letters"], models["reranker"])
    found = rank(documents, both, question, 4).found
    embedder, reranker = load_embedder(models["letters"]), load_reranker(models["reranker"])
    cosines = embedder.passages(TEXTS)[0] @ embedder.question(question)
    words = dict(rank(documents, WORDS, question, 4).index.ranked(question))
    order = [sorted(words, key=lambda p: -words[p]), np.argsort(-cosines).tolist()]
    for one in found:
        assert one.scores.bm25 == pytest.approx(words.get(one.passage, 0.0))
        assert one.scores.dense == pytest.approx(float(cosines[one.passage]), abs=1e-5)
        assert one.scores.fused == pytest.approx(fused(*order)[one.passage])
        wanted = reranker.scores(question, [TEXTS[one.passage]])[0]
        assert one.scores.score == one.scores.reranked == pytest.approx(float(wanted), abs=1e-4)
    assert [one.scores.score for one in found] == sorted(
        (one.scores.score for one in found), reverse=True
    )


def test_a_reranker_works_without_an_embedder_and_on_the_best_alone(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    documents = folder(*(f"tide {'x ' * i}." for i in range(6)))
    words = [one.passage for one in rank(documents, WORDS, "tide?", 6).found]
    found = rank(documents, by(reranker=models["reranker"]), "tide?", 6).found
    assert {one.passage for one in found[:2]} == set(words[:2])
    assert [one.passage for one in found[2:]] == words[2:]
    assert [one.scores.reranked is None for one in found] == [False] * 2 + [True] * 4


# --- the cache ---


@needs_faiss
@settings(max_examples=15, deadline=None)
@given(turns=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=5))
def test_of_any_documents_of_a_folder_in_turn_only_new_texts_are_embedded(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, str], turns: list[list[int]]
) -> None:
    documents, asked = folder(*TEXTS, "a gale came."), "a ship in a storm?"
    kept, known = str(tmp_path_factory.mktemp("kept")), set[int]()
    for turn in turns:
        own, texts = [documents[i] for i in turn], {*turn}
        with patch.dict(os.environ, NGT_HOME=kept):
            found = rank(own, by(models["meaning"]), asked, 4)
        with patch.dict(os.environ, NGT_HOME=str(tmp_path_factory.mktemp("fresh"))):
            fresh = rank(own, by(models["meaning"]), asked, 4)
            assert rank(own, by(models["letters"]), asked, 4).embedded == len(texts)
        cosines = [{one.passage: one.scores.dense for one in r.found} for r in (found, fresh)]
        assert cosines[0] == pytest.approx(cosines[1], abs=1e-5)
        assert found.embedded == len(texts - known) and fresh.embedded == len(texts)
        known |= texts


@needs_faiss
def test_what_is_embedded_is_kept_when_it_is_interrupted(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "BATCH", 1)
    said, how, real = list[str](), by(models["meaning"]), Embedder.passages
    wanted = rank(folder(*TEXTS), how, "a ship", 4).found
    other = [*TEXTS[:1], *(f"{text} and more." for text in TEXTS)]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        left = iter((real, real))

        def passages(embedder: Embedder, texts: list[str]) -> Any:
            return next(left, fail)(embedder, texts)

        patched.setattr(Embedder, "passages", passages)
        rank(folder(*other), how, "a ship", 4, warn=said.append)
    assert said == ["2 of 4 passages are embedded, and kept"]
    assert rank(folder(*other), how, "a ship", 4).embedded == 2
    assert rank(folder(*TEXTS), how, "a ship", 4).found == wanted


def fail(*_: object) -> None:
    raise KeyboardInterrupt


@needs_faiss
def test_damaged_vectors_are_made_again_with_a_line(models: dict[str, str], own_home: Path) -> None:
    how = by(models["meaning"])
    wanted = rank(folder(*TEXTS), how, "a ship", 4).found
    (path,) = (own_home / "cache" / "passages").glob("*.vectors.safetensors")
    whole = path.read_bytes()
    for broken in (whole[:-4], whole[:-3] + b"\7\7\7", b"", b"x" * 100):
        path.write_bytes(broken)
        said: list[str] = []
        found = rank(folder(*TEXTS), how, "a ship", 4, warn=said.append)
        assert found.found == wanted and found.embedded == 4
        assert len(said) == 1 and "made again" in said[0]


@needs_faiss
def test_passages_longer_than_the_model_reads_are_told(models: dict[str, str]) -> None:
    said: list[str] = []
    documents = folder(*TEXTS, "ship " * 60)
    rank(documents, by(models["meaning"], tokens=200), "a ship", 4, warn=said.append)
    assert len(said) == 1 and said[0].startswith(
        "1 of 5 passages are longer than the 40 tokens that "
    )


# --- the command ---


@pytest.fixture
def harbour(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    log.mkdir()
    for i in range(8):
        noted = (f"Entry {i}.{j}: barges of kind {j} were noted." for j in range(60))
        (log / f"day{i}.md").write_text("\n\n".join(noted))
    (log / "end.md").write_text("# End\n\nA vessel foundered off the cape in a gale.\n")
    return log


@needs_faiss
@needs_model
def test_a_folder_is_asked_with_embedder_and_reranker(
    harbour: Path, models: dict[str, str]
) -> None:
    asked = ["ask", "-d", str(harbour), "Which ship sank?", "--embedder", models["meaning"]]
    asked += ["--passages", "5"]
    done = ngt(*asked, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("ask")).validate(body)
    (best,) = (p for p in body["retrieval"]["passages"] if p["rank"] == 1)
    assert body["documents"][best["document"]]["name"] == "end.md" and best["dense"] > 0.7
    assert body["retrieval"]["dense"] == "flat" and body["retrieval"]["embedded"] > 20
    assert b"not everything fits: read 5 of " in done.stderr
    shown = ngt(*asked, "--reranker", models["reranker"], "--dry-run", "--show-passages")
    line = next(n for n in shown.stderr.decode().splitlines() if "rank 1 (" in n)
    assert all(word in line for word in ("BM25 ", "dense ", "fused ", "reranked "))
    quiet = ngt("ask", "-d", str(harbour), "Which barges?", "--dry-run", "--json")
    passages = json.loads(quiet.stdout)["retrieval"]["passages"]
    assert all(p["dense"] is None and p["score"] == p["bm25"] for p in passages)


@needs_faiss
@pytest.mark.parametrize(
    ("flag", "model", "message"),
    [
        ("--embedder", "nowhere/at/all", "embedder nowhere/at/all: no such folder"),
        ("--embedder", "builtin", "is not an embedding model: it is a LlamaForCausalLM"),
        ("--embedder", "reranker", "is not an embedding model: it is a BertForSequenceClassif"),
        ("--reranker", "nowhere/at/all", "reranker nowhere/at/all: no such folder"),
        ("--reranker", "two labels", "has 2 labels"),
        ("--reranker", "meaning", "is a BertModel"),
    ],
)
def test_models_of_another_kind_are_one_line_and_a_hint(
    flag: str, model: str, message: str, models: dict[str, str], harbour: Path
) -> None:
    name = models.get(model, model)
    done = ngt("ask", "-d", str(harbour), "Which barges?", "--dry-run", flag, name)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 4 and not done.stdout, done.stderr
    assert message in lines[-2] and lines[-1].startswith(("Give ", "Name ", "Did you "))


def test_without_the_extra_it_is_named(
    models: dict[str, str], harbour: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.retrieve.encoders.find_spec", lambda name: None)
    done = ngt("ask", "-d", str(harbour), "Which?", "--embedder", models["meaning"])
    assert done.returncode == 4 and done.stderr.decode().splitlines() == [
        "ngt: --embedder needs faiss-cpu, which is not installed",
        "Install it: pip install 'ngtcli[dense]'",
    ]


@needs_faiss
def test_documents_without_a_word_have_no_vectors(models: dict[str, str]) -> None:
    for _ in range(2):
        found = rank(folder(" \n", ""), by(models["meaning"]), "a ship", 4)
        assert not found.found and found.embedded == 0


def test_texts_are_cut_where_a_roberta_has_no_more_positions(tmp_path: Path) -> None:
    path = tmp_path / "roberta"
    tokenizer = make_embedder(tmp_path / "bert")
    transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(path)
    config = transformers.RobertaConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=34, pad_token_id=1,
    )  # fmt: skip
    transformers.RobertaModel(config).save_pretrained(path)
    embedder = load_embedder(str(path))  # without a modules.json: the mean
    found, cut = embedder.passages(["a " * 300, "b"])
    assert cut == 1 and embedder.tokens == 32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    with_modules(path)  # says 40 tokens
    load_embedder.cache_clear()
    with pytest.raises(ModelError, match="does not run"):
        load_embedder(str(path)).passages(["a " * 300])
