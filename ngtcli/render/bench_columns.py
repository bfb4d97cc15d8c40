"""The columns of `ngt bench`'s main tables: live, replayed, with real passes; and their notes."""

from collections.abc import Callable
from typing import TypeVar

from ngtcli.render.numbers import MISSING, number, percent, times
from ngtcli.render.rows import LiveRow, Pair, ReplayRow
from ngtcli.render.shape_rows import ShapeRow

R = TypeVar("R", bound=LiveRow | ReplayRow | ShapeRow)
Shown = tuple[int, str, Callable[[R], str]]  # rank, heading, and the text of a row


def _range(pair: Pair) -> str:
    return f"{pair[0]:.2f}–{pair[1]:.2f}"


def _hundred(value: float | None) -> str:
    return MISSING if value is None else f"{value * 100:.1f}"


LIVE: tuple[Shown[LiveRow], ...] = (
    (0, "speed-up", lambda r: times(r.speedup.median)),
    (4, "quartiles", lambda r: _range(r.speedup.quartiles)),
    (9, "over hf", lambda r: times(r.speedup_over_hf.median if r.speedup_over_hf else None)),
    (1, "accept. length", lambda r: number(r.drafting.mean_acceptance_length)),
    (2, "same ids", lambda r: f"{r.same_ids}/{r.questions}"),
    (3, "tokens/s", lambda r: number(r.times.tokens_per_s_with_prefill, 1)),
    (6, "EM", lambda r: _hundred(r.scores.exact_match if r.scores else None)),
    (5, "F1", lambda r: _hundred(r.scores.f1 if r.scores else None)),
    (7, "ROUGE-L", lambda r: _hundred(r.scores.rouge_l if r.scores else None)),
    (8, "seconds", lambda r: number(r.times.seconds_median, 3)),
    (11, "spread", lambda r: percent(r.times.spread)),
    (10, "accepted", lambda r: percent(r.drafting.draft_acceptance_rate, 1)),
    (12, "undrafted", lambda r: percent(r.drafting.undrafted_share)),
    (13, "MiB", lambda r: number(r.peak_memory_mib, 1)),
)
REPLAY: tuple[Shown[ReplayRow], ...] = (
    (0, "accept. length", lambda r: number(r.drafting.mean_acceptance_length)),
    (1, "accepted", lambda r: percent(r.drafting.draft_acceptance_rate, 1)),
    (3, "nodes/step", lambda r: number(r.drafting.nodes_per_step, 1)),
    (2, "draft µs", lambda r: number(r.draft_us_median, 0)),
    (5, "99th", lambda r: number(r.draft_us_p99, 0)),
    (4, "undrafted", lambda r: percent(r.drafting.undrafted_share)),
    (6, "steps", lambda r: str(r.drafting.steps)),
    (7, "tokens", lambda r: str(r.drafting.new_tokens)),
)
SHAPE: tuple[Shown[ShapeRow], ...] = (
    (0, "speed-up", lambda r: times(r.speedup.median)),
    (4, "quartiles", lambda r: _range(r.speedup.quartiles)),
    (3, "of sums", lambda r: times(r.times.speedup_overall)),
    (1, "accept. length", lambda r: number(r.drafting.mean_acceptance_length)),
    (2, "tokens/s", lambda r: number(r.times.tokens_per_s, 1)),
    (5, "ms/step", lambda r: number(r.times.step_ms, 1)),
    (6, "draft ms", lambda r: number(r.times.draft_ms, 2)),
    (7, "nodes/step", lambda r: number(r.drafting.nodes_per_step, 1)),
    (8, "accepted", lambda r: percent(r.drafting.draft_acceptance_rate, 1)),
    (9, "undrafted", lambda r: percent(r.drafting.undrafted_share)),
    (10, "spread", lambda r: percent(r.times.spread)),
)
LIVE_NOTE = (
    "Speed-up: plain decoding's time by own time, median over prompts, prefill included; quartiles"
    " over prompts. Accept. length: tokens a pass of the model. Spread: the interquartile range of"
    " a prompt's rounds, by their median."
)
MEMORY = {
    "device": " MiB: most memory of tensors on the GPU, weights included.",
    "process": " MiB: how far a run raised the process's memory, at most.",
    "process-high": " MiB: how far a run raised the process's highest memory so far.",
}
REPLAY_NOTE = (
    "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
    " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A recording"
    " has neither the cost of passes nor scores: auto drafts as many nodes as it may, and without"
    " the model's runners-up."
)
SHAPE_NOTE = (
    "Passes are real and timed; which drafts are accepted, the recording says. Speed-up: plain"
    " decoding's time by own time, prefill left out, median over prompts with quartiles; of sums:"
    " all its time by all own time. Accept. length: tokens a pass. Of a step's ms, draft ms are"
    " spent drafting."
)
