"""A model that runs as a source of records: our loop by the settings of a cell, `transformers`'
generate beside it; what `ngt bench` measures of them.
"""

import gc
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ngtcli.bench import records, results
from ngtcli.bench.grid import AGAINST, BASELINE, BenchOptions, Cell
from ngtcli.bench.prompts import Item
from ngtcli.bench.summary import summarized
from ngtcli.config import DraftingSettings, Settings
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import plain_generation
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.steps import Step
from ngtcli.drafting.tries.corpus import Corpus, build
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.engine.events import reporter
from ngtcli.engine.local import LocalSession
from ngtcli.engine.request import OtherModelError
from ngtcli.engine.session import AnswerOptions
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.models.quantized import name_of
from ngtcli.models.weights.linear import bits_of
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset, can_ask, load_preset
from ngtcli.system.cpu import model_name
from ngtcli.system.machine import return_memory
from ngtcli.words import counted

_AS_IT_IS = Preset("message", Path(), "{documents}")


class Live:
    """A source over `items`: each cell's model answers their prompts, in the wording of `preset`.

    Models are loaded as cells name them, one is held at a time. With `sweeps` a model that is
    loaded is warmed up, and the trie of a prompt's documents is built for each answer and timed, in
    place of taken from the cache.
    """

    def __init__(
        self,
        items: Sequence[Item],
        preset: Preset | None,
        progress: records.Notify,
        warn: records.Notify,
        sweeps: bool = False,
    ) -> None:
        self.items, self.prompts = items, range(len(items))
        self._preset, self._progress, self._warn, self._sweeps = preset, progress, warn, sweeps
        self._session: LocalSession | None = None
        self._worded: tuple[Settings | None, list[Prompt]] = None, []

    def session(self, settings: Settings) -> LocalSession:
        """A new session of the model that `settings` name, which may be loaded for it."""
        if self._session is not None:
            with suppress(OtherModelError):
                return self._session.with_settings(settings)
            self._session = None
            gc.collect()  # the memory of one model is there for the next
            return_memory()
        loading = True  # what is said later would be shown inside timed runs
        report = reporter(lambda words: self._progress(words) if loading else None, self._warn)
        self._session = LocalSession(settings, report, persist=False)
        if self._sweeps:
            short = settings.replace(method=BASELINE, max_tokens=min(8, settings.answer.max_tokens))
            brief = self._session.with_settings(short)
            for prompt in build_prompts(brief, self.items[:1], self._preset):
                brief.generate(prompt, AnswerOptions(to_the_end=True))
        loading = False
        return self._session

    def worded(self, session: LocalSession) -> list[Prompt]:
        """The prompts of all items; those of the last settings that word them are kept."""
        own = replace(session.settings, drafting=DraftingSettings())
        if self._worded[0] != own:
            self._worded = own, build_prompts(session, self.items, self._preset)
        return self._worded[1]

    def begin(self, cell: Cell, split: bool = False) -> records.Answering[int]:
        """As `Source.begin`; the drafter and its pool are the cell's own."""
        session = self.session(cell.settings)
        prompts = self.worded(session)
        if cell.key in AGAINST:
            return lambda i: generate(session, cell.key, prompts[i])
        drafter = session.new_drafter(cell.settings.drafting.method)
        options = AnswerOptions(split_times=split, drafter=drafter, to_the_end=True)
        method, model = session.parse_method(), session.model

        def answer(i: int) -> records.Generation:
            if not (self._sweeps and method.entry.documents and model.takes_drafts):
                return decoded(session, session.sequence(prompts[i], options), split)
            ids = [model.tokenizer.encode(d.text.strip()) for d in prompts[i].documents]
            trie, figures = timed_trie(ids, method.settings.n)
            given = replace(options, trie=(trie, TrieReport("built")))
            return replace(decoded(session, session.sequence(prompts[i], given), split), **figures)

        return answer

    def about(self, settings: Settings) -> results.SweepData:
        """What cells over `settings` are measured on."""
        on = machine(self.session(settings).model)
        threads = f"{on.device} with {counted(on.threads, 'thread')}"
        device = on.device_name if on.device == "cuda" else threads
        preset = self._preset or load_preset("summarize")
        items = [(i.id, [d.text for d in i.documents], i.question) for i in self.items]
        return results.SweepData(
            model=settings.model.model,
            device=f"{device}, {on.dtype}",
            data=f"{counted(len(items), 'prompt')} of preset {preset.name}",
            data_sha256=results.digest([preset.template, items]),
            prompts=len(items),
        )


def decoded(
    session: LocalSession, sequence: DecodedSequence, split_times: bool = False
) -> records.Generation:
    """Decode an answer, and return what its steps came to."""
    return counted_steps(sequence, session.decode(sequence, split_times))


def counted_steps(sequence: DecodedSequence, steps: Iterable[Step]) -> records.Generation:
    """Take all steps of an answer, and return what they came to."""
    s = sequence.statistics
    drafted = 0
    undrafted = 0
    for _ in steps:
        undrafted += s.drafted_tokens == drafted
        drafted = s.drafted_tokens
    times = {"prefill_s": s.prefill_s, "decode_s": s.decode_s, "split_s": dict(s.split_s)}
    return records.Generation.of(sequence.token_ids, s, undrafted=undrafted, **times)


def generate(session: LocalSession, name: str, prompt: Prompt) -> records.Generation:
    """`transformers`' greedy generate on the same weights; `name` is one of AGAINST."""
    model, settings = session.model, session.settings
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
                max_new_tokens=min(settings.answer.max_tokens, model.context - len(prompt.ids)),
                eos_token_id=sorted(model.end_ids),
                pad_token_id=min(model.end_ids, default=0),
                **AGAINST[name],
            )
    except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
        raise NgtError(str(error).strip().split("\n")[0]) from error
    finally:
        hook.remove()
    return records.Generation(out[0, len(prompt.ids) :].tolist(), len(passes))


def build_prompts(
    session: LocalSession, items: Sequence[Item], preset: Preset | None
) -> list[Prompt]:
    """A prompt for each item, in the wording of `preset` or of the task's own.

    Raises ContextOverflowError that names the item.
    """
    summarize, prompts = preset or load_preset("summarize"), []
    ask = preset if preset is not None and can_ask(preset) else load_preset("ask")
    for item in items:
        wording = _AS_IT_IS if item.message else ask if item.question else summarize
        try:
            prompts.append(session.prompt(wording, item.documents, item.question))
        except ContextOverflowError as error:
            raise ContextOverflowError(f"{item.id}: {error}", hint=error.hint) from None
    return prompts


def run_live(
    source: Live, settings: Settings, options: BenchOptions, progress: records.Notify
) -> results.LiveResult:
    """Measure, then put the figures together. Raises UsageError where no method can run."""
    session = source.session(settings.replace(method=BASELINE))
    source.worded(session)  # a prompt that does not fit is reported before anything is measured
    model = session.model
    race = records.raced(source, options, settings, source.prompts, progress, splits=True)
    notes = []
    if not model.takes_drafts:
        notes.append(f"{settings.model.model} decodes without drafts: {model.mode.why}")
    return results.LiveResult(
        model=settings.model.model,
        machine=machine(model),
        questions=len(race.measured()),
        rounds=options.rounds,
        max_tokens=settings.answer.max_tokens,
        fresh=options.fresh,
        interrupted=race.interrupted,
        notes=notes,
        rows=summarized(race),
        refused=race.refused,
    )


def timed_trie(documents: Sequence[Sequence[int]], n: int) -> tuple[Corpus, dict[str, Any]]:
    """Build a trie of the documents' tokens; its figures are fields of a `Generation`."""
    clock = time.perf_counter()
    trie = build(documents, n)
    seconds = time.perf_counter() - clock
    size = sum(a.nbytes for a in trie.arrays.values())
    return trie, {"trie_build_s": seconds, "trie_bytes": size}


def machine(model: TargetModel) -> results.Machine:
    """What a model runs on, and in: a dtype, or int8 between layers of one."""
    device, dtype = model.device, name_of(model.dtype)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else model_name()
    return results.Machine(
        device=device.type,
        device_name=name,
        dtype=f"int{bits} in {dtype}" if (bits := bits_of(model.hf)) else dtype,
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
    )
