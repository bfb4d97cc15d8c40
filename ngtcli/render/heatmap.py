"""The report of a sweep as text: heat maps and lists for a terminal, a pipe, Markdown, CSV, a page.

Takes the mapping that `--json` prints; independent of measuring. Colour only repeats what the
numbers and the marks say.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ngtcli.render.terminal import visible

MARKS = {"chosen": "*", "ahead": "*", "tied": "=", "": ""}
SKIPPED, UNMEASURED = "–", "·"
# Colours of 256, pale to strong green, legible with black letters; guess.
_RAMP = (255, 194, 157, 120, 83)

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a cell: its JSON key, its heading, how to write it, whether less is better."""

    key: str
    title: str
    form: str
    scale: float = 1.0
    less: bool = False

    def text(self, row: Mapping[str, Any]) -> str:
        """The value of a cell's row as text; a dash if it has none."""
        value = row[self.key]
        return SKIPPED if value is None else self.form.format(value * self.scale)


SPEED = Metric("tokens_per_s", "tokens/s", "{:.1f}")
LENGTH = Metric("mean_acceptance_length", "acceptance length", "{:.3f}")
BUILD = Metric("trie_build_s", "trie build, ms", "{:.2f}", 1e3, less=True)
BYTES = Metric("trie_bytes", "trie, kB", "{:.1f}", 1e-3, less=True)
METRICS = (SPEED, LENGTH, BUILD, BYTES)
_COLUMNS = (
    "rounds", "tokens_per_s", "least", "most", "mean_acceptance_length", "trie_build_s",
    "trie_bytes", "standing",
)  # fmt: skip


def shown(value: Any) -> str:
    """A swept value in the form of the command line, without control characters."""
    if isinstance(value, bool):
        return str(value).lower()
    return visible(",".join(value) if isinstance(value, list | tuple) else str(value))


def heat(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], metric: Metric) -> float:
    """0 for the worst of `rows`, 1 for the best; one half where all are alike."""
    values = [r[metric.key] for r in rows if r[metric.key] is not None]
    if row[metric.key] is None or max(values) == min(values):
        return 0.5
    share: float = (row[metric.key] - min(values)) / (max(values) - min(values))
    return 1.0 - share if metric.less else share


def spread(row: Mapping[str, Any]) -> str:
    """Half the range over rounds, in percent of the median; "" for one round."""
    least, most = row["tokens_per_s_least_and_most"]
    if row["rounds"] < 2 or not row["tokens_per_s"]:
        return ""
    return f"±{50 * (most - least) / row['tokens_per_s']:.1f}%"


def conclusion(report: Report) -> list[str]:
    """The result in sentences: the cell chosen, ties, skipped cells, what is left to measure."""
    out = []
    if (chosen := _chosen(report)) is not None:
        facts = [f"{SPEED.text(chosen)} tokens/s", f"acceptance length {LENGTH.text(chosen)}"]
        if chosen["trie_bytes"] is not None:
            facts += [f"trie {BUILD.text(chosen)} ms and {BYTES.text(chosen)} kB"]
        word = "Chosen" if report["complete"] else "Ahead so far"
        out.append(f"{word}: {visible(chosen['cell'])} ({', '.join(facts)}).")
        out.append(f"Why: {visible(report['reason'])}.")
    if len(report["tied"]) > 1:
        out.append(f"Not to be told apart: {visible('; '.join(report['tied']))}.")
    if skipped := report["skipped"]:
        reasons = dict.fromkeys(s["reason"] for s in skipped)
        more = ", …" if len(reasons) > 2 else ""
        cells = "1 cell" if len(skipped) == 1 else f"{len(skipped)} cells"
        out.append(f"Skipped {cells}: {visible(', '.join(list(reasons)[:2]))}{more}.")
    if not report["complete"]:
        out.append(
            f"{report['measured']} of {report['planned']} measurements are done; the same command"
            " goes on from here."
        )
    return out


def _chosen(report: Report) -> Mapping[str, Any] | None:
    return next((row for row in report["cells"] if row["standing"] in ("chosen", "ahead")), None)


def legend(report: Report) -> str:
    """What the marks mean; noise is mentioned if every cell has more than one round."""
    known = min((row["rounds"] for row in report["cells"]), default=0) > 1
    tied = "within the noise of the best" if known else "not to be told from the best"
    return f"* {'chosen' if report['complete'] else 'ahead so far'}   = {tied}"


def grid_cells(report: Report) -> list[tuple[str, list[Mapping[str, Any] | str]]]:
    """The grid of two swept names: per row a heading and its cells, or a sign for no cell."""
    (down, rows), (across, columns) = report["sweep"].items()
    known = {_place(row["values"]): row for row in report["cells"]}
    skipped = {_place(s["values"]) for s in report["skipped"]}
    out = []
    for value in rows:
        line: list[Mapping[str, Any] | str] = []
        for other in columns:
            place = _place({down: value, across: other})
            line.append(known.get(place) or (SKIPPED if place in skipped else UNMEASURED))
        out.append((shown(value), line))
    return out


def _place(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={shown(value)}" for name, value in sorted(values.items()))


def to_terminal(report: Report, width: int, colour: bool, every: bool = False) -> str:
    """The report for a terminal of `width` columns; `every` adds the grids about the trie."""
    part: RenderableType = _list(report, width)
    if len(report["sweep"]) == 2:
        grids = [_grid(report, f) for f in (METRICS if every else (SPEED, LENGTH))]
        wide = max(Console(width=1000).measure(g).maximum for g in grids)
        if wide <= width:
            part = _beside(grids, wide, width)
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False,
        color_system="256" if colour else None, highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    console.print(part)
    if report["cells"]:
        console.print(legend(report), style=Style(dim=True))
    for sentence in conclusion(report):
        console.print(sentence)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n"))


def _beside(grids: Sequence[Table], wide: int, width: int) -> RenderableType:
    if 2 * wide + 3 > width:
        return Group(*grids)
    pairs = Table.grid(padding=(0, 3))
    for i in range(0, len(grids), 2):
        pairs.add_row(*grids[i : i + 2])
    return pairs


def _grid(report: Report, metric: Metric) -> Table:
    down, across = report["sweep"]
    table = Table(
        box=box.SIMPLE_HEAD, title=metric.title, title_justify="left", pad_edge=False,
        padding=(0, 1), title_style=Style(bold=True),
    )  # fmt: skip
    table.add_column(f"{down} \\ {across}", no_wrap=True)
    for value in report["sweep"][across]:
        table.add_column(shown(value), justify="right", no_wrap=True)
    for heading, line in grid_cells(report):
        cells = [Text(c) if isinstance(c, str) else _warm(c, report, metric) for c in line]
        table.add_row(Text(heading), *cells)
    return table


def _warm(row: Mapping[str, Any], report: Report, metric: Metric) -> Text:
    level = min(int(heat(row, report["cells"], metric) * len(_RAMP)), len(_RAMP) - 1)
    text = metric.text(row) + f"{MARKS[row['standing']]:1}"
    return Text(text, Style(color="color(16)", bgcolor=f"color({_RAMP[level]})"))


def _list(report: Report, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=None)
    table.add_column("", overflow="fold")
    for title in ("tokens/s", "±", "length", "build ms", "kB"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in report["cells"]:
        table.add_row(
            Text(visible(row["cell"])), _warm(row, report, SPEED), spread(row),
            LENGTH.text(row), BUILD.text(row), BYTES.text(row),
        )  # fmt: skip
    return table


def flat_rows(report: Report) -> list[list[str]]:
    """A row of headings, then a row per cell with all its values."""
    names = list(report["sweep"])
    out = [[*names, *_COLUMNS]]
    for row in report["cells"]:
        least, most = row["tokens_per_s_least_and_most"]
        figures = {**row, "least": least, "most": most}
        values = ["" if figures[c] is None else str(figures[c]) for c in _COLUMNS]
        out.append([*(shown(row["values"][name]) for name in names), *values])
    return out


def to_plain(report: Report) -> str:
    """The report for pipes: tab-separated rows, none wrapped, all columns."""
    return "\n".join("\t".join(row).replace("\n", " ") for row in flat_rows(report))


def to_csv(report: Report) -> str:
    """The report as CSV, quoted where necessary."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(flat_rows(report))
    return out.getvalue().rstrip("\n")


def to_markdown(report: Report) -> str:
    """The report as GitHub's Markdown: grids of two names, the list of cells, the conclusion."""
    parts = []
    if len(report["sweep"]) == 2:
        parts += [_markdown_grid(report, metric) for metric in (SPEED, LENGTH)]
    parts.append(_markdown(flat_rows(report)))
    return "\n\n".join([*parts, " ".join([legend(report) + ".", *conclusion(report)])])


def _markdown_grid(report: Report, metric: Metric) -> str:
    down, across = report["sweep"]
    rows = [[f"{metric.title}: {down} \\ {across}", *map(shown, report["sweep"][across])]]
    for heading, line in grid_cells(report):
        cells = [c if isinstance(c, str) else metric.text(c) + MARKS[c["standing"]] for c in line]
        rows.append([heading, *cells])
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---:|" * len(rows[0]), *lines[1:]])
