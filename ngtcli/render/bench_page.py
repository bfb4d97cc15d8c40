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
from ngtcli.render.bench_tables import facts, label, number, overall, tables
from ngtcli.render.page import Bar, Stack, bars, histogram, page, stacks
from ngtcli.render.tables import Forms, to_html, to_markdown, to_plain
from ngtcli.render.terminal import one_line
from ngtcli.render.terminal_tables import to_terminal
from ngtcli.system.json_form import dump_json


def bench_forms(result: Measured) -> Forms:
    """The forms of a measurement by `ngt bench`."""
    shown, line = tables(result), one_line(" · ".join(facts(result)))
    return Forms(
        plain=lambda: f"{to_plain(shown)}\n\n# {line}",
        terminal=lambda width, colour: to_terminal(shown, width=width, colour=colour, small=[line]),
        asked={
            "json": lambda: dump_json(result),
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
        asked={"json": lambda: dump_json(result)},
    )


def bench_page(result: Measured) -> str:
    """The HTML of a live or a replayed result."""
    shown = tables(result)
    pictures = [] if isinstance(result, ReplayResult) else _speed(result)
    pictures += [*_lengths(result), *_histograms(result)]
    pictures += _split(result.split) if isinstance(result, LiveResult) else []
    cut_short = ["Interrupted: the figures are of what was measured until then."]
    return page(
        "ngt bench",
        result.model,
        what=_what(result),
        terms={
            "Command": result.invocation.command,
            "Run": " · ".join(facts(result)),
        },
        warnings=[*(cut_short if result.interrupted else []), *result.notes],
        body=[
            to_html(shown[0]) if shown else "<p>Nothing was measured.</p>",
            *pictures,
            *(f"<section>{to_html(table)}</section>" for table in shown[1:]),
        ],
    )


def _section(title: str, body: str, note: str = "") -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section><h2>{escape(title)}</h2><div class="wide">{body}</div>{below}</section>'


def _what(result: Measured) -> str:
    if isinstance(result, LiveResult):
        return "live measurement"
    shaped = isinstance(result, ShapeResult)
    return f"replay of a recording{' with real passes' if shaped else ''}"


def _speed(result: LiveResult | ShapeResult) -> list[str]:
    rows = overall(result.rows)
    if not rows:
        return []
    drawn = [
        Bar(label(r, rows), r.speedup, number(r.speedup, "{:.2f}×"), r.speedup_quartiles)
        for r in rows
    ]
    title = "Speed-up over plain decoding"
    prefill = "left out" if isinstance(result, ShapeResult) else "included"
    note = f"Median over prompts, prefill {prefill}; the whisker spans the quartiles."
    return [_section(title, bars(title, drawn, 1.0), note)]


def _lengths(result: Measured) -> list[str]:
    known = [(r, r.mean_acceptance_length) for r in overall(result.rows)]
    rows = [r for r, length in known if length is not None]
    if not rows:
        return []
    drawn = [Bar(label(r, rows), v, number(v)) for r, v in known if v is not None]
    title = "Mean acceptance length"
    note = "Tokens a pass of the model; plain decoding is at 1."
    return [_section(title, bars(title, drawn, 1.0), note)]


def _histograms(result: Measured) -> list[str]:
    """Histograms with common axes, one per row that accepted a draft."""
    rows = overall(result.rows)
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
    title = "Accepted drafts a step"
    note = "Share of steps by the number of drafts accepted; all on the same axes."
    return [_section(title, f'<div class="grid">{drawn}</div>', note)]


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
    return [_section(title, stacks(title, list(rows[0].share), drawn), note)]


def _step(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return f"{total / 1000:.2f} ms" if total >= 1000 else f"{total:.0f} µs"
