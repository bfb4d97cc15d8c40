"""The server's page, driven in Chromium over a server whose answers are scripted."""

import json
import shutil
import subprocess
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ngtcli.config import Settings
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.documents.selection import Scores
from ngtcli.drafting.steps import Statistics, Step, Token
from ngtcli.engine.events import Ended, Event, Message, Prompted, Reading, Stepped
from ngtcli.engine.request import Request, Tasks
from ngtcli.errors import ContextOverflowError
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.reports import Chosen, Selection
from ngtcli.server.folder import ServedFolder
from ngtcli.server.http_guard import Address, read_keys
from ngtcli.server.page import page_and_policy
from ngtcli.server.service import Service
from tests.support.browser import COLOURS, Browser, in_browser
from tests.support.helpers import ROOT_FOLDER
from tests.support.serving import CLIENT, LOCAL, RunningServer, ScriptedAnswers, Ticket

FERRY = "The ferry leaves the northern quay at noon."
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>\u202ebold"
ANSWER = f"🙂 So: {FERRY} {HOSTILE} Yes."
WITHIN_WORDS = ["On ", "slat", "e ", "slab", "s", " grow", "ing"]  # tokens that end within words
ADVICE = "--passages 6 reads more"
SCORES = Scores(1.0, 1.0, None, None, None)
ORIGINS = ("model", "prompt", "pool", "background", "own text", "scores", "draft")


class Answers(ScriptedAnswers):
    """Answers every question with ANSWER, step by step: where it says so each waits for `go`."""

    go = threading.Semaphore(0)

    def __init__(self) -> None:
        super().__init__(self.answer)

    def release(self, steps: int = 99) -> None:
        self.go.release(steps)

    def answer(self, question: Request, ticket: Ticket) -> Generator[Event]:
        self.go = go = threading.Semaphore(0 if "slowly" in question.question else 99)
        yield Message("warn", "not everything fits: split into 2 parts")
        yield Message("warn", "the pool in /home/someone/x is started again")
        if "too long" in question.question:
            raise ContextOverflowError("the prompt has 9 tokens", hint="Shorten it.")
        selection = None
        if "in passages" in question.question:
            yield Message("warn", f"not everything fits: read the best 3 of 9 passages; {ADVICE}")
            passages = tuple(Chosen(SCORES, 0, i, i + 1, None, None, i + 1) for i in range(3))
            selection = Selection(passages, (), 9, 1, "cached", 0.0)
        yield Prompted(11)
        yield Reading(5, 11)
        words = [f"{word} " for word in ANSWER.split(" ")]
        words[-1] = words[-1].rstrip(" ")
        if "within words" in question.question:
            words = WITHIN_WORDS
        tokens = [Token(i, w, ORIGINS[i % len(ORIGINS)]) for i, w in enumerate(words)]
        steps = [Step((Token(9, "", "model", "Let me see."),))]
        steps += [Step(tuple(tokens[i : i + 3])) for i in range(0, len(tokens), 3)]
        for step in steps:
            while not go.acquire(timeout=0.05) and not ticket.cancelled.is_set():
                pass
            yield Stepped(step)
        done = Statistics(prompt_tokens=11, new_tokens=len(tokens), steps=len(steps))
        found = sources_of("".join(words), question.documents)
        own: Any = {"steps": tuple(steps), "statistics": done, "sources": found}
        own["selection"] = selection
        yield Ended(finish_reason="length", facts=("9 tokens", "acceptance length 3.00"), **own)


def server_of(folder: ServedFolder | None, address: Address = LOCAL) -> RunningServer:
    tasks = Tasks({task: (Settings(), load_preset(task)) for task in ("ask", "summarize")})
    return RunningServer(Answers(), Service("builtin", tasks, folder), address)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Answers]]:
    root = tmp_path_factory.mktemp("served")
    (root / "deep").mkdir()
    (root / "deep" / "log.md").write_text(f"# Harbour\n\n{FERRY} It carries forty.")
    (root / "a <b>.txt").write_text(f"Here is {HOSTILE} and more of it.")
    server = server_of(ServedFolder([str(root)], Settings()))
    yield f"{server.url}/", server.answers
    server.close()


def post(url: str, **body: Any) -> httpx.Response:
    return CLIENT.post(f"{url}answer", json={"task": "ask", "question": "When?", **body})


def test_the_page_is_one_file_under_a_strict_policy(live: tuple[str, Answers]) -> None:
    done = CLIENT.get(live[0])
    policy = done.headers["content-security-policy"]
    assert (done.text, policy) == page_and_policy()
    assert done.text.count("<script>") == 1
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "http" not in done.text
    assert "innerHTML" not in done.text
    assert "src=" not in done.text
    assert "@import" not in done.text


def test_only_documents_of_the_folder_and_texts_given_are_read(live: tuple[str, Answers]) -> None:
    url, asked = live
    listed = CLIENT.get(f"{url}documents").json()
    assert [d["name"] for d in listed["documents"]] == ["a <b>.txt", "deep/log.md"]
    done = post(url, names=["deep/log.md"], documents=[{"name": "x", "text": "Mine."}])
    assert done.status_code == 200
    assert done.text.count('["Stepped",') > 3
    assert "/home" not in done.text
    assert "not everything fits" in done.text
    assert [d.name for d in asked.last.documents] == ["deep/log.md", "x"]
    for bad in (
        {"names": ["../../etc/passwd"]},
        {"names": ["/etc/passwd"]},
        {"paths": ["/etc"]},
        {"task": "chat"},
        {},
        {"question": " ", "names": ["deep/log.md"]},
        {"documents": [{"name": "x", "text": "a\0b"}]},
    ):
        assert post(url, **bad).status_code in (400, 404), bad


def test_with_keys_the_page_opens_and_all_else_needs_one(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k" * 32)
    (tmp_path / "keys").chmod(0o600)
    server = server_of(None, Address("127.0.0.1", 0, read_keys(tmp_path / "keys")))
    url = f"{server.url}/"
    assert CLIENT.get(url).status_code == 200
    assert CLIENT.get(f"{url}documents").status_code == 401 == post(url).status_code
    known = {"authorization": f"Bearer {'k' * 32}"}
    listed = CLIENT.get(f"{url}documents", headers=known).json()
    about = "builtin (a demonstration that only quotes sentences)"
    assert listed == {"model": about, "documents": None}
    server.close()


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_page_takes_every_line_of_an_answer(tmp_path: Path) -> None:
    """Its reader in node, on text with JavaScript's other ends of lines, in pieces."""
    script = (ROOT_FOLDER / "ngtcli" / "server" / "page.js").read_text("utf-8")
    begin = script.index("async function* events")
    reader = script[begin : script.index("\n}", begin) + 2]
    said = [["Stepped", {"text": "one\u2028two\u2029three\u0085\r"}], ["Ended", {"text": "\n"}]]
    data = "\n".join(json.dumps(one, ensure_ascii=False) for one in said) + "\n\n"
    program = f"""{reader}
      const bytes = new TextEncoder().encode({json.dumps(data)});
      const body = new ReadableStream({{ start(to) {{
        for (let at = 0; at < bytes.length; at += 7) to.enqueue(bytes.slice(at, at + 7));
        to.close(); }} }});
      (async () => {{ const got = []; for await (const one of events({{ body }})) got.push(one);
        console.log(JSON.stringify(got)); }})();"""
    (tmp_path / "read.js").write_text(program, "utf-8")
    done = subprocess.run(["node", tmp_path / "read.js"], capture_output=True, check=True)
    assert json.loads(done.stdout) == said


# --- in Chromium ---


@pytest.fixture
def page(browser: Browser, live: tuple[str, Answers]) -> tuple[Browser, Answers]:
    browser.open(live[0])
    browser.wait(lambda: browser.js("document.querySelectorAll('#names input').length") == 2)
    return browser, live[1]


def text(browser: Browser, name: str) -> str:
    return str(browser.js(f"document.getElementById('{name}').innerText"))


def ended(browser: Browser) -> bool:
    return bool(browser.js("document.getElementById('ask').disabled === false"))


def focused(browser: Browser) -> str:
    return str(browser.js("document.activeElement.id || document.activeElement.tagName"))


def asked_for(browser: Browser, question: str, name: str = "Enter") -> None:
    browser.js("document.getElementById('question').value = ''")
    browser.js("document.getElementById('question').focus()")
    browser.type(question)
    browser.key(name)


@in_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_the_question_is_seen_before_a_list_of_documents_on_a_phone(
    width: int, page: tuple[Browser, Answers]
) -> None:
    """On a wide screen the documents stand to its left."""
    browser, _ = page
    browser.size(width, 700)
    box = "document.querySelector('{}').getBoundingClientRect()"
    question, documents = (
        browser.js(f"({box.format(name)}).toJSON()") for name in ("#question", "#names")
    )
    assert question["bottom"] < 700
    if width < 900:
        assert question["bottom"] < documents["top"]
        assert "2 of 2 chosen" in text(browser, "to-documents")
    else:
        assert documents["right"] < question["left"]
    assert browser.js("document.documentElement.scrollWidth") <= width
    browser.size(1280)


@in_browser
def test_an_answer_arrives_in_colour_and_ends_with_its_sources(
    page: tuple[Browser, Answers],
) -> None:
    browser, asked = page
    asked_for(browser, "When, slowly?")
    browser.wait(lambda: "Reading 5 of 11" in text(browser, "progress"))
    asked.release(2)
    browser.wait(lambda: "So:" in text(browser, "answer"))
    assert "Yes." not in text(browser, "answer")
    assert not ended(browser)
    assert browser.js("document.getElementById('answer').ariaBusy") == "true"
    assert "4 tokens" in text(browser, "progress")
    asked.release()
    browser.wait(lambda: ended(browser))
    shown = browser.js("document.getElementById('answer').textContent")
    assert shown.replace("[1]", "").replace("[2]", "") == ANSWER.replace("\u202e", "\ufffd")
    origins = "[...new Set([...document.querySelectorAll('#answer u')].map(e => e.dataset.origin))]"
    assert set(browser.js(origins)) == set(ORIGINS) - {"model"}
    assert all(origin in text(browser, "legend") for origin in ORIGINS[1:])
    stretches = browser.js("[...document.querySelectorAll('.stretch')].map(e => e.textContent)")
    assert f"{FERRY}[1]" in stretches
    assert "deep/log.md, Harbour" in text(browser, "places")
    assert FERRY in text(browser, "places")
    facts = text(browser, "facts")
    assert "not everything fits" in facts
    assert "acceptance length 3.00" in facts
    assert "cut off" in facts
    assert "/home" not in facts
    assert browser.js("document.getElementById('thought-text').textContent") == "Let me see."
    assert browser.js("document.getElementById('state').textContent") == "The answer is complete."


@in_browser
def test_what_is_hostile_stays_text_and_nothing_else_is_requested(
    page: tuple[Browser, Answers], live: tuple[str, Answers]
) -> None:
    browser, _ = page
    asked_for(browser, HOSTILE)
    browser.wait(lambda: ended(browser) and text(browser, "facts"))
    assert browser.js("document.title") == "ngt"
    assert browser.js("document.querySelectorAll('img, b b, script').length") == 1  # its own script
    assert {u.replace(live[0], "") for u in browser.requests()} <= {"", "documents", "answer"}
    violations = [e for e in browser.events if e["method"] == "Log.entryAdded"]
    assert not [e for e in violations if "favicon" not in str(e)], violations


@in_browser
def test_a_word_of_several_tokens_is_underlined_as_a_whole(page: tuple[Browser, Answers]) -> None:
    browser, _ = page
    asked_for(browser, "within words")
    browser.wait(lambda: ended(browser) and "growing" in text(browser, "answer"))
    assert text(browser, "answer") == "".join(WITHIN_WORDS)
    drafted = (
        "[...document.querySelectorAll('#answer u')].map(e => [e.textContent, e.dataset.origin])"
    )
    assert browser.js(drafted) == [
        ["slate", "prompt"],
        ["slabs", "background"],
        ["growing", "scores"],
    ]


@in_browser
def test_more_passages_are_offered_as_a_button(page: tuple[Browser, Answers]) -> None:
    """The advice names a flag, which nobody can type into a page."""
    browser, asked = page
    asked_for(browser, "When, in passages?")
    browser.wait(lambda: ended(browser) and text(browser, "facts"))
    assert "read the best 3 of 9 passages ·" in text(browser, "facts")
    assert "--" not in text(browser, "facts")
    assert text(browser, "more") == "Read 6 passages"
    assert asked.last.settings.retrieval.passages == Settings().retrieval.passages
    browser.click("#more")
    browser.wait(lambda: ended(browser) and asked.last.settings.retrieval.passages == 6)
    assert asked.last.question == "When, in passages?"
    asked_for(browser, "When?")
    browser.wait(lambda: ended(browser) and "Yes." in text(browser, "answer"))
    assert browser.js("document.getElementById('more').hidden")


@in_browser
def test_stop_ends_it_within_a_step_and_what_came_stays(page: tuple[Browser, Answers]) -> None:
    browser, asked = page
    for how in ("Escape", "button"):
        asked_for(browser, "When, slowly?")
        browser.wait(lambda: "Reading 5 of 11" in text(browser, "progress"))
        asked.release(2)
        browser.wait(lambda: "So:" in text(browser, "answer"))
        browser.key("Escape") if how == "Escape" else browser.click("#stop")
        browser.wait(lambda: ended(browser))
        assert asked.ended.wait(10)
        assert "Stopped." in text(browser, "facts")
        assert "So:" in text(browser, "answer")
        assert "Yes." not in text(browser, "answer")
        assert focused(browser) == "question"


@in_browser
def test_the_keyboard_alone_chooses_asks_and_reaches_the_sources(
    page: tuple[Browser, Answers],
) -> None:
    browser, asked = page
    met = []
    for _ in range(5):
        browser.key("Tab")
        met.append(focused(browser))
        if met == ["question"]:
            browser.type("When?")
    assert met == ["question", "ask", "summarize", "all", "INPUT"]
    browser.key(" ")  # the first document is left out
    for _ in range(3):
        browser.key("Tab", shift=True)
    assert focused(browser) == "ask"
    browser.key("Enter")
    browser.wait(lambda: ended(browser) and text(browser, "places"))
    assert [d.name for d in asked.last.documents] == ["deep/log.md"]
    assert asked.last.question == "When?"
    browser.js("document.querySelector('.stretch').focus()")
    browser.key("Enter")
    browser.wait(lambda: focused(browser) == "place-1")
    browser.key("Escape")
    assert focused(browser).startswith("stretch-")


@in_browser
def test_texts_of_ones_own_are_sent_and_what_is_no_text_is_told(
    page: tuple[Browser, Answers],
) -> None:
    browser, asked = page
    browser.click("#all")
    browser.click("#summarize")
    assert "Choose a document" in text(browser, "failure")
    browser.click("#own summary")
    browser.click("#pasted")
    browser.type(f"Pasted: {FERRY}")
    browser.click("#add")
    browser.js(
        "{ const data = new DataTransfer();"
        " data.items.add(new File(['A note.'], 'note.txt'));"
        " data.items.add(new File([new Uint8Array([255, 0, 1])], 'x.pdf'));"
        " document.body.dispatchEvent(new DragEvent('drop',"
        " {dataTransfer: data, bubbles: true, cancelable: true})); }"
    )
    browser.wait(lambda: "x.pdf: not a text" in text(browser, "failure"))
    assert "note.txt" in text(browser, "given")
    browser.click("#summarize")
    browser.wait(lambda: ended(browser) and text(browser, "places"))
    question = asked.last
    assert question.task == "summarize"
    assert question.question == ""
    assert [(d.name, d.text) for d in question.documents] == [
        ("Pasted text", f"Pasted: {FERRY}"),
        ("note.txt", "A note."),
    ]
    browser.click("#given button")
    assert "Pasted text" not in text(browser, "given")


@in_browser
def test_a_failure_is_told_and_the_next_question_goes_on(page: tuple[Browser, Answers]) -> None:
    browser, _ = page
    asked_for(browser, "too long")
    browser.wait(lambda: "the prompt has 9 tokens" in text(browser, "failure"))
    asked_for(browser, "When?")
    browser.wait(lambda: ended(browser) and "Yes." in text(browser, "answer"))
    assert not text(browser, "failure")


@in_browser
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_no_width_scrolls_sideways(page: tuple[Browser, Answers], width: int) -> None:
    browser, _ = page
    browser.size(width)
    asked_for(browser, "When?")
    browser.wait(lambda: ended(browser) and text(browser, "places"))
    assert browser.js("document.documentElement.scrollWidth") <= width
    top = browser.js("document.getElementById('answer').getBoundingClientRect().top")
    assert 0 < top < 800  # of 900: the answer is in sight


# The least contrast of drafted words on what is behind them.
CONTRAST = """(() => {
  const { light, contrast, paper } = colours();
  const stretch = document.querySelector(".stretch"), word = stretch.querySelector("u");
  let least = 99;
  for (const origin of ["own text", "prompt", "pool", "background", "scores", "draft"])
    for (let hue = 0; hue < 360; hue += 15) {
      stretch.style.setProperty("--hue", hue);
      word.dataset.origin = origin;
      const behind = light(paper, getComputedStyle(stretch).backgroundColor);
      const ink = light(getComputedStyle(word).color);
      least = Math.min(least, contrast(ink, behind));
    }
  return least;
})()"""


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drafted_words_stand_out_from_every_colour(
    page: tuple[Browser, Answers], scheme: str
) -> None:
    browser, _ = page
    browser.media(prefers_color_scheme=scheme)
    asked_for(browser, "When?")
    browser.wait(lambda: ended(browser) and text(browser, "places"))
    least = browser.js(COLOURS + CONTRAST)
    browser.media()
    assert least >= 4.5
