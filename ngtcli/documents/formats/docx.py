"""Word files: text as Word shows it, with the numbers of its lists, notes and comments.

The document is made a tree of HTML: paragraphs are `pre`, `h2` or `li`. Inserted text is read,
deleted and hidden text is not.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lxml import etree

from ngtcli.documents.content import (
    Extracted,
    Source,
    Writer,
    comment_line,
    counted,
    row_of,
    unknown_signs,
)
from ngtcli.documents.formats.drawing import DRAWN, SEEN, drawn_text
from ngtcli.documents.formats.equations import EQUATION, equation
from ngtcli.documents.formats.markup import decode_page, lines_of, tree_of, write_tree
from ngtcli.documents.formats.package import BROKEN, RELATION, Package, Part
from ngtcli.documents.formats.visible import join_scripts, set_apart, show
from ngtcli.documents.formats.word_numbering import (
    BULLET,
    Numbering,
    W,
    integer_of,
    is_on,
    value_of,
)
from ngtcli.documents.text import Unreadable

_PARAGRAPH, _TEXT, _SYMBOL, _BOX = f"{W}p", f"{W}t", f"{W}sym", f"{W}txbxContent"
_ART = "{urn:schemas-microsoft-com:vml}textpath"  # words as a picture, such as a watermark
_CHUNK = f"{W}altChunk"
_TAGS = {
    _PARAGRAPH: "pre",
    f"{W}tbl": "table",
    f"{W}tr": "tr",
    f"{W}tc": "td",
    f"{W}br": "br",
    f"{W}cr": "br",
    **dict.fromkeys(DRAWN, "pre"),
}
_OWN = frozenset(["h2", "li", "pre", "sup", "sub", "chunk", "note", "comment"])
_BLOCKS = frozenset(["pre", "h2", "li", "span", "sup", "sub"])
_SIGNS = {f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}noBreakHyphen": "-"}
_NOTES = {f"{W}footnoteReference": "footnote", f"{W}endnoteReference": "endnote"}
_RUN, _RUN_PROPERTIES = f"{W}r", f"{W}rPr"
_COMMENT, _FIELD = f"{W}commentReference", f"{W}fldChar"
_GONE = (f"{W}del", f"{W}moveFrom")
_SCRIPTS = {"superscript": "sup", "subscript": "sub"}
_SEEN = (_TEXT, _SYMBOL, _CHUNK, _ART, *SEEN)
_EMBEDDED = "{urn:schemas-microsoft-com:office:office}OLEObject"
_LIST_NAME = re.compile(r"list (?:bullet|number)")  # of styles
_MAX_CHUNKS = 8  # of files within files; guess


def parse(source: Source) -> Extracted:
    """The text as Word shows it."""
    document = _Document(Package.open(source).main("word/document.xml"), source)
    body = document.body()
    writer = Writer()
    writer.add(document.running("header"))
    write_tree(body, writer)
    for kind in ("footnote", "endnote"):
        for line in document.notes(kind):
            writer.add(line, kind)
    writer.add(document.running("footer"))
    return writer.extracted("docx", document.warnings() + unknown_signs(writer.text()))


@dataclass(frozen=True, slots=True)
class _Style:
    """What a style says, with what the styles say that it is based on."""

    name: str = ""
    is_heading: bool = False
    is_hidden: bool = False
    script: str = ""
    list: str = ""  # the numbering that it belongs to
    level: int | None = None


class _Styles:
    """The styles of a document by their ids; None stands for the usual one of paragraphs."""

    def __init__(self, roots: list[Any]) -> None:
        self._elements = {
            style.get(f"{W}styleId"): style for root in roots for style in root.iter(f"{W}style")
        }
        self.hides_any = any(next(root.iter(f"{W}vanish"), None) is not None for root in roots)
        self._usual = ""
        for identifier, style in self._elements.items():
            if style.get(f"{W}default") == "1" and style.get(f"{W}type") == "paragraph":
                self._usual = identifier
        self._known: dict[str | None, _Style] = {}

    def usual(self, identifier: str | None) -> str:
        """The id of the style that a paragraph has which names this one, or none."""
        return identifier if identifier in self._elements and identifier else self._usual

    def style(self, identifier: str | None) -> _Style:
        """A style by its id; one that says nothing where there is none."""
        if identifier not in self._known:
            self._known[identifier] = _Style()  # where styles are based on each other in a circle
            element = self._elements.get(identifier)
            if element is not None:
                self._known[identifier] = self._read(identifier or "", element)
        return self._known[identifier]

    def _read(self, identifier: str, element: Any) -> _Style:
        base = self.style(value_of(element, "basedOn"))
        name = (value_of(element, "name") or "").lower()
        hidden = element.find(f"{W}rPr/{W}vanish")
        script = value_of(element, "rPr/vertAlign")
        number = value_of(element, "pPr/numPr/numId")
        level = integer_of(element, "pPr/numPr/ilvl")
        return _Style(
            name=name,
            is_heading=base.is_heading or name.startswith("heading") or name in _TITLES,
            is_hidden=base.is_hidden if hidden is None else is_on(hidden),
            script=base.script if script is None else _SCRIPTS.get(script, ""),
            list=base.list if number is None else number,
            level=base.level if level is None else level,
        )


_TITLES = ("title", "subtitle")


@dataclass(slots=True)
class _Account:
    """What was left out of a document, and what is still to be written."""

    hidden_words: int = 0
    embedded: int = 0
    labels: dict[str, dict[str, str]] = field(default_factory=dict)  # of notes by kind and id
    comments: set[str] = field(default_factory=set)


class _Document:
    """A document with the parts that say how its text is shown."""

    def __init__(self, part: Part, source: Source, depth: int = 0) -> None:
        self._part = part
        self._source = source
        self._depth = depth
        self._styles = _Styles([style.tree() for style in part.related("styles")])
        self._account = _Account()
        self._comments = self._read_comments()
        self._tree: Any = None
        self._running: list[tuple[str, Part]] | None = None

    @cached_property
    def _numbering(self) -> Numbering:
        """The numbers of paragraphs; read when the first of a list is there."""
        roots = [part.tree(f"{W}numFmt") for part in self._part.related("numbering")]
        return Numbering(roots[0] if roots else None)

    def body(self) -> Any:
        """The document's text as a tree of HTML, with comments behind the blocks they stand at."""
        self._tree = self._part.tree(*_SEEN)
        self._running = self._headers_and_footers()
        root = self._as_html(self._tree, self._part)
        for identifier, text in self._comments.items():
            if identifier not in self._account.comments:  # it stands at nothing that is read
                etree.SubElement(root, "pre").text = text
        return root

    def _headers_and_footers(self) -> list[tuple[str, Part]] | None:
        """The headers and footers of pages, by their sections; None where no section names any.

        A section has those of the one before it that it does not replace.
        """
        has_even = False
        if self._tree.find(f".//{W}sectPr/*[@{W}type='even']") is not None:
            settings = (part.tree() for part in self._part.related("settings"))
            has_even = any(is_on(root.find(f"{W}evenAndOddHeaders")) for root in settings)
        current: dict[tuple[str, str], Part | None] = {}
        used: list[tuple[str, Part]] = []
        for section in self._tree.iter(f"{W}sectPr"):
            for reference in section.iterchildren(f"{W}headerReference", f"{W}footerReference"):
                kind = reference.tag, reference.get(f"{W}type", "default")
                current[kind] = self._part.target(reference.get(f"{RELATION}id"))
            has_first = is_on(section.find(f"{W}titlePg"))
            for pages, is_used in (("first", has_first), ("default", True), ("even", has_even)):
                for tag in (f"{W}headerReference", f"{W}footerReference"):
                    part = current.get((tag, pages))
                    if part is not None and is_used:
                        used.append((tag, part))
        return used if current else None

    def running(self, kind: str) -> str:
        """The headers or footers, each text once; numbers alone are left out."""
        if self._running is None:
            parts = self._part.related(kind)
        else:
            parts = [part for tag, part in self._running if tag == f"{W}{kind}Reference"]
        texts: dict[str, None] = {}
        if "_numbering" in self.__dict__:
            self._numbering.restart()
        for part in {part.name: part for part in parts}.values():
            writer = Writer()
            write_tree(self._as_html(part.tree(*_SEEN), part), writer)
            texts[writer.text()] = None
        return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))

    def notes(self, kind: str) -> Iterator[str]:
        """The notes of a kind in the order in which they are referred to."""
        labels = self._account.labels.get(kind, {})
        texts: dict[str, str] = {}
        for part in self._part.related(f"{kind}s"):
            for note in part.tree(*_SEEN).iterfind(f"{W}{kind}"):
                if note.get(f"{W}id") in labels:
                    html = self._as_html(note, part)
                    texts[note.get(f"{W}id")] = row_of([lines_of(html)])
        for identifier, label in labels.items():
            if texts.get(identifier):
                yield f"[^{label}]: {texts[identifier]}"

    def warnings(self) -> tuple[str, ...]:
        """What was left out."""
        account = self._account
        told = []
        if account.hidden_words:
            told.append(f"hidden text left out: {counted(account.hidden_words, 'word')}")
        if account.embedded:
            told.append(f"embedded objects are not read: {account.embedded}")
        return tuple(told)

    def _read_comments(self) -> dict[str, str]:
        """The comments by their ids, each as it is written."""
        comments: dict[str, str] = {}
        for part in self._part.related("comments"):
            for comment in part.tree(*_SEEN).iterfind(f"{W}comment"):
                author = comment.get(f"{W}author") or comment.get(f"{W}initials") or ""
                identifier = comment.get(f"{W}id", "")
                text = row_of([lines_of(self._as_html(comment, part))])
                if text:
                    comments[identifier] = comment_line(text, author)
        return comments

    def _as_html(self, root: Any, part: Part) -> Any:
        """A tree of a part's elements, which is changed, as one of HTML."""
        self._drop_deleted(root)
        self._move_boxes(root)
        self._lay_out_tables(root)
        self._show_paragraphs(root)
        _put_ruby_behind(root)
        self._show_runs(root)
        self._rename(root, part)
        join_scripts(root)
        set_apart(root)
        for chunk in list(root.iter("chunk")):
            self._insert_chunk(chunk, part)
        self._place_comments(root)
        return root

    def _drop_deleted(self, root: Any) -> None:
        """Take out what a tracked change deletes: text, rows, cells and ends of paragraphs."""
        for row in list(root.iter(f"{W}tr")):
            if row.find(f"{W}trPr/{W}del") is not None:
                row.getparent().remove(row)
        for cell in root.iter(f"{W}tc"):
            if cell.find(f"{W}tcPr/{W}cellDel") is not None:
                cell[:] = [child for child in cell if child.tag == f"{W}tcPr"]
        for node in [n for n in root.iter(*_GONE) if not n.getparent().tag.endswith("Pr")]:
            node.getparent().remove(node)
        for paragraph in reversed(list(root.iter(_PARAGRAPH))):  # each moves its own text alone
            mark = paragraph.find(f"{W}pPr/{W}rPr")
            if mark is None:
                continue
            is_deleted = any(mark.find(tag) is not None for tag in _GONE)
            if is_deleted or is_on(mark.find(f"{W}vanish")):
                self._join_next(paragraph, is_deleted)

    def _join_next(self, paragraph: Any, is_deleted: bool) -> None:
        """Put a paragraph whose end is not shown before the text of the next one."""
        following = paragraph.getnext()
        content = [child for child in paragraph if child.tag != f"{W}pPr"]
        if following is None or following.tag != _PARAGRAPH:
            if is_deleted and not _has_any(content):
                paragraph.getparent().remove(paragraph)
            return
        at = 0
        if len(following) and following[0].tag == f"{W}pPr":
            at = 1
            own = paragraph.find(f"{W}pPr")
            if not is_deleted and own is not None and _has_any(content):
                following[0] = copy.deepcopy(own)  # of the heading before text in a line
                for hidden in following[0].iter(f"{W}vanish"):
                    hidden.set(f"{W}val", "0")
        following[at:at] = content
        paragraph.getparent().remove(paragraph)

    @staticmethod
    def _move_boxes(root: Any) -> None:
        """Put text boxes, charts and words of art behind the paragraph that they stand in."""
        for node in reversed(list(root.iter(_BOX, *DRAWN))):
            around = next(node.iterancestors(_PARAGRAPH), None)
            if around is not None:
                around.addnext(node)

    @staticmethod
    def _lay_out_tables(root: Any) -> None:
        """Put empty cells where rows leave columns out; say how many columns cells cover."""
        for holder in reversed(list(root.iter(f"{W}sdt", f"{W}customXml"))):
            content = holder.find(f"{W}sdtContent")
            content = holder if content is None else content
            if content.find(f"{W}tc") is not None or content.find(f"{W}tr") is not None:
                for child in content:
                    holder.addprevious(child)
                holder.getparent().remove(holder)
        for row in root.iter(f"{W}tr"):
            before = integer_of(row, "trPr/gridBefore") or 0
            cells = row.findall(f"{W}tc")
            for cell in cells:
                properties = cell.find(f"{W}tcPr")
                if properties is None or not len(properties):
                    continue
                cell.set("colspan", value_of(properties, "gridSpan") or "1")
                for name in ("vMerge", "hMerge"):
                    merged = value_of(properties, name)
                    if merged is not None and merged != "restart":
                        cell[:] = []
            if cells:
                for _ in range(min(before, 1000)):
                    cells[0].addprevious(etree.Element("td"))

    def _show_paragraphs(self, root: Any) -> None:
        """Make headings and items of lists of paragraphs, with their numbers."""
        for paragraph in list(root.iter(_PARAGRAPH)):
            properties = paragraph.find(f"{W}pPr")
            named = self._styles.usual(value_of(properties, "pStyle"))
            style = self._styles.style(named)
            paragraph.set("style", named)
            if style.is_heading:
                paragraph.tag = "h2"
            numbers = None if properties is None else properties.find(f"{W}numPr")
            if numbers is None and not style.list and not _LIST_NAME.match(style.name):
                continue
            if properties is not None and is_on(properties.find(f"{W}rPr/{W}vanish")):
                continue  # hidden with its end, it does not count
            mark, level = self._mark(numbers, named, style)
            if mark is None or not _has_text(paragraph):
                continue
            if paragraph.tag == "h2":
                paragraph.set("mark", mark if mark != BULLET else "")
            else:
                paragraph.tag = "li"
                paragraph.set("mark", mark)
                paragraph.set("level", str(level if mark == BULLET else 0))

    def _mark(self, numbers: Any, named: str, style: _Style) -> tuple[str | None, int]:
        """The number of a paragraph of a list, which is counted, and its level."""
        identifier = value_of(numbers, "numId")
        level = integer_of(numbers, "ilvl")
        if identifier is None:
            identifier = style.list
            level = style.level if level is None else level
            if level is None and identifier:
                level = self._numbering.level_of_style(identifier, named)
        level = level or 0
        if identifier == "0":
            return None, level
        if not self._numbering.has(identifier):
            return BULLET, level  # of a list that the file does not describe
        return self._numbering.next_mark(identifier, level), level

    def _show_runs(self, root: Any) -> None:
        """Take out hidden runs, and make raised and lowered ones such elements."""
        for run in list(root.iter(_RUN)):
            has_properties = len(run) and run[0].tag == _RUN_PROPERTIES
            if not has_properties and not self._styles.hides_any:
                continue
            paragraph = next(run.iterancestors("pre", "h2", "li", _PARAGRAPH), None)
            around = self._styles.style(None if paragraph is None else paragraph.get("style"))
            properties = run[0] if has_properties else None
            own = self._styles.style(value_of(properties, "rStyle"))
            hidden = None if properties is None else properties.find(f"{W}vanish")
            is_hidden = own.is_hidden or around.is_hidden if hidden is None else is_on(hidden)
            if is_hidden:
                words = " ".join(text.text or "" for text in run.iter(_TEXT))
                self._account.hidden_words += len(words.split())
                for child in list(run):
                    if child.tag != f"{W}rPr":
                        run.remove(child)
                continue
            script = value_of(properties, "vertAlign")
            tag = own.script if script is None else _SCRIPTS.get(script, "")
            if tag and run.find(_TEXT) is not None:
                run.tag = tag

    def _rename(self, root: Any, part: Part) -> None:
        """Name elements as in HTML, and give those their text that stand for it."""
        for node in list(root.iter(EQUATION)):
            following = node.getnext()
            is_last = following is None or following.tag != EQUATION
            node.text = equation(node) + ("" if is_last else " ")
            del node[:]
        for node in root.iter(_FIELD):
            node.text = _form_field(node)
            del node[:]
        self._account.embedded += sum(1 for _ in root.iter(_EMBEDDED))
        for node in [n for n in root.iter() if n.tag.endswith("Pr")]:
            node.getparent().remove(node)
        for node in list(root.iter()):
            in_text = node is not root and node.getparent().tag in _BLOCKS
            tag = _TAGS.get(node.tag, "span" if in_text else "div")
            text = node.text if node.tag in (_TEXT, EQUATION) else _SIGNS.get(node.tag)
            if node.tag in _NOTES:
                text = self._label(node)
            elif node.tag == _COMMENT:
                tag, text = "comment", None
            elif node.tag in DRAWN:
                text = drawn_text(node, part)
            elif node.tag == _SYMBOL:
                text = _symbol(node)
            elif node.tag == _ART:
                text = node.get("string")
            elif node.tag == _FIELD:
                text = node.text
            elif node.tag == _CHUNK:
                tag = "chunk"
            elif node.tag in _OWN:
                tag, text = node.tag, node.text
            node.tag = tag
            node.text = text

    def _label(self, reference: Any) -> str:
        """The mark of a note, which are numbered in the order of their references."""
        kind = _NOTES[reference.tag]
        labels = self._account.labels.setdefault(kind, {})
        identifier = reference.get(f"{W}id", "")
        if identifier not in labels:
            following = reference.getnext()
            custom = ""
            if reference.get(f"{W}customMarkFollows") in ("1", "true") and following is not None:
                custom = (following.text or "").strip()
                following.text = None
            numbered = sum(label.removeprefix("e").isdigit() for label in labels.values())
            prefix = "e" if kind == "endnote" else ""
            labels[identifier] = custom or f"{prefix}{numbered + 1}"
        return f"[^{labels[identifier]}]"

    def _place_comments(self, root: Any) -> None:
        """Write comments behind the block or the table that they stand at."""
        for reference in list(root.iter("comment")):
            identifier = reference.get(f"{W}id", "")
            reference.tag = "span"
            text = self._comments.get(identifier)
            if not text or identifier in self._account.comments:
                continue
            block = None
            for around in reference.iterancestors("pre", "h2", "li", "table"):
                block = around
            if block is None or block is root:
                continue
            self._account.comments.add(identifier)
            written = etree.Element("pre")
            written.text = text
            while block.getnext() is not None and block.getnext().get("comment"):
                block = block.getnext()
            written.set("comment", "1")
            block.addnext(written)

    def _insert_chunk(self, chunk: Any, part: Part) -> None:
        """Put the text of another file in its place (`altChunk`)."""
        target = part.target(chunk.get(f"{RELATION}id"))
        chunk.tag = "div"
        if target is None or self._depth >= _MAX_CHUNKS:
            return
        data = target.blob
        suffix = re.sub(r".*\.", ".", target.name.lower())
        try:
            if data.startswith(b"PK"):
                source = Source(data=data, suffix=".docx", max_bytes=self._source.max_bytes)
                main = Package.open(source).main("word/document.xml")
                inner = _Document(main, source, self._depth + 1)
                chunk.append(inner.body())
                for line in [*inner.notes("footnote"), *inner.notes("endnote")]:
                    etree.SubElement(chunk, "pre").text = line
                self._account.hidden_words += inner._account.hidden_words
            elif data.startswith(b"{\\rtf"):
                from ngtcli.documents.formats import rtf

                read = rtf.parse(Source(data=data, suffix=".rtf", max_bytes=self._source.max_bytes))
                _add_blocks(chunk, read.text)
            elif page := _page_of(data, suffix):
                tree = tree_of(page)
                self._account.hidden_words += show(tree)
                for element in list(tree.iter("title", "head")):
                    element.clear(keep_tail=True)
                chunk.append(tree)
            else:
                text, _ = decode_page(data)
                _add_blocks(chunk, text)
        except (*BROKEN, etree.LxmlError, Unreadable):
            self._account.embedded += 1


def _has_any(elements: list[Any]) -> bool:
    """Whether there is anything in them that is shown."""
    return any(True for element in elements for _ in element.iter(*_SEEN))


def _has_text(paragraph: Any) -> bool:
    """Whether anything is shown in a paragraph."""
    return any((node.text or "").strip() or node.tag != _TEXT for node in paragraph.iter(*_SEEN))


def _put_ruby_behind(root: Any) -> None:
    """Put the reading of characters behind them, as `set_apart` writes it."""
    for ruby in list(root.iter(f"{W}ruby")):
        reading = ruby.find(f"{W}rt")
        if reading is not None:
            texts = [node.text or "" for node in reading.iter(_TEXT)]
            ruby.remove(reading)
            run = etree.SubElement(ruby, f"{W}r")
            etree.SubElement(run, _TEXT).text = f"({''.join(texts)})" if "".join(texts) else ""


def _symbol(node: Any) -> str:
    with suppress(ValueError, OverflowError):  # its code in the font, in hexadecimal
        code = int(node.get(f"{W}char", "20"), 16)
        return _WINGDINGS.get((node.get(f"{W}font", "").lower(), code & 0xFF)) or chr(code)
    return ""


_WINGDINGS: Mapping[tuple[str, int], str] = {
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


def _form_field(node: Any) -> str | None:
    """What a field to be filled in shows that has no text: a box, or a choice."""
    box = node.find(f".//{W}checkBox")
    if box is not None:
        checked = box.find(f"{W}checked")
        checked = box.find(f"{W}default") if checked is None else checked
        return "[x]" if is_on(checked) else "[ ]"
    choices = node.find(f".//{W}ddList")
    if choices is not None:
        entries = [entry.get(f"{W}val", "") for entry in choices.iterfind(f"{W}listEntry")]
        chosen = integer_of(choices, "result") or 0
        return entries[chosen] if 0 <= chosen < len(entries) else None
    return None


def _page_of(data: bytes, suffix: str) -> str:
    """The HTML page in a chunk, which may be an e-mail's; "" if there is none."""
    head = data[:2000].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if suffix in (".mht", ".mhtml", ".eml") or head.startswith((b"mime-version:", b"from:")):
        from email import message_from_bytes, policy

        message: Any = message_from_bytes(data, policy=policy.default)
        for part in message.walk():
            if part.get_content_type() == "text/html":
                payload = part.get_payload(decode=True)
                charset = part.get_content_charset() or "utf-8"
                with suppress(LookupError):
                    return str(bytes(payload).decode(charset, "replace"))
                return decode_page(bytes(payload))[0]
        return ""
    is_page = suffix in (".html", ".htm", ".xhtml", ".xht") or b"<html" in head
    return decode_page(data)[0] if is_page else ""


def _add_blocks(element: Any, text: str) -> None:
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        etree.SubElement(element, "pre").text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", " ", block)
