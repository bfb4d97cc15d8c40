"""`ngt bench`: methods measured side by side, live on this machine or replayed."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ngtcli.cli.bench_options import ROUNDS, SHAPE_ROUNDS, BenchFlags
from ngtcli.cli.bench_request import (
    BenchRequest,
    against,
    check_race,
    items_of,
    mode_of,
    num_drafts_of,
    read_request,
)
from ngtcli.cli.checks import BENCH, check_combination
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import command_line, with_flags, with_own_engine
from ngtcli.cli.output import aim, check_not_read
from ngtcli.errors import INTERRUPTED, counted
from ngtcli.measure.machine import versions
from ngtcli.measure.shape_files import find_shape
from ngtcli.render.forms import bench_forms, record_forms
from ngtcli.render.results import (
    Invocation,
    LiveResult,
    Measured,
    RecordResult,
    ReplayResult,
    ShapeResult,
)
from ngtcli.system import process


@with_own_engine
@with_flags(BenchFlags)
def bench(context: typer.Context, given: BenchFlags, flags: dict[str, Any] | None = None) -> None:
    """Measure methods side by side: speed, acceptance, quality, and where the time goes."""
    check_combination(context, BENCH, mode_of(given))
    request = read_request(given, flags or {})
    forms = {"json": given.json, "markdown": given.markdown}
    destination = aim(forms, given.output, given.html)
    notes = Notes(given.verbose)
    try:
        result = _measure(request, notes)
    except KeyboardInterrupt:
        notes.warn("interrupted; nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    result = replace(result, invocation=_invocation())
    shown = record_forms(result) if isinstance(result, RecordResult) else bench_forms(result)
    destination.deliver(shown, request.settings.color)
    for note in [] if isinstance(result, RecordResult) else result.notes:
        notes.warn(note)
    if result.interrupted:
        notes.warn(f"interrupted; what was measured: {counted(result.questions, 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _measure(request: BenchRequest, notes: Notes) -> Measured | RecordResult:
    num_drafts = num_drafts_of(request)
    if request.given.replay:
        from ngtcli.measure.traces import recorded_files

        outputs = request.given.output, request.given.html
        check_not_read(outputs, recorded_files(request.given.replay))
    if request.given.replay and request.given.shape:
        return _replay_with_passes(request, request.given.replay, num_drafts, notes)
    if request.given.replay:
        return _replay(request, request.given.replay, num_drafts, notes)
    check_race(request)
    return _live(request, num_drafts, notes)


def _replay(
    request: BenchRequest, folder: Path, num_drafts: list[int], notes: Notes
) -> ReplayResult:
    from ngtcli.draft.drafter import draft_settings
    from ngtcli.measure.replay_run import run_replay

    given = request.given
    result = run_replay(
        folder,
        request.methods,
        num_drafts,
        settings=draft_settings(request.settings),
        backgrounds=request.settings.background,
        tasks=request.tasks,
        limit=given.limit,
        ids=given.ids,
        template=given.template,
        turns=given.turns,
        max_mb=request.settings.max_mb,
        fresh=given.fresh,
        progress=notes.status,
        warn=notes.warn,
    )
    notes.clear()
    return result


def _replay_with_passes(
    request: BenchRequest, folder: Path, num_drafts: list[int], notes: Notes
) -> ShapeResult:
    given = request.given
    wanted = against(given)
    find_shape(given.shape)  # a wrong name is told before anything heavy is loaded
    notes.status("Loading …")
    from ngtcli.measure.shape_run import ShapeOptions, run_shape

    process.unwind_on_interrupt()
    options = ShapeOptions(
        shape=given.shape,
        methods=request.methods,
        num_drafts=num_drafts,
        against=wanted,
        rounds=given.rounds or SHAPE_ROUNDS,
        fresh=given.fresh,
        tasks=request.tasks,
        limit=given.limit,
        ids=given.ids,
        template=given.template,
        turns=given.turns,
    )
    result = run_shape(folder, options, request.settings, notes.status)
    notes.clear()
    return result


def _live(request: BenchRequest, num_drafts: list[int], notes: Notes) -> LiveResult | RecordResult:
    given, (items, skipped) = request.given, items_of(request, notes)
    notes.status(f"Loading {request.settings.model} …")
    from ngtcli.measure.live import RaceOptions, build_prompts, record, run_live
    from ngtcli.session.local import LocalSession

    # The session's own method is never used; its progress would be shown inside timed runs.
    session = LocalSession(
        replace(request.settings, method="none"), warn=once(notes.warn), persist=False
    )
    prompts = build_prompts(session, items, request.preset)
    process.unwind_on_interrupt()
    result: LiveResult | RecordResult
    if given.record:
        result = record(session, items, prompts, given.record, notes.status)
    else:
        options = RaceOptions(
            methods=request.methods,
            num_drafts=num_drafts,
            against=bool(given.against),
            rounds=given.rounds or ROUNDS,
            fresh=given.fresh,
            quality=given.quality,
        )
        result = run_live(session, items, prompts, options, notes.status)
    notes.clear()
    return replace(result, noise=given.noise, skipped=tuple(dict.fromkeys(skipped)))


def _invocation() -> Invocation:
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return Invocation(command=command_line(), date=date, versions=versions())
