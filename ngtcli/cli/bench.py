"""`ngt bench`: methods measured side by side, live on this machine or on a recording."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ngtcli.cli.measuring import (
    LINES,
    TEXTS,
    OutputFlags,
    PageFlags,
    PromptFlags,
    Run,
    measured_option,
    measures,
    prompt_option,
)
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import OF_OWN_ENGINE, names_in, numbers_of
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import INTERRUPTED, InputError, UsageError, counted
from ngtcli.measure.grid import BenchOptions, cells_of, check_some_left
from ngtcli.measure.prompts import Item, choose, example_texts, items_from
from ngtcli.measure.results import LiveResult, QualityResult, RecordResult, ReplayResult
from ngtcli.session.checks import check_session
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.measure.live import Live  # torch comes with it

_LIVE = "none,prompt-lookup,trie,auto"
_REPLAY = "prompt-lookup,akunu,trtllm,trie,auto"
_SWEEP = (4, 8, 16, 32, 64, 128)  # draft nodes
_FILES = typer.Argument(help=TEXTS)
_SCORED = typer.Argument(help="Texts to score; default: the examples.")
_RECORDING = typer.Argument(help="A folder that ngt bench record has written.", metavar="FOLDER")
_NEW = typer.Argument(help="A new folder for the recording.", metavar="FOLDER")
_NODES = measured_option(help="Most draft nodes; several with commas.")
_SWEPT = measured_option("--sweep-num-draft", help="Try 4 to 128 nodes.")
_AGAINST = measured_option(help="hf: transformers' generate as well.")
_FRESH = "Forget at each prompt what was learned."
_NO_QUALITY = typer.Option("--no-quality", help="Judge no answers by reference answers.")


@dataclass(frozen=True, kw_only=True)
class ChoiceFlags:
    """Which prompts are taken."""

    tasks: Annotated[str | None, prompt_option(help="Only these, with commas.")] = None
    limit: Annotated[int | None, prompt_option(min=1, help="Most prompts of a task.")] = None


@dataclass(frozen=True, kw_only=True)
class MethodFlags(ChoiceFlags, PageFlags):
    """What is measured."""

    methods: Annotated[str | None, measured_option(help=f"With commas; default: {_LIVE}.")] = None
    num_draft: Annotated[str | None, _NODES] = None
    sweep_num_draft: Annotated[bool, _SWEPT] = False
    fresh: Annotated[bool, measured_option("--fresh", help=_FRESH)] = False


@dataclass(frozen=True, kw_only=True)
class LiveFlags(PromptFlags, MethodFlags):
    """What `ngt bench` is given."""

    files: Annotated[list[str] | None, _FILES] = None
    against: Annotated[str | None, _AGAINST] = None
    rounds: Annotated[int, measured_option(min=1, help="Timed rounds.")] = 5
    no_quality: Annotated[bool, _NO_QUALITY] = False


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(MethodFlags):
    """What `ngt bench replay` is given."""

    folder: Annotated[Path, _RECORDING]
    methods: Annotated[str | None, measured_option(help=f"With commas; default: {_REPLAY}.")] = None
    ids: Annotated[str, prompt_option(help="Of a recording all, odd or even ids.")] = "all"


@dataclass(frozen=True, kw_only=True)
class RecordFlags(PromptFlags, ChoiceFlags, OutputFlags):
    """What `ngt bench record` is given."""

    folder: Annotated[Path, _NEW]
    files: Annotated[list[str] | None, _FILES] = None


@dataclass(frozen=True, kw_only=True)
class QualityFlags(ChoiceFlags, PageFlags):
    """What `ngt bench quality` is given."""

    files: Annotated[list[str] | None, _SCORED] = None
    prompts: Annotated[Path | None, LINES] = None


def _of(panels: Sequence[str], more: Sequence[str] = (), less: Sequence[str] = ()) -> list[str]:
    """The settings of these panels, with `more` and those of every command, without `less`."""
    more = (*more, "color", "max_mb", "cache_mb")
    named = [name for name in OF_OWN_ENGINE if SETTINGS[name].panel in panels or name in more]
    return [name for name in named if name not in less]


_OF_MODEL = ("Reading", "Passages", "Answer", "Model")
_LIVE_ALONE = ("draft_model", "heads", "calibrate", "exact")  # of drafting


@measures(OF_OWN_ENGINE)
def bench(run: Run, given: LiveFlags) -> Generator[LiveResult]:
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""
    options, settings = _options(run, given, _LIVE), run.settings
    if given.against not in (None, "hf"):
        raise UsageError(f"--against {given.against}: unknown", "Known: hf.")
    if given.against:
        check_against(settings)
    check_some_left(options.methods, *cells_of(options.methods, options.num_drafts, settings))
    drafts = any(method.partition(":")[0] == "auto" for method in options.methods)
    source, skipped = _source(run, given, "auto" if drafts else "none")
    from ngtcli.measure.live import run_live

    result = replace(run_live(source, settings, options, run.notes.status), skipped=skipped)
    yield result
    _tell(run, result.notes, result.interrupted, result.questions)


@measures(_of(["Drafting"], less=_LIVE_ALONE))
def replay(run: Run, given: ReplayFlags) -> Generator[ReplayResult]:
    """Measure methods on a recording, without the model: ngt bench replay RECORDING"""
    from ngtcli.measure.replay import run_replay
    from ngtcli.measure.traces import recorded_files

    check_not_read(given.outputs, recorded_files(given.folder))
    options, notes = _options(run, given, _REPLAY), run.notes
    result = run_replay(given.folder, options, run.settings, notes.status, notes.warn)
    yield result
    _tell(run, result.notes)


@measures(_of([*_OF_MODEL, "Sampling"], ["exact"]))
def record(run: Run, given: RecordFlags) -> Generator[RecordResult]:
    """Decode without drafts, and write a recording: ngt bench record RECORDING"""
    source, skipped = _source(run, given, "none")
    from ngtcli.measure.live import record as write

    result = write(source, run.settings, given.folder, run.notes.status)
    yield replace(result, skipped=skipped)
    _tell(run, (), result.interrupted, result.questions)


@measures(_of(_OF_MODEL))
def quality(run: Run, given: QualityFlags) -> Generator[QualityResult]:
    """Measure what --dtype or --quantize costs against float32."""
    settings, notes = run.settings, run.notes
    if settings.quantize == "none" and settings.dtype in ("auto", "float32"):
        what = "ngt bench quality compares with float32, and nothing else is asked for"
        raise UsageError(what, "Give --dtype bfloat16, --dtype float16 or --quantize int8.")
    if given.files and (given.tasks or given.limit):
        raise UsageError("--tasks and --limit choose prompts", "Leave them out, or the files.")
    settings = replace(settings, method="none")
    check_session(settings, Notes().warn)
    chosen, skipped = _items(run, given)
    items = [item for item in chosen if item.answers]
    texts: Sequence[Document] = () if given.prompts else example_texts().documents
    if given.files:
        texts = [item.documents[0] for item in chosen]
    if given.prompts and not items:
        what = f"{given.prompts}: no prompt has a reference answer"
        hint = "Give some, as in manual/measuring.md, or texts in place of prompts."
        raise InputError(what, hint)
    notes.status(f"Loading {settings.model} …")
    from ngtcli.measure.precision import compare

    process.unwind_on_interrupt()
    preset = run.preset if given.preset else None
    result = compare(settings, texts, items, preset, notes.status, once(notes.warn))
    yield replace(result, skipped=skipped)
    _tell(run, result.notes)


def check_against(settings: Settings) -> None:
    """Raise UsageError where `generate` would not be asked for the same text."""
    penalties = (settings.presence_penalty, settings.frequency_penalty)
    if settings.temperature > 0 or settings.repetition_penalty != 1 or any(penalties):
        raise UsageError("--against hf compares greedy decoding", "Leave out sampling flags.")
    if settings.stop:
        raise UsageError("--against hf knows no stop strings", "Leave out --stop.")


def _tell(run: Run, remarks: Sequence[str], interrupted: bool = False, prompts: int = 0) -> None:
    """What is said below a result; one that is interrupted ends with that exit code."""
    for remark in remarks:
        run.notes.warn(remark)
    if interrupted:
        run.notes.warn(f"interrupted; what was measured: {counted(prompts, 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _options(run: Run, given: LiveFlags | ReplayFlags, default: str) -> BenchOptions:
    """What is to be measured; what stands on the command line is read. Raises UsageError."""
    method = run.flags.get("method")
    if given.methods and method:
        raise UsageError("--methods and --method are both given", "Give one of them.")
    if given.num_draft and given.sweep_num_draft:
        what = "--num-draft and --sweep-num-draft are both given"
        raise UsageError(what, "Give one of them.")
    numbers = list(_SWEEP) if given.sweep_num_draft else [run.settings.num_draft]
    named = names_in("--methods", given.methods)
    options = BenchOptions(
        methods=named or ([method] if method else default.split(",")),
        num_drafts=numbers_of("--num-draft", given.num_draft) or numbers,
        fresh=given.fresh,
        tasks=names_in("--tasks", given.tasks),
        limit=given.limit,
    )
    if isinstance(given, ReplayFlags):
        return replace(options, ids=given.ids)
    against, quality = bool(given.against), not given.no_quality
    return replace(options, against=against, rounds=given.rounds, quality=quality)


def _source(
    run: Run, given: LiveFlags | RecordFlags, method: str
) -> tuple["Live", Sequence[Skipped]]:
    """What is answered, and the files that were left out; without a preset each task has its own.

    What is wrong is told before anything heavy is loaded.
    """
    check_session(replace(run.settings, method=method), Notes().warn)
    items, skipped = _items(run, given)
    run.notes.status(f"Loading {run.settings.model} …")
    from ngtcli.measure.live import Live

    process.unwind_on_interrupt()
    preset = run.preset if given.preset else None
    return Live(items, preset, run.notes.status, once(run.notes.warn)), skipped


def _items(
    run: Run, given: LiveFlags | RecordFlags | QualityFlags
) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    outputs, docs = given.outputs, getattr(given, "docs", None)
    if given.prompts and (given.files or docs):
        raise UsageError("--prompts and files or --docs are given", "Give one of them.")
    texts = asked = Loaded(())
    if given.files or docs:
        stdin = piped_stdin()
        texts = read_documents(given.files or [], stdin, run.settings, run.notes, outputs)
        asked = read_documents(docs or [], stdin, run.settings, run.notes, outputs)
    check: Callable[[Path], None] = lambda path: check_not_read(outputs, [path])  # noqa: E731
    items = items_from(given.prompts, texts.documents, asked.documents, run.settings, check)
    chosen = choose(items, names_in("--tasks", given.tasks), given.limit)
    return chosen, tuple(dict.fromkeys((*texts.skipped, *asked.skipped)))
