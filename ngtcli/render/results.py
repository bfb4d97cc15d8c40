"""Results of `ngt bench` and `ngt tune` in their forms, from declared columns. Measures nothing.

Two swept names make a grid for each figure of a sweep; every sweep makes a list of its cells.
Colours and bars only repeat what the numbers and the marks say.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ngtcli.errors import counted
from ngtcli.measure import results, summary
from ngtcli.measure.grid import as_written, label_of
from ngtcli.render.page import policy, rendered
from ngtcli.render.tables import (
    Column,
    Forms,
    Shaded,
    Table,
    full_width,
    markdown_text,
    to_csv,
    to_markdown,
    to_plain,
    to_terminal,
)
from ngtcli.render.terminal import one_line
from ngtcli.system.json_form import to_json

NamedRow = summary.Row | summary.SplitRow
Shown = tuple[Column, Sequence[str]]  # a column with its cells
_PART_RANKS = {"tree": 1, "verify": 2, "prefill": 3, "cache": 4}  # the others are always shown
# Accepted drafts a step: from which number on.
_BUCKETS = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5–6": 5, "7–9": 7, "10+": 10}
_WHAT = {
    "live": "live measurement",
    "replay": "replay of a recording",
    "quality": "quality against float32",
}
_NOTES = {
    "live": (
        "Speed-up: plain decoding's time by own time, median over prompts, prefill included;"
        " quartiles over prompts. Accept. length: tokens a pass of the model. Spread: the"
        " interquartile range of a prompt's rounds, by their median."
    ),
    "replay": (
        "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
        " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A"
        " recording has neither the cost of passes nor scores: auto drafts as many nodes as it may,"
        " and without the model's runners-up."
    ),
    "quality": (
        "KL: mean divergence of the next token's distribution from float32's, nats a token. Equal"
        " tokens: places with the same likeliest token. EM, F1, ROUGE-L: of greedy answers."
    ),
}
_SPLIT = (
    "Mean µs a step and share of the whole time; prefill in ms a prompt. Tree: the tree and its"
    " mask. Cache: its upkeep."
)
_BY_TASK = {
    "speedup": "Speed-up over plain decoding by task",
    "mean_acceptance_length": "Mean acceptance length by task",
}
_CUT_SHORT = "Interrupted: the figures are of what was measured until then."
_FACTS = ("model", "device", "data", "data_sha256", "prompts")  # of a sweep
_STANDING = {"chosen": "*", "ahead": "*", "tied": "=", "": ""}
UNMEASURED = "·"
SPEED, LENGTH, BUILD, BYTES = FIGURES = tuple(summary.shown_columns(summary.TUNE))


def forms_of(
    result: results.Measured | results.RecordResult | results.SweepReport, every: bool = False
) -> Forms:
    """The forms of a result; `every` adds the grids about the trie on a terminal."""
    if isinstance(result, results.SweepReport):
        return _sweep_forms(result, every)
    if isinstance(result, results.RecordResult):
        done = counted(result.questions, "prompt"), counted(result.new_tokens, "token")
        line = one_line(f"{', '.join(done)}: {result.path}")
        return Forms(result, lambda: line, lambda width, colour: line)
    found, small = tables(result), one_line(" · ".join(facts(result)))
    return Forms(
        result,
        plain=lambda: f"{to_plain(found)}\n\n# {small}",
        terminal=partial(to_terminal, found, small=[small]),
        markdown=lambda: f"{to_markdown(found)}\n\n{small}",
        page=lambda: _page(
            title="ngt bench",
            about=result.model,
            what=_WHAT[result.kind],
            terms={"Command": result.invocation.command, "Run": small},
            warnings=[*([_CUT_SHORT] if result.interrupted else []), *result.notes],
            tables=found,
        ),
    )


def _page(**values: Any) -> str:
    own = {"warnings": (), "sentences": (), "policy": policy(), "script": ""}
    return rendered("result.html.j2", **{**own, **values})


# --- ngt bench ---


def tables(result: results.Measured) -> list[Table]:
    """All tables of a result that have rows, the main one first."""
    figures = summary.shown_columns(result.kind)
    if isinstance(result, results.QualityResult):
        return [_main(result, figures)]
    by_task = (_by_task(result.rows, one) for one in figures if one.name in _BY_TASK)
    found = [_main(result, figures), *by_task, _histograms(_overall(result.rows))]
    if isinstance(result, results.LiveResult):
        found.append(_split(result.split))
    methods, reasons = [r.method for r in result.refused], [r.reason for r in result.refused]
    shown = (Column("method", left=True), methods), (Column("reason", left=True), reasons)
    found.append(_table("Refused", shown))
    return [table for table in found if table.rows]


def facts(result: results.Measured) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    parts = [result.model]
    if not isinstance(result, results.ReplayResult):
        on = result.machine
        parts.append(f"{on.dtype} on {on.device} ({on.device_name})")
        parts.append(f"{on.threads} of {on.cores} cores")
    if isinstance(result, results.LiveResult):
        parts.append(counted(result.rounds, "round"))
        parts.append(f"at most {counted(result.max_tokens, 'token')}")
    elif isinstance(result, results.ReplayResult):
        parts += [f"from {result.source}", f"{result.seconds:.1f} s"]
    if not isinstance(result, results.QualityResult) and result.fresh:
        parts.append("forgetting at each prompt")
    parts += ["interrupted"] if result.interrupted else []
    if (ran := result.invocation).date:
        parts += [f"{name} {ran.versions[name]}" for name in ("ngt", "torch", "transformers")]
        parts.append(ran.date)
    return parts


def _table(title: str, columns: Iterable[Shown], note: str = "") -> Table:
    """A table of columns with their cells."""
    headings, cells = zip(*columns, strict=True)
    return Table(title, headings, list(zip(*cells, strict=True)), note)


def _names(rows: Sequence[NamedRow]) -> list[Shown]:
    """What names the rows: the method, and a draft budget that varies."""
    found: list[Shown] = [(Column("method", left=True), [r.method for r in rows])]
    if len(_budgets(rows)) > 1:
        drafts = [summary.MISSING if r.num_draft is None else str(r.num_draft) for r in rows]
        found.append((Column("drafts"), drafts))
    return found


def _budgets(rows: Sequence[NamedRow]) -> list[int]:
    """The draft budgets, in nodes per step; plain decoding has none."""
    return sorted({r.num_draft for r in rows if r.num_draft})


def _overall(rows: Sequence[summary.Row]) -> list[summary.Row]:
    return [r for r in rows if r.task == summary.OVERALL]


def _figures(
    kind: str, figures: Sequence[summary.Figure], rows: Sequence[summary.AnyRow]
) -> Iterator[Shown]:
    """The columns of a kind's figures, without any in which no row has a value."""
    for figure in figures:
        texts = _barred(figure, rows)
        if set(texts) != {summary.MISSING}:
            yield Column(figure.heading, figure.shown[kind][1]), texts


def _barred(figure: summary.Figure, rows: Sequence[summary.AnyRow]) -> list[str]:
    """The cells of a figure, with a bar for those that are compared by one, up to the largest."""
    texts = [figure.text(row) for row in rows]
    if not figure.bar:
        return texts
    values = [figure.value(row) or 0.0 for row in rows]
    most = max(values, default=0.0) or 1.0
    return [Shaded(text, bar=value / most) for text, value in zip(texts, values, strict=True)]


def _main(result: results.Measured, figures: Sequence[summary.Figure]) -> Table:
    """The rows over all tasks, or each dtype or kind of weights."""
    note = _NOTES[result.kind]
    if isinstance(result, results.QualityResult):
        what = counted(result.texts, "text")
        if result.scored == "answers":
            what = f"the reference answers to {counted(result.texts, 'prompt')}"
        else:
            note += f" Windows of {result.window} tokens, one every {result.stride}."
        named: list[Shown] = [(Column("weights", left=True), [r.weights for r in result.rows])]
        title = f"Quality over {counted(result.rows[0].tokens, 'token')} of {what}"
        return _table(title, [*named, *_figures(result.kind, figures, result.rows)], note)
    rows, how = _overall(result.rows), "live" if result.kind == "live" else "replayed"
    title = f"{counted(result.questions, 'prompt')}, {how}"
    if len(budgets := _budgets(rows)) == 1:
        title += f", at most {counted(budgets[0], 'draft node')} a step"
    return _table(title, [*_names(rows), *_figures(result.kind, figures, rows)], note)


def _by_task(rows: Sequence[summary.Row], figure: summary.Figure) -> Table:
    """A figure of each method by task, overall last; without rows where there is one task."""
    tasks = list(dict.fromkeys(r.task for r in rows if r.task != summary.OVERALL))
    named = _overall(rows) if len(tasks) > 1 else []
    texts = zip(rows, _barred(figure, rows), strict=True)
    found = {(r.method, r.num_draft, r.task): text for r, text in texts}
    shown = _names(named)
    for rank, task in (*enumerate(tasks, 1), (0, summary.OVERALL)):
        cells = [found.get((r.method, r.num_draft, task), summary.MISSING) for r in named]
        shown.append((Column(task, rank), cells))
    return _table(_BY_TASK[figure.name], shown)


def _histograms(rows: Sequence[summary.Row]) -> Table:
    """Share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [r for r in rows if any(r.acceptance_histogram)]
    starts, shares = list(_BUCKETS.values()), []
    for row in drafting:
        steps = [0] * len(_BUCKETS)
        for accepted, count in row.acceptance_histogram.items():
            steps[bisect(starts, accepted) - 1] += count
        shares.append([count / sum(steps) for count in steps])
    shown = _names(drafting)
    for i, title in enumerate(_BUCKETS):
        cells = [Shaded(f"{own[i]:.0%}", bar=own[i]) for own in shares]
        shown.append((Column(title, i), cells))
    return _table("Steps by accepted drafts", shown)


def _split(rows: Sequence[summary.SplitRow]) -> Table:
    """Where the time goes (paper, Figure 5)."""
    shown = _names(rows)
    for part in rows[0].share if rows else ():
        cells = []
        for r in rows:
            took = f"{r.prefill_ms:.1f} ms" if part == "prefill" else f"{r.step_us[part]:.0f}"
            cells.append(Shaded(f"{took} {r.share[part]:.0%}", bar=r.share[part]))
        shown.append((Column(part, _PART_RANKS.get(part, 0)), cells))
    return _table("Where the time goes", shown, _SPLIT)


# --- ngt tune ---


def _marked(row: summary.CellRow, rows: Sequence[summary.CellRow], figure: summary.Figure) -> str:
    """The figure with the cell's mark, heated by its place among `rows`; one half if all tie."""
    values = [v for r in rows if (v := figure.value(r)) is not None]
    own, heat = figure.value(row), 0.5
    if own is not None and max(values) > min(values):
        share = (own - min(values)) / (max(values) - min(values))
        heat = 1.0 - share if figure.less else share
    return Shaded(figure.text(row) + _STANDING[row.standing], heat)


def _grids(report: results.SweepReport, figures: Sequence[summary.Figure]) -> list[Table]:
    """A grid for each figure where two names are swept, else none."""
    return [_grid(report, figure) for figure in figures] if len(report.sweep) == 2 else []


def _grid(report: results.SweepReport, figure: summary.Figure) -> Table:
    (down, rows), (across, columns) = report.sweep.items()
    known = {row.cell: row for row in report.cells}
    impossible = {label_of(cell.values) for cell in report.skipped_cells}
    lines = []
    for value in rows:
        line = [as_written(value)]
        for other in columns:
            place = label_of({down: value, across: other})
            missing = summary.MISSING if place in impossible else UNMEASURED
            row = known.get(place)
            line.append(_marked(row, report.cells, figure) if row else missing)
        lines.append(line)
    # No-break spaces: a heading is broken at the others.
    names = Column(f"{down}\u00a0\\\u00a0{across}", left=True)
    headings = [names, *(Column(as_written(value)) for value in columns)]
    return Table(figure.heading, headings, lines)


def _cell_list(report: results.SweepReport) -> Table:
    """The cells for reading: name, tokens/s with the spread over rounds, length, trie."""
    headings = (("tokens/s", 0), ("±", 4), ("length", 1), ("build ms", 2), ("kB", 3))
    rows = []
    for row in report.cells:
        others = (figure.text(row) for figure in (LENGTH, BUILD, BYTES))
        rows.append([row.cell, _marked(row, report.cells, SPEED), _spread(row), *others])
    return Table("", [Column("", left=True), *(Column(*one) for one in headings)], rows)


def _spread(row: summary.CellRow) -> str:
    """Half the range over rounds, in percent of the median; "" for one round."""
    least, most = row.tokens_per_s_least_and_most
    if row.rounds < 2 or not row.tokens_per_s:
        return ""
    return f"±{50 * (most - least) / row.tokens_per_s:.1f}%"


def _value_table(report: results.SweepReport) -> Table:
    """The cells with all their values, for other programs: as in JSON, not rounded further."""
    figures = "rounds tokens_per_s least most mean_acceptance_length trie_build_s trie_bytes"
    titles = [*figures.split(), "standing"]
    rows = []
    for row, found in zip(report.cells, to_json(report)["cells"], strict=True):
        found["least"], found["most"] = found["tokens_per_s_least_and_most"]
        swept = [as_written(row.values[name]) for name in report.sweep]
        rows.append([*swept, *("" if found[t] is None else str(found[t]) for t in titles)])
    return Table("", [Column(title) for title in (*report.sweep, *titles)], rows)


def _legend(report: results.SweepReport) -> str:
    """What the marks mean; noise is mentioned if every cell has more than one round."""
    known = min((row.rounds for row in report.cells), default=0) > 1
    tied = "within the noise of the best" if known else "not to be told from the best"
    return f"* {'chosen' if report.complete else 'ahead so far'}   = {tied}"


def _conclusion(report: results.SweepReport) -> list[str]:
    """The result in sentences: the cell chosen, ties, skipped cells, what is left to measure."""
    out = []
    for row in report.cells:
        if row.standing in ("chosen", "ahead"):
            found = [f"{SPEED.text(row)} tokens/s", f"acceptance length {LENGTH.text(row)}"]
            if row.trie_bytes is not None:
                found.append(f"trie {BUILD.text(row)} ms and {BYTES.text(row)} kB")
            word = "Chosen" if report.complete else "Ahead so far"
            out += [f"{word}: {row.cell} ({', '.join(found)}).", f"Why: {report.reason}."]
    if len(report.tied) > 1:
        out.append(f"Not to be told apart: {'; '.join(report.tied)}.")
    if skipped := report.skipped_cells:
        reasons = list(dict.fromkeys(cell.reason for cell in skipped))
        more = ", …" if len(reasons) > 2 else ""
        cells = counted(len(skipped), "cell")
        out.append(f"Skipped {cells}: {', '.join(reasons[:2])}{more}.")
    if not report.complete:
        out.append(
            f"{report.measured} of {report.planned} measurements are done; the same command"
            " goes on from here."
        )
    return out


def _sweep_forms(report: results.SweepReport, every: bool) -> Forms:
    values, marks, sentences = _value_table(report), _legend(report), _conclusion(report)

    def terminal(width: int, colour: bool) -> str:
        """Grids side by side where two names are swept and a grid has room, else the cells."""
        shown = _grids(report, FIGURES if every else (SPEED, LENGTH))
        if not shown or max(map(full_width, shown)) > width:
            shown = [_cell_list(report)]
        small = [marks] if report.cells else []
        return to_terminal(shown, width, colour, in_pairs=True, small=small, lines=sentences)

    def markdown() -> str:
        shown = [*_grids(report, (SPEED, LENGTH)), values]
        told = markdown_text(" ".join([f"{marks}.", *sentences]))
        return f"{to_markdown(shown)}\n\n{told}"

    def page() -> str:
        about = {name: str(getattr(report.about, name)) for name in _FACTS}
        grids = _grids(report, FIGURES) if report.cells else []
        grids[-1:] = [replace(grid, note=marks) for grid in grids[-1:]]
        return _page(
            title="ngt tune",
            about=report.about.model,
            what="sweep of settings",
            terms={"command": report.command, **about, "rounds": str(report.rounds)},
            sentences=sentences,
            tables=[*grids, values],
        )

    return Forms(
        report,
        plain=lambda: to_plain([values]),
        terminal=terminal,
        markdown=markdown,
        csv=lambda: to_csv(values),
        page=page,
    )
