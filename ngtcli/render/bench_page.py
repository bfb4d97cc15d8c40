"""A result of `ngt bench` in the forms that it can have: tables, JSON, a page with charts."""

from collections.abc import Mapping, Sequence
from html import escape

from ngtcli.errors import counted
from ngtcli.measure.results import (
    LiveResult,
    Measured,
    RecordResult,
    ReplayResult,
    ShapeResult,
    SplitRow,
)
from ngtcli.measure.summary import Row
from ngtcli.render.bench_tables import facts, label, number, overall, tables
from ngtcli.render.page import Bar, Stack, bars, histogram, page, stacks
from ngtcli.render.tables import Forms, to_html, to_markdown, to_plain
from ngtcli.render.terminal import one_line
from ngtcli.render.terminal_tables import to_terminal
from ngtcli.system.json_form import dump_json


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
    """The HTML of a live or a replayed result."""
    shown, rows, shaped = tables(result), overall(result.rows), isinstance(result, ShapeResult)
    what = f"replay of a recording{' with real passes' if shaped else ''}"
    pictures = []
    if not isinstance(result, ReplayResult):
        prefill = "left out" if shaped else "included"
        note = f"Median over prompts, prefill {prefill}; the whisker spans the quartiles."
        quartiles = "speedup_quartiles"
        pictures += _bars(
            "Speed-up over plain decoding", rows, "speedup", "{:.2f}×", quartiles, note
        )
    note = "Tokens a pass of the model; plain decoding is at 1."
    pictures += _bars("Mean acceptance length", rows, "mean_acceptance_length", "{:.2f}", "", note)
    pictures += _histograms(rows)
    if isinstance(result, LiveResult):
        what = "live measurement"
        pictures += _split(result.split)
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
    known = [r for r in rows if getattr(r, name) is not None]
    drawn = [
        Bar(
            label(r, known),
            getattr(r, name),
            form.format(getattr(r, name)),
            getattr(r, whisker) if whisker else None,
        )
        for r in known
    ]
    return _section(title, bars(title, drawn, 1.0), note) if known else []


def _histograms(rows: Sequence[Row]) -> list[str]:
    """Histograms with common axes, one per row that accepted a draft."""
    found = [(r, _dense(r.acceptance_histogram)) for r in rows]
    found = [(r, counts) for r, counts in found if len(counts) > 1]
    if not found:
        return []
    longest = max(len(counts) for _, counts in found)
    most = max(max(counts) / sum(counts) for _, counts in found)
    drawn = "".join(
        histogram(
            label(r, rows),
            [*counts, *[0] * (longest - len(counts))],
            most,
            f"length {number(r.mean_acceptance_length)}, {counted(sum(counts), 'step')}",
        )
        for r, counts in found
    )
    note = "Share of steps by the number of drafts accepted; all on the same axes."
    return _section("Accepted drafts a step", f'<div class="grid">{drawn}</div>', note)


def _dense(counts: Mapping[int, int]) -> list[int]:
    """The counts as a list by index.

    >>> _dense({0: 3, 2: 1})
    [3, 0, 1]
    """
    longest = max((k for k, v in counts.items() if v), default=-1)
    return [counts.get(i, 0) for i in range(longest + 1)]


def _split(rows: Sequence[SplitRow]) -> list[str]:
    if not rows:
        return []
    drawn = [Stack(label(r, rows), list(r.share.values()), _step(r.step_us)) for r in rows]
    title = "Where the time goes"
    note = "Shares of prefill and of the parts of decoding; at the right, the mean time of a step."
    return _section(title, stacks(title, list(rows[0].share), drawn), note)


def _step(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return f"{total / 1000:.2f} ms" if total >= 1000 else f"{total:.0f} µs"
