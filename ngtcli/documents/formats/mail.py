"""E-mails: who wrote what to whom and when, and the text; attachments are named, not read.

Of a message in several parts all texts are read that a mail program shows, and the messages that
are forwarded in it.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decode_with_warnings

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_SHOWN = ("plain", "html", "markdown", "enriched", "richtext")  # kinds of text that are read
_STUB = 3  # a plain text with so many times fewer words than the HTML beside it is none; guess
_DEEPEST = 20  # messages in messages; guess
_BETWEEN = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n")  # messages of an mbox
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_WIDE = 200  # bytes among which UTF-16 has zeros; guess


def parse(source: Source) -> Extracted:
    """The headers that a reader sees, and the texts. Raises Unreadable."""
    writer, mail = Writer(), _Mail(source)
    if not mail.write(writer, source.data):
        raise Unreadable("not an e-mail", "Name it .txt to have it read as text.")
    return writer.extracted("eml", mail.warnings())


def parse_mbox(source: Source) -> Extracted:
    """The messages of a mailbox, one after the other. Raises Unreadable."""
    writer, mail = Writer(), _Mail(source)
    begins = list(_BETWEEN.finditer(source.data))
    ends = [begin.start() for begin in begins[1:]] + [len(source.data)]
    for begin, end in zip(begins, ends, strict=True):
        message = source.data[begin.end() : end]
        mail.write(writer, _QUOTED_FROM.sub(rb"\1", message))
    if not begins:
        raise Unreadable("not a mailbox", "Name it .eml if it is one e-mail, or else .txt.")
    return writer.extracted("mbox", mail.warnings())


class _Mail:
    """Writes messages, and notes what of them is not read."""

    def __init__(self, source: Source) -> None:
        self._encoding = source.encoding
        self._attached: list[str] = []

    def warnings(self) -> tuple[str, ...]:
        """The names of attachments."""
        names = ", ".join(self._attached)
        return (f"attachments are not read: {names[:200]}",) * bool(names)

    def write(self, writer: Writer, data: bytes) -> bool:
        """Write a message; whether it has a header that is known."""
        is_wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in data[:_WIDE]
        if is_wide:
            data = decode_with_warnings(data, self._encoding)[0].encode()
        message: Any = message_from_bytes(data, policy=policy.default)
        return self._write_message(writer, message, is_wide, 0)

    def _write_message(self, writer: Writer, message: Any, is_wide: bool, depth: int) -> bool:
        head = [f"{name}: {_line(message, name)}" for name in _HEADERS if _line(message, name)]
        if head:
            writer.mark(0, _line(message, "Subject"))
            writer.add("\n".join(head))
        for part in self._shown(message, depth):
            if part.get_content_type() == "message/rfc822":
                self._write_message(writer, part.get_payload(0), is_wide, depth + 1)
            else:
                writer.add(self._text(part, is_wide))
        return bool(head)

    def _shown(self, part: Any, depth: int) -> Iterator[Any]:
        """The parts of a message that are texts or messages; the rest is noted."""
        kind, subtype = part.get_content_maintype(), part.get_content_subtype()
        if kind == "multipart":
            parts = part.get_payload()
            parts = parts if isinstance(parts, list) else []
            if subtype == "alternative":
                parts = self._best(parts)
            for inner in parts:
                yield from self._shown(inner, depth)
        elif kind == "message" and subtype == "rfc822" and depth < _DEEPEST:
            yield part
        elif (
            part.get_content_disposition() != "attachment" and kind == "text" and subtype in _SHOWN
        ):
            yield part
        else:
            self._attached.append(str(part.get_filename() or part.get_content_type()))

    def _best(self, parts: list[Any]) -> list[Any]:
        """Of the forms of one text the plain one, unless it is a stub beside the HTML."""
        plain = next((part for part in parts if part.get_content_type() == "text/plain"), None)
        rest = [part for part in parts if part.get_content_maintype() in ("text", "multipart")]
        rich = next((p for p in reversed(rest) if p is not plain and _html(p) is not None), None)
        if plain is None or rich is None:
            return [plain or rich or parts[-1]] if parts else []
        words = [len(self._text(part, False).split()) for part in (plain, _html(rich))]
        return [rich] if words[0] * _STUB < words[1] else [plain]

    def _text(self, part: Any, is_wide: bool) -> str:
        """The text of a part, of HTML what is seen."""
        if is_wide and part.get("Content-Transfer-Encoding", "8bit") in ("7bit", "8bit"):
            part.set_param("charset", "utf-8")
        try:
            text = str(part.get_content())
        except (LookupError, UnicodeError, ValueError, AttributeError, KeyError):
            data: Any = part.get_payload(decode=True)
            text = bytes(data or b"").decode("utf-8", "replace")
        if "\ufffd" in text and not part.get_content_charset():
            text = self._guessed(part) or text
        if part.get_content_subtype() == "html":
            return _html_text(text)
        text = text.replace("\r\n", "\n")
        if str(part.get_param("format", "")).lower() == "flowed":
            text = _unflowed(text, str(part.get_param("delsp", "")).lower() == "yes")
        return text

    def _guessed(self, part: Any) -> str:
        """The text of a part whose encoding is not declared; "" where none is likely."""
        try:
            return decode_with_warnings(
                bytes(part.get_payload(decode=True) or b""), self._encoding
            )[0]
        except Unreadable:
            return ""


def _html_text(page: str) -> str:
    """What is seen of HTML."""
    from ngtcli.documents.formats.markup import tree_of, write_tree  # lxml: only for HTML
    from ngtcli.documents.formats.visible import show

    writer = Writer()
    if page.strip():
        tree = tree_of(page)
        show(tree)
        write_tree(tree, writer)
    return writer.text()


def _html(part: Any) -> Any:
    """The HTML in a part, which may have pictures with it; None where there is none."""
    return next((p for p in part.walk() if p.get_content_type() == "text/html"), None)


def _line(message: Any, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:  # the library fails at some malformed headers in many ways
        return ""


def _unflowed(text: str, delete_space: bool) -> str:
    r"""A text in the form "flowed" of RFC 3676: lines that end in a space go on in the next.

    >>> _unflowed("The boat \nsails.\n> a \n> b\n-- \nAda\n", False)
    'The boat sails.\n> a b\n-- \nAda\n'
    """
    out: list[str] = []
    open_depth = -1  # of the quotation whose last line goes on; -1: none does
    for line in text.split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        content = content.removeprefix(" ")
        goes_on = content.endswith(" ") and content != "-- "
        shown = content[:-1] if goes_on and delete_space else content
        if depth == open_depth and content != "-- ":
            out[-1] += shown
        else:
            out.append(f"{'>' * depth} {shown}" if depth else shown)
        open_depth = depth if goes_on else -1
    return "\n".join(out)
