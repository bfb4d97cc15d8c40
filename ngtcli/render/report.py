"""A result of `ngt bench` as one HTML page, without scripts and external files.

All names and messages are escaped. The page follows the reader's light or dark setting and prints
in black on white.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ngtcli.render.charts import Bar, Stack, bars, histogram, stacks
from ngtcli.render.results import (
    Row,
    facts,
    label,
    number,
    overall,
    tables,
    times,
)
from ngtcli.render.tables import cell, to_html

_WHAT = {
    "live": "live measurement",
    "replay": "replay of a recording",
    "shape": "replay of a recording with real passes",
}
_STYLE = Path(__file__).parent / "report.css"


def page(result: Mapping[str, Any]) -> str:
    """The HTML of a live or a replayed result. Raises KeyError if a field is missing."""
    shown = tables(result)
    pictures = [*_speed(result), *_lengths(result), *_histograms(result)]
    pictures += _split(result)
    what = _WHAT[result["kind"]]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>ngt bench: {escape(cell(str(result['model'])))}</title>",
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>",
            f"<header><h1>ngt bench</h1><p>{what}</p></header>",
            _about(result),
            to_html(shown[0]) if shown else "<p>Nothing was measured.</p>",
            *pictures,
            *(f"<section>{to_html(table)}</section>" for table in shown[1:]),
            "</main></body></html>\n",
        ]
    )


def _about(result: Mapping[str, Any]) -> str:
    """The command and the run as a list of terms, then the warnings."""
    terms = {"Command": str(result.get("command", "")), "Run": " · ".join(facts(result))}
    listed = "".join(
        f"<dt>{name}</dt><dd>{escape(cell(text))}</dd>" for name, text in terms.items() if text
    )
    notes = list(result.get("notes", []))
    if result.get("interrupted"):
        notes.insert(0, "Interrupted: the figures are of what was measured until then.")
    warned = "".join(f'<p class="warning">{escape(cell(note))}</p>' for note in notes)
    return f"<dl>{listed}</dl>{warned}"


def _section(title: str, body: str, note: str = "") -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section><h2>{escape(title)}</h2><div class="wide">{body}</div>{below}</section>'


def _speed(result: Mapping[str, Any]) -> list[str]:
    rows = [r for r in overall(result["rows"]) if r.get("speedup") is not None]
    if not rows:
        return []
    drawn = [
        Bar(label(r, rows), r["speedup"], times(r["speedup"]), tuple(r["speedup_quartiles"]))
        for r in rows
    ]
    title = "Speed-up over plain decoding"
    prefill = "left out" if result["kind"] == "shape" else "included"
    note = f"Median over prompts, prefill {prefill}; the whisker spans the quartiles."
    return [_section(title, bars(title, drawn, 1.0), note)]


def _lengths(result: Mapping[str, Any]) -> list[str]:
    rows = [r for r in overall(result["rows"]) if r.get("mean_acceptance_length") is not None]
    if not rows:
        return []
    drawn = [
        Bar(label(r, rows), r["mean_acceptance_length"], number(r["mean_acceptance_length"]))
        for r in rows
    ]
    title = "Mean acceptance length"
    note = "Tokens a pass of the model; plain decoding is at 1."
    return [_section(title, bars(title, drawn, 1.0), note)]


def _histograms(result: Mapping[str, Any]) -> list[str]:
    """Histograms with common axes, one per row that accepted a draft."""
    rows = overall(result["rows"])
    found = [(r, _dense(r["acceptance_histogram"])) for r in rows]
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
            f"length {number(r['mean_acceptance_length'])}, {sum(counts)} steps",
        )
        for r, counts in found
    )
    title = "Accepted drafts a step"
    note = "Share of steps by the number of drafts accepted; all on the same axes."
    return [_section(title, f'<div class="grid">{drawn}</div>', note)]


def _dense(counts: Mapping[str, int]) -> list[int]:
    """The counts as a list by index: {"0": 3, "2": 1} gives [3, 0, 1]."""
    longest = max((int(k) for k, v in counts.items() if v), default=-1)
    return [counts.get(str(i), 0) for i in range(longest + 1)]


def _split(result: Mapping[str, Any]) -> list[str]:
    rows: Sequence[Row] = result.get("split", [])
    if not rows:
        return []
    drawn = [Stack(label(r, rows), list(r["share"].values()), _step(r["step_us"])) for r in rows]
    title = "Where the time goes"
    note = "Shares of prefill and of the parts of decoding; at the right, the mean time of a step."
    return [_section(title, stacks(title, list(rows[0]["share"]), drawn), note)]


def _step(parts: Mapping[str, float]) -> str:
    total = sum(parts.values())
    return f"{total / 1000:.2f} ms" if total >= 1000 else f"{total:.0f} µs"
