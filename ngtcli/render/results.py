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

Shown = tuple[Column, Sequence[str]]  # a column with its cells
_PART_RANKS = {"draft": 5, "forward": 5, "prefill": 6, "verify": 13, "tree": 14, "cache": 15}
_NOTE = (
    "Speed-up: plain decoding's time by own time, median over prompts, prefill included; quartiles"
    " over prompts. Accept. length: tokens a pass of the model. Spread: the interquartile range of"
    " a prompt's rounds, by their median. Prefill to cache: where the time goes, in shares of it;"
    " tree: the tree and its mask, cache: its upkeep."
)
_STANDING = {"chosen": "*", "ahead": "*", "tied": "=", "": ""}
_BY_NAME = {figure.name: figure for figure in summary.columns(summary.CellRow)}
SPEED, LENGTH = _BY_NAME["tokens_per_s"], _BY_NAME["mean_acceptance_length"]
BUILD, BYTES = _BY_NAME["trie_build_s"], _BY_NAME["trie_bytes"]


def forms_of(result: results.LiveResult | results.SweepReport) -> Forms:
    """The forms of a result."""
    if isinstance(result, results.SweepReport):
        return _sweep_forms(result)
    found, small = bench_table(result), one_line(" · ".join(_facts(result)))
    return Forms(
        result,
        plain=lambda: f"{to_plain([found])}\n\n# {small}",
        terminal=partial(to_terminal, [found], small=[small]),
    )


# --- ngt bench ---


def bench_table(result: results.LiveResult) -> Table:
    """The table of all methods."""
    title = counted(result.questions, "prompt")
    budgets = {row.num_draft for row in result.rows if row.num_draft}
    if len(budgets) == 1:
        title += f", at most {counted(budgets.pop(), 'draft node')} per step"
    shown = [*names(result.rows), *figures(summary.shown_columns(summary.Row), result.rows)]
    return table(title, [*shown, *_parts(result.rows)], _NOTE)


def table(title: str, columns: Iterable[Shown], note: str = "") -> Table:
    """A table of columns with their cells."""
    headings, cells = zip(*columns, strict=True)
    return Table(title, headings, list(zip(*cells, strict=True)), note)


def names(rows: Sequence[summary.Row]) -> list[Shown]:
    """What names the rows: the method, and a draft budget that varies."""
    found: list[Shown] = [(Column("method", left=True), [r.method for r in rows])]
    if len({r.num_draft for r in rows if r.num_draft}) > 1:
        drafts = [summary.MISSING if r.num_draft is None else str(r.num_draft) for r in rows]
        found.append((Column("drafts"), drafts))
    return found


def figures(wanted: Sequence[summary.Figure], rows: Sequence[object]) -> Iterator[Shown]:
    """The columns of these figures, without any in which no row has a value."""
    for figure in wanted:
        texts = [figure.text(row) for row in rows]
        if set(texts) != {summary.MISSING}:
            yield Column(figure.heading, figure.rank), texts


def _parts(rows: Sequence[summary.Row]) -> Iterator[Shown]:
    """Where the time goes (paper, Figure 5): a column for each part."""
    shares = [row.share for row in rows]
    for part in ("prefill", *PARTS) if any(shares) else ():
        texts = [f"{share[part]:.0%}" if share else summary.MISSING for share in shares]
        yield Column(part, _PART_RANKS.get(part, 0)), texts


def _facts(result: results.LiveResult) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    on, ran = result.machine, result.invocation
    parts = [
        result.model,
        f"{on.dtype} on {on.device} ({on.device_name})",
        f"{on.threads} of {on.cores} cores",
        counted(result.rounds, "round"),
        f"at most {counted(result.max_tokens, 'token')}",
    ]
    parts += ["forgetting at each prompt"] if result.fresh else []
    parts += ["interrupted"] if result.interrupted else []
    if ran.date:
        parts += [f"{name} {ran.versions[name]}" for name in ("ngt", "torch", "transformers")]
        parts.append(ran.date)
    return parts


# --- ngt tune ---


def _cell_list(report: results.SweepReport) -> Table:
    """The cells for reading: name, tokens/s with the spread over rounds, length, trie."""
    headings = [Column("cell", left=True), Column(SPEED.heading), Column("±", 4)]
    headings += [Column(figure.heading, figure.rank) for figure in (LENGTH, BUILD, BYTES)]
    rows = []
    for row in report.cells:
        speed = SPEED.text(row) + _STANDING[row.standing]
        others = (figure.text(row) for figure in (LENGTH, BUILD, BYTES))
        rows.append([row.cell, speed, _spread(row), *others])
    return Table("", headings, rows)


def _spread(row: summary.CellRow) -> str:
    """Half the range over rounds, in percent of the median; "" for one round."""
    least, most = row.tokens_per_s_least_and_most
    if row.rounds < 2 or not row.tokens_per_s:
        return ""
    return f"±{50 * (most - least) / row.tokens_per_s:.1f}%"


def _value_table(report: results.SweepReport) -> Table:
    """The cells with all their values, for other programs: as in JSON, not rounded further."""
    wanted = "rounds tokens_per_s least most mean_acceptance_length trie_build_s trie_bytes"
    titles = [*wanted.split(), "standing"]
    rows = []
    for row, found in zip(report.cells, to_json(report)["cells"], strict=True):
        found["least"], found["most"] = found["tokens_per_s_least_and_most"]
        swept = [as_written(row.values[name]) for name in report.sweep]
        rows.append([*swept, *("" if found[t] is None else str(found[t]) for t in titles)])
    return Table("", [Column(title) for title in (*report.sweep, *titles)], rows)


def _legend(report: results.SweepReport) -> str:
    """What the marks mean."""
    return f"* {'chosen' if report.complete else 'ahead so far'}   = statistically tied"


def _conclusion(report: results.SweepReport) -> list[str]:
    """The result in sentences: the cell chosen, ties, what is left to measure."""
    out = []
    for row in report.cells:
        if row.standing in ("chosen", "ahead"):
            found = [f"{SPEED.text(row)} tokens/s", f"acceptance length {LENGTH.text(row)}"]
            if row.trie_bytes is not None:
                found.append(f"trie {BUILD.text(row)} ms and {BYTES.text(row)} kB")
            word = "Chosen" if report.complete else "Ahead so far"
            out += [f"{word}: {row.cell} ({', '.join(found)}).", f"Why: {report.reason}."]
    if len(report.tied) > 1:
        out.append(f"Statistically tied: {'; '.join(report.tied)}.")
    if not report.complete:
        out.append(
            f"{report.measured} of {report.planned} measurements are done; the same command"
            " goes on from here."
        )
    return out


def _sweep_forms(report: results.SweepReport) -> Forms:
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
