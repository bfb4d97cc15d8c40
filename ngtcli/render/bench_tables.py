"""The results of `ngt bench`, live or replayed, as tables. Measures nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ngtcli.render.numbers import MISSING, counted, number, percent, times
from ngtcli.render.results import LiveResult, Measured, ReplayResult, ShapeResult
from ngtcli.render.rows import OVERALL, LiveRow, Pair, Refusal, ReplayRow, SplitRow
from ngtcli.render.shape_rows import ShapeRow
from ngtcli.render.tables import Column, Table

R = TypeVar("R", bound=LiveRow | ReplayRow | ShapeRow)
NamedRow = LiveRow | ReplayRow | ShapeRow | SplitRow
Shown = tuple[int, str, Callable[[R], str]]  # rank, heading, and the text of a row
_PART_RANKS = {"tree": 1, "verify": 2, "prefill": 3, "cache": 4}  # the others are always shown
# Accepted drafts a step, for tables; the page shows every number.
_BUCKETS = (
    ("0", 0, 0), ("1", 1, 1), ("2", 2, 2), ("3", 3, 3), ("4", 4, 4), ("5–6", 5, 6),
    ("7–9", 7, 9), ("10+", 10, 10**9),
)  # fmt: skip


def _range(pair: Pair) -> str:
    return f"{pair[0]:.2f}–{pair[1]:.2f}"


def _hundred(value: float | None) -> str:
    return MISSING if value is None else f"{value * 100:.1f}"


_LIVE: tuple[Shown[LiveRow], ...] = (
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
_REPLAY: tuple[Shown[ReplayRow], ...] = (
    (0, "accept. length", lambda r: number(r.drafting.mean_acceptance_length)),
    (1, "accepted", lambda r: percent(r.drafting.draft_acceptance_rate, 1)),
    (3, "nodes/step", lambda r: number(r.drafting.nodes_per_step, 1)),
    (2, "draft µs", lambda r: number(r.draft_us_median, 0)),
    (5, "99th", lambda r: number(r.draft_us_p99, 0)),
    (4, "undrafted", lambda r: percent(r.drafting.undrafted_share)),
    (6, "steps", lambda r: str(r.drafting.steps)),
    (7, "tokens", lambda r: str(r.drafting.new_tokens)),
)
_SHAPE: tuple[Shown[ShapeRow], ...] = (
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
_LIVE_NOTE = (
    "Speed-up: plain decoding's time by own time, median over prompts, prefill included; quartiles"
    " over prompts. Accept. length: tokens a pass of the model. Spread: the interquartile range of"
    " a prompt's rounds, by their median."
)
_MEMORY = {
    "device": " MiB: most memory of tensors on the GPU, weights included.",
    "process": " MiB: how far a run raised the process's memory, at most.",
    "process-high": " MiB: how far a run raised the process's highest memory so far.",
}
_REPLAY_NOTE = (
    "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
    " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A recording"
    " has neither the cost of passes nor scores: auto drafts as many nodes as it may, and without"
    " the model's runners-up."
)
_SHAPE_NOTE = (
    "Passes are real and timed; which drafts are accepted, the recording says. Speed-up: plain"
    " decoding's time by own time, prefill left out, median over prompts with quartiles; of sums:"
    " all its time by all own time. Accept. length: tokens a pass. Of a step's ms, draft ms are"
    " spent drafting."
)
_SPEEDUPS = "Speed-up over plain decoding by task"


def tables(result: Measured) -> list[Table]:
    """All tables of a result that have rows, the main one first."""
    if isinstance(result, LiveResult):
        found = _live(result)
    else:
        found = _shape(result) if isinstance(result, ShapeResult) else _replay(result)
    found = [*found, _refused(result.refused)]
    return [table for table in found if table is not None and table.rows]


def _live(result: LiveResult) -> list[Table | None]:
    title = f"{counted(result.questions, 'prompt')}, live"
    return [
        _main(title, result.rows, _LIVE, _LIVE_NOTE + _MEMORY[result.memory]),
        _by_task(result.rows, _SPEEDUPS, lambda r: times(r.speedup.median)),
        _lengths(result.rows),
        _histograms(result.rows),
        _split(result.split),
    ]


def _replay(result: ReplayResult) -> list[Table | None]:
    title = f"{counted(result.questions, 'prompt')}, replayed"
    return [
        _main(title, result.rows, _REPLAY, _REPLAY_NOTE),
        _lengths(result.rows),
        _histograms(result.rows),
    ]


def _shape(result: ShapeResult) -> list[Table | None]:
    title = f"{result.label}; {counted(result.questions, 'prompt')}, replayed with real passes"
    return [
        _main(title, result.rows, _SHAPE, _SHAPE_NOTE),
        _by_task(result.rows, _SPEEDUPS, lambda r: times(r.speedup.median)),
        _lengths(result.rows),
        _histograms(result.rows),
    ]


def facts(result: Measured) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    parts = [result.label] if isinstance(result, ShapeResult) else []
    parts.append(result.model)
    if not isinstance(result, ReplayResult):
        machine = result.machine
        parts += [
            f"{machine.dtype} on {machine.device} ({machine.device_name})",
            f"{machine.threads} of {machine.cores} cores",
            counted(result.rounds, "round"),
        ]
    if isinstance(result, LiveResult):
        parts.append(f"at most {result.max_tokens} tokens")
        parts += [counted(result.noise, "unrelated passage")] if result.noise else []
    else:
        parts += [f"from {result.source}", f"{result.seconds:.1f} s"]
    parts += ["forgetting at each prompt"] if result.fresh else []
    parts += ["interrupted"] if result.interrupted else []
    if (ran := result.invocation) is not None:
        parts += [f"{name} {ran.versions[name]}" for name in ("ngt", "torch", "transformers")]
        parts.append(ran.date)
    return parts


def names(rows: Sequence[NamedRow]) -> tuple[list[Column], Callable[[NamedRow], list[str]]]:
    """The columns that name a row, and its cells: the method, and a draft budget that varies."""
    varies = len(_budgets(rows)) > 1
    columns = [Column("method", left=True), *([Column("drafts")] if varies else [])]

    def cells(row: NamedRow) -> list[str]:
        drafts = MISSING if row.num_draft is None else str(row.num_draft)
        return [row.method, drafts] if varies else [row.method]

    return columns, cells


def _budgets(rows: Sequence[NamedRow]) -> list[int]:
    """The draft budgets, in nodes per step; plain decoding has none."""
    return sorted({r.num_draft for r in rows if r.num_draft})


def label(row: NamedRow, rows: Sequence[NamedRow]) -> str:
    """A name for a row among `rows`: its method, with the draft budget if that varies."""
    return " · ".join(part for part in names(rows)[1](row) if part != MISSING)


def overall(rows: Sequence[R]) -> list[R]:
    """The rows that summarise all tasks."""
    return [r for r in rows if r.task == OVERALL]


def _main(title: str, rows: Sequence[R], shown: Sequence[Shown[R]], note: str) -> Table:
    """The rows over all tasks; a column in which no row has a value is left out."""
    rows = overall(rows)
    columns, name = names(rows)
    texts = [[text(r) for r in rows] for _, _, text in shown]
    used = [i for i, column in enumerate(texts) if set(column) != {MISSING}]
    columns += [Column(shown[i][1], shown[i][0]) for i in used]
    cells = [[*name(r), *(texts[i][at] for i in used)] for at, r in enumerate(rows)]
    if len(budgets := _budgets(rows)) == 1:
        title += f", at most {counted(budgets[0], 'draft node')} a step"
    return Table(title, columns, cells, note)


def _lengths(rows: Sequence[R]) -> Table | None:
    title = "Mean acceptance length by task"
    return _by_task(rows, title, lambda r: number(r.drafting.mean_acceptance_length))


def _by_task(rows: Sequence[R], title: str, text: Callable[[R], str]) -> Table | None:
    """A value of each method by task, overall last; None where there is one task."""
    tasks = list(dict.fromkeys(r.task for r in rows if r.task != OVERALL))
    if len(tasks) < 2:
        return None
    columns, name = names(rows)
    found = {(tuple(name(r)), r.task): text(r) for r in rows}
    cells = [
        [*name(r), *(found.get((tuple(name(r)), task), MISSING) for task in (*tasks, OVERALL))]
        for r in overall(rows)
    ]
    columns += [Column(task, i + 1) for i, task in enumerate(tasks)]
    return Table(title, [*columns, Column(OVERALL)], cells)


def _histograms(rows: Sequence[R]) -> Table:
    """Share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [r for r in overall(rows) if any(r.drafting.acceptance_histogram)]
    columns, name = names(drafting)
    cells = [[*name(r), *_shares(r.drafting.acceptance_histogram)] for r in drafting]
    columns += [Column(title, i) for i, (title, _, _) in enumerate(_BUCKETS)]
    return Table("Steps by accepted drafts", columns, cells)


def _shares(counts: Mapping[int, int]) -> list[str]:
    total = sum(counts.values()) or 1
    return [
        percent(sum(v for k, v in counts.items() if low <= k <= high) / total)
        for _, low, high in _BUCKETS
    ]


def _split(rows: Sequence[SplitRow]) -> Table | None:
    """Where the time goes (paper, Figure 5)."""
    if not rows:
        return None
    columns, name = names(rows)
    cells = [
        [
            *name(r),
            f"{r.prefill_ms:.1f} ms {percent(r.share['prefill'])}",
            *(f"{us:.0f} {percent(r.share[part])}" for part, us in r.step_us.items()),
        ]
        for r in rows
    ]
    columns += [Column(part, _PART_RANKS.get(part, 0)) for part in rows[0].share]
    note = (
        "Mean µs a step and share of the whole time; prefill in ms a prompt. Tree: the tree and its"
        " mask. Cache: its upkeep."
    )
    return Table("Where the time goes", columns, cells, note)


def _refused(rows: Sequence[Refusal]) -> Table:
    columns = [Column("method", left=True), Column("reason", left=True)]
    return Table("Refused", columns, [[r.method, r.reason] for r in rows])
