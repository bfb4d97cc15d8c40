"""The report of `ngt tune` as tables, sentences and a page. Measures nothing.

Two swept names make a grid for each metric; every sweep makes a list of its cells. Colour only
repeats what the numbers and the marks say.
"""

from collections.abc import Sequence

from ngtcli.errors import counted
from ngtcli.measure.grid import as_written, label_of
from ngtcli.measure.results import SweepReport
from ngtcli.measure.summary import MISSING, TUNE, CellRow, Figure, shown_columns
from ngtcli.render.page import page, text
from ngtcli.render.tables import (
    Column,
    Forms,
    Heated,
    Table,
    markdown_text,
    to_csv,
    to_html,
    to_markdown,
    to_plain,
)
from ngtcli.render.terminal_tables import full_width, to_terminal
from ngtcli.system.json_form import dump_json, to_json

_FACTS = ("model", "device", "data", "data_sha256", "prompts")
MARKS = {"chosen": "*", "ahead": "*", "tied": "=", "": ""}
UNMEASURED = "·"
Metric = tuple[str, Figure]  # the field of a figure of a cell, and its column


SPEED, LENGTH, BUILD, BYTES = METRICS = tuple(shown_columns(TUNE))


def marked(row: CellRow, rows: Sequence[CellRow], metric: Metric) -> str:
    """The figure with the cell's mark, heated by its place among `rows`; one half if all tie."""
    name, column = metric
    values = [v for r in rows if (v := column.value(r, name)) is not None]
    own, heat = column.value(row, name), 0.5
    if own is not None and max(values) > min(values):
        share = (own - min(values)) / (max(values) - min(values))
        heat = 1.0 - share if column.less else share
    return Heated(column.text(row, name) + MARKS[row.standing], heat)


def figure(row: CellRow, metric: Metric) -> str:
    """A figure of a cell as text; a dash if it has none."""
    name, column = metric
    return column.text(row, name)


def grids(report: SweepReport, metrics: Sequence[Metric]) -> list[Table]:
    """A grid for each metric where two names are swept, else none."""
    return [_grid(report, metric) for metric in metrics] if len(report.sweep) == 2 else []


def _grid(report: SweepReport, metric: Metric) -> Table:
    (down, rows), (across, columns) = report.sweep.items()
    known = {row.cell: row for row in report.cells}
    impossible = {label_of(cell.values) for cell in report.skipped_cells}
    lines = []
    for value in rows:
        line = [as_written(value)]
        for other in columns:
            place = label_of({down: value, across: other})
            missing = MISSING if place in impossible else UNMEASURED
            row = known.get(place)
            line.append(marked(row, report.cells, metric) if row else missing)
        lines.append(line)
    # No-break spaces: a heading is broken at the others.
    names = Column(f"{down}\u00a0\\\u00a0{across}", left=True)
    headings = [names, *(Column(as_written(value)) for value in columns)]
    return Table(metric[1].heading, headings, lines)


def cell_list(report: SweepReport) -> Table:
    """The cells for reading: name, tokens/s with the spread over rounds, length, trie."""
    columns = [
        Column("", left=True), Column("tokens/s"), Column("±", 4), Column("length", 1),
        Column("build ms", 2), Column("kB", 3),
    ]  # fmt: skip
    rows = []
    for row in report.cells:
        speed, others = marked(row, report.cells, SPEED), (LENGTH, BUILD, BYTES)
        rows.append([row.cell, speed, spread(row), *(figure(row, one) for one in others)])
    return Table("", columns, rows)


def spread(row: CellRow) -> str:
    """Half the range over rounds, in percent of the median; "" for one round."""
    least, most = row.tokens_per_s_least_and_most
    if row.rounds < 2 or not row.tokens_per_s:
        return ""
    return f"±{50 * (most - least) / row.tokens_per_s:.1f}%"


def value_table(report: SweepReport) -> Table:
    """The cells with all their values, for other programs: as in JSON, not rounded further."""
    titles = (
        "rounds tokens_per_s least most mean_acceptance_length trie_build_s trie_bytes standing"
    )
    columns, rows = [*report.sweep, *titles.split()], []
    for row, found in zip(report.cells, to_json(report)["cells"], strict=True):
        found["least"], found["most"] = found["tokens_per_s_least_and_most"]
        swept = [as_written(row.values[name]) for name in report.sweep]
        texts = ["" if found[title] is None else str(found[title]) for title in titles.split()]
        rows.append([*swept, *texts])
    return Table("", [Column(title) for title in columns], rows)


def legend(report: SweepReport) -> str:
    """What the marks mean; noise is mentioned if every cell has more than one round."""
    known = min((row.rounds for row in report.cells), default=0) > 1
    tied = "within the noise of the best" if known else "not to be told from the best"
    return f"* {'chosen' if report.complete else 'ahead so far'}   = {tied}"


def conclusion(report: SweepReport) -> list[str]:
    """The result in sentences: the cell chosen, ties, skipped cells, what is left to measure."""
    out = []
    for row in report.cells:
        if row.standing in ("chosen", "ahead"):
            facts = [f"{figure(row, SPEED)} tokens/s", f"acceptance length {figure(row, LENGTH)}"]
            if row.trie_bytes is not None:
                facts += [f"trie {figure(row, BUILD)} ms and {figure(row, BYTES)} kB"]
            word = "Chosen" if report.complete else "Ahead so far"
            out += [f"{word}: {row.cell} ({', '.join(facts)}).", f"Why: {report.reason}."]
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


def sweep_forms(report: SweepReport, every: bool = False) -> Forms:
    """The forms of a report by `ngt tune`; `every` adds the grids about the trie on a terminal."""
    values, marks = value_table(report), legend(report)

    def terminal(width: int, colour: bool) -> str:
        """Grids side by side where two names are swept and a grid has room, else the cells."""
        shown = grids(report, METRICS if every else (SPEED, LENGTH))
        if not shown or max(map(full_width, shown)) > width:
            shown = [cell_list(report)]
        small, lines = [marks] if report.cells else [], conclusion(report)
        return to_terminal(
            shown, width=width, colour=colour, in_pairs=True, small=small, lines=lines
        )

    def markdown() -> str:
        shown = [*grids(report, (SPEED, LENGTH)), values]
        sentences = markdown_text(" ".join([f"{marks}.", *conclusion(report)]))
        return f"{to_markdown(shown)}\n\n{sentences}"

    return Forms(
        plain=lambda: to_plain([values]),
        terminal=terminal,
        asked={
            "json": lambda: dump_json(report),
            "markdown": markdown,
            "csv": lambda: to_csv(values),
        },
        page=lambda: sweep_page(report),
    )


def sweep_page(report: SweepReport) -> str:
    """The HTML: the conclusion, grids if two names are swept, then the list of all cells."""
    facts = {name: str(getattr(report.about, name)) for name in _FACTS}
    sentences = [f"<p>{text(sentence)}</p>" for sentence in conclusion(report)]
    shown = grids(report, METRICS) if report.cells else []
    return page(
        "ngt tune",
        report.about.model,
        what="sweep of settings",
        terms={"command": report.command, **facts, "rounds": str(report.rounds)},
        warnings=[],
        body=[
            *sentences,
            *(f"<section>{to_html(grid)}</section>" for grid in shown),
            f'<p class="note">{text(legend(report))}</p>' if shown else "",
            f"<section>{to_html(value_table(report))}</section>",
        ],
    )
