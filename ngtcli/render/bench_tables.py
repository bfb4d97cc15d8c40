"""A result of `ngt bench` in its forms: tables, JSON, a page with charts. Measures nothing."""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from html import escape

from ngtcli.errors import counted
from ngtcli.measure.results import (
    LiveResult,
    Measured,
    QualityResult,
    RecordResult,
    ReplayResult,
    SplitRow,
)
from ngtcli.measure.summary import MISSING, OVERALL, AnyRow, Figure, Row, shown_columns
from ngtcli.render.page import Bar, bars, histogram, page, stacks
from ngtcli.render.tables import Column, Forms, Table, to_html, to_markdown, to_plain
from ngtcli.render.terminal import one_line
from ngtcli.render.terminal_tables import to_terminal
from ngtcli.system.json_form import dump_json

NamedRow = Row | SplitRow
_PART_RANKS = {"tree": 1, "verify": 2, "prefill": 3, "cache": 4}  # the others are always shown
# Accepted drafts a step, for tables: from which number on; the page shows every number.
_BUCKETS = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5–6": 5, "7–9": 7, "10+": 10}
_LIVE = (
    "Speed-up: plain decoding's time by own time, median over prompts, prefill included; quartiles"
    " over prompts. Accept. length: tokens a pass of the model. Spread: the interquartile range of"
    " a prompt's rounds, by their median."
)
_REPLAY = (
    "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
    " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A recording"
    " has neither the cost of passes nor scores: auto drafts as many nodes as it may, and without"
    " the model's runners-up."
)
_PRECISION = (
    "KL: mean divergence of the next token's distribution from float32's, nats a token. Equal"
    " tokens: places with the same likeliest token. EM, F1, ROUGE-L: of greedy answers."
)


def tables(result: Measured) -> list[Table]:
    """All tables of a result that have rows, the main one first."""
    if isinstance(result, QualityResult):
        return [_quality(result)]
    prompts, rows = counted(result.questions, "prompt"), result.rows
    if isinstance(result, LiveResult):
        title, note = f"{prompts}, live", _LIVE
    else:
        title, note = f"{prompts}, replayed", _REPLAY
    found = [_main(title, result, note)]
    shown = dict(shown_columns(result.kind))
    for name, by_task in (
        ("speedup", "Speed-up over plain decoding by task"),
        ("mean_acceptance_length", "Mean acceptance length by task"),
    ):
        if name in shown:
            found.append(_by_task(rows, by_task, name, shown[name]))
    found.append(_histograms(rows))
    if isinstance(result, LiveResult) and result.split:
        found.append(_split(result.split))
    columns = [Column("method", left=True), Column("reason", left=True)]
    found.append(Table("Refused", columns, [[r.method, r.reason] for r in result.refused]))
    return [table for table in found if table.rows]


def facts(result: Measured) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    parts = [result.model]
    if not isinstance(result, ReplayResult):
        machine = result.machine
        parts += [
            f"{machine.dtype} on {machine.device} ({machine.device_name})",
            f"{machine.threads} of {machine.cores} cores",
        ]
    if isinstance(result, LiveResult):
        parts.append(counted(result.rounds, "round"))
        parts.append(f"at most {counted(result.max_tokens, 'token')}")
    elif not isinstance(result, QualityResult):
        parts += [f"from {result.source}", f"{result.seconds:.1f} s"]
    if not isinstance(result, QualityResult):
        parts += ["forgetting at each prompt"] if result.fresh else []
    parts += ["interrupted"] if result.interrupted else []
    if (ran := result.invocation).date:
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


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows that summarise all tasks."""
    return [r for r in rows if r.task == OVERALL]


def _main(title: str, result: LiveResult | ReplayResult, note: str) -> Table:
    """The rows over all tasks; a column in which no row has a value is left out."""
    rows = overall(result.rows)
    columns, name = names(rows)
    columns, cells = _figures(result.kind, rows, columns, [name(row) for row in rows])
    if len(budgets := _budgets(rows)) == 1:
        title += f", at most {counted(budgets[0], 'draft node')} a step"
    return Table(title, columns, cells, note)


def _figures(
    kind: str, rows: Sequence[AnyRow], columns: Sequence[Column], cells: list[list[str]]
) -> tuple[list[Column], list[list[str]]]:
    """The columns that name rows and those of a kind's figures, without any that has no value."""
    found = list(columns)
    for field, column in shown_columns(kind):
        texts = [column.text(row, field) for row in rows]
        if set(texts) != {MISSING}:
            found.append(Column(column.heading, column.shown[kind][1]))
            cells = [[*row, text] for row, text in zip(cells, texts, strict=True)]
    return found, cells


def _quality(result: QualityResult) -> Table:
    """Each dtype or kind of weights; how much was scored stands in the title."""
    what = counted(result.texts, "text")
    if result.scored == "answers":
        what = f"the reference answers to {counted(result.texts, 'prompt')}"
    tokens = counted(result.rows[0].tokens, "token")
    named = [[row.weights] for row in result.rows]
    columns, cells = _figures(result.kind, result.rows, [Column("weights", left=True)], named)
    note = _PRECISION
    if result.scored == "texts":
        note += f" Windows of {result.window} tokens, one every {result.stride}."
    return Table(f"Quality over {tokens} of {what}", columns, cells, note)


def _by_task(rows: Sequence[Row], title: str, field: str, figure: Figure) -> Table:
    """A figure of each method by task, overall last; without rows where there is one task."""
    tasks = list(dict.fromkeys(r.task for r in rows if r.task != OVERALL))
    columns, name = names(rows)
    found = {(*name(r), r.task): figure.text(r, field) for r in rows}
    cells = [
        [*name(r), *(found.get((*name(r), task), MISSING) for task in (*tasks, OVERALL))]
        for r in overall(rows)
        if len(tasks) > 1
    ]
    columns += [Column(task, i + 1) for i, task in enumerate(tasks)]
    return Table(title, [*columns, Column(OVERALL)], cells)


def _histograms(rows: Sequence[Row]) -> Table:
    """Share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [r for r in overall(rows) if any(r.acceptance_histogram)]
    columns, name = names(drafting)
    cells = []
    for row in drafting:
        steps = [0] * len(_BUCKETS)
        for accepted, count in row.acceptance_histogram.items():
            steps[bisect(list(_BUCKETS.values()), accepted) - 1] += count
        cells.append([*name(row), *(f"{count / sum(steps):.0%}" for count in steps)])
    columns += [Column(title, i) for i, title in enumerate(_BUCKETS)]
    return Table("Steps by accepted drafts", columns, cells)


def _split(rows: Sequence[SplitRow]) -> Table:
    """Where the time goes (paper, Figure 5)."""
    columns, name = names(rows)
    cells = [
        [
            *name(r),
            f"{r.prefill_ms:.1f} ms {r.share['prefill']:.0%}",
            *(f"{us:.0f} {r.share[part]:.0%}" for part, us in r.step_us.items()),
        ]
        for r in rows
    ]
    columns += [Column(part, _PART_RANKS.get(part, 0)) for part in rows[0].share]
    note = (
        "Mean µs a step and share of the whole time; prefill in ms a prompt. Tree: the tree and its"
        " mask. Cache: its upkeep."
    )
    return Table("Where the time goes", columns, cells, note)


def bench_forms(result: Measured | RecordResult) -> Forms:
    """The forms of a measurement by `ngt bench`; of a recording a line and JSON."""
    if isinstance(result, RecordResult):
        done = counted(result.questions, "prompt"), counted(result.new_tokens, "token")
        line = one_line(f"{', '.join(done)}: {result.path}")
        asked = {"json": lambda: dump_json(result)}
        return Forms(plain=lambda: line, terminal=lambda width, colour: line, asked=asked)
    shown, small = tables(result), one_line(" · ".join(facts(result)))
    return Forms(
        plain=lambda: f"{to_plain(shown)}\n\n# {small}",
        terminal=lambda width, colour: to_terminal(
            shown, width=width, colour=colour, small=[small]
        ),
        asked={
            "json": lambda: dump_json(result),
            "markdown": lambda: f"{to_markdown(shown)}\n\n{small}",
        },
        page=lambda: bench_page(result),
    )


def bench_page(result: Measured) -> str:
    """The HTML of a measurement."""
    if isinstance(result, QualityResult):
        return _page(result, "quality against float32", [])
    rows, what = overall(result.rows), "replay of a recording"
    pictures = []
    if isinstance(result, LiveResult):
        note = "Median over prompts, prefill included; the whisker spans the quartiles."
        quartiles = "speedup_quartiles"
        pictures += _bars(
            "Speed-up over plain decoding", rows, "speedup", "{:.2f}×", quartiles, note
        )
    note = "Tokens a pass of the model; plain decoding is at 1."
    pictures += _bars("Mean acceptance length", rows, "mean_acceptance_length", "{:.2f}", "", note)
    pictures += _accepted(rows)
    if isinstance(result, LiveResult):
        what = "live measurement"
        pictures += _parts(result.split)
    return _page(result, what, pictures)


def _page(result: Measured, what: str, pictures: Sequence[str]) -> str:
    """The page of all tables, with `pictures` below the first."""
    shown = tables(result)
    cut_short = ["Interrupted: the figures are of what was measured until then."]
    return page(
        "ngt bench",
        result.model,
        what=what,
        terms={"Command": result.invocation.command, "Run": " · ".join(facts(result))},
        warnings=[*(cut_short if result.interrupted else []), *result.notes],
        body=[
            to_html(shown[0]) if shown else "<p>Nothing was measured.</p>",
            *pictures,
            *(f"<section>{to_html(table)}</section>" for table in shown[1:]),
        ],
    )


def _section(title: str, body: str, note: str) -> list[str]:
    head, below = f"<h2>{escape(title)}</h2>", f'<p class="note">{escape(note)}</p>'
    return [f'<section>{head}<div class="wide">{body}</div>{below}</section>']


def _bars(
    title: str, rows: Sequence[Row], name: str, form: str, whisker: str, note: str
) -> list[str]:
    """A bar for each row that has the figure `name`, with the pair `whisker` on it, if any."""
    known, drawn = [r for r in rows if getattr(r, name) is not None], list[Bar]()
    for r in known:
        value, span = getattr(r, name), getattr(r, whisker) if whisker else None
        drawn.append(Bar(label(r, known), value, form.format(value), span))
    return _section(title, bars(title, drawn, 1.0), note) if known else []


def _accepted(rows: Sequence[Row]) -> list[str]:
    """Histograms with common axes, one per row that accepted a draft."""
    found = [(r, r.acceptance_histogram) for r in rows if any(r.acceptance_histogram)]
    if not found:
        return []
    longest = max(max(counts) for _, counts in found)
    most = max(max(counts.values()) / sum(counts.values()) for _, counts in found)
    drawn = ""
    for r, counts in found:
        shown = [counts.get(accepted, 0) for accepted in range(longest + 1)]
        of = f"length {r.mean_acceptance_length:.2f}, {counted(sum(shown), 'step')}"
        drawn += histogram(label(r, rows), shown, most, of)
    note = "Share of steps by the number of drafts accepted; all on the same axes."
    return _section("Accepted drafts a step", f'<div class="grid">{drawn}</div>', note)


def _parts(rows: Sequence[SplitRow]) -> list[str]:
    if not rows:
        return []
    drawn = [(label(r, rows), list(r.share.values()), _step(r.step_us)) for r in rows]
    title = "Where the time goes"
    note = "Shares of prefill and of the parts of decoding; at the right, the mean time of a step."
    return _section(title, stacks(title, list(rows[0].share), drawn), note)


def _step(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return f"{total / 1000:.2f} ms" if total >= 1000 else f"{total:.0f} µs"
