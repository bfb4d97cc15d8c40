"""Training of heads: the recording, the folder, and each kind on tiny models."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ngtcli.errors import UsageError
from ngtcli.heads.kinds import load_head
from tests.support.helpers import HARBOUR, VOCABULARY, ngt, tool
from tests.support.tiny_models import make_target
from tests.tools.heads.__main__ import train as train_command
from tests.tools.heads.data import samples_of
from tests.tools.heads.folder import KINDS, Plan, Sample, TrainingFolder, TrainingReport
from tests.tools.heads.train import Trainer
from tests.tools.measuring.traces import Trace, TraceWriter, read_traces


def make_samples(count: int = 24) -> list[Sample]:
    """Prompts of random tokens; each answer counts upwards from the prompt's last token."""
    random = Random(0)
    samples = []
    for number in range(count):
        prompt = [random.randrange(10, VOCABULARY) for _ in range(random.randint(5, 12))]
        answer = [10 + (prompt[-1] + i) % 40 for i in range(random.randint(8, 14))]
        samples.append(Sample(prompt, answer, held_out=number % 4 == 0))
    return samples


def make_plan(kind: str, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "depth": 2,
        "inner": 16,
        "batch": 120,
        "rate": 3e-2 if kind in ("medusa", "hydra") else 3e-3,
        "steps": 30,
    }
    return Plan(kind, **{**fields, **changes})


def ignore(message: str) -> None:
    """Receive a status line and do nothing."""


@contextmanager
def open_trainer(
    path: Path, kind: str, status: Callable[[str], None] = ignore, **changes: Any
) -> Iterator[Trainer]:
    """A trainer of a head for a tiny model, in the folder `path`."""
    model = make_target(seed=3, num_hidden_layers=3)
    with closing(TrainingFolder(path, make_plan(kind, **changes))) as folder:
        yield Trainer(model, make_samples(), folder, status=status)


def train(
    path: Path, kind: str, status: Callable[[str], None] = ignore, **changes: Any
) -> TrainingReport:
    with open_trainer(path, kind, status, **changes) as trainer:
        return trainer.run()


def curve_of(path: Path) -> list[dict[str, Any]]:
    """The points of the loss curve in a training folder."""
    lines = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "held_loss" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_written_head_guesses_as_in_training(
    kind: str, tmp_path: Path
) -> None:
    vocabulary = 40 if kind == "eagle3" else 0
    with open_trainer(tmp_path / "head", kind, vocabulary=vocabulary) as trainer:
        report = trainer.run()

    curve = curve_of(tmp_path / "head")
    assert report.steps == 30
    assert curve[-1]["step"] == 30
    assert curve[-1]["held_loss"] == report.held_loss
    assert report.held_loss < 0.97 * curve[0]["held_loss"]
    assert len(report.accepted) == 2
    assert report.tokens_per_step >= 1

    head = load_head(str(tmp_path / "head"), trainer.model.hf, torch.device("cpu"), torch.float32)
    assert head.kind == kind
    assert head.depth == (8 if kind == "eagle3" else 2)

    # The files are in bfloat16, so the network is rounded alike.
    with torch.no_grad():
        for parameter in trainer.network.parameters():
            parameter.copy_(parameter.bfloat16())
    batch = trainer.batch(make_samples()[1:2], 0)
    states = trainer.states(batch)[0]
    ids = batch.ids[0]
    with torch.no_grad():
        logits, _ = trainer.predict(batch)[0]
    positions = batch.positions
    if kind == "dflash":  # the logits belong to blocks that are drawn at random
        generator = torch.Generator().manual_seed(batch.seed)
        positions = positions[torch.randint(len(positions), (8,), generator=generator)]

    vocabulary_ids = trainer.network.ids
    for number, position in enumerate(positions[:4].tolist()):
        head.reset()
        head.read(states[: position + 1], ids[1 : position + 2], 0)
        guesses = head.first(int(ids[position + 1]))
        tokens = torch.tensor(guesses.tokens[0]).long()
        probabilities = torch.tensor(guesses.probabilities[0]).float()

        indices = tokens
        if vocabulary_ids is not None:
            indices = torch.searchsorted(vocabulary_ids, tokens)
            assert torch.equal(vocabulary_ids[indices], tokens)
        expected = logits[number].softmax(-1)[indices]
        assert torch.allclose(probabilities, expected, atol=1e-4)


def test_an_interrupted_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    kind = "dflash"  # its training draws at random

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt

    train(tmp_path / "uninterrupted", kind, steps=6)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "interrupted", kind, interrupt, steps=6)
    with open_trainer(tmp_path / "interrupted", kind, steps=6) as trainer:
        assert trainer.step == 2
        trainer.run()

    expected = load_file(tmp_path / "uninterrupted" / "model.safetensors")
    weights = load_file(tmp_path / "interrupted" / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("name", ["notes.txt", "recording"])
def test_a_folder_with_files_of_the_user_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")

    with pytest.raises(UsageError, match=f"did not write .{name}"):
        TrainingFolder(tmp_path, make_plan("medusa"))

    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_training_continues_behind_an_interrupted_recording(tmp_path: Path) -> None:
    with closing(TrainingFolder(tmp_path / "head", make_plan("medusa", steps=2))) as folder:
        folder.recording().mkdir()

    assert train(tmp_path / "head", "medusa", steps=2).steps == 2


def test_a_training_does_not_continue_with_another_plan(tmp_path: Path) -> None:
    train(tmp_path, "medusa", steps=2)

    with pytest.raises(UsageError, match="kind 'medusa', now 'hydra'"):
        train(tmp_path, "hydra", steps=2)
    with pytest.raises(UsageError, match="steps 2, now 9"):
        train(tmp_path, "medusa", steps=9)


def test_a_changed_checkpoint_is_not_read(tmp_path: Path) -> None:
    train(tmp_path, "medusa", steps=2)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(weights)

    with pytest.raises(UsageError, match="checkpoint.safetensors: ngt did not write it, or it was"):
        train(tmp_path, "medusa", steps=2)


def test_a_changed_file_is_not_overwritten(tmp_path: Path) -> None:
    train(tmp_path, "medusa", steps=2)
    (tmp_path / "checkpoint.safetensors").unlink()
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(UsageError, match=r"config.json"):
        train(tmp_path, "medusa", steps=2)

    assert (tmp_path / "config.json").read_text() == "{}"


def test_a_training_does_not_continue_with_other_samples_or_another_model(tmp_path: Path) -> None:
    train(tmp_path, "medusa", steps=2)
    model = make_target(seed=3, num_hidden_layers=3)
    wide_model = make_target(seed=3, num_hidden_layers=3, hidden_size=48)
    wide_model.name = "wide"

    for other_model, samples in ((model, make_samples(20)), (wide_model, make_samples())):
        with closing(TrainingFolder(tmp_path, make_plan("medusa", steps=2))) as folder:
            with pytest.raises(UsageError, match="another model or other texts"):
                Trainer(other_model, samples, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_model_trains_only_heads_that_read_nothing_but_states(
    kind: str, tmp_path: Path
) -> None:
    model = make_target(seed=3, num_hidden_layers=3)
    model.hf.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    changes = {"own_scores": False} if kind == "hydra" else {}

    with closing(TrainingFolder(tmp_path, make_plan(kind, steps=2, **changes))) as folder:
        if kind == "medusa":
            assert Trainer(model, make_samples(), folder).run().steps == 2
        else:
            with pytest.raises(UsageError, match=f"{kind} is trained by the model's own weights"):
                Trainer(model, make_samples(), folder)


def test_all_that_is_asked_about_a_document_is_held_out_together() -> None:
    traces = []
    for number in range(40):
        # The first half is about documents, the second half are conversations.
        references = ((number,),) if number < 20 else ()
        for turn in (1, 2, 3):
            traces.append(Trace(f"{number}/{turn}", "ask", (1, 2, number), (3,), 1, references))

    held_out = [sample for sample in samples_of(traces) if sample.held_out]

    assert len(held_out) == 12
    assert len({sample.prompt[-1] for sample in held_out}) == 4


# Few prompts of the one document, so that the tests below take seconds.
DATA_FLAGS = ("-d", HARBOUR, "--part-tokens", "40", "--questions", "1", "--answers", "6")


@dataclass(frozen=True)
class TrainedHead:
    """A head that the command trained, and its report."""

    folder: Path
    report: dict[str, Any]

    @property
    def recording(self) -> Path:
        return self.folder / "recording"


def run_command(folder: Path, *flags: str) -> CompletedProcess[bytes]:
    """Train a small Medusa head with the command, in a working folder."""
    return tool(
        train_command,
        "tests.tools.heads",
        *("--kind", "medusa", "--steps", "2", "--batch-tokens", "200", "--depth", "1"),
        *("--model-scores", "--json"),
        *flags,
        cwd=folder,
        NGT_MAX_TOKENS="4",
        NGT_CALIBRATE="false",
    )


def train_with_command(folder: Path, *flags: str) -> dict[str, Any]:
    """Train as `run_command`, expect success, and return the report."""
    process = run_command(folder, *flags)
    assert process.returncode == 0, process.stderr.decode()
    report: dict[str, Any] = json.loads(process.stdout)
    return report


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedHead:
    """A trained head, which tests may read but not change."""
    folder = tmp_path_factory.mktemp("trained")
    report = train_with_command(folder, "-o", "head", *DATA_FLAGS)
    return TrainedHead(folder / "head", report)


def test_the_command_records_answers_and_trains(trained: TrainedHead) -> None:
    traces = read_traces(trained.recording).traces
    assert trained.report["kind"] == "medusa"
    assert trained.report["steps"] == 2
    assert trained.report["held_out"] > 0
    assert len(traces) == 6
    assert trained.report["texts"] + trained.report["held_out"] == 6
    assert {trace.task for trace in traces} == {"ask", "summarize"}


def test_a_trained_head_drafts_without_changing_the_answer(trained: TrainedHead) -> None:
    flags = ("summarize", HARBOUR, "--json", "--max-tokens", "24")
    drafted = ngt(*flags, "--heads", str(trained.folder), "--method", "medusa")
    plain = ngt(*flags, "--method", "none")

    assert drafted.returncode == 0, drafted.stderr.decode()
    answer = json.loads(drafted.stdout)
    assert answer["statistics"]["drafted_tokens"] > 0
    assert answer["text"] == json.loads(plain.stdout)["text"]


def test_the_command_continues_a_recording_that_was_cut(
    trained: TrainedHead, tmp_path: Path
) -> None:
    shutil.copytree(trained.folder, tmp_path / "head")
    traces_file = tmp_path / "head" / "recording" / "traces.jsonl"
    complete = traces_file.read_bytes()
    lines = complete.splitlines(keepends=True)
    traces_file.write_bytes(b"".join(lines[:4]) + lines[4][:30])

    report = train_with_command(tmp_path, "-o", "head", *DATA_FLAGS)

    assert report["texts"] == trained.report["texts"]
    assert sorted(traces_file.read_bytes().splitlines()) == sorted(complete.splitlines())


def test_the_command_trains_on_a_recording(trained: TrainedHead, tmp_path: Path) -> None:
    report = train_with_command(tmp_path, "-o", "head", "--recording", str(trained.recording))

    assert report["held_loss"] == trained.report["held_loss"]
    assert not (tmp_path / "head" / "recording").exists()


def test_prompts_beyond_the_context_are_left_out(trained: TrainedHead, tmp_path: Path) -> None:
    recorded = read_traces(trained.recording)
    recording = tmp_path / "recording"
    with TraceWriter(recording, recorded.tokenizer, recorded.model, recorded.vocabulary) as writer:
        writer.add("long", "ask", [5] * 10**5, [6])
        for trace in recorded.traces:
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids, trace.references)

    process = run_command(tmp_path, "-o", "head", "--recording", str(recording))

    assert process.returncode == 0, process.stderr.decode()
    assert b"1 prompt left out" in process.stderr
    assert json.loads(process.stdout)["held_loss"] == trained.report["held_loss"]


def test_a_recording_with_another_tokenizer_is_refused(
    trained: TrainedHead, tmp_path: Path
) -> None:
    shutil.copytree(trained.recording, tmp_path / "recording")
    tokenizer = read_traces(trained.recording).tokenizer
    header = tmp_path / "recording" / "trace.json"
    header.write_text(header.read_text().replace(tokenizer, "another"))

    process = run_command(tmp_path, "-o", "head", "--recording", str(tmp_path / "recording"))

    assert process.returncode == 2
    assert b"another tokenizer" in process.stderr


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    process = run_command(tmp_path, "-o", "head", "--recording", str(tmp_path))

    assert process.returncode == 3
    assert b"no recording here" in process.stderr


@pytest.mark.parametrize(
    "flags",
    [("--data", HARBOUR), ("--questions", "2"), ("--part-tokens", "40")],
    ids=lambda flags: flags[0],
)
def test_flags_about_documents_are_refused_with_a_recording(
    flags: tuple[str, str], trained: TrainedHead, tmp_path: Path
) -> None:
    process = run_command(tmp_path, "-o", "head", "--recording", str(trained.recording), *flags)

    assert process.returncode == 2
    assert flags[0].encode() in process.stderr
    assert not (tmp_path / "head").exists()
