"""Results of the tools that measure, for pipes, in Markdown and as a page."""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from ngtcli.bench import summary
from ngtcli.render.page import policy
from ngtcli.render.results import ColumnCells, figures, table
from ngtcli.render.tables import Column, Forms, Table, to_plain
from ngtcli.render.terminal import cell, one_line, visible
from ngtcli.words import counted
from tests.tools.measuring.results import (
    OVERALL,
    QualityResult,
    QualityRow,
    RecordResult,
    ReplayResult,
    ReplayRow,
)

# Accepted drafts a step: from which number on.
_BUCKETS = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5–6": 5, "7–9": 7, "10+": 10}
_REPLAY_NOTE = (
    "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
    " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A"
    " recording has neither the cost of passes nor scores: auto drafts as many nodes as it may,"
    " and without the model's runners-up."
)
_QUALITY_NOTE = (
    "KL: mean divergence of the next token's distribution from float32's, nats a token. Equal"
    " tokens: places with the same likeliest token. EM, F1, ROUGE-L: of greedy answers."
)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0 2rem}caption{text-align:left;font-weight:600}"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #ccc}"
    "th:first-child{text-align:left}"
)


@dataclass(frozen=True, slots=True)
class ToolForms(Forms):
    """The forms of a tool's result; it has Markdown and a page, and none for terminals."""

    markdown: Callable[[], str] = str
    page: Callable[[], str] = str


def forms_of(result: ReplayResult | QualityResult | RecordResult) -> ToolForms:
    """The forms of a result."""
    if isinstance(result, RecordResult):
        done = counted(result.questions, "prompt"), counted(result.new_tokens, "token")
        line = one_line(f"{', '.join(done)}: {result.path}")
        return ToolForms(result, lambda: line, lambda width, colour: line)
    found, small = tables(result), one_line(" · ".join(facts(result)))
    plain = f"{to_plain(found)}\n\n# {small}"
    return ToolForms(
        result,
        plain=lambda: plain,
        terminal=lambda width, colour: plain,
        markdown=lambda: f"{to_markdown(found)}\n\n{small}",
        page=lambda: to_page(result.kind, [result.invocation.command, small], found),
    )


def tables(result: ReplayResult | QualityResult) -> list[Table]:
    """All tables of a result that have rows, the main one first."""
    if isinstance(result, QualityResult):
        return [_quality(result)]
    found = [_replayed(result), _lengths_by_task(result.rows), _histograms(_overall(result.rows))]
    methods, reasons = [r.method for r in result.refused], [r.reason for r in result.refused]
    shown = (Column("method", left=True), methods), (Column("reason", left=True), reasons)
    found.append(table("Refused", shown))
    return [one for one in found if one.rows]


def facts(result: ReplayResult | QualityResult) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    parts = [result.model]
    if isinstance(result, QualityResult):
        on = result.machine
        parts.append(f"{on.dtype} on {on.device} ({on.device_name})")
        parts.append(f"{on.threads} of {on.cores} cores")
    else:
        parts += [f"from {result.source}", f"{result.seconds:.1f} s"]
        parts += ["forgetting at each prompt"] if result.fresh else []
    ran = result.invocation
    if ran.date:
        parts += [f"{name} {ran.versions[name]}" for name in ("ngt", "torch", "transformers")]
        parts.append(ran.date)
    return parts


def _overall(rows: Sequence[ReplayRow]) -> list[ReplayRow]:
    return [row for row in rows if row.task == OVERALL]


def _budgets(rows: Sequence[ReplayRow]) -> list[int]:
    """The draft budgets, in nodes per step; plain decoding has none."""
    return sorted({row.num_draft for row in rows if row.num_draft})


def _names(rows: Sequence[ReplayRow]) -> list[ColumnCells]:
    """What names the rows: the method, and a draft budget that varies."""
    found: list[ColumnCells] = [(Column("method", left=True), [row.method for row in rows])]
    if len(_budgets(rows)) > 1:
        found.append((Column("drafts"), [str(row.num_draft or 0) for row in rows]))
    return found


def _replayed(result: ReplayResult) -> Table:
    """The rows over all tasks."""
    rows = _overall(result.rows)
    title = f"{counted(result.questions, 'prompt')}, replayed"
    if len(budgets := _budgets(rows)) == 1:
        title += f", at most {counted(budgets[0], 'draft node')} per step"
    shown = figures(summary.shown_columns(ReplayRow), rows)
    return table(title, [*_names(rows), *shown], _REPLAY_NOTE)


def _quality(result: QualityResult) -> Table:
    """A row for each dtype or kind of weights."""
    what, note = counted(result.texts, "text"), _QUALITY_NOTE
    if result.scored == "answers":
        what = f"the reference answers to {counted(result.texts, 'prompt')}"
    else:
        note += f" Windows of {result.window} tokens, one every {result.stride}."
    named: ColumnCells = (Column("weights", left=True), [row.weights for row in result.rows])
    title = f"Quality over {counted(result.rows[0].tokens, 'token')} of {what}"
    shown = figures(summary.shown_columns(QualityRow), result.rows)
    return table(title, [named, *shown], note)


def _lengths_by_task(rows: Sequence[ReplayRow]) -> Table:
    """The acceptance length of each method by task, overall last; no rows for a single task."""
    tasks = list(dict.fromkeys(row.task for row in rows if row.task != OVERALL))
    named = _overall(rows) if len(tasks) > 1 else []
    figure = next(c for c in summary.columns(ReplayRow) if c.name == "mean_acceptance_length")
    found = {(row.method, row.num_draft, row.task): figure.text(row) for row in rows}
    shown = _names(named)
    for task in (*tasks, OVERALL):
        cells = [found.get((r.method, r.num_draft, task), summary.MISSING) for r in named]
        shown.append((Column(task), cells))
    return table("Mean acceptance length by task", shown)


def _histograms(rows: Sequence[ReplayRow]) -> Table:
    """Share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [row for row in rows if any(row.acceptance_histogram)]
    starts, shares = list(_BUCKETS.values()), []
    for row in drafting:
        steps = [0] * len(_BUCKETS)
        for accepted, count in row.acceptance_histogram.items():
            steps[bisect(starts, accepted) - 1] += count
        shares.append([count / sum(steps) for count in steps])
    shown = _names(drafting)
    for i, title in enumerate(_BUCKETS):
        shown.append((Column(title), [f"{own[i]:.0%}" for own in shares]))
    return table("Steps by accepted drafts", shown)


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables in GitHub's Markdown, each under its title."""
    return "\n\n".join(map(_markdown, tables))


def _markdown(table: Table) -> str:
    head, *rows = (f"| {' | '.join(map(markdown_text, line))} |" for line in table.lines)
    rule = "|".join("---" if c.left else "---:" for c in table.columns)
    title = [f"### {markdown_text(table.title)}", ""] if table.title else []
    note = ["", table.note] if table.note else []
    return "\n".join([*title, head, f"|{rule}|", *rows, *note])


def markdown_text(text: str) -> str:
    """`text` on one line, shown by Markdown as it stands."""
    text = escape(cell(text), quote=False)
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text


def to_page(title: str, lines: Sequence[str], found: Sequence[Table]) -> str:
    """The tables as an HTML page that loads nothing from elsewhere."""

    def shown(text: str) -> str:
        return escape(visible(cell(text)))

    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">',
        f"<title>{shown(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{shown(title)}</h1>",
        *(f"<p>{shown(line)}</p>" for line in lines),
    ]
    for one in found:
        parts.append(f"<table><caption>{shown(one.title)}</caption>")
        for number, row in enumerate(one.lines):
            tags = ["th" if number == 0 or place == 0 else "td" for place in range(len(row))]
            cells = (f"<{t}>{shown(text)}</{t}>" for t, text in zip(tags, row, strict=True))
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append(f"</table><p>{shown(one.note)}</p>")
    return "\n".join([*parts, "</body></html>"])
