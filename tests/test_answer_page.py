"""The page of an answer beside its documents."""

import re
from base64 import b64decode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from helpers import ngt
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.decode.steps import OWN, Step, Token
from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.grounding.sources import sources_of
from ngtcli.render.answer_page import answer_page

_VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Links, targets and text of a page; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links, self.targets, self.tags = list[str](), list[str](), list[str]()
        self.open, self.words = list[str](), dict[str, str]()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if found.get("id"):
            self.targets.append(found["id"] or "")
        if found.get("href"):
            self.links.append(found["href"] or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in {"a", "u", "mark"} & set(self.open):
            if "sup" not in self.open and "span" not in self.open:
                self.words[tag] = self.words.get(tag, "") + data


def page_of(answer: str, *texts: str) -> Reader:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    tokens = [Token(0, c, OWN if i % 3 else "draft") for i, c in enumerate(answer)]
    steps = [Step(tuple(tokens[i : i + 5])) for i in range(0, len(tokens), 5)]
    sources = sources_of(answer, documents)
    return Reader(answer_page("What?", "ngt ask", steps, sources, documents, ["a fact"]))


def said(text: str) -> Step:
    return Step((Token(0, text),))


pieces = st.lists(st.sampled_from(["ship", "port", "at", "noon", "<b>", "&", '"'])).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(pieces, st.lists(pieces, max_size=2))
def test_every_link_has_its_place_and_every_stretch_is_marked(
    answer: str, texts: list[str]
) -> None:
    read = page_of(answer, *texts)
    assert {link.removeprefix("#") for link in read.links} <= set(read.targets)
    assert len(read.targets) == len(set(read.targets))


def test_a_stretch_and_its_place_have_the_same_words() -> None:
    read = page_of("So the ship left port at noon.", "Then the ship left port at noon.")
    assert read.words["a"] == "the ship left port at noon." + "0.txt"  # the list's link comes last
    assert read.words["mark"] == "the ship left port at noon."


def test_drafted_tokens_are_underlined() -> None:
    assert page_of("abcdefg").words["u"] == "adg"


def test_hostile_documents_stay_text() -> None:
    hostile = '</details><script>alert(1)</script><img src=x onerror="alert(1)"> four words of it'
    read = page_of(hostile, hostile)
    assert read.tags.count("script") == 1  # the page's own
    assert "img" not in read.tags


def test_places_that_overlap_are_both_marked() -> None:
    text = "one two three four five six"
    read = page_of("one two three four five. three four five six", text)
    assert {"place-1", "place-2"} <= set(read.targets)
    assert read.words["mark"] == text


def test_pages_of_a_document_are_named() -> None:
    about = About("pdf", 2, sections=(Section(0, 1), Section(4, 2)))
    html = answer_page("T", "", [], sources_of("", []), [Document("a.pdf", "one two", about)], [])
    assert "page 2</span>two" in html


def test_the_middle_of_an_enormous_document_is_left_out() -> None:
    text = "word " * 300_000 + "the ship left port at noon"
    document = Document("big.txt", text)
    sources = sources_of("the ship left port at noon", [document])
    html = answer_page("T", "", [said("the ship left port at noon")], sources,
                       [document], [])  # fmt: skip
    assert "characters are left out here" in html
    assert len(html) < 100_000
    assert 'id="place-1"' in html


def test_what_is_not_quoted_of_very_many_texts_is_left_out() -> None:
    documents = [Document(f"{i}.txt", "word " * 2_000) for i in range(600)]
    documents.append(Document("last.txt", "word " * 20_000 + "the ship left port"))
    answer = "the ship left port"
    html = answer_page("T", "", [said(answer)], sources_of(answer, documents),
                       documents, [])  # fmt: skip
    assert html.count("10,000 characters are left out here") == 600
    assert html.count("80,000 characters are left out here") == 1
    assert len(html) < 300_000


def test_the_text_around_a_place_is_cut_between_words() -> None:
    text = "before " * 100 + "the ship left port at noon" + " behind" * 100
    (source,) = sources_of("the ship left port at noon", [Document("a.txt", text)]).found
    assert re.fullmatch(r"… (before ?)+", source.before)
    assert re.fullmatch(r" (behind )+…", source.after)
    (source,) = sources_of(
        "the ship left port", [Document("a.txt", "So the ship left port.")]
    ).found
    assert (source.before, source.after) == ("So ", ".")


def test_only_the_script_of_the_page_itself_may_run() -> None:
    html = answer_page("T", "", [], sources_of("", []), [], [])
    (script,) = re.findall("<script>(.*)</script>", html, re.DOTALL)
    (allowed,) = re.findall(r"default-src 'none';.* script-src 'sha256-([^']*)'", html)
    assert b64decode(allowed) == sha256(script.encode()).digest()


def test_html_writes_a_page_beside_the_answer(tmp_path: Path) -> None:
    note, out = tmp_path / "note.txt", tmp_path / "answer.html"
    note.write_text("The ferry leaves the northern quay at noon. It carries forty passengers.")
    done = ngt("summarize", str(note), "--html", str(out))
    assert done.stdout
    read = Reader(out.read_text())
    assert "#place-1" in read.links


def test_a_page_in_a_folder_that_is_not_there_is_refused_before_the_answer(tmp_path: Path) -> None:
    done = ngt("summarize", "-", "--html", str(tmp_path / "no" / "a.html"), stdin=b"text")
    assert done.returncode == 2
    assert done.stdout == b""
