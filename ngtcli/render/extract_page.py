"""A table of `ngt extract` with its documents as one HTML page, without external files.

Each value that stands in a document is a link to the place where it stands; the rest is as on the
page of an answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from ngtcli.documents.load import Document
from ngtcli.grounding.sources import Source, Span, around
from ngtcli.render.answer_page import FOLDER, MOST_OF_ALL, QUOTE, hue, shown_document
from ngtcli.render.answer_view import short
from ngtcli.render.page import policy, rendered
from ngtcli.system.json_form import dump_json

_LEGEND = (
    "Coloured values stand in the document of that colour, those without a colour do not stand"
    " there in these words. A dotted line below a value: its probability is below --doubt. A click"
    " or Enter leads to the place, Escape back."
)


class Value(NamedTuple):
    """A value as the table has it, what is `said` of it, and where it stands, if it does."""

    text: str
    said: str
    source: Source | None
    doubted: bool


class Line(NamedTuple):
    """A row of the table."""

    file: str
    values: Sequence[Value]


def extract_page(
    title: str,
    command: str,
    names: Sequence[str],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    documents: Sequence[Document],
) -> str:
    """The HTML; `rows` are those of each file, as JSON has them, `names` the fields."""
    number = {document.name: i for i, document in enumerate(documents)}
    marks, cells = dict[tuple[int, int, int], int](), count(1)
    lines = [
        Line(file, list(_values(row, names, documents, number[file], marks, cells)))
        for file, own in rows.items()
        for row in own
    ]
    sources = [value.source for line in lines for value in line.values if value.source]
    is_long = sum(len(d.text) for d in documents) > MOST_OF_ALL
    script = (FOLDER / "answer_page.js").read_text(encoding="utf-8")
    return rendered(
        "extract.html.j2",
        title=title,
        about="ngt",
        what=_LEGEND,
        terms={"Command": command},
        warnings=(),
        policy=policy(script),
        script=script,
        names=names,
        rows=lines,
        documents=[
            shown_document(document, [s for s in sources if s.span.document == i], is_long)
            for i, document in enumerate(documents)
        ],
        hue=hue,
        quote=partial(short, longest=QUOTE),
    )


def _values(
    row: Mapping[str, Any],
    names: Sequence[str],
    documents: Sequence[Document],
    document: int,
    marks: dict[tuple[int, int, int], int],
    cells: Iterator[int],
) -> Iterator[Value]:
    """The values of a row; `marks` are the numbers of places, `cells` those of cells."""
    one, doubted = documents[document], row.get("doubt") or ()
    for name in names:
        value, place, p = row["values"][name], row["sources"][name], row["probability"][name]
        text = value if isinstance(value, str) else "–" if value is None else dump_json(value, None)
        place = next(filter(None, place), None) if isinstance(place, list) else place
        source = None
        if place is not None:
            at = document, place["start"], place["end"]
            before, after = around(one.text, *at[1:])
            source = Source(
                number=marks.setdefault(at, len(marks) + 1),
                span=Span(next(cells), 0, *at),
                name=one.name,
                path=one.path,
                quote=place["quote"],
                before=before,
                after=after,
                page=place["page"],
                heading=place["heading"],
            )
        yield Value(text, "" if p is None else f"p {p:.2f}", source, name in doubted)
