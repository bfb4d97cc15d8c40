"""Results of `ngt bench` and `ngt tune` as tables, from declared columns. Measures nothing."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ngtcli.bench import results, summary
from ngtcli.bench.grid import as_written
from ngtcli.drafting.steps import PARTS
from ngtcli.render.tables import Column, Forms, Table, to_csv, to_plain, to_terminal
from ngtcli.render.terminal import one_line
from ngtcli.system.json_form import to_json
from ngtcli.words import counted

ColumnCells = tuple[Column, Sequence[str]]  # a column with its cells
_PART_RANKS = {"draft": 5, "forward": 5, "prefill": 6, "verify": 13, "tree": 14, "cache": 15}
_NOTE = (
    "Speed-up: the time of plain decoding divided by that of the method, prefill included; median"
    " and quartiles over prompts. Accept. length: tokens per forward pass. Spread: interquartile"
    " range of a prompt's rounds, divided by their median. Prefill to cache: shares of the time;"
    " tree: the tree and its mask, cache: its upkeep."
)
_STANDING_MARKS = {"chosen": "*", "ahead": "*", "tied": "=", "": ""}
_BY_NAME = {figure.name: figure for figure in summary.columns(summary.CellRow)}
_VALUES = (  # keys of a cell in JSON, as columns for other programs
    "rounds",
    "tokens_per_s",
    "least",
    "most",
    "mean_acceptance_length",
    "trie_build_s",
    "trie_bytes",
    "standing",
)
SPEED = _BY_NAME["tokens_per_s"]
LENGTH = _BY_NAME["mean_acceptance_length"]
BUILD = _BY_NAME["trie_build_s"]
BYTES = _BY_NAME["trie_bytes"]


def forms_of(result: results.LiveResult | results.SweepReport) -> Forms:
    """Return the forms of a result."""
    if isinstance(result, results.SweepReport):
        return _sweep_forms(result)
    table_of_methods = bench_table(result)
    run_facts = one_line(" · ".join(_facts(result)))
    return Forms(
        result,
        plain=lambda: f"{to_plain([table_of_methods])}\n\n# {run_facts}",
        terminal=partial(to_terminal, [table_of_methods], small=[run_facts]),
    )


# --- ngt bench ---


def bench_table(result: results.LiveResult) -> Table:
    """Return the table of all methods."""
    title = counted(result.questions, "prompt")
    budgets = {row.num_draft for row in result.rows if row.num_draft}
    if len(budgets) == 1:
        title += f", at most {counted(budgets.pop(), 'draft node')} per step"
    columns = [
        *names(result.rows),
        *figures(summary.shown_columns(summary.Row), result.rows),
        *_time_shares(result.rows),
    ]
    return table(title, columns, _NOTE)


def table(title: str, columns: Iterable[ColumnCells], note: str = "") -> Table:
    """Return a table of columns with their cells."""
    headings, cells = zip(*columns, strict=True)
    return Table(title, headings, list(zip(*cells, strict=True)), note)


def names(rows: Sequence[summary.Row]) -> list[ColumnCells]:
    """Return the columns that name the rows: the method, and the draft budget where it varies."""
    columns: list[ColumnCells] = [(Column("method", left=True), [row.method for row in rows])]
    budgets = {row.num_draft for row in rows if row.num_draft}
    if len(budgets) > 1:
        cells = [summary.MISSING if row.num_draft is None else str(row.num_draft) for row in rows]
        columns.append((Column("drafts"), cells))
    return columns


def figures(wanted: Sequence[summary.Figure], rows: Sequence[object]) -> Iterator[ColumnCells]:
    """Yield the columns of the figures that some row has a value of."""
    for figure in wanted:
        texts = [figure.text(row) for row in rows]
        if set(texts) != {summary.MISSING}:
            yield Column(figure.heading, figure.rank), texts


def _time_shares(rows: Sequence[summary.Row]) -> Iterator[ColumnCells]:
    """Yield a column for each part of a step, with its share of the time (paper, Figure 5)."""
    shares = [row.share for row in rows]
    if not any(shares):
        return
    for part in ("prefill", *PARTS):
        texts = [f"{share[part]:.0%}" if share else summary.MISSING for share in shares]
        yield Column(part, _PART_RANKS.get(part, 0)), texts


def _facts(result: results.LiveResult) -> list[str]:
    """Describe the run in short phrases: model, machine, sizes, versions, date."""
    machine = result.machine
    invocation = result.invocation
    facts = [
        result.model,
        f"{machine.dtype} on {machine.device} ({machine.device_name})",
        f"{machine.threads} of {machine.cores} cores",
        counted(result.rounds, "round"),
        f"at most {counted(result.max_tokens, 'token')}",
    ]
    if result.fresh:
        facts.append("forgetting at each prompt")
    if result.interrupted:
        facts.append("interrupted")
    if invocation.date:
        packages = ("ngt", "torch", "transformers")
        facts += [f"{package} {invocation.versions[package]}" for package in packages]
        facts.append(invocation.date)
    return facts


# --- ngt tune ---


def _cell_list(report: results.SweepReport) -> Table:
    """Return the cells for people: name, tokens/s with the spread over rounds, length, trie."""
    headings = [Column("cell", left=True), Column(SPEED.heading), Column("±", 4)]
    headings += [Column(figure.heading, figure.rank) for figure in (LENGTH, BUILD, BYTES)]
    rows: list[list[str]] = []
    for row in report.cells:
        speed = SPEED.text(row) + _STANDING_MARKS[row.standing]
        figures_of_row = [figure.text(row) for figure in (LENGTH, BUILD, BYTES)]
        rows.append([row.cell, speed, _spread(row), *figures_of_row])
    return Table("", headings, rows)


def _spread(row: summary.CellRow) -> str:
    """Return half the range over rounds, in percent of the median; "" for one round."""
    slowest, fastest = row.tokens_per_s_least_and_most
    if row.rounds < 2 or not row.tokens_per_s:
        return ""
    return f"±{50 * (fastest - slowest) / row.tokens_per_s:.1f}%"


def _value_table(report: results.SweepReport) -> Table:
    """Return the cells with all their values, for other programs: as in JSON, not rounded."""
    rows: list[list[str]] = []
    for cell, values in zip(report.cells, to_json(report)["cells"], strict=True):
        values["least"], values["most"] = values["tokens_per_s_least_and_most"]
        swept = [as_written(cell.values[name]) for name in report.sweep]
        measured = ["" if values[name] is None else str(values[name]) for name in _VALUES]
        rows.append([*swept, *measured])
    return Table("", [Column(title) for title in (*report.sweep, *_VALUES)], rows)


def _legend(report: results.SweepReport) -> str:
    """Explain the marks."""
    return f"* {'chosen' if report.complete else 'ahead so far'}   = statistically tied"


def _conclusion(report: results.SweepReport) -> list[str]:
    """Return the result in sentences: the cell chosen, ties, what is left to measure."""
    sentences: list[str] = []
    for row in report.cells:
        if row.standing not in ("chosen", "ahead"):
            continue
        facts = [f"{SPEED.text(row)} tokens/s", f"acceptance length {LENGTH.text(row)}"]
        if row.trie_bytes is not None:
            facts.append(f"trie {BUILD.text(row)} ms and {BYTES.text(row)} kB")
        standing = "Chosen" if report.complete else "Ahead so far"
        sentences.append(f"{standing}: {row.cell} ({', '.join(facts)}).")
        sentences.append(f"Why: {report.reason}.")
    if len(report.tied) > 1:
        sentences.append(f"Statistically tied: {'; '.join(report.tied)}.")
    if not report.complete:
        sentences.append(
            f"{report.measured} of {report.planned} measurements are done; the same command"
            " continues from here."
        )
    return sentences


def _sweep_forms(report: results.SweepReport) -> Forms:
    """Return the forms of a sweep."""
    values = _value_table(report)

    def terminal(width: int, color: bool) -> str:
        small = [_legend(report)] if report.cells else []
        lines = _conclusion(report)
        return to_terminal([_cell_list(report)], width, color, small=small, lines=lines)

    return Forms(
        report,
        plain=lambda: to_plain([values]),
        terminal=terminal,
        csv=lambda: to_csv(values),
    )
