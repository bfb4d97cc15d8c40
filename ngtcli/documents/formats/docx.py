"""Word files: text as Word shows it, with the numbers of its lists, notes and comments.

The document is turned into a tree of HTML: paragraphs become `pre`, `h2` or `li`. Inserted text is
read; deleted and hidden text is not.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lxml import etree

from ngtcli.documents.content import (
    Extracted,
    ParserInput,
    Writer,
    comment_line,
    hidden_text_warning,
    row_of,
    unknown_signs,
)
from ngtcli.documents.formats.drawing import DRAWN, SEEN, drawn_text
from ngtcli.documents.formats.equations import EQUATION, equation
from ngtcli.documents.formats.markup import decode_page, lines_of, tree_of, write_tree
from ngtcli.documents.formats.package import BROKEN, RELATION, Package, Part
from ngtcli.documents.formats.visible import join_scripts, keep_visible, set_apart
from ngtcli.documents.formats.word_numbering import (
    BULLET,
    Numbering,
    W,
    integer_of,
    is_on,
    value_of,
)
from ngtcli.documents.text import Unreadable

_PARAGRAPH = f"{W}p"
_PARAGRAPH_PROPERTIES = f"{W}pPr"
_RUN = f"{W}r"
_RUN_PROPERTIES = f"{W}rPr"
_TEXT = f"{W}t"
_SYMBOL = f"{W}sym"
_TABLE = f"{W}tbl"
_ROW = f"{W}tr"
_CELL = f"{W}tc"
_CELL_PROPERTIES = f"{W}tcPr"
_BOX = f"{W}txbxContent"
_WORD_ART = "{urn:schemas-microsoft-com:vml}textpath"  # such as a watermark
_EMBEDDED = "{urn:schemas-microsoft-com:office:office}OLEObject"
_CHUNK = f"{W}altChunk"  # stands for the content of another file
_COMMENT = f"{W}commentReference"
_FIELD = f"{W}fldChar"
_HEADER = f"{W}headerReference"
_FOOTER = f"{W}footerReference"
_NOTES = {f"{W}footnoteReference": "footnote", f"{W}endnoteReference": "endnote"}
_DELETED = (f"{W}del", f"{W}moveFrom")
_CHARACTERS = {f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}noBreakHyphen": "-"}
_SCRIPTS = {"superscript": "sup", "subscript": "sub"}
# The HTML elements that stand for those of Word.
_TAGS = {
    _PARAGRAPH: "pre",
    _TABLE: "table",
    _ROW: "tr",
    _CELL: "td",
    f"{W}br": "br",
    f"{W}cr": "br",
    **dict.fromkeys(DRAWN, "pre"),
}
_BLOCKS = ("pre", "h2", "li")
_INLINE_PARENTS = frozenset([*_BLOCKS, "span", "sup", "sub"])
# Tags that elements have got before the others are renamed.
_ALREADY_HTML = frozenset([*_BLOCKS, "sup", "sub", "chunk", "note", "comment"])
_VISIBLE = (_TEXT, _SYMBOL, _CHUNK, _WORD_ART, *SEEN)
_TITLES = ("title", "subtitle")  # styles of headings that are not called so
_LIST_STYLE = re.compile(r"list (?:bullet|number)")
_MAX_CHUNK_DEPTH = 8  # files within files (guess)
_MAX_EMPTY_CELLS = 1000  # before the first cell of a row (guess)
# Characters of symbol fonts, by the font and the code in it.
_WINGDINGS = {
    ("wingdings", 0xA8): "☐",
    ("wingdings", 0xFE): "☑",
    ("wingdings", 0xFD): "☒",
    ("wingdings", 0x6F): "☐",
    ("wingdings", 0x78): "☒",
    ("wingdings", 0xFC): "✓",
    ("wingdings", 0xFB): "✗",
    ("wingdings", 0xE0): "→",
    ("wingdings", 0xE8): "→",
    ("wingdings", 0x4A): "☺",
    ("wingdings 2", 0x52): "☑",
    ("wingdings 2", 0x50): "✓",
    ("wingdings 2", 0xA3): "☐",
    ("wingdings 2", 0x51): "☒",
}


def parse(source: ParserInput) -> Extracted:
    """The text as Word shows it."""
    document = _Document(Package.open(source).main("word/document.xml"), source)
    body = document.body()
    writer = Writer()
    writer.add(document.page_text("header"))
    write_tree(body, writer)
    for kind in ("footnote", "endnote"):
        for note in document.notes(kind):
            writer.add(note, kind)
    writer.add(document.page_text("footer"))
    return writer.extracted("docx", document.warnings() + unknown_signs(writer.text()))


@dataclass(frozen=True, slots=True)
class _Style:
    """A style, with what it inherits from those it is based on.

    Attributes:
        name: Its name, in lower case.
        is_heading: Whether its paragraphs are headings.
        is_hidden: Whether its text is hidden.
        script: "sup" for raised text, "sub" for lowered text.
        list_id: The list of its paragraphs; "" for none.
        level: Their level in that list, from 0.
    """

    name: str = ""
    is_heading: bool = False
    is_hidden: bool = False
    script: str = ""
    list_id: str = ""
    level: int | None = None


class _Styles:
    """The styles of a document, by id.

    Attributes:
        may_hide: Whether any style hides text.
    """

    def __init__(self, roots: list[Any]) -> None:
        self._elements = {}
        self._default_id = ""  # of the style of paragraphs that name none
        self._cache: dict[str | None, _Style] = {}
        self.may_hide = False
        for root in roots:
            for element in root.iter(f"{W}style"):
                self._elements[element.get(f"{W}styleId")] = element
            if next(root.iter(f"{W}vanish"), None) is not None:
                self.may_hide = True
        for style_id, element in self._elements.items():
            if element.get(f"{W}default") == "1" and element.get(f"{W}type") == "paragraph":
                self._default_id = style_id

    def paragraph_style_id(self, named_id: str | None) -> str:
        """The id of a paragraph's style: the named one, or the default if there is none such."""
        return named_id if named_id and named_id in self._elements else self._default_id

    def style(self, style_id: str | None) -> _Style:
        """The style with an id; one without any properties if it does not exist."""
        if style_id not in self._cache:
            self._cache[style_id] = _Style()  # ends circles of styles based on each other
            element = self._elements.get(style_id)
            if element is not None:
                self._cache[style_id] = self._parse(element)
        return self._cache[style_id]

    def _parse(self, element: Any) -> _Style:
        base = self.style(value_of(element, "basedOn"))
        name = (value_of(element, "name") or "").lower()
        hidden = element.find(f"{W}rPr/{W}vanish")
        script = value_of(element, "rPr/vertAlign")
        list_id = value_of(element, "pPr/numPr/numId")
        level = integer_of(element, "pPr/numPr/ilvl")
        return _Style(
            name=name,
            is_heading=base.is_heading or name.startswith("heading") or name in _TITLES,
            is_hidden=base.is_hidden if hidden is None else is_on(hidden),
            script=base.script if script is None else _SCRIPTS.get(script, ""),
            list_id=base.list_id if list_id is None else list_id,
            level=base.level if level is None else level,
        )


class _Document:
    """A document with the parts that say how its text is shown."""

    def __init__(self, part: Part, source: ParserInput, chunk_depth: int = 0) -> None:
        """Open a document.

        Args:
            part: Its main part.
            source: The file that it is in.
            chunk_depth: The number of files around it, each in a chunk of the next one.
        """
        self._part = part
        self._source = source
        self._chunk_depth = chunk_depth
        self._styles = _Styles([style.tree() for style in part.related("styles")])
        self._hidden_words = 0
        self._embedded_objects = 0
        self._note_labels: dict[str, dict[str, str]] = {}  # by kind and id
        self._placed_comments: set[str] = set()  # ids of comments in the text
        self._page_parts: list[tuple[str, Part]] | None = None
        self._comments: dict[str, str] = {}  # by id; empty while comments themselves are parsed
        self._comments = self._parse_comments()

    @cached_property
    def _numbering(self) -> Numbering:
        """The numbers of lists. Parsed when the first paragraph of a list is reached."""
        roots = [part.tree(f"{W}numFmt") for part in self._part.related("numbering")]
        return Numbering(roots[0] if roots else None)

    def body(self) -> Any:
        """The document's text as a tree of HTML, with comments after the blocks they are on."""
        tree = self._part.tree(*_VISIBLE)
        self._page_parts = self._find_page_parts(tree)
        root = self._as_html(tree, self._part)
        for comment_id, text in self._comments.items():
            if comment_id not in self._placed_comments:  # it is on nothing that is shown
                etree.SubElement(root, "pre").text = text
        return root

    def _find_page_parts(self, tree: Any) -> list[tuple[str, Part]] | None:
        """The tags and parts of headers and footers that pages show; None if no section names any.

        A section inherits those of the section before it that it does not replace.
        """
        has_even_pages = self._has_even_pages(tree)
        current: dict[tuple[str, str], Part | None] = {}
        shown: list[tuple[str, Part]] = []
        for section in tree.iter(f"{W}sectPr"):
            for reference in section.iterchildren(_HEADER, _FOOTER):
                pages = reference.get(f"{W}type", "default")
                target = self._part.target(reference.get(f"{RELATION}id"))
                current[reference.tag, pages] = target
            shown_pages = ["default"]
            if is_on(section.find(f"{W}titlePg")):
                shown_pages.insert(0, "first")
            if has_even_pages:
                shown_pages.append("even")
            for pages in shown_pages:
                for tag in (_HEADER, _FOOTER):
                    part = current.get((tag, pages))
                    if part is not None:
                        shown.append((tag, part))
        return shown if current else None

    def _has_even_pages(self, tree: Any) -> bool:
        """Whether even pages have headers or footers of their own."""
        if tree.find(f".//{W}sectPr/*[@{W}type='even']") is None:
            return False
        settings = (part.tree() for part in self._part.related("settings"))
        return any(is_on(root.find(f"{W}evenAndOddHeaders")) for root in settings)

    def page_text(self, kind: str) -> str:
        """The headers or footers, each text once; those without letters are left out.

        Args:
            kind: "header" or "footer".
        """
        if self._page_parts is None:
            parts = self._part.related(kind)
        else:
            parts = [part for tag, part in self._page_parts if tag == f"{W}{kind}Reference"]
        if "_numbering" in self.__dict__:  # it was used in the body
            self._numbering.restart()
        texts: dict[str, None] = {}
        for part in {part.name: part for part in parts}.values():
            writer = Writer()
            write_tree(self._as_html(part.tree(*_VISIBLE), part), writer)
            texts[writer.text()] = None
        return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))

    def notes(self, kind: str) -> Iterator[str]:
        """The notes of a kind with their labels, in the order of their references.

        Args:
            kind: "footnote" or "endnote".
        """
        labels = self._note_labels.get(kind, {})
        texts: dict[str, str] = {}
        for part in self._part.related(f"{kind}s"):
            for note in part.tree(*_VISIBLE).iterfind(f"{W}{kind}"):
                note_id = note.get(f"{W}id")
                if note_id in labels:
                    texts[note_id] = row_of([lines_of(self._as_html(note, part))])
        for note_id, label in labels.items():
            if texts.get(note_id):
                yield f"[^{label}]: {texts[note_id]}"

    def warnings(self) -> tuple[str, ...]:
        """Say what was left out."""
        warnings = []
        if self._hidden_words:
            warnings.append(hidden_text_warning(self._hidden_words))
        if self._embedded_objects:
            warnings.append(f"embedded objects are not read: {self._embedded_objects}")
        return tuple(warnings)

    def _parse_comments(self) -> dict[str, str]:
        """The comments as the text shows them, by id."""
        comments: dict[str, str] = {}
        for part in self._part.related("comments"):
            for comment in part.tree(*_VISIBLE).iterfind(f"{W}comment"):
                author = comment.get(f"{W}author") or comment.get(f"{W}initials") or ""
                text = row_of([lines_of(self._as_html(comment, part))])
                if text:
                    comments[comment.get(f"{W}id", "")] = comment_line(text, author)
        return comments

    def _as_html(self, root: Any, part: Part) -> Any:
        """Turn a tree into HTML, in place, and return it.

        Args:
            root: The tree.
            part: The part that it is from, to which its references are relative.
        """
        self._drop_deleted(root)
        _move_boxes(root)
        _unwrap_table_content(root)
        _lay_out_rows(root)
        self._mark_paragraphs(root)
        _put_ruby_after_base(root)
        self._format_runs(root)
        self._replace_objects(root)
        self._rename_elements(root, part)
        join_scripts(root)
        set_apart(root)
        for chunk in list(root.iter("chunk")):
            self._insert_chunk(chunk, part)
        self._place_comments(root)
        return root

    def _drop_deleted(self, root: Any) -> None:
        """Remove what tracked changes delete: text, rows, cells and ends of paragraphs."""
        for row in list(root.iter(_ROW)):
            if row.find(f"{W}trPr/{W}del") is not None:
                row.getparent().remove(row)
        for cell in root.iter(_CELL):
            if cell.find(f"{W}tcPr/{W}cellDel") is not None:
                cell[:] = [child for child in cell if child.tag == _CELL_PROPERTIES]
        deleted = []
        for node in root.iter(*_DELETED):
            is_property = node.getparent().tag.endswith("Pr")  # says that an end is deleted
            if not is_property:
                deleted.append(node)
        for node in deleted:
            node.getparent().remove(node)
        # From the last one on, so that each paragraph moves only its own text.
        for paragraph in reversed(list(root.iter(_PARAGRAPH))):
            end = paragraph.find(f"{W}pPr/{W}rPr")
            if end is None:
                continue
            is_deleted = any(end.find(tag) is not None for tag in _DELETED)
            if is_deleted or is_on(end.find(f"{W}vanish")):
                _join_next_paragraph(paragraph, is_deleted)

    def _mark_paragraphs(self, root: Any) -> None:
        """Turn paragraphs into headings and items of lists, with their numbers."""
        for paragraph in list(root.iter(_PARAGRAPH)):
            properties = paragraph.find(_PARAGRAPH_PROPERTIES)
            style_id = self._styles.paragraph_style_id(value_of(properties, "pStyle"))
            style = self._styles.style(style_id)
            paragraph.set("style", style_id)
            if style.is_heading:
                paragraph.tag = "h2"
            list_properties = None if properties is None else properties.find(f"{W}numPr")
            has_list_style = style.list_id or _LIST_STYLE.match(style.name)
            if list_properties is None and not has_list_style:
                continue
            if properties is not None and is_on(properties.find(f"{W}rPr/{W}vanish")):
                continue  # a paragraph whose end is hidden is not counted
            list_id, level = self._list_of(list_properties, style_id, style)
            mark = self._next_mark(list_id, level)
            if mark is None or not _has_text(paragraph):
                continue
            if paragraph.tag == "h2":
                paragraph.set("mark", "" if mark == BULLET else mark)
            else:
                paragraph.tag = "li"
                paragraph.set("mark", mark)
                paragraph.set("level", str(level if mark == BULLET else 0))

    def _list_of(self, list_properties: Any, style_id: str, style: _Style) -> tuple[str, int]:
        """The list that a paragraph belongs to, and its level in it, from 0.

        Args:
            list_properties: What the paragraph itself says of its list, or None.
            style_id: The id of its style.
            style: Its style.
        """
        list_id = value_of(list_properties, "numId")
        level = integer_of(list_properties, "ilvl")
        if list_id is None:
            list_id = style.list_id
            if level is None:
                level = style.level
            if level is None and list_id:
                level = self._numbering.level_of_style(list_id, style_id)
        return list_id, level or 0

    def _next_mark(self, list_id: str, level: int) -> str | None:
        """Count a paragraph, and return its number or bullet; None if it has none."""
        if list_id == "0":  # Word's way to say that it belongs to no list
            return None
        if not self._numbering.has(list_id):
            return BULLET
        return self._numbering.next_mark(list_id, level)

    def _format_runs(self, root: Any) -> None:
        """Remove the text of hidden runs; turn raised and lowered ones into `sup` and `sub`."""
        for run in list(root.iter(_RUN)):
            has_properties = len(run) > 0 and run[0].tag == _RUN_PROPERTIES
            if not has_properties and not self._styles.may_hide:
                continue
            properties = run[0] if has_properties else None
            style = self._styles.style(value_of(properties, "rStyle"))
            hidden = None if properties is None else properties.find(f"{W}vanish")
            if hidden is None:
                is_hidden = style.is_hidden or self._paragraph_style_of(run).is_hidden
            else:
                is_hidden = is_on(hidden)
            if is_hidden:
                self._empty_hidden_run(run)
                continue
            script = value_of(properties, "vertAlign")
            tag = style.script if script is None else _SCRIPTS.get(script, "")
            if tag and run.find(_TEXT) is not None:
                run.tag = tag

    def _paragraph_style_of(self, run: Any) -> _Style:
        paragraph = next(run.iterancestors(*_BLOCKS, _PARAGRAPH), None)
        return self._styles.style(None if paragraph is None else paragraph.get("style"))

    def _empty_hidden_run(self, run: Any) -> None:
        text = " ".join(node.text or "" for node in run.iter(_TEXT))
        self._hidden_words += len(text.split())
        run[:] = [child for child in run if child.tag == _RUN_PROPERTIES]

    def _replace_objects(self, root: Any) -> None:
        """Write equations and form fields as text, count embedded objects, and drop properties."""
        for node in list(root.iter(EQUATION)):
            text = equation(node)
            following = node.getnext()
            if following is not None and following.tag == EQUATION:
                text += " "
            node.text = text
            del node[:]
        for node in root.iter(_FIELD):
            node.text = _form_field_text(node)
            del node[:]
        self._embedded_objects += sum(1 for _ in root.iter(_EMBEDDED))
        for node in list(root.iter()):
            if node.tag.endswith("Pr"):
                node.getparent().remove(node)

    def _rename_elements(self, root: Any, part: Part) -> None:
        """Give elements their names in HTML, and the text that they stand for."""
        for node in list(root.iter()):
            is_inline = node is not root and node.getparent().tag in _INLINE_PARENTS
            tag = _TAGS.get(node.tag, "span" if is_inline else "div")
            text = _CHARACTERS.get(node.tag)
            if node.tag in (_TEXT, EQUATION, _FIELD):
                text = node.text
            elif node.tag in _NOTES:
                text = self._note_reference(node)
            elif node.tag == _COMMENT:
                tag = "comment"
            elif node.tag in DRAWN:
                text = drawn_text(node, part)
            elif node.tag == _SYMBOL:
                text = _symbol(node)
            elif node.tag == _WORD_ART:
                text = node.get("string")
            elif node.tag == _CHUNK:
                tag = "chunk"
            elif node.tag in _ALREADY_HTML:
                tag = node.tag
                text = node.text
            node.tag = tag
            node.text = text

    def _note_reference(self, reference: Any) -> str:
        """The mark of a note, such as "[^1]". Notes are numbered in the order of references."""
        kind = _NOTES[reference.tag]
        labels = self._note_labels.setdefault(kind, {})
        note_id = reference.get(f"{W}id", "")
        if note_id not in labels:
            labels[note_id] = _take_custom_mark(reference) or _next_note_label(kind, labels)
        return f"[^{labels[note_id]}]"

    def _place_comments(self, root: Any) -> None:
        """Write comments after the outermost block or table that they are on."""
        for reference in list(root.iter("comment")):
            comment_id = reference.get(f"{W}id", "")
            reference.tag = "span"
            text = self._comments.get(comment_id)
            if not text or comment_id in self._placed_comments:
                continue
            block = None
            for ancestor in reference.iterancestors(*_BLOCKS, "table"):
                block = ancestor
            if block is None or block is root:
                continue
            self._placed_comments.add(comment_id)
            following = block.getnext()
            while following is not None and following.get("comment"):
                block = following  # an earlier comment on the same block
                following = block.getnext()
            paragraph = etree.Element("pre")
            paragraph.text = text
            paragraph.set("comment", "1")
            block.addnext(paragraph)

    def _insert_chunk(self, chunk: Any, part: Part) -> None:
        """Put the text of another file, which a chunk stands for, into the chunk."""
        target = part.target(chunk.get(f"{RELATION}id"))
        chunk.tag = "div"
        if target is None or self._chunk_depth >= _MAX_CHUNK_DEPTH:
            return
        data = target.blob
        suffix = re.sub(r".*\.", ".", target.name.lower())
        try:
            if data.startswith(b"PK"):
                self._insert_document(chunk, data)
            elif data.startswith(b"{\\rtf"):
                from ngtcli.documents.formats import rtf

                source = ParserInput(data=data, suffix=".rtf", max_bytes=self._source.max_bytes)
                _add_paragraphs(chunk, rtf.parse(source).text)
            else:
                self._insert_page_or_text(chunk, data, suffix)
        except (*BROKEN, etree.LxmlError, Unreadable):
            self._embedded_objects += 1

    def _insert_document(self, chunk: Any, data: bytes) -> None:
        source = ParserInput(data=data, suffix=".docx", max_bytes=self._source.max_bytes)
        part = Package.open(source).main("word/document.xml")
        inner = _Document(part, source, self._chunk_depth + 1)
        chunk.append(inner.body())
        for kind in ("footnote", "endnote"):
            for note in inner.notes(kind):
                etree.SubElement(chunk, "pre").text = note
        self._hidden_words += inner._hidden_words

    def _insert_page_or_text(self, chunk: Any, data: bytes, suffix: str) -> None:
        page = _html_of(data, suffix)
        if not page:
            text, _ = decode_page(data)
            _add_paragraphs(chunk, text)
            return
        tree = tree_of(page)
        self._hidden_words += keep_visible(tree)
        for element in list(tree.iter("title", "head")):
            element.clear(keep_tail=True)
        chunk.append(tree)


def _join_next_paragraph(paragraph: Any, is_deleted: bool) -> None:
    """Move the content of a paragraph without an end to the start of the next paragraph.

    Args:
        paragraph: The paragraph.
        is_deleted: Whether its end is deleted, rather than hidden.
    """
    following = paragraph.getnext()
    content = [child for child in paragraph if child.tag != _PARAGRAPH_PROPERTIES]
    has_content = _has_visible(content)
    if following is None or following.tag != _PARAGRAPH:
        if is_deleted and not has_content:
            paragraph.getparent().remove(paragraph)
        return

    position = 0
    if len(following) and following[0].tag == _PARAGRAPH_PROPERTIES:
        position = 1
        properties = paragraph.find(_PARAGRAPH_PROPERTIES)
        if not is_deleted and properties is not None and has_content:
            # A heading at the beginning of a paragraph: the whole paragraph counts as a heading.
            following[0] = copy.deepcopy(properties)
            for hidden in following[0].iter(f"{W}vanish"):
                hidden.set(f"{W}val", "0")
    following[position:position] = content
    paragraph.getparent().remove(paragraph)


def _move_boxes(root: Any) -> None:
    """Move text boxes, charts and SmartArt after the paragraph that they are in."""
    for node in reversed(list(root.iter(_BOX, *DRAWN))):
        paragraph = next(node.iterancestors(_PARAGRAPH), None)
        if paragraph is not None:
            paragraph.addnext(node)


def _unwrap_table_content(root: Any) -> None:
    """Remove content controls around rows and cells, but not what is in them."""
    for control in reversed(list(root.iter(f"{W}sdt", f"{W}customXml"))):
        content = control.find(f"{W}sdtContent")
        if content is None:
            content = control
        if content.find(_CELL) is not None or content.find(_ROW) is not None:
            for child in content:
                control.addprevious(child)
            control.getparent().remove(control)


def _lay_out_rows(root: Any) -> None:
    """Add empty cells where rows begin later, set `colspan`, and empty cells that others cover."""
    for row in root.iter(_ROW):
        cells = row.findall(_CELL)
        for cell in cells:
            properties = cell.find(_CELL_PROPERTIES)
            if properties is None or not len(properties):
                continue
            cell.set("colspan", value_of(properties, "gridSpan") or "1")
            for name in ("vMerge", "hMerge"):
                merge = value_of(properties, name)
                if merge is not None and merge != "restart":
                    cell[:] = []
        if cells:
            skipped_columns = integer_of(row, "trPr/gridBefore") or 0
            for _ in range(min(skipped_columns, _MAX_EMPTY_CELLS)):
                cells[0].addprevious(etree.Element("td"))


def _take_custom_mark(reference: Any) -> str:
    """Remove the mark that a note has in place of a number from the text after its reference."""
    following = reference.getnext()
    has_custom_mark = reference.get(f"{W}customMarkFollows") in ("1", "true")
    if not has_custom_mark or following is None:
        return ""
    mark = (following.text or "").strip()
    following.text = None
    return mark


def _next_note_label(kind: str, labels: Mapping[str, str]) -> str:
    """The label of the next numbered note: "1" for a footnote, "e1" for an endnote."""
    numbered = [label for label in labels.values() if label.removeprefix("e").isdigit()]
    prefix = "e" if kind == "endnote" else ""
    return f"{prefix}{len(numbered) + 1}"


def _has_visible(elements: Sequence[Any]) -> bool:
    """Whether there is anything in elements that Word shows."""
    return any(next(element.iter(*_VISIBLE), None) is not None for element in elements)


def _has_text(paragraph: Any) -> bool:
    """Whether a paragraph shows more than white space."""
    for node in paragraph.iter(*_VISIBLE):
        if node.tag != _TEXT or (node.text or "").strip():
            return True
    return False


def _put_ruby_after_base(root: Any) -> None:
    """Put the reading of characters after them, in parentheses as `set_apart` does."""
    for ruby in list(root.iter(f"{W}ruby")):
        reading = ruby.find(f"{W}rt")
        if reading is not None:
            text = "".join(node.text or "" for node in reading.iter(_TEXT))
            ruby.remove(reading)
            run = etree.SubElement(ruby, _RUN)
            etree.SubElement(run, _TEXT).text = f"({text})" if text else ""


def _symbol(node: Any) -> str:
    """The character of a symbol font; "" if its code is not valid."""
    font = node.get(f"{W}font", "").lower()
    try:
        code = int(node.get(f"{W}char", "20"), 16)
        return _WINGDINGS.get((font, code & 0xFF)) or chr(code)
    except (ValueError, OverflowError):
        return ""


def _form_field_text(node: Any) -> str | None:
    """Return what a form field without text shows, a box or a choice, or None for any other."""
    box = node.find(f".//{W}checkBox")
    if box is not None:
        state = box.find(f"{W}checked")
        if state is None:
            state = box.find(f"{W}default")
        return "[x]" if is_on(state) else "[ ]"
    choices = node.find(f".//{W}ddList")
    if choices is not None:
        entries = [entry.get(f"{W}val", "") for entry in choices.iterfind(f"{W}listEntry")]
        chosen = integer_of(choices, "result") or 0
        return entries[chosen] if 0 <= chosen < len(entries) else None
    return None


def _html_of(data: bytes, suffix: str) -> str:
    """The HTML page in a chunk, which may be in an e-mail; "" if it has none."""
    start = data[:2000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    is_mail = start.startswith((b"mime-version:", b"from:"))
    if is_mail or suffix in (".mht", ".mhtml", ".eml"):
        return _html_of_mail(data)
    is_page = suffix in (".html", ".htm", ".xhtml", ".xht") or b"<html" in start
    return decode_page(data)[0] if is_page else ""


def _html_of_mail(data: bytes) -> str:
    from email import message_from_bytes, policy

    message = message_from_bytes(data, policy=policy.default)
    for part in message.walk():
        if part.get_content_type() == "text/html":
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)  # for a part that is not multipart
            charset = part.get_content_charset() or "utf-8"
            try:
                return payload.decode(charset, "replace")
            except LookupError:  # there is no such character set
                return decode_page(payload)[0]
    return ""


def _add_paragraphs(element: Any, text: str) -> None:
    """Add each paragraph of a plain text to an element."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    for paragraph in re.split(r"\n\s*\n", lines):
        # XML allows no other control characters than tabs and ends of lines.
        printable = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", " ", paragraph)
        etree.SubElement(element, "pre").text = printable
