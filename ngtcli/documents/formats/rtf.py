"""RTF: paragraphs, and tables by rows."""

from striprtf.striprtf import rtf_to_text

from ngtcli.documents.content import BETWEEN_CELLS, Extracted, Source, Writer
from ngtcli.documents.text import Unreadable

_LEFT = {"footnote": "footnotes", "header": "headers", "footer": "footers", "shptxt": "text boxes"}


def parse(source: Source) -> Extracted:
    """The text of a document. Raises Unreadable."""
    if not source.data.startswith(b"{\\rtf"):
        raise Unreadable("not RTF", "Name it .txt to have it read as text.")
    marked = source.data.decode("latin-1")
    halves = rtf_to_text(marked, errors="replace").encode("utf-16-le", "surrogatepass")
    writer = Writer()
    for line in halves.decode("utf-16-le", "replace").split("\n"):  # RTF has them apart
        is_row = line.endswith("|")  # which the library puts behind each cell
        cells = [" ".join(cell.split()) for cell in line[:-1].split("|")] if is_row else [line]
        writer.add(BETWEEN_CELLS.join(cells) if any(cells) else "", "row" if is_row else "")
    left = [what for word, what in _LEFT.items() if f"{{\\{word}" in marked]
    return writer.extracted("rtf", (f"not read: {', '.join(left)}",) * bool(left))
