"""`ngt heads`: training of learned heads, which draft from a model's hidden states."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from safetensors import SafetensorError

from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import JsonOption, VerboseOption, file_option, resolve_tasks, with_settings
from ngtcli.cli.output import check_name, print_either
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Settings
from ngtcli.errors import (
    INTERRUPTED,
    ContextOverflowError,
    InputError,
    NgtError,
    UsageError,
    counted,
    nearest,
    reason_of,
)
from ngtcli.heads.training.answers import ANSWERS, Answered, Answers, about
from ngtcli.heads.training.folder import KINDS, Trained, TrainingFolder
from ngtcli.heads.training.prompts import Asked, asked_of, hold_out
from ngtcli.measure.prompts import read_jsonl
from ngtcli.prompt.preset import Preset, deciding
from ngtcli.session.checks import check_session
from ngtcli.system import process
from ngtcli.system.progress import progress_bar, time_left

if TYPE_CHECKING:
    from ngtcli.session.local import LocalSession
    from ngtcli.session.session import NumberedPrompt

heads_app = typer.Typer(
    help="Learned heads, which guess tokens from a model's hidden states.", no_args_is_help=True
)
_TASKS = ("summarize", "ask")
Tasks = Mapping[str, tuple[Settings, Preset]]
_PANELS = ("Model", "Reading")
_READ = tuple(n for n, s in SETTINGS.items() if s.panel in _PANELS and n != "keep_documents")
_data = partial(typer.Option, rich_help_panel="Data")
_DATA = "Documents like those the head is for: files, folders or globs; give it before each."
_PROMPTS = "Prompts as JSON lines, as ngt bench takes them, too."
_ANSWERS = "Most answers of the model to train on."
_KEPT = file_option(help="Keep the answers here; default: in the folder.", rich_help_panel="Data")
_OUT = file_option("--output", "-o", help="The head's folder: a new one, or one to go on with.")
_MINUTES = "Train so long, the answers not counted in."
_STEPS = "Train so many steps; overrides --minutes."
_DEPTH = "Tokens that are guessed in a row; 0: as suits the kind."
_INNER = "For eagle3 and dflash: width of the perceptron; 0: as in the model."
_VOCABULARY = "For eagle3: guess among so many of the most frequent tokens; 0: among all."

_SCORES = "For medusa and hydra: last layers of their own, or the model's (a small head)."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFlags:
    """What stands on the command line, unread."""

    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")]
    output: Annotated[Path, _OUT]
    data: Annotated[list[str] | None, _data("--data", "-d", help=_DATA)] = None
    prompts: Annotated[Path | None, _data(help=_PROMPTS)] = None
    answers: Annotated[int, _data(min=2, max=10**7, help=_ANSWERS)] = 3000
    answers_file: Annotated[Path | None, _KEPT] = None
    part_tokens: Annotated[int, _data(min=16, help="Tokens of a part of a text.")] = 512
    questions: Annotated[int, _data(min=0, max=1000, help="Questions about each part.")] = 3
    minutes: Annotated[float, typer.Option(min=0.01, help=_MINUTES)] = 10.0
    steps: Annotated[int | None, typer.Option(min=1, help=_STEPS)] = None
    depth: Annotated[int, typer.Option(min=0, max=32, help=_DEPTH)] = 0
    inner: Annotated[int, typer.Option(min=0, help=_INNER)] = 0
    vocabulary: Annotated[int, typer.Option(min=0, help=_VOCABULARY)] = 0
    own_scores: Annotated[bool, typer.Option("--own-scores/--model-scores", help=_SCORES)] = True
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step.")] = 2048
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate; 0: the kind's own.")] = 0.0
    seed: Annotated[int, typer.Option(min=0, help="Of first weights and of order.")] = 0
    json: JsonOption = False
    verbose: VerboseOption = False


@heads_app.callback()
def heads() -> None:
    """Learned heads, which guess tokens from a model's hidden states."""


@heads_app.command("train")
@with_settings(_READ)
def train(given: TrainFlags, flags: dict[str, Any] | None = None) -> None:
    """Train a head on a model's own answers: ngt heads train --kind medusa -d notes/ -o head

    The same command goes on where it was interrupted.
    """
    if given.kind not in KINDS:
        raise UsageError(f"--kind {given.kind}", nearest(given.kind, KINDS))
    check_name(given.output)
    resolved = resolve_tasks(flags or {}, None, _TASKS)
    tasks = {task: (_greedy(r.settings), preset) for task, (r, preset) in resolved.items()}
    settings = tasks["ask"][0]
    reads_states = given.kind in ("medusa", "hydra") and given.own_scores  # and nothing else
    if settings.quantize != "none" and not reads_states:
        what = f"this head ({given.kind}) is trained by the model's own weights, as they are"
        raise UsageError(what, "Leave out --quantize.")
    notes = Notes(given.verbose)
    check_session(settings, notes.warn)
    asked = _asked(given, settings, notes)
    process.unwind_on_interrupt()
    with TrainingFolder(given.output, given.kind) as folder:
        try:
            report = _trained(given, tasks, asked, folder, notes)
        except KeyboardInterrupt:
            notes.warn("interrupted; run the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        except (OSError, SafetensorError) as error:  # a disk that is full
            raise NgtError(
                f"{folder.path}: {reason_of(error)}", "The same command goes on."
            ) from None
    notes.clear()
    print_either(report, given.json, str(folder.path))


def _trained(
    given: TrainFlags, tasks: Tasks, asked: Sequence[Asked], folder: TrainingFolder, notes: Notes
) -> Trained:
    """The answers, then the head. A KeyboardInterrupt leaves what there is of both."""
    from ngtcli.heads.training.train import Plan, Trainer  # here: they load torch
    from ngtcli.session.local import LocalSession

    # Gradients do not pass through packed weights.
    settings = replace(tasks["ask"][0], packed=False)
    session = LocalSession(settings, once(notes.status), notes.warn, persist=False)
    what = about(asked, tokenizer=session.model.tokenizer.fingerprint, **_how(tasks))
    with closing(Answers(given.answers_file or folder.path / ANSWERS, what)) as answers:
        answer(session, tasks, asked, answers, notes)
        examples = [answers.done[n] for n in range(len(asked)) if n in answers.done]
    plan = Plan(
        minutes=given.minutes,
        steps=given.steps,
        depth=given.depth,
        inner=given.inner,
        vocabulary=given.vocabulary,
        own_scores=given.own_scores,
        batch=given.batch_tokens,
        rate=given.rate,
        seed=given.seed,
    )
    return Trainer(session.model, examples, folder, plan, notes.status, notes.say).run()


def _greedy(settings: Settings) -> Settings:
    """The settings, with the likeliest token chosen each time and drafts of `auto`."""
    neutral = Settings()
    names = [n for n, s in SETTINGS.items() if s.panel == "Sampling"]
    return replace(settings, **{name: getattr(neutral, name) for name in names}, method="auto")


def _how(tasks: Tasks) -> dict[str, Any]:
    """How what is asked is answered, by "TASK.NAME"; drafts change no answer."""
    drafting = {n for n, s in SETTINGS.items() if s.panel == "Drafting"}
    how = {task: deciding(*own) for task, own in tasks.items()}
    return {f"{t}.{n}": v for t, own in how.items() for n, v in own.items() if n not in drafting}


def _asked(given: TrainFlags, settings: Settings, notes: Notes) -> list[Asked]:
    """All that is asked, in order. Raises InputError and UsageError."""
    if not (given.data or given.prompts):
        raise UsageError("nothing to train on", "Name documents with --data.")
    asked: list[Asked] = []
    if given.prompts:
        items = read_jsonl(given.prompts, settings)
        asked += (Asked(item.documents, item.question) for item in items)
    if given.data:
        read = read_documents(given.data, piped_stdin(), settings, notes)
        asked += asked_of(read.documents, given.part_tokens, given.questions)
    Random(0).shuffle(asked)
    chosen = hold_out(asked[: given.answers])
    if len({one.held for one in chosen}) < 2:
        what = f"{counted(len(chosen), 'prompt')}: too few to train on and to validate"
        raise InputError(what, "Give more documents, or smaller parts (--part-tokens).")
    return chosen


def answer(
    session: "LocalSession",
    tasks: Tasks,
    asked: Sequence[Asked],
    answers: Answers,
    notes: Notes,
) -> None:
    """Let the model answer what it has not answered yet, drafted, many at once."""
    before, began, failed = len(answers.done), monotonic(), 0
    left = list(answers.left(asked))

    def prompts() -> Iterator["NumberedPrompt"]:
        for number, one in left:
            preset = tasks["ask" if one.question else "summarize"][1]
            try:
                yield number, session.prompt(preset, one.documents, one.question)
            except ContextOverflowError as error:
                yield number, error

    for finished in session.answers(prompts(), 0):
        if isinstance(finished.error, ContextOverflowError):
            failed += 1
            continue
        if finished.error is not None:
            raise finished.error
        ids = [token.id for token in finished.tokens]
        number = finished.key
        answers.add(Answered(number, asked[number].held, finished.prompt.ids, ids))
        done = len(answers.done) + failed
        rate = (done - before) / max(monotonic() - began, 1e-6)
        words = f"{done} of {counted(len(asked), 'answer')}"
        ends = time_left((len(asked) - done) / rate)
        notes.status(f"Answering {progress_bar(done, len(asked))} {words}, {ends} left")
    if failed:
        notes.warn(f"{counted(failed, 'prompt')} left out: they do not fit the model")
