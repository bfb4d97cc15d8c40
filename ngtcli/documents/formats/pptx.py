"""PowerPoint files: the slides in order, and the shapes of each by their position.

Shapes are read from top to bottom and from left to right, the title first. Items of lists have the
bullets and numbers that PowerPoint shows; a shape may inherit these from its layout or master.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ngtcli.documents.content import (
    Extracted,
    ParserInput,
    Writer,
    comment_line,
    row_of,
    unknown_signs,
)
from ngtcli.documents.formats.drawing import DRAWN, SEEN, A, Box, by_place, drawn_text
from ngtcli.documents.formats.equations import EQUATION, equation
from ngtcli.documents.formats.markup import lines_of
from ngtcli.documents.formats.numerals import numeral
from ngtcli.documents.formats.package import RELATION, Package, Part
from ngtcli.documents.formats.visible import join_scripts, set_apart

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_MODERN = "{http://schemas.microsoft.com/office/powerpoint/2018/8/main}"
_SHAPE = f"{_P}sp"
_GROUP = f"{_P}grpSp"
_FRAME = f"{_P}graphicFrame"
_SHAPE_TREE = f"{_P}cSld/{_P}spTree"
_PLACEHOLDER = f"{_P}nvSpPr/{_P}nvPr/{_P}ph"
_TRANSFORMS = (f"{_P}spPr/{A}xfrm", f"{_P}grpSpPr/{A}xfrm", f"{_P}xfrm")
_BULLETS = (f"{A}buNone", f"{A}buAutoNum", f"{A}buChar", f"{A}buBlip")
_FALSE = ("0", "false")
_TITLES = ("title", "ctrTitle")
_FOOTERS = ("ftr", "hdr", "dt")  # footers, headers and dates
_TEXT_STYLES = {"title": "titleStyle", "ctrTitle": "titleStyle"}  # all others have bodyStyle
# Kinds of placeholders for which a master has one placeholder in common.
_INTERCHANGEABLE = ({"body", "subTitle", "obj"}, {"title", "ctrTitle"})
_BULLET = "-"
_MAX_LEVEL = 8
_NUMERAL_STYLES = {
    "arabic": "decimal",
    "alphaLc": "lowerLetter",
    "alphaUc": "upperLetter",
    "romanLc": "lower-roman",
    "romanUc": "upper-roman",
}
_AUTO_NUMBER = re.compile(
    r"(arabic|alphaLc|alphaUc|romanLc|romanUc)\w*?(Period|ParenR|ParenBoth|Plain|Minus)?$"
)
_NUMBER_PATTERNS = {"ParenR": "{})", "ParenBoth": "({})", "Plain": "{}", "Minus": "{} -"}


def parse(source: ParserInput) -> Extracted:
    """The text as PowerPoint shows it; hidden slides are left out."""
    presentation = Package.open(source).main("ppt/presentation.xml")
    authors = _comment_authors(presentation)
    base_trees: dict[str, Any] = {}
    written_footers: set[str] = set()
    hidden_slides = 0
    embedded_files = 0
    writer = Writer()
    slide_references = list(presentation.tree().iter(f"{_P}sldId"))
    for number, reference in enumerate(slide_references, 1):
        part = presentation.target(reference.get(f"{RELATION}id"))
        if part is None:
            continue
        slide = _Slide(part, authors, base_trees)
        if slide.is_hidden:
            hidden_slides += 1
            continue
        embedded_files += slide.embedded_files
        _write_slide(number, slide, writer, written_footers)

    warnings = []
    if hidden_slides:
        warnings.append(f"hidden slides left out: {hidden_slides}")
    if embedded_files:
        warnings.append(f"embedded objects are not read: {embedded_files}")
    return writer.extracted("pptx", (*warnings, *unknown_signs(writer.text())))


def _write_slide(number: int, slide: "_Slide", writer: Writer, written_footers: set[str]) -> None:
    """Write the text of a slide, its comments and its notes.

    Args:
        number: The number of the slide, from 1.
        slide: The slide.
        writer: The text of the presentation.
        written_footers: Footers and texts of masters that earlier slides had, which are not
            repeated; those of this slide are added.
    """
    blocks = list(slide.blocks())
    title = row_of([[block.text for block in blocks if block.kind in _TITLES]])
    writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
    writer.add(title)
    for block in blocks:
        if block.kind in _FOOTERS:
            if block.text not in written_footers:
                writer.add(block.text)
                written_footers.add(block.text)
        elif block.kind not in _TITLES:
            writer.add(block.text)
    for text in slide.texts_of_masters():
        if text not in written_footers:
            writer.add(text)
            written_footers.add(text)
    for comment in slide.comments():
        writer.add(comment)
    writer.add(slide.notes())


@dataclass(frozen=True, slots=True)
class _Block:
    """The text of a shape, and the kind of its placeholder; "" if it is not a placeholder."""

    kind: str
    text: str


class _Slide:
    """A slide with its layout and its master."""

    def __init__(self, part: Part, authors: dict[str, str], base_trees: dict[str, Any]) -> None:
        """Open a slide.

        Args:
            part: The part of the slide.
            authors: The authors of comments, by id.
            base_trees: The layouts and masters that earlier slides have parsed, by the names of
                their parts; those of this slide are added.
        """
        self._part = part
        self._authors = authors
        self._root = part.tree(*SEEN)
        layouts = part.related("slideLayout")
        self._layout = layouts[0] if layouts else None
        masters = self._layout.related("slideMaster") if self._layout else []
        self._master = masters[0] if masters else None
        self._bases = []  # the trees of the layout and of the master
        for base in (self._layout, self._master):
            if base is not None:
                if base.name not in base_trees:
                    base_trees[base.name] = base.tree(*SEEN)
                self._bases.append(base_trees[base.name])

    @property
    def is_hidden(self) -> bool:
        """Whether PowerPoint skips it when it shows the presentation."""
        return self._root.get("show") in _FALSE

    @property
    def embedded_files(self) -> int:
        """The number of embedded files of other programs, which are shown as pictures."""
        return len({node.get(f"{RELATION}id") for node in self._root.iter(f"{_P}oleObj")})

    def blocks(self) -> Iterator[_Block]:
        """The shapes with text, in reading order."""
        yield from self._blocks_in(self._root.find(_SHAPE_TREE), self._part)

    def texts_of_masters(self) -> Iterator[str]:
        """The texts that the layout and the master show on each of their slides."""
        if self._root.get("showMasterSp") in _FALSE:
            return
        for part, root in zip((self._layout, self._master), self._bases, strict=False):
            for block in self._blocks_in(root.find(_SHAPE_TREE), part or self._part):
                if not block.kind:
                    yield block.text
            if root.get("showMasterSp") in _FALSE:
                return

    def notes(self) -> str:
        """The speaker's notes."""
        for part in self._part.related("notesSlide"):
            shapes = part.tree(*SEEN).find(_SHAPE_TREE)
            texts = [block.text for block in self._blocks_in(shapes, part) if block.kind == "body"]
            if texts:
                return f"Notes: {texts[-1]}"
        return ""

    def comments(self) -> Iterator[str]:
        """The comments on the slide, and the replies to them."""
        for part in self._part.related("comments"):
            for comment in part.tree().iter(f"{_P}cm", f"{_MODERN}cm", f"{_MODERN}reply"):
                author = self._authors.get(comment.get("authorId", ""), "")
                body = comment.find(f"{_MODERN}txBody")
                text = comment.findtext(f"{_P}text") if body is None else _plain_text(body)
                text = " ".join((text or "").split())
                if text:
                    yield comment_line(text, author)

    def _blocks_in(self, container: Any, part: Part) -> Iterator[_Block]:
        """The blocks of a slide or group in reading order, titles first."""
        if container is None:
            return
        titles: list[_Block] = []
        placed: list[tuple[Box, list[_Block]]] = []
        box = Box(0, 0, 0, 0)
        for shape in _shapes(container):
            if shape.find(f"*/{_P}cNvPr[@hidden='1']") is not None:
                continue
            blocks = list(self._blocks_of_shape(shape, part))
            box = self._box(shape) or box  # a shape without a position follows the one before it
            titles += [block for block in blocks if block.kind in _TITLES]
            others = [block for block in blocks if block.kind not in _TITLES]
            if others:
                placed.append((box, others))
        yield from titles
        for _, blocks in by_place(placed):
            yield from blocks

    def _blocks_of_shape(self, shape: Any, part: Part) -> Iterator[_Block]:
        """The text of a shape, its tables and its drawings; of a group those of its shapes."""
        if shape.tag == _GROUP:
            yield from self._blocks_in(shape, part)
            return
        placeholder = shape.find(_PLACEHOLDER)
        kind = "" if placeholder is None else placeholder.get("type", "body")
        is_automatic_date = kind == "dt" and shape.find(f".//{A}fld") is not None
        if kind == "sldNum" or is_automatic_date:
            return
        body = shape.find(f"{_P}txBody")
        if body is not None:
            text = _text_of(_paragraphs(body, self._list_styles(shape, body, kind)))
            if text:
                yield _Block(kind, text)
        for node in shape.iter(f"{A}tbl", *DRAWN):
            text = _table_text(node) if node.tag == f"{A}tbl" else drawn_text(node, part)
            if text:
                yield _Block(kind, text)

    def _inherited_shapes(self, shape: Any) -> Iterator[Any]:
        """The shapes of the layout and of the master from which a placeholder inherits.

        The layout has a placeholder with the same index. The master has one of the same kind.
        """
        placeholder = shape.find(_PLACEHOLDER)
        if placeholder is None:
            return
        kind = placeholder.get("type", "body")
        index = placeholder.get("idx")
        for base_number, base in enumerate(self._bases):
            is_layout = base_number == 0
            for candidate in base.iter(_SHAPE):
                candidate_placeholder = candidate.find(_PLACEHOLDER)
                if candidate_placeholder is None:
                    continue
                candidate_kind = candidate_placeholder.get("type", "body")
                candidate_index = candidate_placeholder.get("idx")
                if is_layout and index is not None:
                    if candidate_index != index:
                        continue
                    kind = candidate_kind
                elif not _is_interchangeable(kind, candidate_kind):
                    continue
                yield candidate
                break

    def _box(self, shape: Any) -> Box | None:
        """Where a shape is on the slide; None if neither it nor its layout or master says so."""
        candidates = [shape]
        if shape.tag == _SHAPE:
            candidates += self._inherited_shapes(shape)
        for candidate in candidates:
            for path in _TRANSFORMS:
                transform = candidate.find(path)
                box = None if transform is None else _box_of_transform(transform)
                if box is not None:
                    return box
        return None

    def _list_styles(self, shape: Any, body: Any, kind: str) -> list[Any]:
        """The elements that style the paragraphs of a shape, the most specific first."""
        styles = [body.find(f"{A}lstStyle")]
        for inherited in self._inherited_shapes(shape):
            styles.append(inherited.find(f"{_P}txBody/{A}lstStyle"))
        is_on_slide = shape.getroottree().getroot().tag == f"{_P}sld"
        if is_on_slide and kind and kind not in _FOOTERS and len(self._bases) > 1:
            name = _TEXT_STYLES.get(kind, "bodyStyle")
            master = self._bases[1]
            styles.append(master.find(f"{_P}txStyles/{_P}{name}"))
        return [style for style in styles if style is not None]


def _is_interchangeable(kind: str, other: str) -> bool:
    if kind == other:
        return True
    return any({kind, other} <= kinds for kinds in _INTERCHANGEABLE)


def _shapes(container: Any) -> Iterator[Any]:
    """The shapes of a slide or group, with those that are one of several alternatives."""
    for child in container:
        if child.tag in (_SHAPE, _GROUP, _FRAME):
            yield child
        elif isinstance(child.tag, str):
            name = etree.QName(child).localname
            if name in ("AlternateContent", "Choice", "Fallback"):
                yield from _shapes(child)


def _box_of_transform(transform: Any) -> Box | None:
    offset = transform.find(f"{A}off")
    extent = transform.find(f"{A}ext")
    if offset is None or extent is None:
        return None
    left = _number(offset, "x")
    top = _number(offset, "y")
    return Box(left, top, left + _number(extent, "cx"), top + _number(extent, "cy"))


def _number(element: Any, name: str) -> float:
    """An attribute as a number; 0 if it is missing or not a number."""
    text = element.get(name, "0")
    return float(text) if re.fullmatch(r"-?\d{1,15}", text) else 0.0


def _paragraphs(body: Any, styles: Sequence[Any]) -> Any:
    """The paragraphs of a shape as HTML, with the marks of lists.

    Args:
        body: The text of the shape.
        styles: What styles it, the most specific first.
    """
    root = etree.Element("div")
    counter = _ListCounter()
    for paragraph in body.iterchildren(f"{A}p"):
        properties = paragraph.find(f"{A}pPr")
        level = 0
        if properties is not None:
            level = min(int(_number(properties, "lvl")), _MAX_LEVEL)
        element = _as_html(paragraph)
        if not "".join(element.itertext()).strip():
            continue
        mark = counter.next_mark(_bullet(properties, level, styles), level)
        if mark:
            element.tag = "li"
            element.set("mark", mark)
            element.set("level", str(level))
        root.append(element)
    join_scripts(root)
    set_apart(root)
    return root


def _bullet(properties: Any, level: int, styles: Sequence[Any]) -> Any:
    """The element that describes the bullet of a paragraph; None if there is none.

    Args:
        properties: The properties of the paragraph, or None.
        level: Its level, from 0.
        styles: What styles the shape, the most specific first.
    """
    holders = [properties]
    for style in styles:
        holders.append(style.find(f"{A}lvl{level + 1}pPr"))
    for holder in holders:
        if holder is None:
            continue
        for name in _BULLETS:
            bullet = holder.find(name)
            if bullet is not None:
                return bullet
    return None


class _ListCounter:
    """Counts the numbered paragraphs of one shape."""

    def __init__(self) -> None:
        # Of each level: the form and the start of its numbers, and the last number.
        self._last: dict[int, tuple[str, str | None, int]] = {}

    def next_mark(self, bullet: Any, level: int) -> str:
        """Count a paragraph, and return its bullet or number; "" if it has none.

        Args:
            bullet: The element that describes its bullet, or None.
            level: Its level, from 0.
        """
        for deeper in [other for other in self._last if other > level]:
            del self._last[deeper]
        is_numbered = bullet is not None and bullet.tag == f"{A}buAutoNum"
        if not is_numbered:
            self._last.pop(level, None)
            has_bullet = bullet is not None and bullet.tag != f"{A}buNone"
            return _BULLET if has_bullet else ""

        form = bullet.get("type", "arabicPeriod")
        start = bullet.get("startAt")
        number = int(_number(bullet, "startAt")) or 1
        if level in self._last:
            last_form, last_start, last_number = self._last[level]
            if (last_form, last_start) == (form, start):
                number = last_number + 1
        self._last[level] = (form, start, number)
        return _numbered(number, form)


def _numbered(number: int, form: str) -> str:
    """A number as PowerPoint shows it in a list.

    >>> [_numbered(2, form) for form in ("arabicPeriod", "alphaLcParenBoth", "romanUcParenR")]
    ['2.', '(b)', 'II)']
    """
    match = _AUTO_NUMBER.match(form)
    if match is None:
        return f"{number}."
    pattern = _NUMBER_PATTERNS.get(match[2], "{}.")
    return pattern.format(numeral(number, _NUMERAL_STYLES[match[1]]))


def _as_html(paragraph: Any) -> Any:
    """A paragraph with its raised and lowered runs, and with equations as text."""
    element = etree.Element("pre")
    for node in paragraph.iter(f"{A}t", f"{A}br", EQUATION):
        if node.tag == f"{A}br":
            etree.SubElement(element, "br")
            continue
        properties = node.getparent().find(f"{A}rPr")
        baseline = 0.0 if properties is None else _number(properties, "baseline")
        tag = "span"
        if baseline > 0:
            tag = "sup"
        elif baseline < 0:
            tag = "sub"
        run = etree.SubElement(element, tag)
        run.text = equation(node) if node.tag == EQUATION else node.text
        if baseline > 0 and properties.find(f"{A}hlinkClick") is not None:
            run.set("class", "reference")  # a raised link is the mark of a note
    return element


def _table_text(table: Any) -> str:
    """The rows of a table; cells that others cover are empty."""
    root = etree.Element("table")
    for row in table.iter(f"{A}tr"):
        html_row = etree.SubElement(root, "tr")
        for cell in row.iterchildren(f"{A}tc"):
            html_cell = etree.SubElement(html_row, "td")
            is_covered = any(cell.get(name) in ("1", "true") for name in ("hMerge", "vMerge"))
            body = cell.find(f"{A}txBody")
            if body is None or is_covered:
                continue
            style = body.find(f"{A}lstStyle")
            html_cell.append(_paragraphs(body, [] if style is None else [style]))
    return _text_of(root)


def _text_of(root: Any) -> str:
    return "\n".join(filter(None, lines_of(root)))


def _plain_text(body: Any) -> str:
    paragraphs = []
    for paragraph in body.iter(f"{A}p"):
        paragraphs.append("".join(run.text or "" for run in paragraph.iter(f"{A}t")))
    return " ".join(paragraphs)


def _comment_authors(presentation: Part) -> dict[str, str]:
    """The names of the authors of comments, by the ids that comments refer to."""
    names = {}
    for kind in ("commentAuthors", "authors"):
        for part in presentation.related(kind):
            for author in part.tree():
                names[author.get("id", "")] = author.get("name", "")
    return names
