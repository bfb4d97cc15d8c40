"""HTML: the main text of a page as trafilatura finds it, or all text if it has few links."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import trafilatura
from lxml import html

from ngtcli.documents.content import Extracted, ParserInput, Writer, hidden_text_warning
from ngtcli.documents.formats.markup import decode_page, parse_xml, tree_of, write_tree
from ngtcli.documents.formats.visible import STANDS_FOR, keep_visible

_MAX_LINKS = 5  # links to elsewhere on a page that is read whole (guess)
_MAX_UNREPORTED_WORDS = 12  # words that are left out without a warning (guess)
_TEMPLATES = "//noscript[normalize-space()] | //script[contains(@type, 'template')]"
# Around the number of a list item: an invisible character, which trafilatura keeps.
_NUMBER_MARK = "\U0001d159"
# Length of a page with its templates against that without them, from which on its text is in the
# templates (guess).
_MIN_TEMPLATE_GAIN = 2


@dataclass(frozen=True, slots=True)
class _Page:
    """The text of a page, and the numbers of omitted and of hidden words."""

    writer: Writer
    omitted_words: int
    hidden_words: int


def parse(source: ParserInput) -> Extracted:
    """Read the article of a page with its headings, without navigation and the like."""
    markup, warnings = decode_page(source.data, source.encoding)
    tree = tree_of(markup)
    has_templates = bool(tree.xpath(_TEMPLATES))
    page = _read(tree)
    if has_templates:
        page_with_templates = _read(_with_templates(tree_of(markup)))
        if len(page_with_templates.writer) >= _MIN_TEMPLATE_GAIN * len(page.writer):
            page = page_with_templates
    if page.omitted_words > _MAX_UNREPORTED_WORDS:
        warnings += (f"left out, since not in the main text: {page.omitted_words} words",)
    if page.hidden_words > _MAX_UNREPORTED_WORDS:
        warnings += (hidden_text_warning(page.hidden_words),)
    return page.writer.extracted("html", warnings)


def _with_templates(tree: Any) -> Any:
    """Show the templates of a page in their places, as a script would."""
    for element in tree.xpath(_TEMPLATES):
        if element.tag == "script":
            element.append(html.fragment_fromstring(element.text or "", create_parent=True))
            element.text = None
        element.tag = "div"
        element.attrib.clear()
    return tree


def _read(tree: Any) -> _Page:
    """Read the text of a page. Changes the tree."""
    hidden_words = keep_visible(tree)
    complete = Writer()
    write_tree(tree, complete)

    writer = Writer()
    links = sum(not link.startswith("#") for link in tree.xpath("//a/@href"))
    article = _article(tree) if links > _MAX_LINKS else None
    if article is not None:
        if article.find(".//h1") is None:  # the title may be outside the main text
            writer.heading(tree.xpath("string((//h1)[1])"))
        write_tree(article, writer)
    else:
        for menu in list(tree.iter("nav")):
            menu.clear(keep_tail=True)
        write_tree(tree, writer)
    if not len(writer):  # a page that has only menus
        writer = complete
    omitted_words = len(complete.text().split()) - len(writer.text().split())
    return _Page(writer, omitted_words, hidden_words)


def _article(tree: Any) -> Any:
    """Find the main text of a page by trafilatura; None if there is none.

    The texts of images and fields are left out, because trafilatura does not expect any.
    """
    copy = deepcopy(tree)
    for element in copy.xpath(f"//*[@{STANDS_FOR}]"):
        element.text = None
    for item in copy.xpath("//li[@mark]"):  # trafilatura drops attributes
        item.text = f"{_NUMBER_MARK}{item.get('mark')}{_NUMBER_MARK} {item.text or ''}"
    markup = trafilatura.extract(copy, output_format="html", include_comments=False)
    if not markup:
        return None
    article = parse_xml(markup)
    for code in article.xpath("//pre[not(contains(., '\n'))]"):  # code within a line
        code.tag = "code"
    for item in article.iter("li"):
        _, _, marked = (item.text or "").partition(_NUMBER_MARK)
        number, end_mark, text = marked.partition(_NUMBER_MARK)
        if end_mark:
            item.set("mark", number)
            item.text = text
    return article
