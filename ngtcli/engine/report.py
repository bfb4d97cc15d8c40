"""Reports on an answer besides its text: sources, facts, details and remarks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.support import DraftSupport
from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import copied_fact, sources_of
from ngtcli.engine.events import Ended
from ngtcli.engine.session import ModelFacts
from ngtcli.engine.speed import plain_decoding_s
from ngtcli.models.quantized import name_of
from ngtcli.words import counted


def with_sources(answer: Ended, documents: Sequence[Document]) -> Ended:
    """Return an answer with its sources: the spans that it copies from what the model read."""
    excerpts = answer.selection.excerpts if answer.selection else None
    sources = sources_of(answer.text, documents, excerpts)
    facts = answer.facts
    if documents:
        facts = (*facts, copied_fact(sources, excerpts is not None))
    return replace(answer, sources=sources, facts=facts)


def speed_fact(settings: Settings, answer: Ended) -> str:
    """Return the first fact below an answer: tokens, seconds, and the speedup by drafting.

    Seconds and rate are those of prefill and decoding; the speedup is that of decoding.
    """
    s = answer.statistics
    reasoning = f", {s.thought_tokens} of reasoning," if s.thought_tokens else ""
    seconds = s.prefill_s + s.decode_s
    rates = [f"{_rounded(s.new_tokens / seconds)}/s"] if seconds and s.new_tokens else []
    plain_s = plain_decoding_s(settings, answer)
    if s.drafted_tokens and s.decode_s and plain_s is not None:
        rates.append(f"{plain_s / s.decode_s:.1f}× by drafting")
    speed = f" ({', '.join(rates)})" if rates else ""
    return f"{counted(s.new_tokens, 'token')}{reasoning} in {seconds:.1f} s{speed}"


def _rounded(rate: float) -> str:
    """Format tokens per second, with one decimal below 10."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def details(settings: Settings, model: ModelFacts, answer: Ended) -> Iterator[str]:
    """Yield the facts that -v adds: how an answer was drafted, prefilled and decoded."""
    s = answer.statistics
    if s.drafted_tokens:
        share = s.accepted_tokens / s.new_tokens if s.new_tokens else 0.0
        yield f"acceptance length {s.mean_acceptance_length:.2f}"
        yield f"{share:.0%} drafted"
        if s.accepted_prediction_tokens:
            yield f"{counted(s.accepted_prediction_tokens, 'token')} as predicted"
    else:
        yield f"nothing drafted: {_why_no_drafts(settings, model, answer)}"
    yield f"prefill {s.prefill_s:.2f} s"
    if s.cached_tokens:
        place = "memory and disk"
        if s.cached_from_disk == 0:
            place = "memory"
        elif s.cached_from_disk == s.cached_tokens:
            place = "disk"
        yield (
            f"{s.cached_tokens:,} of {s.prompt_tokens:,} tokens read before, from {place} in"
            f" {s.cached_s:.2f} s instead of {s.cached_read_s:.2f} s"
        )
    yield f"decoding {s.decode_s:.2f} s ({s.tokens_per_s:.1f} tokens/s)"
    if answer.finish_reason == "length":
        yield "stopped at max-tokens"
    if answer.finish_reason == "repetition":
        yield "stopped: it repeats itself"
    if answer.policy and answer.policy.budgets:
        sizes = sorted(Counter(answer.policy.budgets).elements())
        yield f"nodes per step {sizes[0]}–{sizes[-1]}, median {sizes[len(sizes) // 2]}"
        if answer.policy.stand_downs:
            yield f"drafting paused {counted(answer.policy.stand_downs, 'time')}"
    if answer.trie.status != "none":
        yield f"trie {answer.trie.status} in {answer.trie.seconds * 1000:.0f} ms"


def _why_no_drafts(settings: Settings, model: ModelFacts, answer: Ended) -> str:
    """Return the reason that nothing was drafted."""
    if settings.drafting.method == "none":
        return "method none"
    if model.draft_support is DraftSupport.NONE:
        return model.draft_why
    if settings.drafting.num_draft == 0:
        return "num-draft is 0"
    if answer.exact and model.draft_support is not DraftSupport.TREES:
        return f"exact only without drafts, because {model.draft_why}"
    if answer.policy:
        return "it would not have been faster"
    return "no match"


def remarks(
    settings: Settings, model: ModelFacts, answer: Ended, numerics: Numerics, background: str
) -> Iterator[str]:
    """Yield the sentences that -v shows below an answer.

    Args:
        settings: The settings of the answer.
        model: The model that answered.
        answer: The answer.
        numerics: Whether the answer is exact.
        background: A sentence on the general text that it was drafted from, "" without one.
    """
    saving = _saving(settings, answer)
    if saving:
        yield saving
    if background:
        yield background
    dtype = name_of(model.dtype)
    number_format = dtype if settings.model.quantize == "none" else settings.model.quantize
    if model.draft_support is not DraftSupport.NONE:
        if numerics.is_exact:
            yield f"Exact: {numerics.why}; plain decoding with --exact has the same tokens."
        elif number_format != "float32":
            yield (
                f"Not exact: in {number_format} drafts may change tokens at near ties; see --exact."
            )
    if model.draft_support is DraftSupport.CHAINS:
        yield f"Drafts have no branches: {model.draft_why}."
    if model.dtype_why:
        yield f"Computed in {dtype}: {model.dtype_why}."
    if model.unused:
        unused = ", ".join(f"{name}={_short(value)}" for name, value in model.unused.items())
        yield f"Generation settings of the model that ngt does not use: {unused}."
    if model.prefix_caching.is_refused and settings.cache.keep_documents != "off":
        yield f"What the model reads is not cached for later questions: {model.prefix_caching.why}."
    if model.capturing.is_refused and model.draft_support is DraftSupport.TREES:
        yield f"Forward passes are not captured: {model.capturing.why}."


def _saving(settings: Settings, answer: Ended) -> str:
    """Return a sentence on the time that drafting saved, "" if unknown or nothing was drafted."""
    s = answer.statistics
    plain_s = plain_decoding_s(settings, answer)
    if plain_s is None or not s.drafted_tokens:
        return ""
    saved_s = plain_s - s.decode_s
    verb = "saved" if saved_s >= 0 else "cost"
    return (
        f"Drafting {verb} {abs(saved_s):.2f} s: plain decoding"
        f" would have taken about {plain_s:.2f} s for {s.new_tokens:,} forward passes,"
        f" and this took {s.decode_s:.2f} s for {s.steps:,}."
    )


def _short(value: object, max_length: int = 40) -> str:
    text = str(value)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
