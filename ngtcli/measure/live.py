"""One live measurement, from prompts to a result."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ngtcli.errors import ContextOverflowError, NgtError, counted
from ngtcli.measure.contestants import AGAINST, BASELINE, generate, ours
from ngtcli.measure.live_rows import RaceRows
from ngtcli.measure.machine import processor
from ngtcli.measure.memory import PeakMemory
from ngtcli.measure.prompts import Item
from ngtcli.measure.quality import Quality
from ngtcli.measure.race import race
from ngtcli.measure.records import Contestant, Notify
from ngtcli.measure.refusals import check_some_left, refusal, unreadable
from ngtcli.measure.traces import TraceWriter
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset, can_ask, load_preset
from ngtcli.render.results import LiveResult, Machine, RecordResult
from ngtcli.render.rows import Refusal
from ngtcli.session.answer import AnswerOptions
from ngtcli.session.local import LocalSession

_AS_IT_IS = Preset("message", Path(), "{documents}")


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """What is measured and how. Plain decoding always takes part: the others are set against it."""

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 5
    fresh: bool = False
    quality: bool = True


def build_prompts(
    session: LocalSession, items: Sequence[Item], preset: Preset | None
) -> list[Prompt]:
    """A prompt for each item, in the wording of `preset` or of the task's own.

    Raises ContextOverflowError that names the item.
    """
    summarize, ask = preset or load_preset("summarize"), load_preset("ask")
    if preset is not None and can_ask(preset):
        ask = preset
    prompts = []
    for item in items:
        wording = _AS_IT_IS if item.message else ask if item.question else summarize
        try:
            prompts.append(session.prompt(wording, item.documents, item.question))
        except ContextOverflowError as error:
            raise ContextOverflowError(f"{item.id}: {error}", error.hint) from None
    return prompts


def run_live(
    session: LocalSession,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    options: RaceOptions,
    progress: Notify = lambda _: None,
) -> LiveResult:
    """Race, then put the figures together. Raises UsageError where no method can run."""
    refused = unreadable(options.methods, session.settings)
    contestants = _contestants(session, options, refused)
    check_some_left(options.methods, refused)
    memory = PeakMemory(session.model.device)
    made = race(
        contestants, prompts, options.rounds, memory=memory, fresh=options.fresh, progress=progress
    )
    refused += made.refused
    check_some_left(options.methods, refused)
    quality = Quality() if options.quality and any(item.answers for item in items) else None
    rows = RaceRows(made, items, session.model.tokenizer.decode, quality)
    measured = made.measured()
    return LiveResult(
        model=session.settings.model,
        machine=_machine(session),
        questions=len(measured),
        rounds=options.rounds,
        max_tokens=session.settings.max_tokens,
        fresh=options.fresh,
        interrupted=made.interrupted,
        memory=memory.kind,
        notes=_notes(session, quality),
        rows=rows.rows(),
        split=rows.split(),
        prompts=rows.prompts([len(p.ids) for p in prompts]),
        refused=refused,
    )


def _contestants(
    session: LocalSession, options: RaceOptions, refused: list[Refusal]
) -> list[Contestant[Prompt]]:
    """Plain decoding, each method at each number of drafts, then `transformers`' generate."""
    found = [ours(session, BASELINE, 0)]
    known = {r.method for r in refused} | {BASELINE}
    for method in dict.fromkeys(options.methods):
        if method in known:
            continue
        try:
            several = [ours(session, method, k) for k in options.num_drafts]
            several[0].begin()
        except (NgtError, ImportError, OSError) as error:  # something it needs is not there
            refused.append(refusal(method, error))
            continue
        found += {c.key: c for c in several}.values()
    return found + [generate(session, name) for name in (AGAINST if options.against else ())]


def _notes(session: LocalSession, quality: Quality | None) -> list[str]:
    notes = []
    if session.model.plain_reason:
        notes.append(
            f"{session.settings.model} decodes without drafts: {session.model.plain_reason}"
        )
    if quality is not None and quality.note:
        notes.append(quality.note)
    return notes


def _machine(session: LocalSession) -> Machine:
    device = session.model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return Machine(
        device=device.type,
        device_name=name,
        dtype=str(session.model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
    )


def record(
    session: LocalSession,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    folder: Path,
    progress: Notify = lambda _: None,
) -> RecordResult:
    """Decode every prompt plainly and write a trace that `--replay` reads.

    An interruption keeps the prompts that are done.
    """
    model, name, interrupted = session.model, session.settings.model, False
    lengths: list[int] = []
    with TraceWriter(folder, model.tokenizer.fingerprint, name, model.vocabulary) as trace:
        try:
            for item, prompt in zip(items, prompts, strict=True):
                progress(f"Recording: {len(lengths) + 1} of {counted(len(items), 'prompt')}")
                run = session.answer(prompt, AnswerOptions(BASELINE, to_the_end=True)).run.finish()
                trace.add(item.id, item.task, prompt.ids, run.output, prompt.references)
                lengths.append(len(run.output))
        except KeyboardInterrupt:
            interrupted = True
    return RecordResult(
        path=str(folder),
        model=name,
        questions=len(lengths),
        new_tokens=sum(lengths),
        interrupted=interrupted,
    )
