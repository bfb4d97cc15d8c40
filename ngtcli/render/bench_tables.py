"""The results of `ngt bench`, live or replayed, as tables. Measures nothing."""

from collections.abc import Callable, Mapping, Sequence

from ngtcli.errors import counted
from ngtcli.render.bench_columns import (
    LIVE,
    LIVE_NOTE,
    MEMORY,
    REPLAY,
    REPLAY_NOTE,
    SHAPE,
    SHAPE_NOTE,
    R,
    Shown,
)
from ngtcli.render.numbers import MISSING, number, percent, times
from ngtcli.render.results import LiveResult, Measured, ReplayResult, ShapeResult
from ngtcli.render.rows import OVERALL, LiveRow, Refusal, ReplayRow, SplitRow
from ngtcli.render.shape_rows import ShapeRow
from ngtcli.render.tables import Column, Table

NamedRow = LiveRow | ReplayRow | ShapeRow | SplitRow
_PART_RANKS = {"tree": 1, "verify": 2, "prefill": 3, "cache": 4}  # the others are always shown
# Accepted drafts a step, for tables; the page shows every number.
_BUCKETS = (
    ("0", 0, 0), ("1", 1, 1), ("2", 2, 2), ("3", 3, 3), ("4", 4, 4), ("5–6", 5, 6),
    ("7–9", 7, 9), ("10+", 10, 10**9),
)  # fmt: skip
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
        _main(title, result.rows, LIVE, LIVE_NOTE + MEMORY[result.memory]),
        _by_task(result.rows, _SPEEDUPS, lambda r: times(r.speedup.median)),
        _lengths(result.rows),
        _histograms(result.rows),
        _split(result.split),
    ]


def _replay(result: ReplayResult) -> list[Table | None]:
    title = f"{counted(result.questions, 'prompt')}, replayed"
    return [
        _main(title, result.rows, REPLAY, REPLAY_NOTE),
        _lengths(result.rows),
        _histograms(result.rows),
    ]


def _shape(result: ShapeResult) -> list[Table | None]:
    title = f"{result.label}; {counted(result.questions, 'prompt')}, replayed with real passes"
    return [
        _main(title, result.rows, SHAPE, SHAPE_NOTE),
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
        parts.append(f"at most {counted(result.max_tokens, 'token')}")
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
