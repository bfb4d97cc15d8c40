"""The frame of an HTML page without external files, and charts; all that it is given is escaped.

A policy in it forbids every request and all scripts but the page's own, whatever got in. The page
follows the reader's light or dark setting and prints in black on white.

Charts are inline SVG and take colours and fonts from the page. Every chart has a title and a
description for screen readers, every bar has its value written next to it, and stacked parts differ
in hatching as well as in colour. Lengths are in SVG user units.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path

from ngtcli.render.terminal import cell

_STYLE = Path(__file__).parent / "page.css"


def page(
    title: str,
    about: str,
    *,
    what: str,
    terms: Mapping[str, str],
    warnings: Sequence[str],
    body: Sequence[str],
    script: str = "",
) -> str:
    """A page under the heading `title`: what it shows, a list of terms, warnings, then `body`.

    `about` follows the title in the name of the window. `body` is HTML and stands as it is, and so
    does `script`. Terms without a value are left out.
    """
    allowed = "'none'"
    if script:  # it alone may run
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"'sha256-{digest}'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'"
    listed = [f"<dt>{text(name)}</dt><dd>{text(v)}</dd>" for name, v in terms.items() if v]
    warned = [f'<p class="warning">{text(note)}</p>' for note in warnings]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(title)}: {text(about)}</title>",
            f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style></head><body><main>",
            f"<header><h1>{text(title)}</h1><p>{text(what)}</p></header>",
            f"<dl>{''.join(listed)}</dl>{''.join(warned)}",
            *body,
            f"</main>{f'<script>{script}</script>' * bool(script)}</body></html>\n",
        ]
    )


def text(shown: str) -> str:
    """A text on one line as HTML, its control characters made visible."""
    return escape(cell(shown))


_WIDTH, _ROW, _LABEL, _VALUE = 720, 26, 190, 84  # user units; guesses
_CHARACTERS = 26  # of the longest label; derived: what _LABEL has room for
_ids = count(1)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its value as a number and as text, and optionally a range, drawn as a whisker."""

    label: str
    value: float
    text: str
    whisker: tuple[float, float] | None = None


def bars(title: str, rows: Sequence[Bar], mark: float) -> str:
    """Horizontal bars from 0, as SVG; `mark` is the value of a dashed line, such as 1 for 1×."""
    ends = [max(r.value, *(r.whisker or (0,))) for r in rows]
    room, most = _WIDTH - _LABEL - _VALUE, max(*ends, mark)
    x = _LABEL + mark / most * room
    body = [_line("mark", x, 0, x, len(rows) * _ROW)]
    for i, row in enumerate(rows):
        y = i * _ROW
        place = f'x="{_LABEL:.1f}" y="{y + 5}" width="{max(row.value / most * room, 0):.1f}"'
        body += [_label(row.label, y), f'<rect class="bar" {place} height="16"/>']
        if row.whisker:
            low, high = (_LABEL + v / most * room for v in row.whisker)
            body.append(_line("whisker", low, y + 13, high, y + 13))
            body += [_line("whisker", x, y + 9, x, y + 17) for x in (low, high)]
        body.append(_text("value", _LABEL + ends[i] / most * room + 6, y + 17, row.text))
    described = "; ".join(f"{r.label}: {r.text}" for r in rows)
    return _svg(title, described, _WIDTH, len(rows) * _ROW + 4, body)


def stacks(
    title: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[float], str]]
) -> str:
    """Bars of equal length, divided into the shares of the parts `names`; as SVG with a legend.

    A row has a label, its parts and the value of the whole.
    """
    room = _WIDTH - _LABEL - _VALUE
    body = [_pattern(i) for i in range(len(names))]
    for i, name in enumerate(names):
        x = i * _WIDTH / len(names)
        body += [_part(i, x, 4, 14), _text("label", x + 20, 16, name)]
    described = []
    for i, (label, parts, whole) in enumerate(rows):
        y = 30 + i * _ROW
        shares, x = [value / (sum(parts) or 1.0) for value in parts], float(_LABEL)
        body.append(_label(label, y))
        for j, share in enumerate(shares):
            body.append(_part(j, x, y + 5, share * room, f"{label}, {names[j]}: {share:.1%}"))
            x += share * room
        body.append(_text("value", x + 6, y + 17, whole))
        told = (f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True))
        described.append(f"{label}: {', '.join(told)}")
    return _svg(title, "; ".join(described), _WIDTH, 34 + len(rows) * _ROW, body)


def histogram(title: str, counts: Sequence[int], most: float, note: str) -> str:
    """A figure of vertical bars: the shares of `counts`, up to the share `most`; `note` below."""
    total, left, width, height = sum(counts) or 1, 34, 220, 92
    step = (width - left) / max(len(counts), 1)
    body = [_line("axis", left, height, width, height)]
    body.append(_text("tick end", left - 4, 12, f"{most:.0%}"))
    body.append(_text("tick end", left - 4, height, "0"))
    every = -(-len(counts) // 8)  # at most eight labels, so that they do not touch
    for i, value in enumerate(counts):
        tall = value / total / most * (height - 4)
        x = left + i * step
        tip = f"<title>{i} accepted: {value / total:.1%} of steps</title>"
        body.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{height - tall:.1f}"'
            f' width="{max(step - 2, 1):.1f}" height="{tall:.1f}">{tip}</rect>'
        )
        if i % every == 0:
            body.append(_text("tick middle", x + step / 2, height + 13, str(i)))
    shares = ", ".join(f"{i}: {v / total:.0%}" for i, v in enumerate(counts))
    picture = _svg(title, f"Share of steps by accepted drafts. {shares}", width, 110, body)
    return (
        f"<figure><figcaption>{escape(cell(title))}<br><small>{escape(note)}</small></figcaption>"
        f"{picture}</figure>"
    )


def _svg(title: str, described: str, width: int, height: int, body: Sequence[str]) -> str:
    number = next(_ids)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-labelledby="t{number} d{number}">'
        f'<title id="t{number}">{escape(cell(title))}</title>'
        f'<desc id="d{number}">{escape(cell(described))}</desc>{"".join(body)}</svg>'
    )


def _label(text: str, y: float) -> str:
    whole = cell(text)
    short = whole if len(whole) <= _CHARACTERS else f"{whole[: _CHARACTERS - 7]}…{whole[-6:]}"
    tip = f"<title>{escape(whole)}</title>" if short != whole else ""
    return f'<text class="label" x="0" y="{y + 17}">{escape(short)}{tip}</text>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(cell(text))}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"/>'


def _part(index: int, x: float, y: float, width: float, tip: str = "") -> str:
    """A rectangle in a part's colour under its hatching."""
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{14 if not tip else 16}"'
    title = f"<title>{escape(cell(tip))}</title>" if tip else ""
    return (
        f'<rect class="part p{index}" {place}>{title}</rect>'
        f'<rect class="hatch" fill="url(#h{index})" {place}/>'
    )


def _pattern(index: int) -> str:
    """One hatching for each part: none, strokes of three slants, dots, a grid."""
    strokes = ("", "M0 8L8 0", "M0 0L8 8", "M0 4H8", "M3 4h2", "M4 0V8M0 4H8")
    return (
        f'<pattern id="h{index}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="stroke" d="{strokes[index % len(strokes)]}"/></pattern>'
    )
