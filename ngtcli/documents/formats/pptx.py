"""PowerPoint files: the slides in their order, the shapes of each by their place.

Shapes are read from the top down and from left to right, the title first. Lists have the bullets
and numbers that PowerPoint shows, which a shape may have from its layout or the master.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer, comment_line, row_of, unknown_signs
from ngtcli.documents.formats.drawing import DRAWN, SEEN, A, Box, by_place, drawn_text
from ngtcli.documents.formats.equations import EQUATION, equation
from ngtcli.documents.formats.markup import lines_of
from ngtcli.documents.formats.numerals import numeral
from ngtcli.documents.formats.package import RELATION, Package, Part
from ngtcli.documents.formats.visible import join_scripts, set_apart

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_MODERN = "{http://schemas.microsoft.com/office/powerpoint/2018/8/main}"
_SHAPE, _GROUP, _FRAME = f"{_P}sp", f"{_P}grpSp", f"{_P}graphicFrame"
_PLACEHOLDER = f"{_P}nvSpPr/{_P}nvPr/{_P}ph"
_TITLES = ("title", "ctrTitle")
_RUNNING = ("ftr", "hdr", "dt")
_BODY_STYLES = {"title": "titleStyle", "ctrTitle": "titleStyle"}  # others have bodyStyle
_ALIKE = ({"body", "subTitle", "obj"}, {"title", "ctrTitle"})  # for which a master has one
_BULLET = "-"
_NUMBER_FORMS = {
    "arabic": "decimal",
    "alphaLc": "lowerLetter",
    "alphaUc": "upperLetter",
    "romanLc": "lower-roman",
    "romanUc": "upper-roman",
}
_AUTO_NUMBER = re.compile(
    r"(arabic|alphaLc|alphaUc|romanLc|romanUc)\w*?(Period|ParenR|ParenBoth|Plain|Minus)?$"
)


def parse(source: Source) -> Extracted:
    """The text as PowerPoint shows it: hidden slides are left out."""
    main = Package.open(source).main("ppt/presentation.xml")
    authors = _authors(main)
    writer, hidden, embedded = Writer(), 0, 0
    trees: dict[str, Any] = {}  # of layouts and masters
    running: set[str] = set()  # footers and words of masters that stood before
    slides = list(main.tree().iter(f"{_P}sldId"))
    for number, identifier in enumerate(slides, 1):
        part = main.target(identifier.get(f"{RELATION}id"))
        if part is None:
            continue
        slide = _Slide(part, authors, trees)
        if slide.is_hidden:
            hidden += 1
            continue
        embedded += slide.embedded
        blocks = list(slide.blocks())
        title = row_of([[block.text for block in blocks if block.kind in _TITLES]])
        writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
        writer.add(title)
        for block in blocks:
            is_new = block.kind not in _RUNNING or block.text not in running
            if block.kind not in _TITLES and is_new:
                writer.add(block.text)
            if block.kind in _RUNNING:
                running.add(block.text)
        for words in slide.words_of_masters():
            if words not in running:
                writer.add(words)
                running.add(words)
        for comment in slide.comments():
            writer.add(comment)
        writer.add(slide.notes())
    left = [f"hidden slides left out: {hidden}"] * bool(hidden)
    left += [f"embedded objects are not read: {embedded}"] * bool(embedded)
    return writer.extracted("pptx", (*left, *unknown_signs(writer.text())))


@dataclass(frozen=True, slots=True)
class _Block:
    """The text of a shape, the kind of its placeholder, and its place."""

    kind: str
    text: str


class _Slide:
    """A slide with its layout and master, whose `trees` slides share."""

    def __init__(self, part: Part, authors: dict[str, str], trees: dict[str, Any]) -> None:
        self._part = part
        self._authors = authors
        self._root = part.tree(*SEEN)
        layouts = part.related("slideLayout")
        self._layout = layouts[0] if layouts else None
        masters = self._layout.related("slideMaster") if self._layout else []
        self._master = masters[0] if masters else None
        self._bases = []
        for base in (self._layout, self._master):
            if base is not None:
                if base.name not in trees:
                    trees[base.name] = base.tree(*SEEN)
                self._bases.append(trees[base.name])

    @property
    def is_hidden(self) -> bool:
        """Whether it is not shown in the presentation."""
        return self._root.get("show") in ("0", "false")

    @property
    def embedded(self) -> int:
        """How many files of other programs stand on it, of which a picture is shown."""
        return len({node.get(f"{RELATION}id") for node in self._root.iter(f"{_P}oleObj")})

    def blocks(self) -> Iterator[_Block]:
        """The shapes that have text, in the order in which they are read."""
        yield from self._blocks_of(self._root.find(f"{_P}cSld/{_P}spTree"), self._part)

    def words_of_masters(self) -> Iterator[str]:
        """The text of shapes that the layout and the master show on their slides."""
        if self._root.get("showMasterSp") in ("0", "false"):
            return
        for part, root in zip((self._layout, self._master), self._bases, strict=False):
            for block in self._blocks_of(root.find(f"{_P}cSld/{_P}spTree"), part or self._part):
                if not block.kind:
                    yield block.text
            if root.get("showMasterSp") in ("0", "false"):
                return

    def notes(self) -> str:
        """The speaker's notes."""
        for part in self._part.related("notesSlide"):
            tree = part.tree(*SEEN).find(f"{_P}cSld/{_P}spTree")
            texts = [block.text for block in self._blocks_of(tree, part) if block.kind == "body"]
            if texts:
                return f"Notes: {texts[-1]}"
        return ""

    def comments(self) -> Iterator[str]:
        """The comments on the slide and the replies to them."""
        for part in self._part.related("comments"):
            root = part.tree()
            for comment in root.iter(f"{_P}cm", f"{_MODERN}cm", f"{_MODERN}reply"):
                author = self._authors.get(comment.get("authorId", ""), "")
                body = comment.find(f"{_MODERN}txBody")
                words = comment.findtext(f"{_P}text") if body is None else _plain(body)
                text = " ".join((words or "").split())
                if text:
                    yield comment_line(text, author)

    def _blocks_of(self, container: Any, part: Part) -> Iterator[_Block]:
        if container is None:
            return
        placed: list[tuple[Box, list[_Block]]] = []
        titles: list[_Block] = []
        box = Box(0, 0, 0, 0)
        for shape in _shapes(container):
            if shape.find(f"*/{_P}cNvPr[@hidden='1']") is not None:
                continue
            blocks = list(self._read(shape, part))
            box = self._box(shape) or box  # of the shape before where it has none of its own
            titles += [block for block in blocks if block.kind in _TITLES]
            rest = [block for block in blocks if block.kind not in _TITLES]
            if rest:
                placed.append((box, rest))
        yield from titles
        for _, blocks in by_place(placed):
            yield from blocks

    def _read(self, shape: Any, part: Part) -> Iterator[_Block]:
        """The text of a shape; of a group those of its shapes."""
        if shape.tag == _GROUP:
            yield from self._blocks_of(shape, part)
            return
        placeholder = shape.find(_PLACEHOLDER)
        kind = "" if placeholder is None else placeholder.get("type", "body")
        body = shape.find(f"{_P}txBody")
        if kind == "sldNum" or (kind == "dt" and shape.find(f".//{A}fld") is not None):
            return
        if body is not None:
            text = _text_of(_paragraphs(body, self._styles(shape, body, kind)))
            if text:
                yield _Block(kind, text)
        for node in shape.iter(f"{A}tbl", *DRAWN):
            text = _table(node) if node.tag == f"{A}tbl" else drawn_text(node, part)
            if text:
                yield _Block(kind, text)

    def _bases_of(self, shape: Any) -> Iterator[Any]:
        """The placeholders of layout and master that a shape is one of."""
        placeholder = shape.find(_PLACEHOLDER)
        if placeholder is None:
            return
        kind, index = placeholder.get("type", "body"), placeholder.get("idx")
        for number, base in enumerate(self._bases):
            for other in base.iter(_SHAPE):
                named = other.find(_PLACEHOLDER)
                if named is None:
                    continue
                is_same = named.get("idx") == index and number == 0 and index is not None
                of_kind = named.get("type", "body")
                is_alike = of_kind == kind or any({of_kind, kind} <= alike for alike in _ALIKE)
                if is_same or (is_alike and (number == 1 or index is None)):
                    kind = of_kind if is_same else kind
                    yield other
                    break

    def _box(self, shape: Any) -> Box | None:
        """Where a shape is; by its layout or master where it does not say so itself."""
        for one in (shape, *(self._bases_of(shape) if shape.tag == _SHAPE else ())):
            for path in (f"{_P}spPr/{A}xfrm", f"{_P}grpSpPr/{A}xfrm", f"{_P}xfrm"):
                transform = one.find(path)
                if transform is None:
                    continue
                offset, extent = transform.find(f"{A}off"), transform.find(f"{A}ext")
                if offset is not None and extent is not None:
                    left, top = _number(offset, "x"), _number(offset, "y")
                    width, height = _number(extent, "cx"), _number(extent, "cy")
                    return Box(left, top, left + width, top + height)
        return None

    def _styles(self, shape: Any, body: Any, kind: str) -> list[Any]:
        """Where the styles of a shape's paragraphs stand, the nearest first."""
        styles = [body.find(f"{A}lstStyle")]
        styles += [base.find(f"{_P}txBody/{A}lstStyle") for base in self._bases_of(shape)]
        is_on_slide = shape.getroottree().getroot().tag == f"{_P}sld"
        if is_on_slide and kind and kind not in _RUNNING and len(self._bases) > 1:
            named = _BODY_STYLES.get(kind, "bodyStyle")
            styles.append(self._bases[1].find(f"{_P}txStyles/{_P}{named}"))
        return [style for style in styles if style is not None]


def _shapes(container: Any) -> Iterator[Any]:
    """The shapes of a slide or group, those in the form that was chosen of several included."""
    for child in container:
        if child.tag in (_SHAPE, _GROUP, _FRAME):
            yield child
        elif isinstance(child.tag, str) and etree.QName(child).localname in (
            "AlternateContent",
            "Choice",
            "Fallback",
        ):
            yield from _shapes(child)


def _number(element: Any, name: str) -> float:
    text = element.get(name, "0")
    return float(text) if re.fullmatch(r"-?\d{1,15}", text) else 0.0


def _paragraphs(body: Any, styles: Iterable[Any]) -> Any:
    """The paragraphs of a shape as HTML, items of lists with their marks."""
    styles = [style for style in styles if style is not None]
    root = etree.Element("div")
    counts: dict[int, tuple[str, int]] = {}  # of each level: the form of its numbers, and the last
    for paragraph in body.iterchildren(f"{A}p"):
        properties = paragraph.find(f"{A}pPr")
        level = min(int(_number(properties, "lvl")), 8) if properties is not None else 0
        element = _as_html(paragraph)
        if not "".join(element.itertext()).strip():
            continue
        mark = _mark(properties, level, styles, counts)
        if mark:
            element.tag = "li"
            element.set("mark", mark)
            element.set("level", str(level))
        root.append(element)
    join_scripts(root)
    set_apart(root)
    return root


def _mark(
    properties: Any, level: int, styles: list[Any], counts: dict[int, tuple[str, int]]
) -> str:
    """The bullet or number of a paragraph; "" where it has none."""
    levels = [style.find(f"{A}lvl{level + 1}pPr") for style in styles]
    bullet = None
    for holder in (properties, *levels):
        if holder is None or bullet is not None:
            continue
        found = (holder.find(f"{A}{name}") for name in ("buNone", "buAutoNum", "buChar", "buBlip"))
        bullet = next((one for one in found if one is not None), None)
    for deeper in [other for other in counts if other > level]:
        del counts[deeper]
    if bullet is None or bullet.tag != f"{A}buAutoNum":
        counts.pop(level, None)
        return "" if bullet is None or bullet.tag == f"{A}buNone" else _BULLET
    form = bullet.get("type", "arabicPeriod")
    key = f"{form} {bullet.get('startAt')}"
    start = int(_number(bullet, "startAt")) or 1
    before = counts.get(level)
    number = before[1] + 1 if before is not None and before[0] == key else start
    counts[level] = key, number
    return _numbered(number, form)


def _numbered(number: int, form: str) -> str:
    """A number as PowerPoint shows it in a list.

    >>> [_numbered(2, form) for form in ("arabicPeriod", "alphaLcParenBoth", "romanUcParenR")]
    ['2.', '(b)', 'II)']
    """
    found = _AUTO_NUMBER.match(form)
    digits = numeral(number, _NUMBER_FORMS[found[1]] if found else "decimal")
    ends = {"ParenR": "{})", "ParenBoth": "({})", "Plain": "{}", "Minus": "{} -"}
    return ends.get(found[2] if found else "", "{}.").format(digits)


def _as_html(paragraph: Any) -> Any:
    """A paragraph with its raised and lowered runs, and equations in a line."""
    element = etree.Element("pre")
    for node in paragraph.iter(f"{A}t", f"{A}br", EQUATION):
        if node.tag == f"{A}br":
            etree.SubElement(element, "br")
            continue
        properties = node.getparent().find(f"{A}rPr")
        raised = 0.0 if properties is None else _number(properties, "baseline")
        tag = "sup" if raised > 0 else "sub" if raised < 0 else "span"
        piece = etree.SubElement(element, tag)
        piece.text = equation(node) if node.tag == EQUATION else node.text
        if raised > 0 and properties.find(f"{A}hlinkClick") is not None:
            piece.set("class", "reference")  # the mark of a note
    return element


def _table(table: Any) -> str:
    """The rows of a table; cells that others cover are empty."""
    root = etree.Element("table")
    for row in table.iter(f"{A}tr"):
        line = etree.SubElement(root, "tr")
        for cell in row.iterchildren(f"{A}tc"):
            box = etree.SubElement(line, "td")
            is_covered = any(cell.get(name) in ("1", "true") for name in ("hMerge", "vMerge"))
            body = cell.find(f"{A}txBody")
            if body is not None and not is_covered:
                box.append(_paragraphs(body, [body.find(f"{A}lstStyle")]))
    return _text_of(root)


def _text_of(root: Any) -> str:
    return "\n".join(filter(None, lines_of(root)))


def _plain(body: Any) -> str:
    return " ".join("".join(t.text or "" for t in p.iter(f"{A}t")) for p in body.iter(f"{A}p"))


def _authors(main: Part) -> dict[str, str]:
    """The names of those who made comments, by the ids that comments have for them."""
    parts = [*main.related("commentAuthors"), *main.related("authors")]
    authors = (author for part in parts for author in part.tree())
    return {author.get("id", ""): author.get("name", "") for author in authors}
