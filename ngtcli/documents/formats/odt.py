"""OpenDocument texts: headings, paragraphs, lists, tables as rows, notes."""

from typing import Any

from ngtcli.documents.content import BETWEEN_CELLS, About, Extracted, Source, Writer
from ngtcli.documents.formats.packed import member, open_archive
from ngtcli.documents.formats.xml import parse_xml
from ngtcli.documents.text import Unreadable

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_SKIPPED = frozenset([f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_TEXT}note-citation"])
_SPACES = 1000  # most spaces that one element stands for: guess


def parse(source: Source) -> Extracted:
    """The text of a document. Raises Unreadable."""
    archive = open_archive(source)
    if b"encryption-data" in member(archive, "META-INF/manifest.xml"):
        raise Unreadable("encrypted", "Open it and save it without a password.")
    body = parse_xml(member(archive, "content.xml")).find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise Unreadable("an OpenDocument file that is not a text", "Save it as PDF or CSV.")
    writer = Writer()
    notes: list[str] = []
    _write(body, writer, notes)
    for number, note in enumerate(notes, 1):
        writer.add(f"[^{number}]: {note}", "\n" if number > 1 else "\n\n")
    return Extracted(writer.text(), About("odt", 0, 0, writer.sections()))


def _write(body: Any, writer: Writer, notes: list[str]) -> None:
    """Blocks in order; a stack of (element, whether in a list) replaces recursion."""
    waiting = [(element, False) for element in reversed(body)]
    together = False
    while waiting:
        element, listed = waiting.pop()
        if element.tag == f"{_TEXT}h":
            writer.heading(_text(element, notes))
        elif element.tag == f"{_TEXT}p":
            text = _text(element, notes)
            marked = f"- {text}" if listed and text.strip() else text
            writer.add(marked, "\n" if listed and together else "\n\n")
        elif element.tag == f"{_TABLE}table":
            _write_table(element, writer, notes)
        elif element.tag not in _SKIPPED:
            inside = listed or element.tag == f"{_TEXT}list"
            waiting += [(child, inside) for child in reversed(element)]
            continue
        together = listed


def _write_table(table: Any, writer: Writer, notes: list[str]) -> None:
    between = "\n\n"
    for row in table.iter(f"{_TABLE}table-row"):
        cells = [" ".join(_text(c, notes).split()) for c in row if c.tag == f"{_TABLE}table-cell"]
        if any(cells):
            writer.add(BETWEEN_CELLS.join(cells), between)
            between = "\n"


def _text(element: Any, notes: list[str]) -> str:
    """The text below an element; its notes are appended to `notes` and marked [^1]."""
    parts: list[str] = [element.text or ""]
    waiting: list[Any] = list(reversed(element))
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        waiting.append(node.tail or "")
        if node.tag == f"{_TEXT}s":
            count = node.get(f"{_TEXT}c", "1")
            parts.append(" " * min(int(count) if count.isdecimal() else 1, _SPACES))
        elif node.tag == f"{_TEXT}tab":
            parts.append("\t")
        elif node.tag == f"{_TEXT}line-break":
            parts.append("\n")
        elif node.tag == f"{_TEXT}note":
            inside = node.find(f"{_TEXT}note-body")
            words = " ".join("".join(inside.itertext()).split()) if inside is not None else ""
            notes.append(words)
            parts.append(f"[^{len(notes)}]")
        elif node.tag not in _SKIPPED:
            if node.tag == f"{_TEXT}p" and "".join(parts[-1:]).strip():
                parts.append(" ")
            parts.append(node.text or "")
            waiting += reversed(node)
    return "".join(parts)
