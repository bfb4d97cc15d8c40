"""Training of heads: what is recorded, the folder, and each kind on tiny models."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ngtcli.errors import UsageError
from ngtcli.heads.kinds import load_head
from tests.support.helpers import HARBOUR, VOCABULARY, ngt, tool
from tests.support.tiny_models import make_target
from tests.tools.heads.__main__ import train as train_command
from tests.tools.heads.data import held_out
from tests.tools.heads.folder import KINDS, Plan, Text, TrainingFolder
from tests.tools.heads.train import Trainer
from tests.tools.measuring.traces import Trace, TraceWriter, read_traces


def texts(count: int = 24) -> list[Text]:
    """Prompts of random tokens, whose answers count upwards in steps that the last token gives."""
    chance = Random(0)
    out = []
    for number in range(count):
        prompt = [chance.randrange(10, VOCABULARY) for _ in range(chance.randint(5, 12))]
        answer = [10 + (prompt[-1] + i) % 40 for i in range(chance.randint(8, 14))]
        out.append(Text(prompt, answer, number % 4 == 0))
    return out


def plan(kind: str, **changes: Any) -> Plan:
    rate = 3e-2 if kind in ("medusa", "hydra") else 3e-3
    asked = {"depth": 2, "inner": 16, "batch": 120, "rate": rate, "steps": 30, **changes}
    return Plan(kind, **asked)


@contextmanager
def trainer(
    path: Path, kind: str, say: Callable[[str], None] = lambda _: None, **changes: Any
) -> Iterator[Trainer]:
    """A trainer of a tiny model, `say` its status lines."""
    target = make_target(seed=3, num_hidden_layers=3)
    with closing(TrainingFolder(path, plan(kind, **changes))) as folder:
        yield Trainer(target, texts(), folder, status=say)


def train(
    path: Path, kind: str, say: Callable[[str], None] = lambda _: None, **changes: Any
) -> Any:
    with trainer(path, kind, say, **changes) as run:
        return run.run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_falls_and_the_folder_loads_and_guesses_as_in_training(
    kind: str, tmp_path: Path
) -> None:
    vocabulary = 40 if kind == "eagle3" else 0
    with trainer(tmp_path / "head", kind, vocabulary=vocabulary) as run:
        report = run.run()
    log = (tmp_path / "head" / "log.jsonl").read_text()
    lines = [line for line in map(json.loads, log.splitlines()) if "held_loss" in line]
    assert report.steps == lines[-1]["step"] == 30
    assert report.held_loss == lines[-1]["held_loss"] < 0.97 * lines[0]["held_loss"]
    assert len(report.accepted) == 2 and report.tokens_per_step >= 1
    with torch.no_grad():  # files are in bfloat16
        for parameter in run.network.parameters():
            parameter.copy_(parameter.bfloat16())
    batch = run.batch(texts()[1:2], 0)
    head = load_head(str(tmp_path / "head"), run.model.hf, torch.device("cpu"), torch.float32)
    assert head.kind == kind and head.depth == (8 if kind == "eagle3" else 2)
    states, text = run.states(batch)[0], batch.ids[0]
    with torch.no_grad():
        scores, _ = run.scored(batch)[0]
    if kind == "dflash":  # blocks are drawn
        generator = torch.Generator().manual_seed(batch.seed)
        rows = batch.rows[torch.randint(len(batch.rows), (8,), generator=generator)]
    else:
        rows = batch.rows
    for number, row in enumerate(rows[:4].tolist()):
        head.reset()
        head.read(states[: row + 1], text[1 : row + 2], 0)
        found = head.first(int(text[row + 1]))
        tokens = torch.tensor(found.tokens[0]).long()
        ids = run.network.ids
        places = tokens if ids is None else torch.searchsorted(ids, tokens)
        expected = scores[number].softmax(-1)[places]
        assert ids is None or (ids[places] == tokens).all()
        assert torch.allclose(torch.tensor(found.probabilities[0]).float(), expected, atol=1e-4)


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    kind = "dflash"  # which draws at random
    train(tmp_path / "whole", kind, steps=6)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "parts", kind, stop, steps=6)
    with trainer(tmp_path / "parts", kind, steps=6) as again:
        assert again.step == 2
        again.run()
    whole, parts = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_nothing_of_others_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("notes.txt", "recording"):  # one of the user's own, too, before any is made
        with pytest.raises(UsageError, match=f"did not write .{name}"):
            TrainingFolder(tmp_path, plan("medusa"))
        assert [path.name for path in tmp_path.iterdir()] == [name]
        (tmp_path / name).rename(tmp_path / "recording")
    (tmp_path / "recording").unlink()
    own = tmp_path / "head"
    with closing(TrainingFolder(own, plan("medusa", steps=2))) as folder:
        folder.recording().mkdir()  # as an interrupt may leave it
    train(own, "medusa", steps=2)
    with pytest.raises(UsageError, match="kind 'medusa', now 'hydra'"):
        train(own, "hydra", steps=2)
    path = own / "checkpoint.safetensors"
    path.write_bytes((own / "model.safetensors").read_bytes())
    with pytest.raises(UsageError, match="checkpoint.safetensors: ngt did not write it, or it was"):
        train(own, "medusa", steps=2)
    path.unlink()
    with pytest.raises(UsageError, match="steps 2, now 9"):
        train(own, "medusa", steps=9)
    (own / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"config.json"):
        train(own, "medusa", steps=2)
    assert (own / "config.json").read_text() == "{}"


def test_a_training_does_not_go_on_with_other_texts_or_another_model(tmp_path: Path) -> None:
    train(tmp_path / "head", "medusa", steps=2)
    wide = make_target(seed=3, num_hidden_layers=3, hidden_size=48)
    wide.name = "wide"
    for target, given in ((make_target(seed=3, num_hidden_layers=3), texts(20)), (wide, texts())):
        with closing(TrainingFolder(tmp_path / "head", plan("medusa", steps=2))) as folder:
            with pytest.raises(UsageError, match="another model or other texts"):
                Trainer(target, given, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_no_head_is_trained_by_integers(kind: str, tmp_path: Path) -> None:
    target = make_target(seed=3, num_hidden_layers=3)
    target.hf.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    own = {"own_scores": False} if kind == "hydra" else {}
    with closing(TrainingFolder(tmp_path / "head", plan(kind, steps=2, **own))) as folder:
        if kind == "medusa":  # it reads states alone
            assert Trainer(target, texts(), folder).run().steps == 2
        else:
            with pytest.raises(UsageError, match=f"{kind} is trained by the model's own weights"):
                Trainer(target, texts(), folder)


def test_all_that_is_asked_about_a_text_is_held_out_together() -> None:
    traces = [
        Trace(f"{n}/{turn}", "ask", (1, 2, n), (3,), 1, ((n,),) if n < 20 else ())
        for n in range(40)
        for turn in (1, 2, 3)
    ]
    made = held_out(traces)
    held = {text.prompt[-1] for text in made if text.held}
    assert len(held) == 4 and sum(text.held for text in made) == 12


def test_the_command_records_and_trains_and_goes_on(tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        own = ("--steps", "2", "--batch-tokens", "200", "--depth", "1", "--model-scores", "--json")
        limits = {"NGT_MAX_TOKENS": "4", "NGT_CALIBRATE": "false"}
        flags = ("--kind", "medusa", *words, *own)
        return tool(train_command, "tests.tools.heads", *flags, cwd=tmp_path, **limits)

    asked = ("-d", HARBOUR, "--part-tokens", "40", "--questions", "1", "--answers", "6")
    done = run("-o", "head", *asked)
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["kind"] == "medusa" and report["steps"] == 2 and report["held_out"]
    drafted = ngt(
        "summarize",
        HARBOUR,
        "--heads",
        str(tmp_path / "head"),
        "--method",
        "medusa",
        "--json",
        "--max-tokens",
        "24",
    )
    assert drafted.returncode == 0, drafted.stderr.decode()
    answer = json.loads(drafted.stdout)
    assert answer["statistics"]["drafted_tokens"] > 0
    plain = ngt("summarize", HARBOUR, "--method", "none", "--json", "--max-tokens", "24")
    assert answer["text"] == json.loads(plain.stdout)["text"]
    recorded = tmp_path / "head" / "recording"
    found, lines = read_traces(recorded), recorded / "traces.jsonl"
    assert len(found.traces) == report["texts"] + report["held_out"] == 6
    assert {trace.task for trace in found.traces} == {"ask", "summarize"}
    before = lines.read_bytes()
    kept = before.splitlines(keepends=True)
    lines.write_bytes(b"".join(kept[:4]) + kept[4][:30])  # as a kill may leave it
    again = run("-o", "head", *asked)
    assert again.returncode == 0 and json.loads(again.stdout)["texts"] == report["texts"]
    assert sorted(lines.read_bytes().splitlines()) == sorted(before.splitlines())
    other = run("-o", "other", "--recording", str(recorded))
    assert other.returncode == 0, other.stderr.decode()
    assert json.loads(other.stdout)["held_loss"] == report["held_loss"]
    assert not (tmp_path / "other" / "recording").exists()
    about = recorded / "trace.json"
    with TraceWriter(tmp_path / "long", found.tokenizer, found.model, found.vocabulary) as writer:
        writer.add("long", "ask", [5] * 10**5, [6])  # of a model with a longer context
        for one in found.traces:
            writer.add(one.id, one.task, one.prompt_ids, one.output_ids, one.references)
    fits = run("-o", "fourth", "--recording", "long")
    assert fits.returncode == 0 and b"1 prompt left out" in fits.stderr
    assert json.loads(fits.stdout)["held_loss"] == report["held_loss"]
    about.write_text(about.read_text().replace(found.tokenizer, "another"))
    foreign = run("-o", "fifth", "--recording", str(recorded))
    assert foreign.returncode == 2 and b"another tokenizer" in foreign.stderr
    wrong = run("-o", "third", "--recording", str(tmp_path))
    assert wrong.returncode == 3 and b"no recording here" in wrong.stderr
    for idle in (asked[:2], ("--questions", "2"), ("--part-tokens", "40")):
        both = run("-o", "third", "--recording", str(recorded), *idle)
        assert both.returncode == 2 and not (tmp_path / "third").exists()
        assert idle[0].replace("-d", "--data").encode() in both.stderr
