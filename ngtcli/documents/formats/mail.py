"""E-mails: the headers that a reader sees, and the text; attachments are named, not read.

Of a message with several parts, every text that a mail program shows is read, and so are forwarded
messages.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

from ngtcli.documents.content import Extracted, ParserInput, Writer
from ngtcli.documents.text import Unreadable, decode_with_warnings

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_TEXT_SUBTYPES = ("plain", "html", "markdown", "enriched", "richtext")
# A plain text is a stub, such as "see the HTML", if the HTML beside it has more than so many times
# its words (guess).
_STUB_RATIO = 3
_MAX_DEPTH = 20  # messages in messages (guess)
_MESSAGE_START = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n")  # in an mbox file
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_WIDE_SAMPLE = 200  # bytes among which UTF-16 has zeros (guess)
_MAX_NAMES = 200  # characters of the names in a warning


def parse(source: ParserInput) -> Extracted:
    """Read an e-mail. Raises Unreadable."""
    writer = Writer()
    mail = _Mail(source)
    if not mail.write(writer, source.data):
        raise Unreadable("not an e-mail", "Name it .txt to have it read as text.")
    return writer.extracted("eml", mail.warnings())


def parse_mbox(source: ParserInput) -> Extracted:
    """Read the messages of a mailbox, one after another. Raises Unreadable."""
    writer = Writer()
    mail = _Mail(source)
    starts = list(_MESSAGE_START.finditer(source.data))
    if not starts:
        raise Unreadable("not a mailbox", "Name it .eml if it is one e-mail, or else .txt.")
    ends = [start.start() for start in starts[1:]] + [len(source.data)]
    for start, end in zip(starts, ends, strict=True):
        message = source.data[start.end() : end]
        mail.write(writer, _QUOTED_FROM.sub(rb"\1", message))
    return writer.extracted("mbox", mail.warnings())


class _Mail:
    """Writes messages, and collects the names of attachments."""

    def __init__(self, source: ParserInput) -> None:
        self._encoding = source.encoding
        self._attachments: list[str] = []

    def warnings(self) -> tuple[str, ...]:
        """Warn of attachments, by their names."""
        names = ", ".join(self._attachments)
        if not names:
            return ()
        return (f"attachments are not read: {names[:_MAX_NAMES]}",)

    def write(self, writer: Writer, data: bytes) -> bool:
        """Write a message; return whether it has any of the headers that are shown."""
        is_wide = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in data[:_WIDE_SAMPLE]
        if is_wide:
            text, _ = decode_with_warnings(data, self._encoding)
            data = text.encode()
        message: Any = message_from_bytes(data, policy=policy.default)
        return self._write_message(writer, message, is_wide, 0)

    def _write_message(self, writer: Writer, message: Any, is_wide: bool, depth: int) -> bool:
        """Write a parsed message, and the messages in it.

        Args:
            writer: Where to write it.
            message: The message.
            is_wide: Whether it was in UTF-16, so that a declared 8-bit encoding is wrong.
            depth: In how many messages it is.

        Returns:
            Whether it has any of the headers that are shown.
        """
        headers = []
        for name in _HEADERS:
            value = _header(message, name)
            if value:
                headers.append(f"{name}: {value}")
        if headers:
            writer.mark(0, _header(message, "Subject"))
            writer.add("\n".join(headers))
        for part in self._shown_parts(message, depth):
            if part.get_content_type() == "message/rfc822":
                self._write_message(writer, part.get_payload(0), is_wide, depth + 1)
            else:
                writer.add(self._text(part, is_wide))
        return bool(headers)

    def _shown_parts(self, part: Any, depth: int) -> Iterator[Any]:
        """Yield the texts and messages in a part; record the others as attachments."""
        kind = part.get_content_maintype()
        subtype = part.get_content_subtype()
        is_attached = part.get_content_disposition() == "attachment"
        if kind == "multipart":
            payload = part.get_payload()
            parts = payload if isinstance(payload, list) else []
            if subtype == "alternative":
                parts = self._best_alternative(parts)
            for inner_part in parts:
                yield from self._shown_parts(inner_part, depth)
        elif kind == "message" and subtype == "rfc822" and depth < _MAX_DEPTH:
            yield part
        elif kind == "text" and subtype in _TEXT_SUBTYPES and not is_attached:
            yield part
        else:
            self._attachments.append(str(part.get_filename() or part.get_content_type()))

    def _best_alternative(self, parts: list[Any]) -> list[Any]:
        """Of the forms of one text, choose the plain one, unless it is a stub beside the HTML."""
        plain = next((part for part in parts if part.get_content_type() == "text/plain"), None)
        rich = None
        for part in reversed(parts):
            if part is plain or part.get_content_maintype() not in ("text", "multipart"):
                continue
            if _html_part(part) is not None:
                rich = part
                break
        if plain is None:
            return parts[-1:] if rich is None else [rich]
        if rich is None:
            return [plain]
        plain_words = len(self._text(plain, False).split())
        rich_words = len(self._text(_html_part(rich), False).split())
        return [rich] if plain_words * _STUB_RATIO < rich_words else [plain]

    def _text(self, part: Any, is_wide: bool) -> str:
        """Read the text of a part; of HTML, the visible text."""
        if is_wide and part.get("Content-Transfer-Encoding", "8bit") in ("7bit", "8bit"):
            part.set_param("charset", "utf-8")
        try:
            text = str(part.get_content())
        except (LookupError, UnicodeError, ValueError, AttributeError, KeyError):
            text = _payload(part).decode("utf-8", "replace")
        if "\ufffd" in text and not part.get_content_charset():
            text = self._decode_undeclared(part) or text
        if part.get_content_subtype() == "html":
            return _visible_text(text)
        text = text.replace("\r\n", "\n")
        if str(part.get_param("format", "")).lower() == "flowed":
            text = _join_flowed(text, str(part.get_param("delsp", "")).lower() == "yes")
        return text

    def _decode_undeclared(self, part: Any) -> str:
        """Decode a part that does not declare its encoding; "" if none is likely."""
        try:
            text, _ = decode_with_warnings(_payload(part), self._encoding)
        except Unreadable:
            return ""
        return text


def _payload(part: Any) -> bytes:
    payload: Any = part.get_payload(decode=True)
    return bytes(payload or b"")


def _visible_text(page: str) -> str:
    """Read the visible text of an HTML page."""
    from ngtcli.documents.formats.markup import tree_of, write_tree  # lazy: only HTML needs lxml
    from ngtcli.documents.formats.visible import keep_visible

    writer = Writer()
    if page.strip():
        tree = tree_of(page)
        keep_visible(tree)
        write_tree(tree, writer)
    return writer.text()


def _html_part(part: Any) -> Any:
    """Find the HTML in a part, which may have images with it; None if there is none."""
    return next((p for p in part.walk() if p.get_content_type() == "text/html"), None)


def _header(message: Any, name: str) -> str:
    """The value of a header in one line; "" if it is missing or malformed."""
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:  # the library raises many kinds of errors for malformed headers
        return ""


def _join_flowed(text: str, delete_space: bool) -> str:
    r"""Join lines of the format "flowed" (RFC 3676): one that ends in a space continues below.

    Args:
        text: The text, whose lines end with "\n".
        delete_space: Whether to delete that space ("DelSp").

    >>> _join_flowed("The boat \nsails.\n> a \n> b\n-- \nAda\n", False)
    'The boat sails.\n> a b\n-- \nAda\n'
    """
    lines: list[str] = []
    open_depth = -1  # depth of quoting of the last line if it continues, or -1
    for line in text.split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        content = content.removeprefix(" ")
        is_signature_mark = content == "-- "
        continues = content.endswith(" ") and not is_signature_mark
        joined = content[:-1] if continues and delete_space else content
        if depth == open_depth and not is_signature_mark:
            lines[-1] += joined
        else:
            lines.append(f"{'>' * depth} {joined}" if depth else joined)
        open_depth = depth if continues else -1
    return "\n".join(lines)
