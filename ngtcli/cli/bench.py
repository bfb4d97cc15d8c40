"""`ngt bench`: methods measured side by side, live on this machine or on a recording."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.cli.checks import check_given, refuse_idle
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import (
    OF_OWN_ENGINE,
    JsonOption,
    PresetOption,
    VerboseOption,
    command_line,
    file_option,
    names_in,
    numbers_of,
    resolve,
    with_settings,
)
from ngtcli.cli.output import asked_form, check_not_read, write_forms
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import INTERRUPTED, InputError, UsageError, counted
from ngtcli.measure.prompts import Item, choose, example_texts, items_from
from ngtcli.measure.results import Invocation, Measured, QualityResult, RecordResult, versions
from ngtcli.prompt.preset import Preset
from ngtcli.render.bench_tables import bench_forms
from ngtcli.session.checks import check_session
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.measure.live import Live  # torch comes with it
    from ngtcli.measure.options import BenchOptions  # numpy comes with it

_LIVE = "none,prompt-lookup,trie,auto"
_REPLAY = "prompt-lookup,akunu,trtllm,trie,auto"
_SWEEP = (4, 8, 16, 32, 64, 128)  # draft nodes
_prompts = partial(typer.Option, rich_help_panel="Prompts")
_measuring = partial(typer.Option, rich_help_panel="Measuring")
_results = partial(typer.Option, rich_help_panel="Results")
_file = partial(file_option, rich_help_panel="Results")
_FILES = typer.Argument(help="Texts to summarize; default: the examples.")
_SCORED = typer.Argument(help="Texts to score; default: the examples.")
_RECORDING = typer.Argument(help="A folder that ngt bench record has written.", metavar="FOLDER")
_NEW = typer.Argument(help="A new folder for the recording.", metavar="FOLDER")
_FRESH = "Forget at each prompt what was learned."
_NO_QUALITY = typer.Option("--no-quality", help="Judge no answers by reference answers.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """Where a result goes, unread; of all commands here."""

    preset: PresetOption = None
    json: JsonOption = False
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    verbose: VerboseOption = False

    tasks: Annotated[str, _prompts(help="Only these, with commas.")] = ""
    limit: Annotated[int | None, _prompts(min=1, help="Most prompts of a task.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFlags(OutputFlags):
    """The same for tables."""

    markdown: Annotated[bool, _results("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _file(help="Write a page as well.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFlags(PageFlags):
    """What is measured; "" stands for what is not there."""

    methods: Annotated[str, _measuring(help=f"With commas; default: {_LIVE}.")] = ""
    num_draft: Annotated[str, _measuring(help="Most draft nodes; several with commas.")] = ""
    sweep_num_draft: Annotated[
        bool, _measuring("--sweep-num-draft", help="Try 4 to 128 nodes.")
    ] = False
    fresh: Annotated[bool, _measuring("--fresh", help=_FRESH)] = False


_Docs = Annotated[list[str] | None, _prompts("--docs", "-d", help="Texts to ask questions of.")]
_Lines = Annotated[Path | None, _prompts(help="Prompts as JSON lines.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFlags(MethodFlags):
    """What `ngt bench` is given."""

    files: Annotated[list[str] | None, _FILES] = None
    docs: _Docs = None
    prompts: _Lines = None
    against: Annotated[str, _measuring(help="hf: transformers' generate as well.")] = ""
    rounds: Annotated[int, _measuring(min=1, help="Timed rounds.")] = 5
    no_quality: Annotated[bool, _NO_QUALITY] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags(MethodFlags):
    """What `ngt bench replay` is given."""

    methods: Annotated[str, _measuring(help=f"With commas; default: {_REPLAY}.")] = ""
    ids: Annotated[str, _prompts(help="Of a recording all, odd or even ids.")] = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFlags(OutputFlags):
    """What `ngt bench record` is given."""

    files: Annotated[list[str] | None, _FILES] = None
    docs: _Docs = None
    prompts: _Lines = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFlags(PageFlags):
    """What `ngt bench quality` is given."""

    files: Annotated[list[str] | None, _SCORED] = None
    prompts: _Lines = None


def _of(panels: Sequence[str], more: Sequence[str] = (), less: Sequence[str] = ()) -> list[str]:
    """The settings of these panels, with `more` and those of every command, without `less`."""
    more = (*more, "color", "max_mb", "cache_mb")
    named = [name for name in OF_OWN_ENGINE if SETTINGS[name].panel in panels or name in more]
    return [name for name in named if name not in less]


_OF_MODEL = ("Reading", "Passages", "Answer", "Model")
_LIVE_ALONE = ("draft_model", "heads", "calibrate", "exact")  # of drafting


Flags = Mapping[str, Any]
Work = Callable[[Flags, Settings, Preset | None, Notes], Measured | RecordResult]


@with_settings(OF_OWN_ENGINE)
def bench(context: typer.Context, given: LiveFlags, flags: dict[str, Any] | None = None) -> None:
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""

    def work(flags: Flags, settings: Settings, preset: Preset | None, notes: Notes) -> Measured:
        from ngtcli.measure.options import cells_of, check_against, check_some_left

        options = _options(given, _LIVE, flags, settings)
        if given.against not in ("", "hf"):
            raise UsageError(f"--against {given.against}: unknown", "Known: hf.")
        if given.against:
            check_against(settings)
        check_some_left(options.methods, cells_of(options.methods, options.num_drafts, settings)[1])
        drafts = any(method.partition(":")[0] == "auto" for method in options.methods)
        source, skipped = _source(given, "auto" if drafts else "none", settings, preset, notes)
        from ngtcli.measure.live import run_live

        return replace(run_live(source, settings, options, notes.status), skipped=skipped)

    _measure(context, given, flags or {}, work, given.html)


@with_settings(_of(["Drafting"], less=_LIVE_ALONE))
def replay(
    context: typer.Context,
    folder: Annotated[Path, _RECORDING],
    given: ReplayFlags,
    flags: dict[str, Any] | None = None,
) -> None:
    """Measure methods on a recording, without the model: ngt bench replay RECORDING"""

    def work(flags: Flags, settings: Settings, preset: Preset | None, notes: Notes) -> Measured:
        from ngtcli.measure.replay import run_replay
        from ngtcli.measure.traces import recorded_files

        check_not_read((given.output, given.html), recorded_files(folder))
        options = _options(given, _REPLAY, flags, settings)
        return run_replay(folder, options, settings, notes.status, notes.warn)

    _measure(context, given, flags or {}, work, given.html)


@with_settings(_of([*_OF_MODEL, "Sampling"], ["exact"]))
def record(
    context: typer.Context,
    folder: Annotated[Path, _NEW],
    given: RecordFlags,
    flags: dict[str, Any] | None = None,
) -> None:
    """Decode without drafts, and write a recording: ngt bench record RECORDING"""

    def work(_: Flags, settings: Settings, preset: Preset | None, notes: Notes) -> RecordResult:
        source, skipped = _source(given, "none", settings, preset, notes)
        from ngtcli.measure.live import record as write

        return replace(write(source, settings, folder, notes.status), skipped=skipped)

    _measure(context, given, flags or {}, work)


@with_settings(_of(_OF_MODEL))
def quality(
    context: typer.Context, given: QualityFlags, flags: dict[str, Any] | None = None
) -> None:
    """Measure what --dtype or --quantize costs against float32."""

    def work(_: Flags, settings: Settings, preset: Preset | None, notes: Notes) -> Measured:
        if settings.quantize == "none" and settings.dtype in ("auto", "float32"):
            what = "ngt bench quality compares with float32, and nothing else is asked for"
            raise UsageError(what, "Give --dtype bfloat16, --dtype float16 or --quantize int8.")
        if given.files and (given.tasks or given.limit):
            raise UsageError("--tasks and --limit choose prompts", "Leave them out, or the files.")
        settings = replace(settings, method="none")
        check_session(settings, Notes().warn)
        chosen, skipped = _items(given, settings, notes)
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
        result = compare(settings, texts, items, preset, notes.status, once(notes.warn))
        return replace(result, skipped=skipped)

    _measure(context, given, flags or {}, work, given.html)


def _measure(
    context: typer.Context, given: OutputFlags, flags: Flags, work: Work, html: Path | None = None
) -> None:
    """Do the work of a command and put out what it gives. Raises UsageError for idle flags."""
    check_given(context)
    resolved, preset = resolve(dict(flags), given.preset, "summarize")
    settings, notes = resolved.settings, Notes(given.verbose)
    refuse_idle(flags, settings)
    asked = {"json": given.json, "markdown": getattr(given, "markdown", False)}
    form = asked_form(asked, given.output, html)
    try:
        result = work(flags, settings, preset if given.preset else None, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted; nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    notes.clear()
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    invocation = Invocation(command=command_line(), date=date, versions=versions())
    result = replace(result, invocation=invocation)
    write_forms(bench_forms(result), form, given.output, html, settings.color)
    for note in () if isinstance(result, RecordResult) else result.notes:
        notes.warn(note)
    if not isinstance(result, QualityResult) and result.interrupted:
        notes.warn(f"interrupted; what was measured: {counted(result.questions, 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _options(given: MethodFlags, default: str, flags: Flags, settings: Settings) -> "BenchOptions":
    """What is to be measured; what stands on the command line is read. Raises UsageError."""
    from ngtcli.measure.options import BenchOptions

    named = names_in(given.methods) or [m for m in (flags.get("method"),) if m]
    numbers = list(_SWEEP) if given.sweep_num_draft else [settings.num_draft]
    if given.num_draft:
        numbers = numbers_of("--num-draft", given.num_draft)
    live = given if isinstance(given, LiveFlags) else LiveFlags()
    return BenchOptions(
        methods=named or names_in(default),
        num_drafts=numbers,
        against=bool(live.against),
        rounds=live.rounds,
        fresh=given.fresh,
        quality=not live.no_quality,
        tasks=names_in(given.tasks),
        limit=given.limit,
        ids=given.ids if isinstance(given, ReplayFlags) else "all",
    )


def _source(
    given: LiveFlags | RecordFlags,
    method: str,
    settings: Settings,
    preset: Preset | None,
    notes: Notes,
) -> tuple["Live", Sequence[Skipped]]:
    """What is answered, and the files that were left out; without a preset each task has its own.

    What is wrong is told before anything heavy is loaded.
    """
    check_session(replace(settings, method=method), Notes().warn)
    items, skipped = _items(given, settings, notes)
    notes.status(f"Loading {settings.model} …")
    from ngtcli.measure.live import Live

    process.unwind_on_interrupt()
    return Live(items, preset, notes.status, once(notes.warn)), skipped


def _items(
    given: LiveFlags | RecordFlags | QualityFlags, settings: Settings, notes: Notes
) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    outputs, docs = (given.output, getattr(given, "html", None)), getattr(given, "docs", None)
    if given.prompts and (given.files or docs):
        raise UsageError("--prompts and files or --docs are given", "Give one of them.")
    texts = asked = Loaded(())
    if given.files or docs:
        stdin = piped_stdin()
        texts = read_documents(given.files or [], stdin, settings, notes, outputs)
        asked = read_documents(docs or [], stdin, settings, notes, outputs)
    check: Callable[[Path], None] = lambda path: check_not_read(outputs, [path])  # noqa: E731
    items = items_from(given.prompts, texts.documents, asked.documents, settings, check)
    chosen = choose(items, names_in(given.tasks), given.limit)
    return chosen, tuple(dict.fromkeys((*texts.skipped, *asked.skipped)))
