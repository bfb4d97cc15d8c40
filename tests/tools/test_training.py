"""The built-in model's data, tasks and training."""

import json
import lzma
import random
import sys
from pathlib import Path

import pytest
import torch

from tests.tools.training import train
from tests.tools.training.corpus import read_corpus
from tests.tools.training.initial import Lexicon, Marks, plant_circuit
from tests.tools.training.recipe import Recipe, make_model, make_tokenizer
from tests.tools.training.tasks import (
    Conversation,
    TaskMixture,
)
from tests.tools.training.train import DocumentBatches, pad

SENTENCES = [
    "The old mill stands beside the river at Norwick.",
    "It was built by two brothers in the spring of 1802.",
    "A flood carried away the wheel after sixty years.",
    "Children now learn to swim where the wheel once turned.",
    "The stones of the mill came from a quarry near Thrale.",
    "Nobody remembers who planted the chestnut trees.",
]


def corpus(folder: Path) -> Path:
    """A corpus in the shape of the real one, small enough for a test."""
    folder.mkdir()
    rng = random.Random(0)
    rows = {
        "peps": [{"id": f"p{i}", "text": _shuffled(rng)} for i in range(12)],
        "newwiki-qa": [
            {
                "title": f"T{i}",
                "context": _shuffled(rng),
                "qas": [{"question": "who built the mill?", "answers": ["two brothers"]}],
            }
            for i in range(12)
        ],
        "scitldr": [{"source": SENTENCES, "target": ["A flood took the wheel."]}] * 3,
        "qmsum": [
            {
                "turns": [f"A: {s}" for s in SENTENCES],
                "queries": [
                    {"query": "What of the flood?", "answer": SENTENCES[2], "span": [["0", "5"]]}
                ],
            }
        ],
    }
    for name, lines in rows.items():
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def _shuffled(rng: random.Random) -> str:
    return " ".join(rng.sample(SENTENCES, len(SENTENCES)))


def test_the_corpus_is_read_and_split_by_article(tmp_path: Path) -> None:
    articles = read_corpus(corpus(tmp_path / "data"))
    assert {a.source for a in articles} == {"peps", "newwiki-qa", "scitldr", "qmsum"}
    wiki = [p for a in articles if a.source == "newwiki-qa" for p in a.paragraphs]
    for paragraph in wiki:
        ((_, index),) = paragraph.questions
        assert "two brothers" in paragraph.sentences[index]
    talk = next(a for a in articles if a.source == "qmsum")
    assert [q for p in talk.paragraphs for q in p.questions] == [("What of the flood?", 0)]
    assert {a.held_out for a in articles} == {True, False}
    with pytest.raises(FileNotFoundError):
        read_corpus(tmp_path)


SPACE, USER_ID, ASKER, OPENER = 4, 2, 3, 5  # token ids of a made-up vocabulary


@pytest.fixture(scope="module")
def planted():
    """A model with the circuit, untrained; every token from 20 on is a rare word of its own."""
    lexicon = Lexicon(tuple(range(1024)), tuple(float(i >= 20) for i in range(1024)))
    return make_model(Recipe(), 1024, Marks((SPACE, USER_ID), USER_ID, ASKER, (OPENER,)), lexicon)


def test_the_planted_circuit_copies_before_any_training(planted) -> None:
    rng = random.Random(0)
    segment = rng.sample(range(20, 1024), 30)
    ids = torch.tensor([[USER_ID, *segment * 3]])
    with torch.no_grad():
        best = planted(ids).logits[0].argmax(-1)
    assert (best[40:-1] == ids[0, 41:]).float().mean() > 0.8
    with pytest.raises(ValueError, match="layers"):
        plant_circuit(make_small(), Marks((), 2, 3, ()), Lexicon((), ()), 0)


def test_the_planted_circuit_finds_the_sentence_that_a_question_names(planted) -> None:
    rng = random.Random(1)
    right = 0
    for _ in range(20):
        sentences = [rng.sample(range(20, 1024), 12) for _ in range(6)]
        wanted = rng.choice(sentences)
        document = [i for s in sentences for i in (*s, SPACE)]
        asked = rng.sample(wanted[3:], 4)
        ids = torch.tensor([[USER_ID, *document, OPENER, *asked, ASKER]])
        with torch.no_grad():
            right += int(planted(ids).logits[0, -1].argmax()) == wanted[0]
    assert right >= 15


def test_a_turn_in_a_batch_is_scored_as_if_it_were_alone(planted, tmp_path: Path) -> None:
    articles = read_corpus(corpus(tmp_path / "data"))
    tokenizer = make_tokenizer(articles, 0)
    batches = DocumentBatches(TaskMixture(articles), tokenizer, Recipe())
    turns = (("Who?", "The old mill."), ("When was it built?", "It was built by two."))
    together = batches.encode(Conversation("A text.", turns), 500)
    alone = batches.encode(Conversation("A text.", turns[1:]), 500)
    batch = pad([together, alone])
    with torch.no_grad():
        scores = planted(
            batch.ids, attention_mask=batch.mask(), position_ids=batch.positions
        ).logits
        plain = planted(torch.tensor([alone.ids])).logits
    size = len(alone) - alone.blocks.count(0)
    assert torch.allclose(
        scores[0, len(together) - size : len(together)], plain[0, -size:], atol=1e-3
    )
    assert len(batches.encode(Conversation("A text.", turns), len(together) - 1)) < len(together)


def make_small():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )


def test_training_runs_and_exports_a_model_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ngtcli.decoding.load import ModelSpec, load_model

    small = Recipe(batch_tokens=1024)  # as the real one except for what a step and a score cost
    monkeypatch.setattr(train, "Recipe", lambda seed: small)
    monkeypatch.setattr(train, "_HELD_BATCHES", 2)
    given = ["--data", corpus(tmp_path / "data"), "--out", tmp_path / "out", "--no-compile"]
    monkeypatch.setattr(sys, "argv", ["train", *map(str, given), "--minutes", "0.02"])
    train.main()
    assert "held-out" in capsys.readouterr().err
    model = load_model(ModelSpec(str(tmp_path / "out" / "model"), device="cpu"))
    assert model.takes_drafts and model.context == 4096 and model.tokenizer.has_chat_template
