"""E-mails: who wrote what to whom and when, and the text; attachments are named, not read."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.text import Unreadable, decode_text

_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def parse(source: Source) -> Extracted:
    """The headers that a reader sees, and the body as plain text, else from its HTML."""
    is_utf16 = source.data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    data = decode_text(source.data).encode() if is_utf16 else source.data
    message: Any = message_from_bytes(data, policy=policy.default)
    head = [f"{name}: {_line(message, name)}" for name in _HEADERS if _line(message, name)]
    if not head:
        raise Unreadable("not an e-mail", "Name it .txt to have it read as text.")
    writer = Writer()
    writer.mark(0, _line(message, "Subject"))
    writer.add("\n".join(head))
    body = message.get_body(("plain", "html"))
    if body is not None:
        if is_utf16 and body.get("Content-Transfer-Encoding", "8bit") in ("7bit", "8bit"):
            body.set_param("charset", "utf-8")
        _write_body(body, writer)
    attached = message.iter_attachments() if message.is_multipart() else ()
    names = ", ".join(str(part.get_filename() or part.get_content_type()) for part in attached)
    return writer.extracted("eml", (f"attachments are not read: {names[:200]}",) * bool(names))


def _line(message: Any, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:  # the library fails at some malformed headers in many ways
        return ""


def _write_body(body: EmailMessage, writer: Writer) -> None:
    try:
        text = str(body.get_content())
    except (LookupError, UnicodeError, ValueError):
        data: Any = body.get_payload(decode=True)
        text = bytes(data or b"").decode("utf-8", "replace")
    if body.get_content_subtype() == "html":
        from ngtcli.documents.formats.markup import tree_of, write_tree  # lxml: only for HTML
        from ngtcli.documents.formats.visible import show

        tree = tree_of(text)
        show(tree)
        write_tree(tree, writer)
    else:
        writer.add(text.replace("\r\n", "\n"))
