"""Train heads on a model's answers: `python -m tests.tools.heads --kind KIND -d PATH -o HEAD`.

They have the format of published heads, so `ngt --heads HEAD` drafts from them. The tests train
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
from ngtcli.documents.load import Document
from ngtcli.engine.checks import check_session
from ngtcli.errors import INTERRUPTED, InputError, UsageError
from ngtcli.prompts.preset import Preset, deciding
from ngtcli.system import process
from ngtcli.system.files import key_of
from ngtcli.system.journal import errors_named
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted, nearest
from tests.tools.heads.data import parts_of, record, samples_of
from tests.tools.heads.folder import KINDS, Plan, TrainingFolder, TrainingReport
from tests.tools.measuring.flags import main
from tests.tools.measuring.traces import read_traces, recorded_files

_MIN_PROMPTS = 2  # one to train on and one to validate on
_MODULE = "tests.tools.heads"
_TASK_NAMES = ("summarize", "ask")
_PANELS = ("Model", "Reading")
_SETTINGS = tuple(
    name
    for name, setting in SETTINGS.items()
    if setting.panel in _PANELS and name != "keep_documents"
)
TasksByName = Mapping[str, tuple[Settings, Preset]]

# Defaults of the flags that say how documents become prompts. A recording already has prompts, so
# these flags may not be given with it.
_PART_TOKENS = 512
_QUESTIONS = 3

_data_option = partial(typer.Option, rich_help_panel="Data")
_DATA_HELP = "Documents like those the head is for: files, folders or globs; give it before each."
_PROMPTS_HELP = "Prompts as JSON lines, as ngt bench takes them, too."
_ANSWERS_HELP = "Most answers of the model to train on."
_RECORDING_HELP = "Train on this recording (python -m tests.tools.record)."
_PART_TOKENS_HELP = "Tokens of a part of a text."
_QUESTIONS_HELP = "Questions about each part."
_OUTPUT_HELP = "The head's folder: a new one, or one to go on with."
_MINUTES_HELP = "Train so long, the answers not counted in."
_STEPS_HELP = "Train so many steps; overrides --minutes."
_DEPTH_HELP = "Tokens that are guessed in a row; 0: as suits the kind."
_INNER_HELP = "For eagle3 and dflash: width of the perceptron; 0: as in the model."
_VOCABULARY_HELP = "For eagle3: guess among so many of the most frequent tokens; 0: among all."
_SCORES_HELP = "For medusa and hydra: last layers of their own, or the model's (a small head)."

_RecordingOption = file_option(help=_RECORDING_HELP, rich_help_panel="Data")
_OutputOption = file_option("--output", "-o", help=_OUTPUT_HELP)
_PartTokensOption = _data_option(min=16, help=_PART_TOKENS_HELP)
_QuestionsOption = _data_option(min=0, max=len(QUESTIONS), help=_QUESTIONS_HELP)
_ScoresOption = typer.Option("--own-scores/--model-scores", help=_SCORES_HELP)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFlags:
    """The flags of the command line, not checked yet."""

    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")]
    output: Annotated[Path, _OutputOption]
    data: Annotated[list[str] | None, _data_option("--data", "-d", help=_DATA_HELP)] = None
    prompts: Annotated[Path | None, _data_option(help=_PROMPTS_HELP)] = None
    recording: Annotated[Path | None, _RecordingOption] = None
    answers: Annotated[int, _data_option(min=2, max=10**7, help=_ANSWERS_HELP)] = 3000
    part_tokens: Annotated[int, _PartTokensOption] = _PART_TOKENS
    questions: Annotated[int, _QuestionsOption] = _QUESTIONS
    minutes: Annotated[float, typer.Option(min=0.01, help=_MINUTES_HELP)] = 10.0
    steps: Annotated[int | None, typer.Option(min=1, help=_STEPS_HELP)] = None
    depth: Annotated[int, typer.Option(min=0, max=32, help=_DEPTH_HELP)] = 0
    inner: Annotated[int, typer.Option(min=0, help=_INNER_HELP)] = 0
    vocabulary: Annotated[int, typer.Option(min=0, help=_VOCABULARY_HELP)] = 0
    own_scores: Annotated[bool, _ScoresOption] = True
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 2048
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate; 0: the kind's own.")] = 0.0
    seed: Annotated[int, typer.Option(min=0, help="Of first weights and of order.")] = 0
    verbose: VerboseOption = False

    @property
    def plan(self) -> Plan:
        """The plan of the training."""
        return Plan(
            kind=self.kind,
            minutes=self.minutes,
            steps=self.steps,
            depth=self.depth,
            inner=self.inner,
            vocabulary=self.vocabulary,
            own_scores=self.own_scores,
            batch=self.batch_tokens,
            rate=self.rate,
            seed=self.seed,
        )


@command("train", settings=_SETTINGS, view=lambda report: report.folder)
def train(setting_flags: SettingFlags, flags: TrainFlags) -> TrainingReport:
    """Train a head on a model's own answers.

    The same command continues where it was interrupted.
    """
    if flags.kind not in KINDS:
        raise UsageError(f"--kind {flags.kind}", hint=nearest(flags.kind, KINDS))
    check_name(flags.output)
    tasks = {
        task: (_greedy(settings), preset)
        for task, (settings, preset) in tasks_of(setting_flags, None, _TASK_NAMES).by_name.items()
    }
    _refuse_ineffective(flags)
    reads_only_states = flags.kind in ("medusa", "hydra") and flags.own_scores
    if tasks["ask"][0].model.quantize != "none" and not reads_only_states:
        raise UsageError(
            f"this head ({flags.kind}) is trained by the model's own weights, as they are",
            hint="Leave out --quantize.",
        )

    notes = Notes(flags.verbose)
    with reporting_to(notes):
        check_session(tasks["ask"][0])
    items: list[Item] = []
    if not flags.recording:
        items = _read_items(flags, tasks, notes)
    elif not recorded_files(flags.recording):
        read_traces(flags.recording)  # raises an error that says which file is missing

    process.unwind_on_interrupt()
    folder = TrainingFolder(flags.output, flags.plan)
    with closing(folder), errors_named(folder.path, "The same command goes on."):
        try:
            report = _record_and_train(flags, tasks, items, folder, notes)
        except KeyboardInterrupt:
            notes.warn("interrupted; run the same command again to resume")
            raise typer.Exit(INTERRUPTED) from None
    notes.clear()
    return report


def _refuse_ineffective(flags: TrainFlags) -> None:
    """Raise UsageError for a flag that has no effect with the kind of head or with a recording."""
    kinds_by_flag = (
        ("--inner", flags.inner > 0, ("eagle3", "dflash")),
        ("--vocabulary", flags.vocabulary > 0, ("eagle3",)),
        ("--model-scores", not flags.own_scores, ("medusa", "hydra")),
    )
    for flag, is_given, kinds in kinds_by_flag:
        if is_given and flags.kind not in kinds:
            raise UsageError(f"{flag} has no effect with --kind {flags.kind}", hint="Leave it out.")

    if flags.recording:
        flags_of_data = (
            ("--data", bool(flags.data)),
            ("--prompts", flags.prompts is not None),
            ("--part-tokens", flags.part_tokens != _PART_TOKENS),
            ("--questions", flags.questions != _QUESTIONS),
        )
        for flag, is_given in flags_of_data:
            if is_given:
                raise UsageError(
                    f"{flag} has no effect with --recording",
                    hint="Leave it out: the recording has the answers.",
                )


def _record_and_train(
    flags: TrainFlags,
    tasks: TasksByName,
    items: Sequence[Item],
    folder: TrainingFolder,
    notes: Notes,
) -> TrainingReport:
    """Record the answers, then train the head. A KeyboardInterrupt keeps what is done of both."""
    from ngtcli.engine.local import LocalSession  # lazy: these modules load torch
    from tests.tools.heads.train import Trainer, check_trainable

    settings = tasks["ask"][0].replace(packed=False)  # packed weights pass no gradients
    with reporting_to(notes):
        session = LocalSession(settings, persist=False)
    check_trainable(session.model, folder.plan)

    recording = flags.recording or folder.recording()
    too_long = 0
    if not flags.recording:
        presets = {task: preset for task, (_, preset) in tasks.items()}
        too_long = record(session, presets, items, recording, notes.status)
    recorded = read_traces(recording, max_mb=settings.reading.max_mb)
    if recorded.tokenizer != session.model.tokenizer.fingerprint:
        raise UsageError(
            f"{recording}: recorded with another tokenizer than that of {settings.model.model}",
            hint="Name the model that was recorded with --model.",
        )

    if flags.recording:
        traces = recorded.traces[: flags.answers]
    else:
        # Answers end in any order, and an earlier run may have recorded other prompts.
        by_id = {trace.id: trace for trace in recorded.traces}
        traces = tuple(by_id[item.id] for item in items if item.id in by_id)
    fitting = [trace for trace in traces if len(trace.prompt_ids) < session.model.context]
    too_long += len(traces) - len(fitting)
    if too_long:
        notes.warn(f"{counted(too_long, 'prompt')} left out: they do not fit the model")

    samples = samples_of(fitting)
    return Trainer(session.model, samples, folder, notes.status, notes.say).run()


def _greedy(settings: Settings) -> Settings:
    """The settings with greedy decoding and drafts of `auto`."""
    defaults = Settings()
    sampling = {
        name: defaults.get(name)
        for name, setting in SETTINGS.items()
        if setting.panel == "Sampling"
    }
    return settings.replace(**sampling, method="auto")


def _read_items(flags: TrainFlags, tasks: TasksByName, notes: Notes) -> list[Item]:
    """The prompts to answer, in order; the id of each is a key of all that the answer depends on.

    Raises InputError and UsageError.
    """
    if not (flags.data or flags.prompts):
        raise UsageError(
            "nothing to train on", hint="Name documents with --data, or a --recording."
        )

    settings = tasks["ask"][0]
    items = read_jsonl(flags.prompts, settings) if flags.prompts else []
    if flags.data:
        documents = read_documents(flags.data, piped_stdin(), settings, notes).documents
        parts: list[Document] = []
        for document in documents:
            parts.extend(parts_of(document, flags.part_tokens))
        questions = ("", *QUESTIONS[: flags.questions])
        items += [item for item in file_items(parts, parts) if item.question in questions]
    if len(items) < _MIN_PROMPTS:
        raise InputError(
            f"{counted(len(items), 'prompt')}: too few to train on and to validate",
            hint="Give more documents, or smaller parts (--part-tokens).",
        )

    Random(0).shuffle(items)
    answer_settings = _answer_settings(tasks)
    identified = []
    for item in items[: flags.answers]:
        texts = [document.text for document in item.documents]
        identified.append(replace(item, id=key_of(answer_settings, *texts, item.question)))
    return identified


def _answer_settings(tasks: TasksByName) -> list[tuple[str, str, object]]:
    """The settings that answers depend on, by task. Those of drafting change no answer."""
    drafting = {name for name, setting in SETTINGS.items() if setting.panel == "Drafting"}
    return [
        (task, name, value)
        for task, (settings, preset) in tasks.items()
        for name, value in deciding(settings, preset).items()
        if name not in drafting
    ]


if __name__ == "__main__":
    main(train, _MODULE)
