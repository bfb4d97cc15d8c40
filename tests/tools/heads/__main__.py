"""Heads trained on a model's answers: `python -m tests.tools.heads --kind KIND -d PATH -o HEAD`.

They have the form of published heads, so that `ngt --heads HEAD` drafts from them. The tests train
tiny ones.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from ngtcli.bench.prompts import QUESTIONS, Item, file_items, read_jsonl
from ngtcli.cli.command import command
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import VerboseOption, file_option, tasks_of
from ngtcli.cli.output import check_name
from ngtcli.cli.reading import read_documents
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Settings
from ngtcli.engine.checks import check_session
from ngtcli.errors import INTERRUPTED, InputError, UsageError
from ngtcli.prompts.preset import Preset, deciding
from ngtcli.system import process
from ngtcli.system.files import key_of
from ngtcli.system.journal import errors_named
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted, nearest
from tests.tools.heads.data import held_out, parts_of, record
from tests.tools.heads.folder import KINDS, Plan, Trained, TrainingFolder
from tests.tools.measuring.flags import main
from tests.tools.measuring.traces import read_traces, recorded_files

_FEWEST = 2  # prompts: one to train on and one to validate
_MODULE = "tests.tools.heads"
_TASKS = ("summarize", "ask")
Tasks = Mapping[str, tuple[Settings, Preset]]
_PANELS = ("Model", "Reading")
_READ = tuple(n for n, s in SETTINGS.items() if s.panel in _PANELS and n != "keep_documents")
_data = partial(typer.Option, rich_help_panel="Data")
_DATA = "Documents like those the head is for: files, folders or globs; give it before each."
_PROMPTS = "Prompts as JSON lines, as ngt bench takes them, too."
_ANSWERS = "Most answers of the model to train on."
_RECORDING = file_option(
    help="Train on this recording (python -m tests.tools.record).", rich_help_panel="Data"
)
_QUESTIONS = "Questions about each part."
_OUT = file_option("--output", "-o", help="The head's folder: a new one, or one to go on with.")
_OF_DATA = {"part_tokens": 512, "questions": 3}  # tokens; of each part: a recording has both
_MINUTES = "Train so long, the answers not counted in."
_STEPS = "Train so many steps; overrides --minutes."
_DEPTH = "Tokens that are guessed in a row; 0: as suits the kind."
_INNER = "For eagle3 and dflash: width of the perceptron; 0: as in the model."
_VOCABULARY = "For eagle3: guess among so many of the most frequent tokens; 0: among all."

_SCORES = "For medusa and hydra: last layers of their own, or the model's (a small head)."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFlags:
    """What is on the command line, unread."""

    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")]
    output: Annotated[Path, _OUT]
    data: Annotated[list[str] | None, _data("--data", "-d", help=_DATA)] = None
    prompts: Annotated[Path | None, _data(help=_PROMPTS)] = None
    recording: Annotated[Path | None, _RECORDING] = None
    answers: Annotated[int, _data(min=2, max=10**7, help=_ANSWERS)] = 3000
    part_tokens: Annotated[int, _data(min=16, help="Tokens of a part of a text.")] = _OF_DATA[
        "part_tokens"
    ]
    questions: Annotated[int, _data(min=0, max=len(QUESTIONS), help=_QUESTIONS)] = _OF_DATA[
        "questions"
    ]
    minutes: Annotated[float, typer.Option(min=0.01, help=_MINUTES)] = 10.0
    steps: Annotated[int | None, typer.Option(min=1, help=_STEPS)] = None
    depth: Annotated[int, typer.Option(min=0, max=32, help=_DEPTH)] = 0
    inner: Annotated[int, typer.Option(min=0, help=_INNER)] = 0
    vocabulary: Annotated[int, typer.Option(min=0, help=_VOCABULARY)] = 0
    own_scores: Annotated[bool, typer.Option("--own-scores/--model-scores", help=_SCORES)] = True
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 2048
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate; 0: the kind's own.")] = 0.0
    seed: Annotated[int, typer.Option(min=0, help="Of first weights and of order.")] = 0
    verbose: VerboseOption = False


@command("train", settings=_READ, view=lambda trained: trained.folder)
def train(flags: SettingFlags, given: TrainFlags) -> Trained:
    """Train a head on a model's own answers.

    The same command continues where it was interrupted.
    """
    if given.kind not in KINDS:
        raise UsageError(f"--kind {given.kind}", hint=nearest(given.kind, KINDS))
    check_name(given.output)
    resolved = tasks_of(flags, None, _TASKS)
    tasks = {task: (_greedy(s), preset) for task, (s, preset) in resolved.by_name.items()}
    _refuse_idle(given)
    reads_states = given.kind in ("medusa", "hydra") and given.own_scores  # and nothing else
    if tasks["ask"][0].model.quantize != "none" and not reads_states:
        what = f"this head ({given.kind}) is trained by the model's own weights, as they are"
        raise UsageError(what, hint="Leave out --quantize.")
    notes = Notes(given.verbose)
    with reporting_to(notes):
        check_session(tasks["ask"][0])
    if given.recording and not recorded_files(given.recording):
        read_traces(given.recording)  # says what is missing
    items = [] if given.recording else _items(given, tasks, notes)
    own = {name: getattr(given, name) for name in Plan.__dataclass_fields__ if name != "batch"}
    process.unwind_on_interrupt()
    folder = TrainingFolder(given.output, Plan(**own, batch=given.batch_tokens))
    with closing(folder), errors_named(folder.path, "The same command goes on."):
        try:
            report = _trained(given, tasks, items, folder, notes)
        except KeyboardInterrupt:
            notes.warn("interrupted; run the same command again to resume")
            raise typer.Exit(INTERRUPTED) from None
    notes.clear()
    return report


def _refuse_idle(given: TrainFlags) -> None:
    """Raise UsageError for a flag that heads of this kind, or a recording, have nothing for."""
    of_kind = (
        ("--inner", given.inner, ("eagle3", "dflash")),
        ("--vocabulary", given.vocabulary, ("eagle3",)),
        ("--model-scores", not given.own_scores, ("medusa", "hydra")),
    )
    flags = {flag: bool(is_given) for flag, is_given, kinds in of_kind if given.kind not in kinds}
    _refuse_with(f"--kind {given.kind}", flags, "Leave it out.")
    if given.recording:
        flags = {"--data": bool(given.data), "--prompts": given.prompts is not None}
        flags |= {f"--{n.replace('_', '-')}": getattr(given, n) != d for n, d in _OF_DATA.items()}
        _refuse_with("--recording", flags, "Leave it out: the recording has the answers.")


def _refuse_with(given: str, others: Mapping[str, object], hint: str) -> None:
    """Raise UsageError for the first flag of `others` that was given: it has no effect."""
    for flag, is_given in others.items():
        if is_given:
            raise UsageError(f"{flag} has no effect with {given}", hint=hint)


def _trained(
    given: TrainFlags, tasks: Tasks, items: Sequence[Item], folder: TrainingFolder, notes: Notes
) -> Trained:
    """The recording, then the head. A KeyboardInterrupt leaves what there is of both."""
    from ngtcli.engine.local import LocalSession
    from tests.tools.heads.train import Trainer, check_trainable  # here: they load torch

    settings = tasks["ask"][0].replace(packed=False)  # gradients do not pass through those
    with reporting_to(notes):
        session = LocalSession(settings, persist=False)
    check_trainable(session.model, folder.plan)
    recording, failed = given.recording or folder.recording(), 0
    if not given.recording:
        presets = {task: preset for task, (_, preset) in tasks.items()}
        failed = record(session, presets, items, recording, notes.status)
    found = read_traces(recording, max_mb=settings.reading.max_mb)
    if found.tokenizer != session.model.tokenizer.fingerprint:
        what = f"{recording}: recorded with another tokenizer than that of {settings.model.model}"
        raise UsageError(what, hint="Name the model that was recorded with --model.")
    traces = found.traces[: given.answers]
    if not given.recording:  # as asked for, whatever was answered first
        by_id = {trace.id: trace for trace in found.traces}
        traces = tuple(by_id[item.id] for item in items if item.id in by_id)
    fitting = [trace for trace in traces if len(trace.prompt_ids) < session.model.context]
    if left_out := failed + len(traces) - len(fitting):
        notes.warn(f"{counted(left_out, 'prompt')} left out: they do not fit the model")
    return Trainer(session.model, held_out(fitting), folder, notes.status, notes.say).run()


def _greedy(settings: Settings) -> Settings:
    """The settings, with the likeliest token chosen each time and drafts of `auto`."""
    neutral = Settings()
    names = [n for n, s in SETTINGS.items() if s.panel == "Sampling"]
    return settings.replace(**{name: neutral.get(name) for name in names}, method="auto")


def _items(given: TrainFlags, tasks: Tasks, notes: Notes) -> list[Item]:
    """All that is asked, in order, each under a name that says all the answer depends on.

    Raises InputError and UsageError.
    """
    settings = tasks["ask"][0]
    if not (given.data or given.prompts):
        raise UsageError(
            "nothing to train on", hint="Name documents with --data, or a --recording."
        )
    items = read_jsonl(given.prompts, settings) if given.prompts else []
    if given.data:
        read = read_documents(given.data, piped_stdin(), settings, notes).documents
        parts = [part for document in read for part in parts_of(document, given.part_tokens)]
        wanted = ("", *QUESTIONS[: given.questions])
        items += [item for item in file_items(parts, parts) if item.question in wanted]
    if len(items) < _FEWEST:
        what = f"{counted(len(items), 'prompt')}: too few to train on and to validate"
        raise InputError(what, hint="Give more documents, or smaller parts (--part-tokens).")
    Random(0).shuffle(items)
    drafting = {n for n, s in SETTINGS.items() if s.panel == "Drafting"}  # they change no answer
    how = {task: deciding(*own).items() for task, own in tasks.items()}
    kept = [(task, n, v) for task, own in how.items() for n, v in own if n not in drafting]
    return [
        replace(item, id=key_of(kept, *(d.text for d in item.documents), item.question))
        for item in items[: given.answers]
    ]


if __name__ == "__main__":
    main(train, _MODULE)
