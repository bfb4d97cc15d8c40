"""`ngt bench`: methods measured side by side, live on this machine or replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.cli.checks import (
    BENCH,
    LIVE,
    QUALITY,
    RECORD,
    REPLAY,
    SHAPE,
    check_combination,
    refuse_idle,
)
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
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import INTERRUPTED, InputError, UsageError, counted
from ngtcli.measure.machine import versions
from ngtcli.measure.prompts import Item, add_noise, choose, example_texts, items_from
from ngtcli.measure.results import Invocation, LiveResult, Measured, QualityResult, RecordResult
from ngtcli.prompt.preset import Preset
from ngtcli.render.bench_tables import bench_forms
from ngtcli.session.checks import check_session
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.measure.options import BenchOptions  # numpy comes with it

_METHODS = {
    LIVE: "none,prompt-lookup,trie,auto",
    RECORD: "none,prompt-lookup,trie,auto",
    REPLAY: "prompt-lookup,akunu,trtllm,trie,auto",
    SHAPE: "none,prompt-lookup,suffix:max_spec_factor=64,trie,auto",
}
_ROUNDS = {LIVE: 5, SHAPE: 1}
_SWEEP = (4, 8, 16, 32, 64, 128)  # draft nodes
_prompts = partial(typer.Option, rich_help_panel="Prompts")
_measuring = partial(typer.Option, rich_help_panel="Measuring")
_results = partial(typer.Option, rich_help_panel="Results")
_file = partial(file_option, rich_help_panel="Results")
_FILES = typer.Argument(help="Texts to summarize; default: the examples.")
_METHODS_HELP = f"With commas; default: {_METHODS[LIVE]}."
_FRESH = "Forget at each prompt what was learned."
_QUALITY = (
    "Measure what --dtype or --quantize costs against float32; --no-quality: judge no answers."
)
_JUDGED = "--quality/--no-quality"
_ROUNDS_HELP = f"Timed rounds; default: {_ROUNDS[LIVE]}, with --shape {_ROUNDS[SHAPE]}."
_SHAPE = "Replay with real passes of this shape (a name, config.json), weights random."
_TURNS = "Of recorded conversations: first or all."


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What stands on the command line, unread; None and "" stand for what is not there."""

    files: Annotated[list[str] | None, _FILES] = None
    docs: Annotated[
        list[str] | None, _prompts("--docs", "-d", help="Texts to ask questions of.")
    ] = None
    prompts: Annotated[Path | None, _prompts(help="Prompts as JSON lines.")] = None
    tasks: Annotated[str, _prompts(help="Only these, with commas.")] = ""
    limit: Annotated[int | None, _prompts(min=1, help="Most prompts of a task.")] = None
    noise: Annotated[int, _prompts(min=0, help="Unrelated passages mixed into each.")] = 0
    replay: Annotated[Path | None, _prompts(help="Replay this recording; runs no model.")] = None
    shape: Annotated[str, _prompts(help=_SHAPE)] = ""
    template: Annotated[str, _prompts(help="Prompt template of the recording.")] = ""
    turns: Annotated[str, _prompts(help=_TURNS)] = "first"
    ids: Annotated[str, _prompts(help="Of a recording all, odd or even ids.")] = "all"
    methods: Annotated[str, _measuring(help=_METHODS_HELP)] = ""
    against: Annotated[str, _measuring(help="hf: transformers' generate as well.")] = ""
    rounds: Annotated[int | None, _measuring(min=1, help=_ROUNDS_HELP)] = None
    num_draft: Annotated[str, _measuring(help="Most draft nodes; several with commas.")] = ""
    sweep_num_draft: Annotated[
        bool, _measuring("--sweep-num-draft", help="Try 4 to 128 nodes.")
    ] = False
    fresh: Annotated[bool, _measuring("--fresh", help=_FRESH)] = False
    quality: Annotated[bool | None, _measuring(_JUDGED, help=_QUALITY)] = None
    record: Annotated[Path | None, _results(help="Decode, and write a recording here.")] = None
    preset: PresetOption = None
    json: JsonOption = False
    markdown: Annotated[bool, _results("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _file(help="Write a page as well.")] = None
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    verbose: VerboseOption = False


@with_settings(OF_OWN_ENGINE)
def bench(context: typer.Context, given: BenchFlags, flags: dict[str, Any] | None = None) -> None:
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""
    mode = RECORD if given.record else QUALITY if given.quality else LIVE
    if given.replay:
        mode = SHAPE if given.shape else REPLAY
    check_combination(context, BENCH, mode)
    resolved, preset = resolve(flags or {}, given.preset, "summarize")
    settings = resolved.settings
    refuse_idle(flags or {}, settings)
    outputs = given.output, given.html
    form = asked_form({"json": given.json, "markdown": given.markdown}, *outputs)
    options = _options(mode, given, flags or {}, settings)
    if given.prompts and (given.files or given.docs):
        raise UsageError("--prompts and files or --docs are given", "Give one of them.")
    notes = Notes(given.verbose)
    try:
        if given.replay:
            result: Measured | RecordResult = _replay(given.replay, given, options, settings, notes)
        else:
            measure = _quality if mode == QUALITY else _live
            result = measure(given, options, settings, preset if given.preset else None, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted; nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    notes.clear()
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    invocation = Invocation(command=command_line(), date=date, versions=versions())
    result = replace(result, invocation=invocation)
    write_forms(bench_forms(result), form, *outputs, settings.color)
    for note in () if isinstance(result, RecordResult) else result.notes:
        notes.warn(note)
    if not isinstance(result, QualityResult) and result.interrupted:
        notes.warn(f"interrupted; what was measured: {counted(result.questions, 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _options(
    mode: str, given: BenchFlags, flags: Mapping[str, Any], settings: Settings
) -> "BenchOptions":
    """What is to be measured; what stands on the command line is read. Raises UsageError."""
    from ngtcli.measure.options import BenchOptions

    if given.against not in ("", "hf"):
        raise UsageError(f"--against {given.against}: unknown", "Known: hf.")
    named = names_in(given.methods) or [m for m in (flags.get("method"),) if m]
    read: dict[str, Any] = {
        "methods": named or names_in(_METHODS.get(mode, "")),
        "tasks": names_in(given.tasks),
        "num_drafts": _num_drafts(given, settings),
        "against": bool(given.against),
        "rounds": given.rounds or _ROUNDS.get(mode, 1),
        "quality": given.quality is not False,
    }
    same = {f.name: getattr(given, f.name) for f in fields(BenchOptions) if f.name not in read}
    return BenchOptions(**read, **same)


def _num_drafts(given: BenchFlags, settings: Settings) -> list[int]:
    """The numbers of draft nodes to measure with. Raises UsageError."""
    if not given.num_draft:
        return list(_SWEEP) if given.sweep_num_draft else [settings.num_draft]
    return numbers_of("--num-draft", given.num_draft)


def _replay(
    folder: Path, given: BenchFlags, options: "BenchOptions", settings: Settings, notes: Notes
) -> Measured:
    from ngtcli.measure.options import find_shape
    from ngtcli.measure.replay import run_replay
    from ngtcli.measure.traces import recorded_files

    check_not_read((given.output, given.html), recorded_files(folder))
    if not given.shape:
        return run_replay(folder, options, settings, notes.status, notes.warn)
    find_shape(given.shape)  # a wrong name is told before anything heavy is loaded
    notes.status("Loading …")
    from ngtcli.measure.shape_replay import run_shape

    process.unwind_on_interrupt()
    return run_shape(folder, options, settings, notes.status)


def _live(
    given: BenchFlags,
    options: "BenchOptions",
    settings: Settings,
    preset: Preset | None,
    notes: Notes,
) -> LiveResult | RecordResult:
    """Measure or record; without a preset each task has its own.

    What is wrong is told before anything heavy is loaded.
    """
    from ngtcli.measure.options import check_against, check_some_left, unreadable

    if options.against:
        check_against(settings)
    check_some_left(options.methods, unreadable(options.methods, settings))
    drafts = any(method.partition(":")[0] == "auto" for method in options.methods)
    check_session(replace(settings, method="auto" if drafts else "none"), Notes().warn)
    items, skipped = _items(given, options, settings, notes)
    notes.status(f"Loading {settings.model} …")
    from ngtcli.measure.live import build_prompts, record, run_live
    from ngtcli.session.local import LocalSession

    # The session's own method is never used; its progress would be shown inside timed runs.
    session = LocalSession(replace(settings, method="none"), warn=once(notes.warn), persist=False)
    prompts = build_prompts(session, items, preset)
    process.unwind_on_interrupt()
    result: LiveResult | RecordResult
    if given.record:
        result = record(session, items, prompts, given.record, notes.status)
    else:
        result = run_live(session, items, prompts, options, notes.status)
    return replace(result, noise=given.noise, skipped=tuple(dict.fromkeys(skipped)))


def _quality(
    given: BenchFlags,
    options: "BenchOptions",
    settings: Settings,
    preset: Preset | None,
    notes: Notes,
) -> QualityResult:
    """What a dtype or int8 costs: on files, on reference answers, or on what is built in."""
    if settings.quantize == "none" and settings.dtype in ("auto", "float32"):
        what = "--quality compares with float32, and nothing else is asked for"
        raise UsageError(what, "Give --dtype bfloat16, --dtype float16 or --quantize int8.")
    if given.files and (options.tasks or options.limit):
        raise UsageError("--tasks and --limit choose prompts", "Leave them out, or the files.")
    settings = replace(settings, method="none")
    check_session(settings, Notes().warn)
    chosen, skipped = _items(given, options, settings, notes)
    items = [item for item in chosen if item.answers]
    texts: Sequence[Document] = () if given.prompts else example_texts().documents
    if given.files:
        texts = [item.documents[0] for item in chosen]
    if given.prompts and not items:
        what = f"{given.prompts}: no prompt has a reference answer"
        raise InputError(
            what, "Give some, as in manual/measuring.md, or texts in place of prompts."
        )
    notes.status(f"Loading {settings.model} …")
    from ngtcli.measure.precision import compare

    process.unwind_on_interrupt()
    result = compare(settings, texts, items, preset, notes.status, once(notes.warn))
    return replace(result, skipped=skipped)


def _items(
    given: BenchFlags, options: "BenchOptions", settings: Settings, notes: Notes
) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    outputs = given.output, given.html
    texts = asked = Loaded(())
    if given.files or given.docs:
        stdin = piped_stdin()
        texts = read_documents(given.files or [], stdin, settings, notes, outputs)
        asked = read_documents(given.docs or [], stdin, settings, notes, outputs)
    read = texts.documents, asked.documents
    items = items_from(given.prompts, *read, settings, lambda path: check_not_read(outputs, [path]))
    chosen = choose(items, options.tasks, options.limit)
    if given.noise:
        chosen = add_noise(chosen, given.noise, settings.seed, sources=items)
    return chosen, (*texts.skipped, *asked.skipped)
