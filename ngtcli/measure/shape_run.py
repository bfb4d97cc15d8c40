"""A recording replayed with real passes: a model of some shape with random weights does the work.

Which drafts are accepted, the recording decides, as in `run`; what each step costs is measured.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ngtcli.config import Settings
from ngtcli.decode.load import use_threads
from ngtcli.decode.model import TargetModel
from ngtcli.errors import ContextOverflowError
from ngtcli.measure.machine import processor
from ngtcli.measure.records import Notify
from ngtcli.measure.refusals import check_some_left
from ngtcli.measure.replay_run import select
from ngtcli.measure.shape_contestants import SPARE, Contestants
from ngtcli.measure.shape_files import find_shape
from ngtcli.measure.shape_model import (
    Built,
    Plan,
    build,
    check_memory,
    copies,
    dtype_name,
    plan,
)
from ngtcli.measure.shape_race import race
from ngtcli.measure.shape_rows import rows
from ngtcli.measure.traces import Trace, TraceSet, read_traces
from ngtcli.render.results import Machine, ShapeResult, inexact_notes
from ngtcli.system.json_form import to_json


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """What is replayed, and who takes part; `limit` is per task, as in a replay without passes."""

    shape: str
    methods: Sequence[str]
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False
    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"
    template: str = ""
    turns: str = "first"


def run_shape(
    folder: Path, options: ShapeOptions, settings: Settings, progress: Notify = lambda _: None
) -> ShapeResult:
    """Replay the recording in `folder`. Raises NgtError.

    Nothing large is allocated before the shape, the recording and the free memory are checked.
    """
    shape = find_shape(options.shape)
    progress(f"Reading {folder} …")
    traces = read_traces(folder, options.template, options.turns, settings.max_mb)
    chosen = select(traces.traces, options.tasks, options.limit, options.ids)
    traces, planned = replace(traces, traces=tuple(chosen)), plan(shape, settings)
    held = copies(planned.device, settings, options.against)
    check_memory(planned, places(traces), held)
    use_threads(settings.threads)
    built = build(planned, settings, progress, options.against)
    return replay_with_passes(traces, built, options, settings, progress)


def places(traces: TraceSet) -> int:
    """Of the cache, that the longest of `traces` takes."""
    return max(len(t.prompt_ids) + t.room for t in traces.traces) + SPARE


def replay_with_passes(
    traces: TraceSet,
    built: Built,
    options: ShapeOptions,
    settings: Settings,
    progress: Notify = lambda _: None,
) -> ShapeResult:
    """The same for all of `traces` and a model that is made."""
    clock = time.perf_counter()
    planned, model = built.plan, built.model
    traces, notes = _folded(traces, model.vocabulary)
    _check_lengths(traces.traces, model)
    if model.plain_reason:
        notes.append(f"this shape decodes without drafts: {model.plain_reason}")
    making = Contestants(model, traces, settings)
    found = making.make(
        options.methods, options.num_drafts, built.stock if options.against else None, progress
    )
    check_some_left(options.methods, making.refused)
    made = race(found, traces.traces, options.rounds, fresh=options.fresh, progress=progress)
    measured = traces.traces[: made.measured()]
    read_s = making.prompts.seconds
    return ShapeResult(
        source=traces.source,
        model=traces.model,
        shape=planned.shape.name,
        parameters=planned.parameters,
        weight_bytes=planned.weight_bytes,
        machine=_machine(planned),
        questions=len(measured),
        rounds=options.rounds,
        fresh=options.fresh,
        interrupted=made.interrupted,
        seconds=round(time.perf_counter() - clock, 2),
        prompt_tokens=[len(t.prompt_ids) for t in measured],
        prefill_s=[round(min(read_s[t.id]), 4) for t in measured],
        cost_s=_costs(making),
        passes=to_json(model.passes.report()),
        notes=[*notes, *inexact_notes(traces.inexact)],
        rows=rows(made.contestants, made.samples, measured),
        refused=[*making.refused, *made.refused],
    )


def _machine(planned: Plan) -> Machine:
    cuda = planned.device == "cuda"
    return Machine(
        device=planned.device,
        device_name=torch.cuda.get_device_name() if cuda else processor(),
        dtype=dtype_name(planned.dtype),
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
    )


def _costs(making: Contestants) -> dict[int, dict[int, float]]:
    """Seconds of a pass by rows as first measured, for each length of context there is a curve."""
    curves = making.costs.curves if making.costs else {}
    return {
        length: {int(rows): round(s, 6) for rows, s in curve.measured.items()}
        for length, curve in curves.items()
    }


def _folded(traces: TraceSet, vocabulary: int) -> tuple[TraceSet, list[str]]:
    """The traces with every id below `vocabulary`, and a note where that changed some."""
    highest = max(max(*t.prompt_ids, *t.output_ids) for t in traces.traces)
    if highest < vocabulary:
        return traces, []

    def low(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(id % vocabulary for id in ids)

    found = [
        replace(
            t,
            prompt_ids=low(t.prompt_ids),
            output_ids=low(t.output_ids),
            references=tuple(map(low, t.references)),
        )
        for t in traces.traces
    ]
    note = (
        f"ids of the recording from {vocabulary} on are taken modulo {vocabulary}, which can change"
        " what is accepted"
    )
    return replace(traces, traces=tuple(found)), [note]


def _check_lengths(traces: Sequence[Trace], model: TargetModel) -> None:
    for trace in traces:
        tokens = len(trace.prompt_ids) + len(trace.output_ids)
        if tokens > model.context:
            raise ContextOverflowError(
                f"{trace.id}: prompt and answer have {tokens} tokens, the shape takes"
                f" {model.context}",
                "Choose another shape, or other questions with --tasks and --limit.",
            )
