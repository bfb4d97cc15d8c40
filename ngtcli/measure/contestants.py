"""Contestants that run a model: our loop with a method or a cell's settings, and `transformers`'
generate."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from ngtcli.config import Settings
from ngtcli.decode.probe import plain_generation
from ngtcli.errors import NgtError, counted
from ngtcli.measure.prompts import Item
from ngtcli.measure.records import BASELINE, Answering, Contestant, Generation, Notify
from ngtcli.measure.results import SweepData
from ngtcli.measure.tune import Source, digest, timed_trie
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset
from ngtcli.session.local import LocalSession
from ngtcli.session.session import AnswerOptions, AnswerRun
from ngtcli.trie.store import TrieReport

AGAINST: dict[str, dict[str, int]] = {
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}


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
        """A new session of a model, which is loaded and warmed up once."""
        nonlocal loading
        key = (settings.model, settings.draft_model, settings.device, settings.dtype)
        if key not in sessions:
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
    prompts = [(i.id, [d.text for d in i.documents], i.question) for i in items]
    about = SweepData(
        source="live",
        model=settings.model,
        device=f"{_device(model.device)}, {str(model.dtype).removeprefix('torch.')}",
        data=f"{counted(len(items), 'prompt')} of preset {preset.name}",
        data_sha256=digest([preset.template, prompts]),
        prompts=len(items),
    )
    return Source(about, items, begin)


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} with {counted(threads, 'thread')}"
