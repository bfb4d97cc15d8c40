"""The page of an answer with its documents, as HTML and in Chromium."""

import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.drafting.steps import OWN, Step, Token
from ngtcli.render.answer_page import answer_page
from tests.support.browser import COLOURS, Browser, Page, in_browser


def page_of(answer: str, *texts: str) -> Page:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    tokens = [Token(0, c, OWN if i % 3 else "draft") for i, c in enumerate(answer)]
    steps = [Step(tuple(tokens[i : i + 5])) for i in range(0, len(tokens), 5)]
    sources = sources_of(answer, documents)
    return Page(answer_page("What?", "ngt ask", steps, sources, documents, ["a fact"]))


def said(text: str) -> Step:
    return Step((Token(0, text),))


pieces = st.lists(st.sampled_from(["ship", "port", "at", "noon", "<b>", "&", '"'])).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(pieces, st.lists(pieces, max_size=2))
def test_every_link_has_its_place_and_every_stretch_is_marked(
    answer: str, texts: list[str]
) -> None:
    read = page_of(answer, *texts)
    assert {link.removeprefix("#") for link in read.values("href")} <= set(read.values("id"))
    assert len(read.values("id")) == len(set(read.values("id")))


def test_words_that_were_drafted_for_the_most_part_are_underlined() -> None:
    """In `page_of` each third character is a drafted token."""
    assert page_of("a xyz d").words["u"] == "ad"
    assert "u" not in page_of("abcdefg").words


def test_hostile_documents_stay_text() -> None:
    hostile = '</details><script>alert(1)</script><img src=x onerror="alert(1)"> four words of it'
    read = page_of(hostile, hostile)
    assert read.tags.count("script") == 1  # the page's own
    assert "img" not in read.tags


def test_places_that_overlap_are_both_marked() -> None:
    text = "one two three four five six"
    read = page_of("one two three four five. three four five six", text)
    assert {"place-1", "place-2"} <= set(read.values("id"))
    assert read.words["mark"] == text


def test_pages_of_a_document_are_named() -> None:
    about = About("pdf", 2, sections=(Section(0, 1), Section(4, 2)))
    html = answer_page("T", "", [], sources_of("", []), [Document("a.pdf", "one two", about)], [])
    assert "page 2</span>two" in html


def test_the_middle_of_an_enormous_document_is_left_out() -> None:
    text = "word " * 300_000 + "the ship left port at noon"
    document = Document("big.txt", text)
    sources = sources_of("the ship left port at noon", [document])
    html = answer_page("T", "", [said("the ship left port at noon")], sources, [document], [])
    assert "characters are left out here" in html
    assert len(html) < 100_000
    assert 'id="place-1"' in html


def test_what_is_not_quoted_of_very_many_texts_is_left_out() -> None:
    documents = [Document(f"{i}.txt", "word " * 20_000) for i in range(60)]
    documents.append(Document("last.txt", "word " * 20_000 + "the ship left port"))
    answer = "the ship left port"
    html = answer_page("T", "", [said(answer)], sources_of(answer, documents), documents, [])
    assert html.count("100,000 characters are left out here") == 60
    assert html.count("80,000 characters are left out here") == 1
    assert len(html) < 300_000


def test_the_text_around_a_place_is_cut_between_words() -> None:
    text = "before " * 100 + "the ship left port at noon" + " behind" * 100
    (source,) = sources_of("the ship left port at noon", [Document("a.txt", text)]).spans
    assert re.fullmatch(r"… (before ?)+", source.before)
    assert re.fullmatch(r" (behind )+…", source.after)
    (source,) = sources_of(
        "the ship left port", [Document("a.txt", "So the ship left port.")]
    ).spans
    assert source.before == "So "
    assert source.after == "."


def test_only_the_script_of_the_page_itself_may_run() -> None:
    html = answer_page("T", "", [], sources_of("", []), [], [])
    (script,) = re.findall("<script>(.*)</script>", html, re.DOTALL)
    (allowed,) = re.findall(r"default-src 'none';.* script-src 'sha256-([^']*)'", html)
    assert b64decode(allowed) == sha256(script.encode()).digest()


# --- in Chromium: mouse, keyboard, widths, paper, the dark, hostile texts ---
FERRY = "The ferry leaves the northern quay at noon."
BUS = "The night bus carries doctors and bakers."
LAST = "The museum shows nets, barrels and one boat."
HOSTILE = (
    "</script><script>document.title = 'owned'</script>"
    '"><img src=x onerror="document.title=\'owned\'">'
    "</style></mark></details><!-- &lt; \u2028\u202egnp.exe\u200f <a href=https://evil.example>x</a>"
    "<style>@import url(https://evil.example/x.css); b { background: url(//evil.example) }</style>"
    "<link rel=stylesheet href=https://evil.example/y.css>"
    "<meta http-equiv=refresh content='0;url=x'>"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An answer from a long PDF, a hostile text and others."""
    filler = "Nothing of interest stands here. " * 60
    text = "".join(f"{filler}\n" for _ in range(8))
    about = About("pdf", 2, sections=(Section(0, 1, "Start"), Section(len(text), 2, "Harbour")))
    documents = [
        Document("log.pdf", f"{text}{FERRY} It carries forty passengers. {filler}", about),
        Document(HOSTILE, f"{HOSTILE} {BUS}"),
        Document("x" * 300, f"{'y' * 500} {LAST}"),
        *(Document(f"{i}.txt", filler) for i in range(17)),
    ]
    answer = f"So it is: {FERRY} {HOSTILE} {BUS} {'z' * 300} {LAST} Yes: {FERRY}"
    words = re.findall(r"\s*\S+", answer)
    tokens = [Token(0, text, OWN if i % 2 else "draft") for i, text in enumerate(words)]
    steps = [Step(tuple(tokens[i : i + 4])) for i in range(0, len(tokens), 4)]
    path = tmp_path_factory.mktemp("page") / "a page.html"
    sources = sources_of(answer, documents)
    html = answer_page(HOSTILE, f"ngt ask '{HOSTILE}'", steps, sources, documents, ["a fact"])
    path.write_text(html)
    return path


def shown(browser: Browser) -> list[str]:
    """The texts that are shown beside stretches."""
    found = browser.js(
        "[...document.querySelectorAll('.about')].filter(e => e.checkVisibility())"
        ".map(e => e.innerText)"
    )
    return [str(text) for text in found]


def focused(browser: Browser) -> str:
    return str(browser.js("document.activeElement.id || document.activeElement.className"))


FIRST = "a.stretch"


@in_browser
def test_hovering_shows_document_page_surroundings_and_step(browser: Browser, path: Path) -> None:
    browser.open(path)
    assert shown(browser) == []
    browser.hover(FIRST)
    (text,) = shown(browser)
    assert text.startswith("log.pdf, page 2")
    assert "steps 1–3" in text
    assert FERRY in text
    assert "It carries forty passengers." in text
    browser.hover("h1")
    assert shown(browser) == []


@in_browser
def test_what_is_shown_lies_within_the_window(browser: Browser, path: Path) -> None:
    browser.open(path)
    for stretch in browser.js("[...document.querySelectorAll('.stretch')].map(e => '#' + e.id)"):
        browser.hover(stretch)
        box = browser.js(
            f"JSON.parse(JSON.stringify(document.querySelector('{stretch} + .about')"
            ".getBoundingClientRect()))"
        )
        assert box["height"] > 20
        assert box["left"] >= 0
        assert box["right"] <= 1280
        assert box["top"] >= 0
        assert box["bottom"] <= 900


@in_browser
@pytest.mark.parametrize("closed", [False, True])
def test_a_click_opens_the_document_and_scrolls_to_the_place_beside_the_answer(
    browser: Browser, path: Path, closed: bool
) -> None:
    browser.open(path)
    top = "document.querySelector('{}').getBoundingClientRect().top"
    if closed:
        browser.js("document.querySelectorAll('details').forEach(e => { e.open = false; })")
    else:
        assert browser.js(top.format("#place-1")) > 900
    browser.click(FIRST)
    browser.wait(lambda: focused(browser) == "place-1")
    assert all(0 <= browser.js(top.format(name)) < 900 for name in ("#place-1", ".stretch"))
    assert browser.js("document.querySelector('#place-1').innerText").endswith(FERRY)
    assert not closed or browser.js("document.querySelectorAll('details[open]').length") == 1


@in_browser
def test_the_keyboard_alone_leads_there_and_back(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.key("Tab")
    assert focused(browser).startswith("stretch-")
    assert shown(browser)[0].startswith("log.pdf, page 2")
    browser.key("Escape")
    assert shown(browser) == []
    first = focused(browser)
    browser.key("Tab")
    assert focused(browser) != first
    assert len(shown(browser)) == 1
    browser.key("Enter")
    browser.wait(lambda: focused(browser).startswith("place-"))
    browser.key("Escape")
    assert focused(browser).startswith("stretch-")
    assert focused(browser) != first
    browser.key("Enter")
    browser.wait(lambda: focused(browser).startswith("place-"))
    browser.key("Tab")
    browser.key("Enter")  # the number of a place leads back too, without the script
    browser.wait(lambda: focused(browser).startswith("stretch-"))


@in_browser
def test_hostile_texts_stay_text_and_nothing_is_requested(browser: Browser, path: Path) -> None:
    browser.open(path)
    for stretch in browser.js("[...document.querySelectorAll('.stretch')].map(e => '#' + e.id)"):
        browser.click(stretch)
    assert set(browser.requests()) == {path.as_uri()}
    assert [e for e in browser.events if e["method"] == "Page.javascriptDialogOpening"] == []
    assert [e for e in browser.events if e["method"] == "Log.entryAdded"] == []  # no policy broken
    assert browser.js("document.title") != "owned"
    assert browser.js("document.querySelectorAll('script').length") == 1
    assert browser.js("document.querySelectorAll('img, link, iframe, object').length") == 0
    assert browser.js("[...document.querySelectorAll('a')].every(a => a.hash && !a.host)")
    text = browser.js("document.querySelector('.answer .text').textContent")
    assert "<script>document.title = 'owned'</script>" in text
    assert "\u202e" not in browser.js("document.documentElement.textContent")


@in_browser
def test_what_gets_into_a_page_in_spite_of_all_runs_nothing(browser: Browser, path: Path) -> None:
    """The page's own policy holds where escaping would have failed."""
    bad = "<script>document.title = 'owned'</script><img src=https://evil.example/i.png>"
    hurt = path.with_name("hurt.html")
    hurt.write_text(path.read_text().replace("<main>", f"<main>{bad}"))
    browser.open(hurt)
    assert browser.js("document.title") != "owned"
    assert not any(
        "Network.responseReceived" == e["method"] and "evil" in str(e) for e in browser.events
    )
    assert "violates the following Content Security Policy" in str(browser.events)


@in_browser
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_no_width_scrolls_sideways(browser: Browser, path: Path, width: int) -> None:
    browser.open(path, width)
    for _ in range(2):
        assert browser.js("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&"
        wide += (
            " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
        )
        assert browser.js(wide) == []
        browser.hover(FIRST)


@in_browser
def test_on_paper_everything_open_is_there_and_nothing_floats(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.key("Tab")
    browser.media("print")
    assert shown(browser) == []
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut = "[...document.querySelectorAll('section, .text')].filter(e =>"
    cut += (
        " e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY != 'visible').length"
    )
    assert browser.js(cut) == 0
    browser.media()


CONTRAST = """(() => {
  const { light, contrast, paper } = colours();
  const stretch = document.querySelector(".stretch"), line = document.querySelector(".stretch u");
  let text = 99, lines = 99;
  for (let hue = 0; hue < 360; hue += 5) {
    stretch.style.setProperty("--hue", hue);
    const style = getComputedStyle(stretch), tint = light(paper, style.backgroundColor);
    text = Math.min(text, contrast(tint, light(style.color)));
    lines = Math.min(lines, contrast(tint, light(getComputedStyle(line).textDecorationColor)));
  }
  const soft = getComputedStyle(document.querySelector(".about q")).color;
  return [text, lines, contrast(light(paper), light(soft))];
})()"""


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_stand_out_from_every_colour(
    browser: Browser, path: Path, scheme: str
) -> None:
    browser.media(prefers_color_scheme=scheme)
    browser.open(path)
    text, lines, soft = browser.js(COLOURS + CONTRAST)
    browser.media()
    assert text >= 4.5
    assert soft >= 4.5
    assert lines >= 3
