"""HTML: the main text of a page by trafilatura; all its text where that finds none."""

from typing import Any

import trafilatura

from ngtcli.documents.content import About, Extracted, Source, Writer
from ngtcli.documents.formats.markup import decode_page, tree_of, write_tree

_LITTLE = 0.5  # share of a page's characters below which it is said how much was kept; guess
_NAMES = {"list": "ul", "item": "li", "row": "tr", "cell": "td", "lb": "br", "quote": "blockquote"}


def parse(source: Source) -> Extracted:
    """The article of a page with its headings; navigation and the like are left out."""
    page = decode_page(source.data)
    whole, main = Writer(), Writer()
    write_tree(tree_of(page), whole)
    found = trafilatura.bare_extraction(
        tree_of(page), include_comments=False, include_tables=True, include_images=False,
        include_links=False, favor_recall=True, with_metadata=False,
    )  # fmt: skip
    body = getattr(found, "body", None)
    if body is not None:
        write_tree(_as_html(body), main)
    used = main if len(main) else whole
    return Extracted(used.text(), About("html", 0, 0, used.sections(), _warnings(used, whole)))


def _as_html(body: Any) -> Any:
    """Trafilatura's elements under the names that they have in HTML."""
    for element in body.iter():
        if element.tag == "head":
            element.tag = element.get("rend") or "h2"
        elif isinstance(element.tag, str):
            element.tag = _NAMES.get(element.tag, element.tag)
    return body


def _warnings(used: Writer, whole: Writer) -> tuple[str, ...]:
    share = len(used) / max(len(whole), 1)
    if share >= _LITTLE:
        return ()
    return (f"{share:.0%} of the page's text is read: its main part",)
