"""RTF: paragraphs, tables by rows, headers, footers, text boxes and notes."""

import re

from striprtf.striprtf import remove_pict_groups, rtf_to_text

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats import OLD
from ngtcli.documents.text import Unreadable

_ASIDE = re.compile(r"\{\s*(?:\\\*\s*)?\\(header|footer|footnote|shptxt)[lrf]?(?![a-z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


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
    if not len(writer):
        raise Unreadable("no text was found in its RTF", f"Convert it: {OLD['.doc']}")
    return writer.extracted("rtf")


def _in_line(marked: str) -> str:
    """RTF in which what the library skips is text: headers in their place, the rest at the end.

    Each is there once; a note leaves its mark [^1].
    """
    parts: list[str] = []
    seen: dict[str, str] = {}  # what stands aside, and where: "" for in its place
    at = notes = 0
    while found := _ASIDE.search(marked, at):
        parts.append(marked[at : found.start()])
        at = _end_of_group(marked, found.start())
        group = "{" + marked[found.end() : at].removeprefix(" ")
        if found[1] == "footnote":
            notes += 1
            parts.append(f"[^{notes}]")
            group = f"[^{notes}]: {group}"
        elif found[1] == "header" and group not in seen:
            parts.append(f"{group}\\par ")
        seen.setdefault(group, "" if found[1] == "header" else f"\\par {group}")
    text, brace, rest = "".join([*parts, marked[at:]]).rpartition("}")
    return "".join([text, *seen.values(), brace, rest])


def _end_of_group(marked: str, start: int) -> int:
    """Where the group ends that begins at `start`."""
    depth = 0
    for found in _BRACE.finditer(marked, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(marked)
