"""`ngt bench`: methods measured side by side, live on this machine or replayed."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ngtcli import process
from ngtcli.checkpoint import check_models
from ngtcli.cli.bench_options import (
    LIVE_METHODS,
    REPLAYED_METHODS,
    AgainstOption,
    DocsOption,
    FilesArgument,
    FreshOption,
    HtmlOption,
    IdsOption,
    LimitOption,
    MarkdownOption,
    MethodsOption,
    NoiseOption,
    NumDraftOption,
    OutputOption,
    PromptsOption,
    QualityOption,
    RecordOption,
    ReplayOption,
    RoundsOption,
    SweepOption,
    TasksOption,
    TemplateOption,
    TurnsOption,
)  # fmt: skip
from ngtcli.cli.bench_results import Delivery
from ngtcli.cli.combinations import BENCH, LIVE, RECORD, REPLAY, check_combination
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import JsonOption, PresetOption, VerboseOption, resolve, with_settings
from ngtcli.cli.reading import read_documents, skipped_json
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.evaluate.noise import add_noise
from ngtcli.evaluate.prompts import Item, builtin_items, choose, file_items, read_jsonl
from ngtcli.presets import Preset
from ngtcli.render.results import counted

SWEEP = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Request:
    """What is measured, of what, and how; `methods` and `num_drafts` as they were written."""

    files: list[str]
    docs: list[str]
    prompts: Path | None
    tasks: list[str]
    limit: int | None
    noise: int
    replay: Path | None
    template: str
    turns: str
    ids: str
    methods: list[str]
    against: str
    rounds: int
    num_drafts: str
    sweep: bool
    fresh: bool
    quality: bool
    record: Path | None
    settings: Settings
    preset: Preset | None


@with_settings
def bench(
    context: typer.Context,
    files: FilesArgument = None, docs: DocsOption = None, prompts: PromptsOption = None,
    tasks: TasksOption = "", limit: LimitOption = None, noise: NoiseOption = 0,
    replay: ReplayOption = None, template: TemplateOption = "",
    turns: TurnsOption = "first", ids: IdsOption = "all", methods: MethodsOption = "",
    against: AgainstOption = "", rounds: RoundsOption = 5, num_draft: NumDraftOption = "",
    sweep_num_draft: SweepOption = False, fresh: FreshOption = False,
    quality: QualityOption = True, record: RecordOption = None, preset: PresetOption = None,
    json: JsonOption = False, markdown: MarkdownOption = False, html: HtmlOption = None,
    output: OutputOption = None, verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""
    check_combination(context, BENCH, REPLAY if replay else RECORD if record else LIVE)
    resolved, chosen = resolve(flags or {}, preset, "summarize")
    named = _names(methods) or [m for m in ((flags or {}).get("method"),) if m]
    request = Request(
        files or [], docs or [], prompts, _names(tasks), limit, noise, replay, template, turns, ids,
        named, against, rounds, num_draft, sweep_num_draft, fresh, quality, record,
        resolved.settings, chosen if preset else None,
    )  # fmt: skip
    notes = Notes(verbose)
    _run(request, Delivery(notes, json, markdown, output, html, resolved.settings.color), notes)


def _run(request: Request, delivery: Delivery, notes: Notes) -> None:
    """Measure and deliver; after an interruption what there is, and exit code 130."""
    try:
        result = _measure(request, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted; nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    delivery.deliver({**result, **_about()})
    if result.get("interrupted"):
        notes.warn(f"interrupted; what was measured: {counted(result['questions'], 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _measure(request: Request, notes: Notes) -> dict[str, Any]:
    num_drafts = _num_drafts(request)
    if request.replay:
        return _replay(request, request.replay, num_drafts, notes)
    _check_race(request)
    return _live(request, num_drafts, notes)


def _names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _num_drafts(request: Request) -> list[int]:
    if not request.num_drafts:
        return list(SWEEP) if request.sweep else [request.settings.num_draft]
    try:
        numbers = [int(part) for part in _names(request.num_drafts)]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= 1024 for number in numbers):
        raise UsageError(
            f"--num-draft {request.num_drafts}: not numbers from 1 to 1024",
            "Give them as in --num-draft 16,32,64.",
        )
    return list(dict.fromkeys(numbers))


def _replay(request: Request, folder: Path, num_drafts: list[int], notes: Notes) -> dict[str, Any]:
    from ngtcli.draft.drafter import draft_settings
    from ngtcli.evaluate.refusals import check_some_left
    from ngtcli.evaluate.replay.run import run_replay

    methods = request.methods or _names(REPLAYED_METHODS)
    result: dict[str, Any] = run_replay(
        folder,
        methods,
        num_drafts,
        settings=draft_settings(request.settings),
        tasks=request.tasks,
        limit=request.limit,
        ids=request.ids,
        template=request.template,
        turns=request.turns,
        max_mb=request.settings.max_mb,
        fresh=request.fresh,
        progress=notes.status,
    )
    notes.clear()
    check_some_left(methods, result["refused"])
    inexact = result.get("inexact")
    text = f"{inexact} of the recorded texts give another number of tokens than was recorded"
    return {**result, "notes": [text] if inexact else []}


def _check_race(request: Request) -> None:
    """What is wrong with the request, before anything heavy is loaded."""
    from ngtcli.evaluate.refusals import check_against, check_some_left, unreadable

    if request.prompts and (request.files or request.docs):
        raise UsageError("--prompts beside files or --docs", "Give one of them.")
    if request.against not in ("", "hf"):
        raise UsageError(f"--against {request.against}: unknown", "Known: hf.")
    if request.against:
        check_against(request.settings)
    methods = request.methods or _names(LIVE_METHODS)
    check_some_left(methods, unreadable(methods, request.settings))


def _items(request: Request, notes: Notes) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    skipped: Sequence[Skipped] = ()
    if request.prompts:
        items = read_jsonl(request.prompts, request.settings)
    elif request.files or request.docs:
        stdin = piped_stdin()
        texts = read_documents(request.files, stdin, request.settings, notes)
        asked = read_documents(request.docs, stdin, request.settings, notes)
        items = file_items(texts.documents, asked.documents)
        skipped = (*texts.skipped, *asked.skipped)
    else:
        items = builtin_items()
    chosen = choose(items, request.tasks, request.limit)
    if request.noise:
        chosen = add_noise(chosen, request.noise, request.settings.seed, sources=items)
    return chosen, skipped


def _live(request: Request, num_drafts: list[int], notes: Notes) -> dict[str, Any]:
    items, skipped = _items(request, notes)
    check_models(request.settings.model, request.settings.draft_model)
    notes.status(f"Loading {request.settings.model} …")
    from ngtcli.evaluate.bench.run import RaceOptions, build_prompts, record, run_live
    from ngtcli.session import Session

    # The session's own method is never used; its progress would be shown inside timed runs.
    session = Session(
        replace(request.settings, method="none"), warn=once(notes.warn), persist=False
    )
    prompts = build_prompts(session, items, request.preset)
    process.unwind_on_interrupt()
    if request.record:
        result = record(session, items, prompts, request.record, notes.status)
    else:
        options = RaceOptions(
            methods=request.methods or _names(LIVE_METHODS),
            num_drafts=num_drafts,
            against=bool(request.against),
            rounds=request.rounds,
            fresh=request.fresh,
            quality=request.quality,
        )
        result = run_live(session, items, prompts, options, notes.status)
    notes.clear()
    return result | {"noise": request.noise, "skipped": skipped_json(skipped)}


def _about() -> dict[str, Any]:
    """What was run, when, and with which versions."""
    from ngtcli.evaluate.machine import versions

    return {
        "command": shlex.join(["ngt", *sys.argv[1:]]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
    }
