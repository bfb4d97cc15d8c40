"""Measures a model: ngt's decoding by the settings of cells, and generate of `transformers`."""

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
from ngtcli.engine.local import LocalSession
from ngtcli.engine.request import OtherModelError
from ngtcli.engine.session import AnswerOptions
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.models.quantized import name_of
from ngtcli.models.weights.linear import quantized_bits
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset, can_ask, load_preset
from ngtcli.system import reporting
from ngtcli.system.cpu import model_name
from ngtcli.system.machine import return_memory
from ngtcli.words import counted

_MESSAGE_PRESET = Preset("message", Path(), "{documents}")  # the message is the whole prompt
_WARM_UP_TOKENS = 8  # answered by a model once it is loaded


class _LoadingReporter(reporting.Reporter):
    """Reports the warnings of a session, and its statuses while it is loading.

    A status line of a later time would disturb the timed runs.
    """

    def __init__(self, reporter: reporting.Reporter) -> None:
        self._reporter = reporter
        self.is_loading = True

    def status(self, text: str, /) -> None:
        """As `Reporter.status`."""
        if self.is_loading:
            self._reporter.status(text)

    def warn(self, text: str, /) -> None:
        """As `Reporter.warn`."""
        self._reporter.warn(text)


class Live:
    """A source of answers from models, which are loaded as cells name them, one at a time.

    Args:
        items: What is asked.
        preset: The wording of prompts. None: that of each item's task.
        sweeps: Whether it is for `ngt tune`: a model is warmed up when it is loaded, and the trie
            of a prompt's documents is built for each answer and timed, not taken from the cache.
    """

    def __init__(self, items: Sequence[Item], preset: Preset | None, sweeps: bool = False) -> None:
        self.items = items
        self.prompts = range(len(items))
        self._preset = preset
        self._sweeps = sweeps
        self._session: LocalSession | None = None
        self._built: list[Prompt] = []  # the prompts of all items
        self._built_for: Settings | None = None

    def session(self, settings: Settings) -> LocalSession:
        """Return a new session of the model that `settings` name, loading it if needed."""
        if self._session is not None:
            with suppress(OtherModelError):
                return self._session.with_settings(settings)
            self._session = None
            gc.collect()  # frees the memory of this model for the next
            return_memory()
        reporter = _LoadingReporter(reporting.current())
        with reporting.reporting_to(reporter):
            self._session = LocalSession(settings, persist=False)
        if self._sweeps:
            max_tokens = min(_WARM_UP_TOKENS, settings.answer.max_tokens)
            warm_up = settings.replace(method=BASELINE, max_tokens=max_tokens)
            session = self._session.with_settings(warm_up)
            for prompt in build_prompts(session, self.items[:1], self._preset):
                session.generate(prompt, AnswerOptions(to_the_end=True))
        reporter.is_loading = False
        return self._session

    def built_prompts(self, session: LocalSession) -> list[Prompt]:
        """Return the prompts of all items; they are built again if settings change them."""
        settings = replace(session.settings, drafting=DraftingSettings())
        if self._built_for != settings:
            self._built = build_prompts(session, self.items, self._preset)
            self._built_for = settings
        return self._built

    def begin(self, cell: Cell, split: bool = False) -> records.Answering[int]:
        """See `Source.begin`."""
        session = self.session(cell.settings)
        prompts = self.built_prompts(session)
        if cell.key in AGAINST:
            return lambda i: generate(session, cell.key, prompts[i])
        drafter = session.new_drafter(cell.settings.drafting.method)
        options = AnswerOptions(split_times=split, drafter=drafter, to_the_end=True)
        method = session.parse_method()
        model = session.model
        builds_trie = self._sweeps and method.entry.documents and model.takes_drafts

        def answer(index: int) -> records.Generation:
            prompt = prompts[index]
            if not builds_trie:
                return decoded(session, session.sequence(prompt, options), split)
            ids = [model.tokenizer.encode(d.text.strip()) for d in prompt.documents]
            trie, figures = timed_trie(ids, method.settings.n)
            with_trie = replace(options, trie=(trie, TrieReport("built")))
            generation = decoded(session, session.sequence(prompt, with_trie), split)
            return replace(generation, **figures)

        return answer

    def about(self, settings: Settings) -> results.SweepData:
        """Describe the model, the device and the prompts that cells are measured on."""
        host = machine(self.session(settings).model)
        device = f"{host.device} with {counted(host.threads, 'thread')}"
        if host.device == "cuda":
            device = host.device_name
        preset = self._preset or load_preset("summarize")
        items = [(item.id, [d.text for d in item.documents], item.question) for item in self.items]
        return results.SweepData(
            model=settings.model.model,
            device=f"{device}, {host.dtype}",
            data=f"{counted(len(items), 'prompt')} of preset {preset.name}",
            data_sha256=results.digest([preset.template, items]),
            prompts=len(items),
        )


def decoded(
    session: LocalSession, sequence: DecodedSequence, split_times: bool = False
) -> records.Generation:
    """Decode an answer and return its figures."""
    return counted_steps(sequence, session.decode(sequence, split_times))


def counted_steps(sequence: DecodedSequence, steps: Iterable[Step]) -> records.Generation:
    """Take all steps of an answer and return its figures, with the number of undrafted steps."""
    statistics = sequence.statistics
    drafted = 0
    undrafted = 0
    for _ in steps:
        if statistics.drafted_tokens == drafted:
            undrafted += 1
        drafted = statistics.drafted_tokens
    return records.Generation.of(
        sequence.token_ids,
        statistics,
        undrafted=undrafted,
        prefill_s=statistics.prefill_s,
        decode_s=statistics.decode_s,
        split_s=dict(statistics.split_s),
    )


def generate(session: LocalSession, name: str, prompt: Prompt) -> records.Generation:
    """Answer by greedy generate of `transformers` on the same weights.

    Args:
        session: Has the model.
        name: A key of AGAINST, which has the arguments of generate.
        prompt: The prompt.

    Raises:
        NgtError: generate does not support this model.
    """
    model = session.model
    settings = session.settings
    ids = torch.tensor([prompt.ids], device=model.device)
    passes: list[None] = []
    hook = model.hf.register_forward_pre_hook(lambda *_: passes.append(None))
    try:
        # Plain greedy search as ngt's, whatever the checkpoint's generation config says.
        with torch.inference_mode(), plain_generation(model.hf):
            output_ids = model.hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=min(settings.answer.max_tokens, model.context - len(prompt.ids)),
                eos_token_id=sorted(model.end_ids),
                pad_token_id=min(model.end_ids, default=0),
                **AGAINST[name],
            )
    except (ValueError, TypeError, NotImplementedError) as error:  # not supported by this model
        raise NgtError(str(error).strip().split("\n")[0]) from error
    finally:
        hook.remove()
    return records.Generation(output_ids[0, len(prompt.ids) :].tolist(), len(passes))


def build_prompts(
    session: LocalSession, items: Sequence[Item], preset: Preset | None
) -> list[Prompt]:
    """Build a prompt for each item, in the wording of `preset` or of the item's task.

    Raises ContextOverflowError with the item's id if a prompt does not fit.
    """
    summarize = preset or load_preset("summarize")
    ask = preset if preset is not None and can_ask(preset) else load_preset("ask")
    prompts = []
    for item in items:
        if item.message:
            wording = _MESSAGE_PRESET
        else:
            wording = ask if item.question else summarize
        try:
            prompts.append(session.prompt(wording, item.documents, item.question))
        except ContextOverflowError as error:
            raise ContextOverflowError(f"{item.id}: {error}", hint=error.hint) from None
    return prompts


def run_live(source: Live, settings: Settings, options: BenchOptions) -> results.LiveResult:
    """Measure and summarize. Raises UsageError if no method can run."""
    session = source.session(settings.replace(method=BASELINE))
    # A prompt that does not fit is reported before anything is measured.
    source.built_prompts(session)
    model = session.model
    measurement = records.measure_methods(source, options, settings, source.prompts, splits=True)
    notes = []
    if not model.takes_drafts:
        notes.append(f"{settings.model.model} decodes without drafts: {model.mode.why}")
    return results.LiveResult(
        model=settings.model.model,
        machine=machine(model),
        questions=len(measurement.measured()),
        rounds=options.rounds,
        max_tokens=settings.answer.max_tokens,
        fresh=options.fresh,
        interrupted=measurement.interrupted,
        notes=notes,
        rows=summarized(measurement),
        refused=measurement.refused,
    )


def timed_trie(documents: Sequence[Sequence[int]], n: int) -> tuple[Corpus, dict[str, Any]]:
    """Build a trie of the documents' token ids; also return the fields of a Generation for it."""
    started = time.perf_counter()
    trie = build(documents, n)
    seconds = time.perf_counter() - started
    size = sum(array.nbytes for array in trie.arrays.values())
    return trie, {"trie_build_s": seconds, "trie_bytes": size}


def machine(model: TargetModel) -> results.Machine:
    """Describe the device that a model runs on and the dtype that it computes in."""
    device = model.device
    dtype = name_of(model.dtype)
    bits = quantized_bits(model.hf)
    if bits:
        dtype = f"int{bits} in {dtype}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else model_name()
    return results.Machine(
        device=device.type,
        device_name=name,
        dtype=dtype,
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
    )
