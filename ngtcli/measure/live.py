"""A model that runs: contestants (our loop with a method or a cell's settings, and `transformers`'
generate), what `ngt bench` measures of them, and recordings.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ngtcli.config import Settings, settings_where
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import plain_generation
from ngtcli.draft.steps import PARTS
from ngtcli.errors import ContextOverflowError, NgtError, counted
from ngtcli.measure.machine import PeakMemory
from ngtcli.measure.options import BenchOptions, check_some_left
from ngtcli.measure.prompts import Item
from ngtcli.measure.quality import Quality, Scores
from ngtcli.measure.records import (
    BASELINE,
    Answering,
    Contestant,
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
    SweepData,
)
from ngtcli.measure.summary import LIVE, quartiles, summarized
from ngtcli.measure.traces import TraceWriter
from ngtcli.measure.tune import Source, digest, timed_trie
from ngtcli.model_files.quantized import name_of
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset, can_ask, load_preset
from ngtcli.session.local import LocalSession
from ngtcli.session.session import AnswerOptions, AnswerRun
from ngtcli.system.machine import return_memory
from ngtcli.system.trials import processor
from ngtcli.trie.report import TrieReport
from ngtcli.weights.linear import bits_of

AGAINST: dict[str, dict[str, int]] = {
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}
_AS_IT_IS = Preset("message", Path(), "{documents}")


def ours(session: LocalSession, method: str, num_draft: int) -> Contestant[Prompt]:
    """Our loop with drafts of `method`, the documents' trie taken from the cache.

    The drafter and its pool are the contestant's own: shared with another one, it would draft from
    what that one has just answered.
    """
    spec, own = method, None
    if method != BASELINE:
        spec = method if ":num_draft=" in method else f"{method}:num_draft={num_draft}"
        own = session.parse_method(spec).settings.num_draft

    def begin(split: bool = False) -> Answering[Prompt]:
        drafter = session.new_drafter(spec)
        options = AnswerOptions(spec, split_times=split, drafter=drafter, to_the_end=True)
        return lambda prompt: decoded(session.answer(prompt, options).run)

    return Contestant(method, own, begin, partial(begin, True))


def decoded(run: AnswerRun) -> Generation:
    """All steps of a run, and what they came to."""
    s, drafted, undrafted = run.statistics, 0, 0
    for _ in run:
        undrafted += s.drafted_tokens == drafted
        drafted = s.drafted_tokens
    return Generation(
        run.output,
        s.steps,
        prefill_s=s.prefill_s,
        decode_s=s.decode_s,
        drafted=s.drafted_tokens,
        accepted=s.accepted_tokens,
        undrafted=undrafted,
        histogram=s.acceptance_histogram,
        split_s=dict(s.split_s),
    )


def generate(session: LocalSession, name: str) -> Contestant[Prompt]:
    """`transformers`' greedy generate on the same weights; `name` is one of AGAINST."""
    model, settings = session.model, session.settings

    def answer(prompt: Prompt) -> Generation:
        ids = torch.tensor([prompt.ids], device=model.device)
        passes: list[None] = []
        hook = model.hf.register_forward_pre_hook(lambda *_: passes.append(None))
        try:
            # Plain greedy search, whatever the checkpoint suggests: as ours.
            with torch.inference_mode(), plain_generation(model.hf):
                out = model.hf.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=min(settings.max_tokens, model.context - len(prompt.ids)),
                    eos_token_id=sorted(model.end_ids),
                    pad_token_id=min(model.end_ids, default=0),
                    **AGAINST[name],
                )
        except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
            raise NgtError(str(error).strip().split("\n")[0]) from error
        finally:
            hook.remove()
        return Generation(out[0, len(prompt.ids) :].tolist(), len(passes))

    return Contestant(name, None, lambda: answer)


def running(
    settings: Settings, preset: Preset, items: Sequence[Item], progress: Notify, warn: Notify
) -> Source[Item]:
    """A model that answers; every prompt is one document, or one of the questions about it.

    `progress` is told what a session does, but while cells are measured: how far that is says more.
    """
    sessions: dict[tuple[str, ...], LocalSession] = {}
    loading = False

    def prompt_of(session: LocalSession, item: Item) -> Prompt:
        return session.prompt(preset, item.documents, item.question)

    def session_of(settings: Settings) -> LocalSession:
        """A new session of a model, which is loaded and warmed up; one model is held at a time."""
        nonlocal loading
        key = tuple(str(getattr(settings, name)) for name in settings_where(loaded=True))
        if key not in sessions:
            if sessions:  # the memory of one model is there for the next
                sessions.clear()
                gc.collect()
                return_memory()
            loading = True
            session = LocalSession(
                settings, lambda words: progress(words) if loading else None, warn, persist=False
            )
            sessions[key] = session
            short = session.with_settings(replace(settings, max_tokens=min(8, settings.max_tokens)))
            options = AnswerOptions(BASELINE, to_the_end=True)
            short.answer(prompt_of(short, items[0]), options).finish()
            loading = False
        return sessions[key].with_settings(settings)

    def begin(settings: Settings) -> Answering[Item]:
        session = session_of(settings)
        method, drafter = session.parse_method(), session.new_drafter(settings.method)
        own, options = method.settings, AnswerOptions(drafter=drafter, to_the_end=True)
        tries = method.entry.documents and not session.model.plain_reason

        def answer(item: Item) -> Generation:
            prompt = prompt_of(session, item)
            if not tries:
                return decoded(session.answer(prompt, options).run)
            ids = [session.model.tokenizer.encode(d.text.strip()) for d in prompt.documents]
            trie, figures = timed_trie(ids, own.n, own.lp)
            given = replace(options, trie=(trie, TrieReport("built")))
            return replace(decoded(session.answer(prompt, given).run), **figures)

        return answer

    model = session_of(settings).model
    on = machine(model)
    device = f"{on.device} with {counted(on.threads, 'thread')}"
    if on.device == "cuda":
        device = on.device_name
    prompts = [(i.id, [d.text for d in i.documents], i.question) for i in items]
    about = SweepData(
        source="live",
        model=settings.model,
        device=f"{device}, {on.dtype}",
        data=f"{counted(len(items), 'prompt')} of preset {preset.name}",
        data_sha256=digest([preset.template, prompts]),
        prompts=len(items),
    )
    return Source(about, items, begin)


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
    judge = partial(judged, session, items, quality) if quality else None
    plain = f"{settings.model} decodes without drafts: {model.plain_reason}"
    notes = [plain if model.plain_reason else "", quality.note if quality else ""]
    measured, answers = made.measured(), made.answers()
    return LiveResult(
        model=settings.model,
        machine=machine(model),
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


def judged(
    session: LocalSession,
    items: Sequence[Item],
    quality: Quality,
    answers: Sequence[tuple[int, Generation]],
) -> Scores | None:
    """The quality of answers to those of `items` that have references; None without any."""
    decode = session.model.tokenizer.decode
    own = [(decode(g.ids).strip(), items[i]) for i, g in answers if items[i].answers]
    found = [(text, item.answers, bool(item.question)) for text, item in own]
    return quality.scores(found) if found else None


def machine(model: TargetModel) -> Machine:
    """What a model runs on, and in: a dtype, or int8 or int4 between layers of one."""
    device, dtype = model.device, name_of(model.dtype)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return Machine(
        device=device.type,
        device_name=name,
        dtype=f"int{bits} in {dtype}" if (bits := bits_of(model.hf)) else dtype,
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
                room = min(run.limits.most, model.context - len(prompt.ids))
                trace.add(item.id, item.task, prompt.ids, run.output, prompt.references, room)
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
