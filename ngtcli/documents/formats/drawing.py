"""What Word, PowerPoint and Excel draw alike: charts, SmartArt, and text in shapes."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lxml import etree

from ngtcli.documents.content import row_of
from ngtcli.documents.formats.equations import EQUATION_TEXT
from ngtcli.documents.formats.number_format import GENERAL, shown_number
from ngtcli.documents.formats.package import BROKEN, RELATION, Part

T = TypeVar("T")
_OPEN = "http://schemas.openxmlformats.org/"
A = f"{{{_OPEN}drawingml/2006/main}}"
_C = f"{{{_OPEN}drawingml/2006/chart}}"
_CX = "{http://schemas.microsoft.com/office/drawing/2014/chartex}"
_DIAGRAM = f"{{{_OPEN}drawingml/2006/diagram}}"
CHART, CHART_EX, SMART_ART = f"{_C}chart", f"{_CX}chart", f"{_DIAGRAM}relIds"
DRAWN = (CHART, CHART_EX, SMART_ART)
# What one of the forms is chosen for in which a thing is stored.
SEEN = (f"{A}t", EQUATION_TEXT, *DRAWN)
_SHRINK = 0.05  # of each side of a shape: what overlaps by less does not; guess
_CONNECTED = ("", "parOf")
_LAYOUT_POINTS = ("pres", "parTrans", "sibTrans")


@dataclass(frozen=True, slots=True)
class Box:
    """Where a shape is, in units of its slide or group."""

    left: float
    top: float
    right: float
    bottom: float


def by_place(shapes: list[tuple[Box, T]]) -> list[tuple[Box, T]]:
    """Shapes in the order in which they are read.

    Where a line across parts them, those above it come first; else where a line down parts them,
    those to its left; and so on in each part.
    """
    if len(shapes) < 2:
        return shapes
    for is_across in (True, False):
        parts = _parted(shapes, is_across)
        if len(parts) > 1:
            return [shape for part in parts for shape in by_place(part)]
    return sorted(shapes, key=lambda shape: (shape[0].top, shape[0].left))


def _parted(shapes: list[tuple[Box, T]], is_across: bool) -> list[list[tuple[Box, T]]]:
    """The shapes in groups between which there is room, along one axis."""

    def reach(shape: tuple[Box, T]) -> tuple[float, float]:
        box = shape[0]
        start, end = (box.top, box.bottom) if is_across else (box.left, box.right)
        less = (end - start) * _SHRINK
        return start + less, end - less

    parts: list[list[tuple[Box, T]]] = []
    limit = 0.0
    for shape in sorted(shapes, key=reach):
        start, end = reach(shape)
        if parts and (start < limit or start == end == limit):
            parts[-1].append(shape)
        else:
            parts.append([shape])
            limit = end
        limit = max(limit, end)
    return parts


def drawn_text(node: Any, part: Part) -> str:
    """The text of a chart or a SmartArt that stands in `part`; "" where it is not there."""
    attribute = "dm" if node.tag == SMART_ART else "id"
    target = part.target(node.get(f"{RELATION}{attribute}"))
    if target is None:
        return ""
    try:
        root = target.tree(*SEEN)
    except (*BROKEN, etree.LxmlError):
        return ""
    if node.tag == SMART_ART:
        return "\n".join(_points_of(root))
    return _extended_chart(root) if node.tag == CHART_EX else chart_text(root)


def chart_text(root: Any) -> str:
    """The titles of a chart, and a row for each category with a value of each series."""
    series = list(root.iter(f"{_C}ser"))
    columns = [dict(_values(one, "val", "yVal")) for one in series]
    columns.insert(0, dict(point for one in series for point in _values(one, "cat", "xVal")))
    indices = sorted({index for column in columns for index in column}, key=lambda i: (len(i), i))
    rows = [["", *("".join(v.text or "" for v in s.iterfind(f"{_C}tx//{_C}v")) for s in series)]]
    rows += [[column.get(index, "") for column in columns] for index in indices]
    titles = [paragraphs_text(title) for title in root.iter(f"{_C}title")]
    return "\n".join(filter(None, [*titles, *map(row_of, rows)]))


def _values(series: Any, *names: str) -> Iterator[tuple[str, str]]:
    """The stored values of one part of a series as they are shown, each with its index."""
    for value in (v for name in names for v in series.iterfind(f"{_C}{name}//{_C}v")):
        point = value.getparent()
        code = point.get("formatCode") or point.getparent().findtext(f"{_C}formatCode") or GENERAL
        text = value.text or ""
        if point.getparent().tag == f"{_C}numCache" or "." in text:
            with suppress(ValueError):  # it is no number
                text = shown_number(float(text), code)
        yield point.get("idx", ""), text


def _extended_chart(root: Any) -> str:
    """The title and the values of a chart of the kinds that Office has had since 2016."""
    lines = [paragraphs_text(title) for title in root.iter(f"{_CX}title")]
    for data in root.iter(f"{_CX}data"):
        columns: list[dict[str, str]] = []
        for level in data.iter(f"{_CX}lvl"):
            columns.append({p.get("idx", ""): p.text or "" for p in level.iter(f"{_CX}pt")})
        indices = sorted({i for column in columns for i in column}, key=lambda i: (len(i), i))
        lines += [row_of([column.get(index, "") for column in columns]) for index in indices]
    return "\n".join(filter(None, lines))


def _points_of(root: Any) -> Iterator[str]:
    """The texts of a SmartArt's points in their order, each with those below it."""
    points = {p.get("modelId", ""): p for p in root.iter(f"{_DIAGRAM}pt")}
    below: dict[str, list[tuple[int, str]]] = {}
    for connection in root.iter(f"{_DIAGRAM}cxn"):
        if connection.get("type", "") in _CONNECTED:
            order = re.match(r"\d{1,9}", connection.get("srcOrd", "0"))
            place = int(order[0]) if order else 0
            child = connection.get("destId", "")
            below.setdefault(connection.get("srcId", ""), []).append((place, child))
    roots = [i for i, point in points.items() if point.get("type") == "doc"]
    seen: set[str] = set()
    waiting = [*reversed(roots)]
    rest = [i for i in points if i not in roots]
    while waiting or rest:
        identifier = waiting.pop() if waiting else rest.pop(0)
        if identifier in seen or identifier not in points:
            continue
        seen.add(identifier)
        waiting += [child for _, child in sorted(below.get(identifier, ()), reverse=True)]
        point = points[identifier]
        if point.get("type") not in _LAYOUT_POINTS:
            text = paragraphs_text(point)
            if text:
                yield text


def paragraphs_text(root: Any) -> str:
    """The text of the paragraphs of a shape in one line; of a title's cell where it has none."""
    lines = ("".join(_runs(p)) for p in root.iter(f"{A}p"))
    text = " ".join(" ".join(lines).split())
    return text or " ".join(v.text or "" for v in root.iter(f"{_C}v", f"{_CX}v"))


def _runs(paragraph: Any) -> Iterator[str]:
    for node in paragraph.iter(f"{A}t", f"{A}br"):
        yield (node.text or "") if node.tag == f"{A}t" else " "
