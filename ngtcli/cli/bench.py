"""`ngt bench`: methods measured side by side, live on this machine or replayed."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ngtcli.cli.bench_options import (
    LIVE_METHODS,
    REPLAYED_METHODS,
    ROUNDS,
    SHAPE_METHODS,
    SHAPE_ROUNDS,
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
    ShapeOption,
    SweepOption,
    TasksOption,
    TemplateOption,
    TurnsOption,
)
from ngtcli.cli.bench_request import (
    BenchRequest,
    check_against_known,
    check_race,
    items_of,
    names_in,
    num_drafts_of,
)
from ngtcli.cli.bench_results import Delivery
from ngtcli.cli.combinations import BENCH, LIVE, RECORD, REPLAY, SHAPE, check_combination
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import (
    JsonOption,
    PresetOption,
    VerboseOption,
    command_line,
    resolve,
    with_settings,
)
from ngtcli.cli.reading import skipped_json
from ngtcli.errors import INTERRUPTED
from ngtcli.evaluate.machine import versions
from ngtcli.evaluate.replay.shape_files import find_shape
from ngtcli.model_files.checkpoint import check_models
from ngtcli.render.results import counted
from ngtcli.system import process


@with_settings
def bench(
    context: typer.Context,
    files: FilesArgument = None,
    docs: DocsOption = None,
    prompts: PromptsOption = None,
    tasks: TasksOption = "",
    limit: LimitOption = None,
    noise: NoiseOption = 0,
    replay: ReplayOption = None,
    shape: ShapeOption = "",
    template: TemplateOption = "",
    turns: TurnsOption = "first",
    ids: IdsOption = "all",
    methods: MethodsOption = "",
    against: AgainstOption = "",
    rounds: RoundsOption = None,
    num_draft: NumDraftOption = "",
    sweep_num_draft: SweepOption = False,
    fresh: FreshOption = False,
    quality: QualityOption = True,
    record: RecordOption = None,
    preset: PresetOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    html: HtmlOption = None,
    output: OutputOption = None,
    verbose: VerboseOption = False,
    flags: dict[str, Any] | None = None,
) -> None:
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""
    check_combination(context, BENCH, _mode(replay, shape, record))
    resolved, chosen = resolve(flags or {}, preset, "summarize")
    named = names_in(methods) or [m for m in ((flags or {}).get("method"),) if m]
    request = BenchRequest(
        files=files or [],
        docs=docs or [],
        prompts=prompts,
        tasks=names_in(tasks),
        limit=limit,
        noise=noise,
        replay=replay,
        shape=shape,
        template=template,
        turns=turns,
        ids=ids,
        methods=named,
        against=against,
        rounds=rounds or (SHAPE_ROUNDS if shape else ROUNDS),
        num_drafts=num_draft,
        sweep=sweep_num_draft,
        fresh=fresh,
        quality=quality,
        record=record,
        settings=resolved.settings,
        preset=chosen if preset else None,
    )
    notes = Notes(verbose)
    delivery = Delivery(
        notes,
        json=json,
        markdown=markdown,
        output=output,
        html=html,
        color=resolved.settings.color,
    )
    _run(request, delivery, notes)


def _mode(replay: Path | None, shape: str, record: Path | None) -> str:
    if replay:
        return SHAPE if shape else REPLAY
    return RECORD if record else LIVE


def _run(request: BenchRequest, delivery: Delivery, notes: Notes) -> None:
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


def _measure(request: BenchRequest, notes: Notes) -> dict[str, Any]:
    num_drafts = num_drafts_of(request)
    if request.replay and request.shape:
        return _replay_with_passes(request, request.replay, num_drafts, notes)
    if request.replay:
        return _replay(request, request.replay, num_drafts, notes)
    check_race(request)
    return _live(request, num_drafts, notes)


def _replay(
    request: BenchRequest, folder: Path, num_drafts: list[int], notes: Notes
) -> dict[str, Any]:
    from ngtcli.draft.drafter import draft_settings
    from ngtcli.evaluate.refusals import check_some_left
    from ngtcli.evaluate.replay.run import run_replay

    methods = request.methods or names_in(REPLAYED_METHODS)
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
    return {**result, "notes": _inexact(result)}


def _replay_with_passes(
    request: BenchRequest, folder: Path, num_drafts: list[int], notes: Notes
) -> dict[str, Any]:
    check_against_known(request)
    find_shape(request.shape)  # before anything heavy is loaded
    notes.status("Loading …")
    from ngtcli.evaluate.replay.shape_run import ShapeOptions, run_shape

    process.unwind_on_interrupt()
    options = ShapeOptions(
        shape=request.shape,
        methods=request.methods or names_in(SHAPE_METHODS),
        num_drafts=num_drafts,
        against=bool(request.against),
        rounds=request.rounds,
        fresh=request.fresh,
        tasks=request.tasks,
        limit=request.limit,
        ids=request.ids,
        template=request.template,
        turns=request.turns,
    )
    result = run_shape(folder, options, request.settings, notes.status)
    notes.clear()
    return {**result, "notes": [*result["notes"], *_inexact(result)]}


def _inexact(result: dict[str, Any]) -> list[str]:
    count = result["inexact"]
    text = f"{count} of the recorded texts give another number of tokens than was recorded"
    return [text] if count else []


def _live(request: BenchRequest, num_drafts: list[int], notes: Notes) -> dict[str, Any]:
    items, skipped = items_of(request, notes)
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
            methods=request.methods or names_in(LIVE_METHODS),
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
    return {
        "command": command_line(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
    }
