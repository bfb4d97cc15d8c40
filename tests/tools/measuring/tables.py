"""Results of the measuring tools as plain text, Markdown and an HTML page."""

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

# The columns of the histogram of accepted drafts per step, and the number from which each counts.
_BUCKETS = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5–6": 5, "7–9": 7, "10+": 10}
_REPLAY_NOTE = (
    "Accept. length: tokens per forward pass. Accepted: share of drafted tokens. Draft µs: time to"
    " draft in a step, median and 99th percentile. Undrafted: steps without a draft. A recording"
    " has neither the cost of forward passes nor logits: auto drafts the most nodes allowed, and"
    " without the model's runners-up."
)
_QUALITY_NOTE = (
    "KL: mean divergence of the next token's distribution from float32's, in nats a token. Equal"
    " tokens: positions with the same most likely token. EM, F1, ROUGE-L: of greedy answers."
)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0 2rem}caption{text-align:left;font-weight:600}"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #ccc}"
    "th:first-child{text-align:left}"
)


@dataclass(frozen=True, slots=True)
class ToolForms(Forms):
    """The forms of a tool's result: also Markdown and a page. Terminals get the plain text."""

    markdown: Callable[[], str] = str
    page: Callable[[], str] = str


def forms_of(result: ReplayResult | QualityResult | RecordResult) -> ToolForms:
    """Return the forms of a result."""
    if isinstance(result, RecordResult):
        prompts = counted(result.questions, "prompt")
        tokens = counted(result.new_tokens, "token")
        line = one_line(f"{prompts}, {tokens}: {result.path}")
        return ToolForms(result, lambda: line, lambda width, colour: line)
    result_tables = tables(result)
    footer = one_line(" · ".join(facts(result)))
    plain = f"{to_plain(result_tables)}\n\n# {footer}"
    return ToolForms(
        result,
        plain=lambda: plain,
        terminal=lambda width, colour: plain,
        markdown=lambda: f"{to_markdown(result_tables)}\n\n{footer}",
        page=lambda: to_page(result.kind, [result.invocation.command, footer], result_tables),
    )


def tables(result: ReplayResult | QualityResult) -> list[Table]:
    """Return the tables of a result that have rows, the main one first."""
    if isinstance(result, QualityResult):
        return [_quality(result)]
    candidates = [
        _replayed(result),
        _lengths_by_task(result.rows),
        _histograms(_overall(result.rows)),
        _refused(result),
    ]
    return [candidate for candidate in candidates if candidate.rows]


def facts(result: ReplayResult | QualityResult) -> list[str]:
    """Describe the run in short phrases: model, machine, sizes, versions, date."""
    phrases = [result.model]
    if isinstance(result, QualityResult):
        machine = result.machine
        phrases.append(f"{machine.dtype} on {machine.device} ({machine.device_name})")
        phrases.append(f"{machine.threads} of {machine.cores} cores")
    else:
        phrases.append(f"from {result.source}")
        phrases.append(f"{result.seconds:.1f} s")
        if result.fresh:
            phrases.append("forgetting at each prompt")
    invocation = result.invocation
    if invocation.date:
        for name in ("ngt", "torch", "transformers"):
            phrases.append(f"{name} {invocation.versions[name]}")
        phrases.append(invocation.date)
    return phrases


def _overall(rows: Sequence[ReplayRow]) -> list[ReplayRow]:
    return [row for row in rows if row.task == OVERALL]


def _budgets(rows: Sequence[ReplayRow]) -> list[int]:
    """Return the draft budgets in nodes per step; plain decoding has none."""
    return sorted({row.num_draft for row in rows if row.num_draft})


def _names(rows: Sequence[ReplayRow]) -> list[ColumnCells]:
    """Return the columns that name a row: the method, and the draft budget if it varies."""
    columns: list[ColumnCells] = [(Column("method", left=True), [row.method for row in rows])]
    if len(_budgets(rows)) > 1:
        columns.append((Column("drafts"), [str(row.num_draft or 0) for row in rows]))
    return columns


def _replayed(result: ReplayResult) -> Table:
    """Make the table of the figures over all tasks."""
    rows = _overall(result.rows)
    title = f"{counted(result.questions, 'prompt')}, replayed"
    budgets = _budgets(rows)
    if len(budgets) == 1:
        title += f", at most {counted(budgets[0], 'draft node')} per step"
    columns = figures(summary.shown_columns(ReplayRow), rows)
    return table(title, [*_names(rows), *columns], _REPLAY_NOTE)


def _refused(result: ReplayResult) -> Table:
    """Make the table of the methods that a recording cannot measure."""
    methods = [refusal.method for refusal in result.refused]
    reasons = [refusal.reason for refusal in result.refused]
    columns = [(Column("method", left=True), methods), (Column("reason", left=True), reasons)]
    return table("Refused", columns)


def _quality(result: QualityResult) -> Table:
    """Make the table with a row for each dtype or kind of weights."""
    note = _QUALITY_NOTE
    if result.scored == "answers":
        source = f"the reference answers to {counted(result.texts, 'prompt')}"
    else:
        source = counted(result.texts, "text")
        note += f" Windows of {result.window} tokens, one every {result.stride}."
    title = f"Quality over {counted(result.rows[0].tokens, 'token')} of {source}"
    names: ColumnCells = (Column("weights", left=True), [row.weights for row in result.rows])
    columns = figures(summary.shown_columns(QualityRow), result.rows)
    return table(title, [names, *columns], note)


def _lengths_by_task(rows: Sequence[ReplayRow]) -> Table:
    """Make the table of the acceptance length by task, overall last; empty for a single task."""
    tasks = list(dict.fromkeys(row.task for row in rows if row.task != OVERALL))
    methods = _overall(rows) if len(tasks) > 1 else []
    length = next(c for c in summary.columns(ReplayRow) if c.name == "mean_acceptance_length")
    texts = {(row.method, row.num_draft, row.task): length.text(row) for row in rows}
    columns = _names(methods)
    for task in (*tasks, OVERALL):
        cells = [texts.get((row.method, row.num_draft, task), summary.MISSING) for row in methods]
        columns.append((Column(task), cells))
    return table("Mean acceptance length by task", columns)


def _histograms(rows: Sequence[ReplayRow]) -> Table:
    """Make the table of the share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [row for row in rows if any(row.acceptance_histogram)]
    starts = list(_BUCKETS.values())
    shares = []
    for row in drafting:
        steps = [0] * len(_BUCKETS)
        for accepted, count in row.acceptance_histogram.items():
            steps[bisect(starts, accepted) - 1] += count
        shares.append([count / sum(steps) for count in steps])
    columns = _names(drafting)
    for bucket, title in enumerate(_BUCKETS):
        columns.append((Column(title), [f"{row_shares[bucket]:.0%}" for row_shares in shares]))
    return table("Steps by accepted drafts", columns)


def to_markdown(tables: Sequence[Table]) -> str:
    """Format tables as GitHub's Markdown, each under its title."""
    return "\n\n".join(map(_markdown, tables))


def _markdown(table: Table) -> str:
    head, *rows = (f"| {' | '.join(map(markdown_text, line))} |" for line in table.lines)
    rule = "|".join("---" if column.left else "---:" for column in table.columns)
    lines = []
    if table.title:
        lines += [f"### {markdown_text(table.title)}", ""]
    lines += [head, f"|{rule}|", *rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """Put `text` on one line and escape it, so that Markdown shows it unchanged."""
    text = escape(cell(text), quote=False)
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text


def to_page(title: str, lines: Sequence[str], tables: Sequence[Table]) -> str:
    """Format tables as an HTML page that loads nothing from elsewhere."""

    def as_html(text: str) -> str:
        return escape(visible(cell(text)))

    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">',
        f"<title>{as_html(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{as_html(title)}</h1>",
        *(f"<p>{as_html(line)}</p>" for line in lines),
    ]
    for each_table in tables:
        parts.append(f"<table><caption>{as_html(each_table.title)}</caption>")
        for row_number, row in enumerate(each_table.lines):
            cells = []
            for column_number, text in enumerate(row):
                is_heading = row_number == 0 or column_number == 0
                tag = "th" if is_heading else "td"
                cells.append(f"<{tag}>{as_html(text)}</{tag}>")
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append(f"</table><p>{as_html(each_table.note)}</p>")
    parts.append("</body></html>")
    return "\n".join(parts)
