"""`ngt bench` on a model that runs: prompts to a result, or to a recording."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ngtcli.decode.steps import PARTS
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.measure.contestants import AGAINST, generate, ours
from ngtcli.measure.machine import PeakMemory, processor
from ngtcli.measure.options import BenchOptions, check_some_left
from ngtcli.measure.prompts import Item
from ngtcli.measure.quality import Quality, Scores
from ngtcli.measure.records import (
    BASELINE,
    Generation,
    Notify,
    Race,
    Record,
    Refusal,
    race,
    taking_part,
)
from ngtcli.measure.results import (
    LiveResult,
    Machine,
    PromptRow,
    PromptTimes,
    RecordResult,
    SplitRow,
)
from ngtcli.measure.summary import LIVE, quartiles, summarized
from ngtcli.measure.traces import TraceWriter
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset, can_ask, load_preset
from ngtcli.session.local import LocalSession
from ngtcli.session.session import AnswerOptions

_AS_IT_IS = Preset("message", Path(), "{documents}")


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
    options: BenchOptions,
    progress: Notify,
) -> LiveResult:
    """Race, then put the figures together. Raises UsageError where no method can run."""
    model, settings, refused = session.model, session.settings, list[Refusal]()
    contestants = taking_part(
        (BASELINE, *options.methods),
        lambda method: [ours(session, method, k) for k in options.num_drafts],
        refused,
    )
    check_some_left(options.methods, refused)
    contestants += [generate(session, name) for name in (AGAINST if options.against else ())]
    memory = PeakMemory(model.device)
    made = race(
        contestants,
        prompts,
        options.rounds,
        warm_up=prompts,
        fresh=options.fresh,
        memory=memory,
        progress=progress,
    )
    refused += made.refused
    check_some_left(options.methods, refused)
    quality = Quality() if options.quality and any(item.answers for item in items) else None
    judge = partial(_scores, session, items, quality) if quality else None
    plain = f"{settings.model} decodes without drafts: {model.plain_reason}"
    notes = [plain if model.plain_reason else "", quality.note if quality else ""]
    measured, answers = made.measured(), made.answers()
    return LiveResult(
        model=settings.model,
        machine=machine(model.device, model.dtype),
        questions=len(measured),
        rounds=options.rounds,
        max_tokens=settings.max_tokens,
        fresh=options.fresh,
        interrupted=made.interrupted,
        memory=memory.kind,
        notes=[note for note in notes if note],
        rows=summarized(LIVE, made, [item.task for item in items], judge),
        split=split_rows(made),
        prompts=[
            PromptRow(
                id=items[i].id,
                task=items[i].task,
                prompt_tokens=len(prompts[i].ids),
                results={c.key: prompt_times(answers[c.key, i]) for c in made.contestants},
            )
            for i in measured
        ],
        refused=refused,
    )


def _scores(
    session: LocalSession,
    items: Sequence[Item],
    quality: Quality,
    answers: Sequence[tuple[int, Generation]],
) -> Scores | None:
    """The quality of answers to those of `items` that have references; None without any."""
    decode = session.model.tokenizer.decode
    judged = [(decode(g.ids).strip(), items[i]) for i, g in answers if items[i].answers]
    found = [(text, item.answers, bool(item.question)) for text, item in judged]
    return quality.scores(found) if found else None


def machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """What a model on `device` runs on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return Machine(
        device=device.type,
        device_name=name,
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
    )


def prompt_times(rounds: Sequence[Record]) -> PromptTimes:
    """The times of one prompt's rounds."""
    low, middle, high = quartiles([r.seconds for r in rounds])
    return PromptTimes(
        rounds=len(rounds),
        seconds_median=round(middle, 5),
        seconds_quartiles=(round(low, 5), round(high, 5)),
        new_tokens=len(rounds[-1].generation.ids),
    )


def split_rows(made: Race[Prompt]) -> list[SplitRow]:
    """Mean times over answers whose parts were timed apart (paper, Figure 5)."""
    rows = []
    for contestant in made.contestants:
        own = [r.generation for r in made.splits if r.contestant == contestant.key]
        if not own:
            continue
        steps, prefill = sum(g.steps for g in own), sum(g.prefill_s or 0.0 for g in own)
        seconds = {p: sum((g.split_s or {}).get(p, 0.0) for g in own) for p in PARTS}
        whole = prefill + sum(seconds.values()) or 1.0
        rows.append(
            SplitRow(
                method=contestant.name,
                num_draft=contestant.num_draft,
                steps=steps,
                prefill_ms=round(prefill / len(own) * 1e3, 3),
                step_us={p: round(s / max(steps, 1) * 1e6, 1) for p, s in seconds.items()},
                share={p: round(s / whole, 4) for p, s in {"prefill": prefill, **seconds}.items()},
            )
        )
    return rows


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
