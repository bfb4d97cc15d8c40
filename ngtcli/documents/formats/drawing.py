"""Charts, SmartArt and text in shapes, as Word, PowerPoint and Excel share them (DrawingML)."""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lxml import etree

from ngtcli.documents.content import row_of
from ngtcli.documents.formats.equations import EQUATION_TEXT
from ngtcli.documents.formats.number_format import GENERAL, format_number
from ngtcli.documents.formats.package import BROKEN, RELATION, Part

T = TypeVar("T")
Column = dict[str, str]  # the texts of a column of a chart's table, by index of the category
_OPEN = "http://schemas.openxmlformats.org/"
A = f"{{{_OPEN}drawingml/2006/main}}"
_C = f"{{{_OPEN}drawingml/2006/chart}}"
_CX = "{http://schemas.microsoft.com/office/drawing/2014/chartex}"
_DIAGRAM = f"{{{_OPEN}drawingml/2006/diagram}}"
CHART, CHART_EX, SMART_ART = f"{_C}chart", f"{_CX}chart", f"{_DIAGRAM}relIds"
DRAWN = (CHART, CHART_EX, SMART_ART)
# Elements with something to see: of alternative contents, one that has any of them is chosen.
SEEN = (f"{A}t", EQUATION_TEXT, *DRAWN)
_OVERLAP_TOLERANCE = 0.05  # share of a shape's size by which it may overlap another (guess)
_PARENT_CONNECTIONS = ("", "parOf")
_LAYOUT_POINTS = ("pres", "parTrans", "sibTrans")


@dataclass(frozen=True, slots=True)
class Box:
    """Where a shape is, in units of its slide or group."""

    left: float
    top: float
    right: float
    bottom: float


def by_place(shapes: list[tuple[Box, T]]) -> list[tuple[Box, T]]:
    """Put shapes into the order in which they are read.

    If a horizontal line separates them, those above it come first; otherwise, if a vertical line
    does, those to its left; and so on within each part.
    """
    if len(shapes) < 2:
        return shapes
    for is_horizontal in (True, False):
        parts = _separate(shapes, is_horizontal)
        if len(parts) > 1:
            return [shape for part in parts for shape in by_place(part)]
    return sorted(shapes, key=lambda shape: (shape[0].top, shape[0].left))


def _separate(shapes: list[tuple[Box, T]], is_horizontal: bool) -> list[list[tuple[Box, T]]]:
    """Group shapes so that lines of one direction can be drawn between the groups."""

    def extent(shape: tuple[Box, T]) -> tuple[float, float]:
        box = shape[0]
        start, end = (box.top, box.bottom) if is_horizontal else (box.left, box.right)
        tolerance = (end - start) * _OVERLAP_TOLERANCE
        return start + tolerance, end - tolerance

    groups: list[list[tuple[Box, T]]] = []
    group_end = 0.0
    for shape in sorted(shapes, key=extent):
        start, end = extent(shape)
        if groups and (start < group_end or start == end == group_end):
            groups[-1].append(shape)
        else:
            groups.append([shape])
            group_end = end
        group_end = max(group_end, end)
    return groups


def drawn_text(node: Any, part: Part) -> str:
    """Read the text of a chart or a SmartArt that `part` refers to; "" if it is missing."""
    attribute = "dm" if node.tag == SMART_ART else "id"
    target = part.target(node.get(f"{RELATION}{attribute}"))
    if target is None:
        return ""
    try:
        root = target.tree(*SEEN)
    except (*BROKEN, etree.LxmlError):
        return ""
    if node.tag == SMART_ART:
        return "\n".join(_smart_art_texts(root))
    if node.tag == CHART_EX:
        return _extended_chart_text(root)
    return chart_text(root)


def chart_text(root: Any) -> str:
    """The titles of a chart, and a row for each category with a value of each series."""
    all_series = list(root.iter(f"{_C}ser"))
    categories: Column = {}
    columns = [categories]
    names = [""]
    for series in all_series:
        categories.update(_cached_texts(series, "cat", "xVal"))
        columns.append(dict(_cached_texts(series, "val", "yVal")))
        names.append("".join(node.text or "" for node in series.iterfind(f"{_C}tx//{_C}v")))
    titles = [paragraphs_text(title) for title in root.iter(f"{_C}title")]
    lines = [*titles, row_of(names), *_rows(columns)]
    return "\n".join(filter(None, lines))


def _cached_texts(series: Any, *names: str) -> Iterator[tuple[str, str]]:
    """Yield the index and the text, as it is shown, of each value that is stored for a series.

    Args:
        series: A series of a chart.
        names: Its children that are read, such as "cat" for categories.
    """
    for name in names:
        for value in series.iterfind(f"{_C}{name}//{_C}v"):
            point = value.getparent()
            cache = point.getparent()
            code = point.get("formatCode") or cache.findtext(f"{_C}formatCode") or GENERAL
            text = value.text or ""
            if cache.tag == f"{_C}numCache" or "." in text:
                with suppress(ValueError):  # it is not a number
                    text = format_number(float(text), code)
            yield point.get("idx", ""), text


def _extended_chart_text(root: Any) -> str:
    """The title and the values of a chart of the kinds that Office has had since 2016."""
    lines = [paragraphs_text(title) for title in root.iter(f"{_CX}title")]
    for data in root.iter(f"{_CX}data"):
        columns: list[Column] = []
        for level in data.iter(f"{_CX}lvl"):
            points = level.iter(f"{_CX}pt")
            columns.append({point.get("idx", ""): point.text or "" for point in points})
        lines += _rows(columns)
    return "\n".join(filter(None, lines))


def _rows(columns: list[Column]) -> list[str]:
    """A row for each index of a category that any column has."""
    indices = {index for column in columns for index in column}
    in_order = sorted(indices, key=lambda index: (len(index), index))
    return [row_of([column.get(index, "") for column in columns]) for index in in_order]


def _smart_art_texts(root: Any) -> Iterator[str]:
    """Yield the texts of a SmartArt's points, each before those below it."""
    points = {point.get("modelId", ""): point for point in root.iter(f"{_DIAGRAM}pt")}
    children = _children_of_points(root)
    documents = [name for name, point in points.items() if point.get("type") == "doc"]
    unconnected = deque(name for name in points if name not in documents)
    stack = documents[::-1]
    visited: set[str] = set()
    while stack or unconnected:
        name = stack.pop() if stack else unconnected.popleft()
        if name in visited or name not in points:
            continue
        visited.add(name)
        stack += [child for _, child in sorted(children.get(name, ()), reverse=True)]
        point = points[name]
        if point.get("type") not in _LAYOUT_POINTS:
            text = paragraphs_text(point)
            if text:
                yield text


def _children_of_points(root: Any) -> dict[str, list[tuple[int, str]]]:
    """For each point of a SmartArt, the positions and names of those below it."""
    children: dict[str, list[tuple[int, str]]] = {}
    for connection in root.iter(f"{_DIAGRAM}cxn"):
        if connection.get("type", "") in _PARENT_CONNECTIONS:
            digits = re.match(r"\d{1,9}", connection.get("srcOrd", "0"))
            position = int(digits[0]) if digits else 0
            parent = connection.get("srcId", "")
            children.setdefault(parent, []).append((position, connection.get("destId", "")))
    return children


def paragraphs_text(root: Any) -> str:
    """The paragraphs of a shape in one line; if it has none, the cells that a title refers to."""
    paragraphs = ("".join(_runs(paragraph)) for paragraph in root.iter(f"{A}p"))
    text = " ".join(" ".join(paragraphs).split())
    return text or " ".join(value.text or "" for value in root.iter(f"{_C}v", f"{_CX}v"))


def _runs(paragraph: Any) -> Iterator[str]:
    for node in paragraph.iter(f"{A}t", f"{A}br"):
        yield (node.text or "") if node.tag == f"{A}t" else " "
