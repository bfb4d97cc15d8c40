"""RTF: paragraphs, tables by rows, headers, footers, text boxes and notes."""

import re
from itertools import count

from striprtf.striprtf import remove_pict_groups, rtf_to_text

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.text import Unreadable

_INSIDE = ""  # of a group, with groups in it; no program nests those below so deep
for _ in range(12):
    _INSIDE = rf"(?:[^{{}}\\]|\\.|\{{{_INSIDE}\}})*+"
_ASIDE = re.compile(
    rf"\{{\s*(?:\\\*\s*)?\\(header|footer|footnote|shptxt)[lrf]?(?![a-z]) ?({_INSIDE})\}}",
    re.DOTALL,
)


def parse(source: Source) -> Extracted:
    """The text of a document. Raises Unreadable."""
    if not source.data.startswith(b"{\\rtf"):
        raise Unreadable("not RTF", "Name it .txt to have it read as text.")
    marked = _in_line(remove_pict_groups(source.data.decode("latin-1")))
    halves = rtf_to_text(marked, errors="replace").encode("utf-16-le", "surrogatepass")
    writer = Writer()
    for line in halves.decode("utf-16-le", "replace").split("\n"):  # RTF has them apart
        is_row = line.endswith("|")  # which the library puts behind each cell
        writer.add(row_of(line[:-1].split("|")) if is_row else line, "row" if is_row else "")
    return writer.extracted("rtf")


def _in_line(marked: str) -> str:
    """RTF in which what the library skips is text: headers in their place, the rest at the end.

    Each is there once; a note leaves its mark [^1].
    """
    seen: dict[str, str] = {}  # what stands aside, and what is at the end of it
    notes = count(1)

    def in_place(found: re.Match[str]) -> str:
        mark = f"[^{next(notes)}]" if found[1] == "footnote" else ""
        group = f"{mark}: {{{found[2]}}}" if mark else f"{{{found[2]}}}"
        is_first = found[1] == "header" and group not in seen
        seen.setdefault(group, "" if is_first else f"\\par {group}")
        return f"{group}\\par " if is_first else mark

    text, brace, rest = _ASIDE.sub(in_place, marked).rpartition("}")
    return "".join([text, *seen.values(), brace, rest])
