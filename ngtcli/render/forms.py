"""A result in the forms that a command can give it: tables, JSON, Markdown, CSV, a page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ngtcli.errors import counted
from ngtcli.render.bench_page import bench_page
from ngtcli.render.bench_tables import facts, tables
from ngtcli.render.results import Measured, RecordResult
from ngtcli.render.sinks import dump_json
from ngtcli.render.sweep_page import sweep_page
from ngtcli.render.sweep_rows import SweepReport
from ngtcli.render.sweep_tables import (
    LENGTH,
    METRICS,
    SPEED,
    cell_list,
    conclusion,
    grids,
    legend,
    value_table,
)
from ngtcli.render.tables import markdown_text, to_csv, to_markdown, to_plain
from ngtcli.render.terminal import one_line
from ngtcli.render.terminal_tables import full_width, to_terminal

Text = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Forms:
    """One result in each form it has; a text is made when it is asked for.

    `plain` is for pipes and files, `terminal` takes the columns and whether to colour, `asked` has
    a form by the flag that asks for it.
    """

    plain: Text
    terminal: Callable[[int, bool], str]
    asked: Mapping[str, Text]
    page: Text = field(default=lambda: "")


def bench_forms(result: Measured) -> Forms:
    """The forms of a measurement by `ngt bench`."""
    shown, line = tables(result), one_line(" · ".join(facts(result)))
    return Forms(
        plain=lambda: f"{to_plain(shown)}\n\n# {line}",
        terminal=lambda width, colour: to_terminal(shown, width=width, colour=colour, small=[line]),
        asked={
            "json": lambda: dump_json(result.as_json()),
            "markdown": lambda: f"{to_markdown(shown)}\n\n{line}",
        },
        page=lambda: bench_page(result),
    )


def record_forms(result: RecordResult) -> Forms:
    """The forms of what `ngt bench --record` says: a line."""
    done = counted(result.questions, "prompt"), counted(result.new_tokens, "token")
    line = one_line(f"{', '.join(done)}: {result.path}")
    return Forms(
        plain=lambda: line,
        terminal=lambda width, colour: line,
        asked={"json": lambda: dump_json(result.as_json())},
    )


def sweep_forms(report: SweepReport, every: bool = False) -> Forms:
    """The forms of a report by `ngt tune`; `every` adds the grids about the trie on a terminal."""
    values = value_table(report)
    return Forms(
        plain=lambda: to_plain([values]),
        terminal=lambda width, colour: _sweep_terminal(report, width, colour, every),
        asked={
            "json": lambda: dump_json(report.as_json()),
            "markdown": lambda: _sweep_markdown(report),
            "csv": lambda: to_csv(values),
        },
        page=lambda: sweep_page(report),
    )


def _sweep_terminal(report: SweepReport, width: int, colour: bool, every: bool) -> str:
    """Grids side by side where two names are swept and a grid has room, else the list of cells."""
    shown = grids(report, METRICS if every else (SPEED, LENGTH))
    if not shown or max(map(full_width, shown)) > width:
        shown = [cell_list(report)]
    marks = [legend(report)] if report.cells else []
    return to_terminal(
        shown, width=width, colour=colour, beside=True, small=marks, lines=conclusion(report)
    )


def _sweep_markdown(report: SweepReport) -> str:
    shown = [*grids(report, (SPEED, LENGTH)), value_table(report)]
    sentences = [legend(report) + ".", *conclusion(report)]
    return f"{to_markdown(shown)}\n\n{markdown_text(' '.join(sentences))}"
