"""Tests of the training of the built-in model: corpus, circuit, batches and the whole run."""

import json
import lzma
import random
import sys
from pathlib import Path

import pytest
import torch

from tests.tools.training import train
from tests.tools.training.corpus import Paragraph, read_corpus
from tests.tools.training.initial import Lexicon, Marks, plant_circuit
from tests.tools.training.recipe import Recipe, make_model, make_tokenizer
from tests.tools.training.tasks import Conversation, TaskMixture
from tests.tools.training.train import DocumentBatches, pad

SENTENCES = [
    "The old mill stands beside the river at Norwick.",
    "It was built by two brothers in the spring of 1802.",
    "A flood carried away the wheel after sixty years.",
    "Children now learn to swim where the wheel once turned.",
    "The stones of the mill came from a quarry near Thrale.",
    "Nobody remembers who planted the chestnut trees.",
]


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    """A corpus in the format of the real one, small enough for a test."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(0)
    plain_texts = [{"id": f"p{number}", "text": _shuffled(rng)} for number in range(12)]
    paragraphs_with_questions = [
        {
            "title": f"T{number}",
            "context": _shuffled(rng),
            "qas": [{"question": "who built the mill?", "answers": ["two brothers"]}],
        }
        for number in range(12)
    ]
    abstract = {"source": SENTENCES, "target": ["A flood took the wheel."]}
    meeting = {
        "turns": [f"A: {sentence}" for sentence in SENTENCES],
        "queries": [{"query": "What of the flood?", "answer": SENTENCES[2], "span": [["0", "5"]]}],
    }
    sources = {
        "peps": plain_texts,
        "newwiki-qa": paragraphs_with_questions,
        "scitldr": [abstract] * 3,
        "qmsum": [meeting],
    }
    for name, rows in sources.items():
        with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def _shuffled(rng: random.Random) -> str:
    return " ".join(rng.sample(SENTENCES, len(SENTENCES)))


def test_the_corpus_is_read_and_split_by_article(corpus_folder: Path) -> None:
    articles = read_corpus(corpus_folder)

    assert {article.source for article in articles} == {"peps", "newwiki-qa", "scitldr", "qmsum"}
    assert {article.held_out for article in articles} == {True, False}


def test_a_question_is_paired_with_the_sentence_of_its_answer(corpus_folder: Path) -> None:
    articles = read_corpus(corpus_folder)

    for article in articles:
        if article.source == "newwiki-qa":
            for paragraph in article.paragraphs:
                ((question, index),) = paragraph.questions
                assert question == "who built the mill?"
                assert "two brothers" in paragraph.sentences[index]

    (meeting,) = [article for article in articles if article.source == "qmsum"]
    (turn,) = [paragraph for paragraph in meeting.paragraphs if paragraph.questions]
    assert turn == Paragraph((SENTENCES[2],), (("What of the flood?", 0),))


def test_a_folder_without_a_known_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_corpus(tmp_path)


# Token ids of a made-up vocabulary, in which each token from WORDS on is a rare word.
USER_ID = 2
ASSISTANT_ID = 3
SPACE = 4
INSTRUCTION_START = 5
WORDS = 20
VOCABULARY = 1024


@pytest.fixture(scope="module")
def planted():
    """An untrained model with the circuit."""
    lexicon = Lexicon(
        stems=tuple(range(VOCABULARY)),
        weights=tuple(1.0 if token >= WORDS else 0.0 for token in range(VOCABULARY)),
    )
    marks = Marks(
        before_sentence=(SPACE, USER_ID),
        user=USER_ID,
        assistant=ASSISTANT_ID,
        instructions=(INSTRUCTION_START,),
    )
    return make_model(Recipe(), VOCABULARY, marks, lexicon)


def test_the_planted_circuit_copies_before_any_training(planted) -> None:
    rng = random.Random(0)
    segment = rng.sample(range(WORDS, VOCABULARY), 30)
    ids = torch.tensor([[USER_ID, *segment * 3]])

    with torch.no_grad():
        predicted = planted(ids).logits[0].argmax(-1)

    # From the second occurrence of the segment on, the next token can be copied.
    accuracy = (predicted[40:-1] == ids[0, 41:]).float().mean()
    assert accuracy > 0.8


def test_the_planted_circuit_finds_the_sentence_that_a_question_names(planted) -> None:
    rng = random.Random(1)
    right = 0
    for _ in range(20):
        sentences = [rng.sample(range(WORDS, VOCABULARY), 12) for _ in range(6)]
        answer = rng.choice(sentences)
        question = rng.sample(answer[3:], 4)
        document = []
        for sentence in sentences:
            document += [*sentence, SPACE]
        ids = torch.tensor([[USER_ID, *document, INSTRUCTION_START, *question, ASSISTANT_ID]])

        with torch.no_grad():
            predicted = int(planted(ids).logits[0, -1].argmax())

        if predicted == answer[0]:
            right += 1
    assert right >= 15


def test_the_circuit_refuses_a_model_of_another_shape() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )

    with pytest.raises(ValueError, match="layers"):
        plant_circuit(LlamaForCausalLM(config), Marks((), 2, 3, ()), Lexicon((), ()), 0)


TURNS = (("Who?", "The old mill."), ("When was it built?", "It was built by two."))


@pytest.fixture
def batches(corpus_folder: Path) -> DocumentBatches:
    articles = read_corpus(corpus_folder)
    return DocumentBatches(TaskMixture(articles), make_tokenizer(articles, 0), Recipe())


def test_a_turn_in_a_batch_has_the_logits_of_its_run_alone(
    planted, batches: DocumentBatches
) -> None:
    both_turns = batches.encode(Conversation("A text.", TURNS), 500)
    second_turn = batches.encode(Conversation("A text.", TURNS[1:]), 500)
    batch = pad([both_turns, second_turn])

    with torch.no_grad():
        batched = planted(
            batch.ids, attention_mask=batch.mask(), position_ids=batch.positions
        ).logits
        alone = planted(torch.tensor([second_turn.ids])).logits

    size = len(second_turn) - second_turn.blocks.count(0)
    of_second_turn = batched[0, len(both_turns) - size : len(both_turns)]
    assert torch.allclose(of_second_turn, alone[0, -size:], atol=1e-3)


def test_turns_that_do_not_fit_a_row_are_left_out(batches: DocumentBatches) -> None:
    conversation = Conversation("A text.", TURNS)
    both_turns = batches.encode(conversation, 500)

    row = batches.encode(conversation, len(both_turns) - 1)

    assert set(both_turns.blocks) == {0, 1, 2}
    assert set(row.blocks) == {0, 1}


def test_training_runs_and_exports_a_model_that_loads(
    corpus_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ngtcli.decoding.load import ModelSpec, load_model

    small_recipe = Recipe(batch_tokens=1024)  # the real one with small steps
    monkeypatch.setattr(train, "Recipe", lambda seed: small_recipe)
    monkeypatch.setattr(train, "_HELD_OUT_BATCHES", 2)
    arguments = ["--data", str(corpus_folder), "--out", str(tmp_path / "out")]
    arguments += ["--no-compile", "--minutes", "0.02"]
    monkeypatch.setattr(sys, "argv", ["train", *arguments])

    train.main()

    assert "held-out" in capsys.readouterr().err
    model = load_model(ModelSpec(str(tmp_path / "out" / "model"), device="cpu"))
    assert model.takes_drafts
    assert model.context == 4096
    assert model.tokenizer.has_chat_template
