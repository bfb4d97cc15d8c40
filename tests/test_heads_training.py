"""Training of heads: prompts, kept answers, the folder, and each kind on tiny models."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ngtcli.documents.load import Document
from ngtcli.errors import UsageError
from ngtcli.heads.load import load_head
from ngtcli.heads.training.answers import Answered, Answers, about
from ngtcli.heads.training.folder import KINDS, TrainingFolder
from ngtcli.heads.training.kinds import Plan
from ngtcli.heads.training.prompts import Asked, asked_of, hold_out
from ngtcli.heads.training.train import Trainer
from tests.support.helpers import HARBOUR, VOCABULARY, ngt
from tests.support.tiny_models import make_hf, make_target


def texts(count: int = 24) -> list[Answered]:
    """Prompts of random tokens, whose answers count upwards in steps that the last token gives."""
    chance = Random(0)
    out = []
    for number in range(count):
        prompt = [chance.randrange(10, VOCABULARY) for _ in range(chance.randint(5, 12))]
        answer = [10 + (prompt[-1] + i) % 40 for i in range(chance.randint(8, 14))]
        out.append(Answered(number, number % 4 == 0, prompt, answer))
    return out


@contextmanager
def trainer(
    path: Path, kind: str, say: Callable[[str], None] = lambda _: None, **plan: Any
) -> Iterator[Trainer]:
    """A trainer of a tiny model, `say` its status lines."""
    target = make_target(seed=3, num_hidden_layers=3)
    if kind == "space":  # it is the model in a folder that is tuned
        target.name = str(path.parent / "model")
        make_hf("llama", 3, num_hidden_layers=3).save_pretrained(target.name)
    rate = 3e-2 if kind in ("medusa", "hydra") else 3e-3
    asked = {"depth": 2, "inner": 16, "batch": 120, "rate": rate, "steps": 30, **plan}
    with TrainingFolder(path, kind) as folder:
        yield Trainer(target, texts(), folder, Plan(**asked), status=say)


def train(path: Path, kind: str, say: Callable[[str], None] = lambda _: None, **plan: Any) -> Any:
    with trainer(path, kind, say, **plan) as run:
        return run.run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_falls_and_the_curve_says_so(kind: str, tmp_path: Path) -> None:
    made = train(tmp_path / "head", kind)
    log = (tmp_path / "head" / "log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert made.steps == lines[-1]["step"] == 30
    assert made.held_loss == lines[-1]["held_loss"] < 0.97 * lines[0]["held_loss"]
    assert len(made.accepted) == 2 and made.tokens_per_step >= 1


@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle3"])
def test_a_folder_loads_and_guesses_as_in_training(kind: str, tmp_path: Path) -> None:
    with trainer(tmp_path / "head", kind, steps=3) as run:
        run.run()
    with torch.no_grad():  # files are in bfloat16
        for parameter in run._parameters:
            parameter.copy_(parameter.bfloat16())
    text = run._train[0]
    batch = run._batch([text], 0)
    with torch.no_grad():
        first = next(iter(run._kind.scored(batch))).scores.softmax(-1)
    head = load_head(str(tmp_path / "head"), run._kind.model.hf, torch.device("cpu"), torch.float32)
    assert head.kind == kind
    states = run._kind.states(batch, *head.layers)[0]
    ids = torch.tensor([*text.prompt, *text.answer])
    for number, row in enumerate(batch.rows[:4].tolist()):
        head.reset()
        head.read(states[: row + 1], ids[1 : row + 2], 0)
        found = head.first(int(ids[row + 1]))
        expected = first[number][found.tokens[0].tolist()]  # the vocabulary is the target's
        assert torch.allclose(torch.tensor(found.probabilities[0]).float(), expected, atol=1e-4)


def test_a_trained_dflash_head_guesses_all_depths_at_once(tmp_path: Path) -> None:
    train(tmp_path / "head", "dflash", steps=1)
    hf = make_hf("llama", 3, num_hidden_layers=3)
    head = load_head(str(tmp_path / "head"), hf, torch.device("cpu"), torch.float32)
    head.read(torch.zeros(3, len(head.layers) * 32), torch.tensor([5, 6, 7]), 0)
    assert head.kind == "dflash" and head.depth == len(head.first(7).tokens) == 2


def test_a_tuned_model_says_how_its_masks_are_filled(tmp_path: Path) -> None:
    train(tmp_path / "head", "space", steps=1)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["mask_num"] == 2 and config["mask_id"] == 0 and config["mask_diff"] is False
    assert load_file(tmp_path / "head" / "model.safetensors")


@pytest.mark.parametrize("kind", ["eagle3", "space"])
def test_an_interrupted_run_ends_with_the_same_weights(kind: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", kind, steps=6)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts", kind, stop, steps=6)
    with trainer(tmp_path / "parts", kind, steps=6) as again:
        assert again._step == 2
        again.run()
    whole, parts = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_nothing_of_others_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        TrainingFolder(tmp_path, "medusa")
    own = tmp_path / "head"
    train(own, "medusa", steps=2)
    with pytest.raises(UsageError, match="kind medusa"):
        TrainingFolder(own, "hydra")
    (own / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(UsageError, match="checkpoint.safetensors: it is damaged"):
        train(own, "medusa", steps=2)
    (own / "checkpoint.safetensors").unlink()
    with pytest.raises(UsageError, match="steps 2, now 9"):
        train(own, "medusa", steps=9)
    (own / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="config.json"):
        train(own, "medusa", steps=2)
    assert (own / "config.json").read_text() == "{}"


def test_a_folder_is_of_one_process(tmp_path: Path) -> None:
    with TrainingFolder(tmp_path / "head", "medusa"):
        with pytest.raises(UsageError, match="another process"):
            TrainingFolder(tmp_path / "head", "medusa")


def test_answers_are_kept_up_to_a_torn_line(tmp_path: Path) -> None:
    path, asked = tmp_path / "answers.jsonl", [Asked((Document("a", "text"),), "")] * 3
    kept = Answers(path, about(asked, model="m"))
    for text in texts(2):
        kept.add(text)
    kept.close()
    with path.open("ab") as file:
        file.write(b'{"n":2,"held":fal')
    again = Answers(path, about(asked, model="m"))
    assert [*again.done.values()] == texts(2) and [n for n, _ in again.left(asked)] == [2]
    again.add(texts(3)[2])
    again.close()
    with closing(Answers(path, about(asked, model="m"))) as third:
        assert [*third.done.values()] == texts(3)
    with pytest.raises(UsageError, match="model 'm', now 'n'"):
        Answers(path, about(asked, model="n"))
    with pytest.raises(UsageError, match="other documents"):
        Answers(path, about(asked[:1], model="m"))
    path.write_text("mine\n")
    with pytest.raises(UsageError, match="did not write"):
        Answers(path, about(asked, model="m"))


def test_each_part_is_asked_and_held_out_as_a_whole() -> None:
    text = Path(HARBOUR).read_text("utf-8")
    made = asked_of([Document("harbour", text)], 60, 2)
    parts = {one.documents[0].text for one in made}
    assert len(parts) > 3 and made == asked_of([Document("harbour", text)], 60, 2)
    for one in made:
        words = one.question.removeprefix("What is said of ").removesuffix("?")
        assert one.text in text and words in one.text and not one.held
    assert sum(not one.question for one in made) == len(parts)
    chosen = hold_out(made)
    held = {one.text for one in chosen if one.held}
    assert len(held) == max(1, round(len(parts) / 10))
    assert not held & {one.text for one in chosen if not one.held}


def test_the_command_trains_a_head(tmp_path: Path) -> None:
    words = ["heads", "train", "--kind", "medusa", "-d", HARBOUR, "-o", "head", "--steps", "2"]
    words += ["--part-tokens", "40", "--questions", "0", "--batch-tokens", "200", "--json"]
    words += ["--answers", "6", "--depth", "1", "--model-scores"]
    done = ngt(*words, cwd=tmp_path, NGT_MAX_TOKENS="4", NGT_CALIBRATE="false")
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["kind"] == "medusa" and report["steps"] == 2 and report["held_out"]
    kept = (tmp_path / "head" / "answers.jsonl").read_text().splitlines()
    assert len(kept) == 1 + report["texts"] + report["held_out"]
