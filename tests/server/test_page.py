"""The server's page, driven in Chromium over a server whose answers are scripted."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
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
PARTS_OF_WORDS = ["On ", "slat", "e ", "slab", "s", " grow", "ing"]  # tokens that end within words
ADVICE = "--passages 6 reads more"
SCORES = Scores(1.0, 1.0, None, None, None)
ORIGINS = ("model", "prompt", "pool", "background", "own text", "scores", "draft")


class Answers(ScriptedAnswers):
    """Answers every question with ANSWER.

    Each step of the answer to a question with "slowly" waits until it is released.
    """

    def __init__(self) -> None:
        super().__init__(self.answer)
        self._released_steps = threading.Semaphore(0)

    def release(self, steps: int = 99) -> None:
        self._released_steps.release(steps)

    def answer(self, question: Request, ticket: Ticket) -> Generator[Event]:
        released_steps = threading.Semaphore(0 if "slowly" in question.question else 99)
        self._released_steps = released_steps
        yield Message("warn", "not everything fits: split into 2 parts")
        yield Message("warn", "the pool in /home/someone/x is started again")
        if "too long" in question.question:
            raise ContextOverflowError("the prompt has 9 tokens", hint="Shorten it.")
        selection = None
        if "in passages" in question.question:
            yield Message("warn", f"not everything fits: only 3 of 9 passages are read; {ADVICE}")
            passages = tuple(Chosen(SCORES, 0, i, i + 1, None, None, i + 1) for i in range(3))
            selection = Selection(passages, (), 9, 1, "cached", 0.0)
        yield Prompted(11)
        yield Reading(5, 11)
        words = re.findall(r"[^ ]+ ?", ANSWER)
        if "parts of words" in question.question:
            words = PARTS_OF_WORDS
        tokens = [
            Token(index, word, origin)
            for index, (word, origin) in enumerate(zip(words, cycle(ORIGINS), strict=False))
        ]
        steps = [Step((Token(9, "", "model", "Let me see."),))]
        for start in range(0, len(tokens), 3):
            steps.append(Step(tuple(tokens[start : start + 3])))
        for step in steps:
            while not released_steps.acquire(timeout=0.05) and not ticket.cancelled.is_set():
                pass
            yield Stepped(step)
        yield Ended(
            finish_reason="length",
            facts=("9 tokens", "acceptance length 3.00"),
            steps=tuple(steps),
            statistics=Statistics(prompt_tokens=11, new_tokens=len(tokens), steps=len(steps)),
            sources=sources_of("".join(words), question.documents),
            selection=selection,
        )


def server_of(folder: ServedFolder | None, address: Address = LOCAL) -> RunningServer:
    tasks = Tasks({task: (Settings(), load_preset(task)) for task in ("ask", "summarize")})
    return RunningServer(Answers(), Service("builtin", tasks, folder), address)


@dataclass
class Live:
    """A running server: the URL of its page, and its answers."""

    url: str
    answers: Answers


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("served")
    (root / "deep").mkdir()
    (root / "deep" / "log.md").write_text(f"# Harbour\n\n{FERRY} It carries forty.")
    (root / "a <b>.txt").write_text(f"Here is {HOSTILE} and more of it.")
    server = server_of(ServedFolder([str(root)], Settings()))
    yield Live(f"{server.url}/", server.answers)
    server.close()


def post(url: str, **body: Any) -> httpx.Response:
    return CLIENT.post(f"{url}answer", json={"task": "ask", "question": "When?", **body})


def test_the_page_is_one_file_under_a_strict_policy(live: Live) -> None:
    response = CLIENT.get(live.url)
    policy = response.headers["content-security-policy"]
    assert (response.text, policy) == page_and_policy()
    assert response.text.count("<script>") == 1
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "http" not in response.text
    assert "innerHTML" not in response.text
    assert "src=" not in response.text
    assert "@import" not in response.text


def test_the_page_lists_the_documents_of_the_folder(live: Live) -> None:
    listing = CLIENT.get(f"{live.url}documents").json()
    names = [document["name"] for document in listing["documents"]]
    assert names == ["a <b>.txt", "deep/log.md"]


def test_a_question_is_about_chosen_documents_and_texts_of_the_page(live: Live) -> None:
    response = post(live.url, names=["deep/log.md"], documents=[{"name": "x", "text": "Mine."}])
    assert response.status_code == 200
    assert response.text.count('["Stepped",') > 3
    assert "not everything fits" in response.text
    assert "/home" not in response.text
    assert [document.name for document in live.answers.last.documents] == ["deep/log.md", "x"]


@pytest.mark.parametrize(
    "body",
    [
        {"names": ["../../etc/passwd"]},
        {"names": ["/etc/passwd"]},
        {"paths": ["/etc"]},
        {"task": "chat"},
        {},
        {"question": " ", "names": ["deep/log.md"]},
        {"documents": [{"name": "x", "text": "a\0b"}]},
    ],
)
def test_an_invalid_question_of_the_page_is_refused(body: dict[str, Any], live: Live) -> None:
    assert post(live.url, **body).status_code in (400, 404)


def test_everything_but_the_page_needs_a_key_if_there_are_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    keys.chmod(0o600)
    with closing(server_of(None, Address("127.0.0.1", 0, read_keys(keys)))) as server:
        url = f"{server.url}/"
        assert CLIENT.get(url).status_code == 200
        assert CLIENT.get(f"{url}documents").status_code == 401
        assert post(url).status_code == 401

        headers = {"authorization": f"Bearer {'k' * 32}"}
        assert CLIENT.get(f"{url}documents", headers=headers).json() == {
            "model": "builtin (a demonstration, made only to quote sentences)",
            "documents": None,
        }


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_page_splits_events_only_at_newlines(tmp_path: Path) -> None:
    """The page's reader runs in node, on events that come in pieces of seven bytes.

    JavaScript takes U+2028 and U+2029 for ends of lines, too.
    """
    script = (ROOT_FOLDER / "ngtcli" / "server" / "page.js").read_text("utf-8")
    start = script.index("async function* events")
    reader = script[start : script.index("\n}", start) + 2]
    events = [["Stepped", {"text": "one\u2028two\u2029three\u0085\r"}], ["Ended", {"text": "\n"}]]
    data = "\n".join(json.dumps(event, ensure_ascii=False) for event in events) + "\n\n"
    program = f"""{reader}
      const bytes = new TextEncoder().encode({json.dumps(data)});
      const body = new ReadableStream({{
        start(controller) {{
          for (let i = 0; i < bytes.length; i += 7) controller.enqueue(bytes.slice(i, i + 7));
          controller.close();
        }}
      }});
      (async () => {{
        const received = [];
        for await (const event of events({{ body }})) received.push(event);
        console.log(JSON.stringify(received));
      }})();"""
    (tmp_path / "read.js").write_text(program, "utf-8")
    done = subprocess.run(["node", tmp_path / "read.js"], capture_output=True, check=True)
    assert json.loads(done.stdout) == events


# --- in Chromium ---


@pytest.fixture
def page(browser: Browser, live: Live) -> Browser:
    """A browser that shows the page."""
    browser.open(live.url)
    browser.wait(lambda: browser.js("document.querySelectorAll('#names input').length") == 2)
    return browser


def text(page: Browser, element_id: str) -> str:
    """The visible text of an element."""
    return str(page.js(f"document.getElementById('{element_id}').innerText"))


def has_ended(page: Browser) -> bool:
    """Whether no answer is in progress."""
    return bool(page.js("document.getElementById('ask').disabled === false"))


def focused(page: Browser) -> str:
    """The id of the focused element, or its tag."""
    return str(page.js("document.activeElement.id || document.activeElement.tagName"))


def ask(page: Browser, question: str) -> None:
    """Type a question and submit it."""
    page.js("document.getElementById('question').value = ''")
    page.js("document.getElementById('question').focus()")
    page.type(question)
    page.key("Enter")


@in_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_the_documents_are_below_the_question_on_a_phone_and_to_its_left_on_a_wide_screen(
    width: int, page: Browser
) -> None:
    page.size(width, 700)
    question = page.js("document.querySelector('#question').getBoundingClientRect().toJSON()")
    documents = page.js("document.querySelector('#names').getBoundingClientRect().toJSON()")
    assert question["bottom"] < 700
    if width < 900:
        assert question["bottom"] < documents["top"]
        assert "2 of 2 chosen" in text(page, "to-documents")
    else:
        assert documents["right"] < question["left"]
    assert page.js("document.documentElement.scrollWidth") <= width
    page.size(1280)


@in_browser
def test_an_answer_is_shown_step_by_step(page: Browser, live: Live) -> None:
    ask(page, "When, slowly?")
    page.wait(lambda: "Reading 5 of 11" in text(page, "progress"))
    live.answers.release(2)
    page.wait(lambda: "So:" in text(page, "answer"))
    assert "Yes." not in text(page, "answer")
    assert not has_ended(page)
    assert page.js("document.getElementById('answer').ariaBusy") == "true"
    assert "4 tokens" in text(page, "progress")

    live.answers.release()
    page.wait(lambda: has_ended(page))
    assert "Yes." in text(page, "answer")
    assert page.js("document.getElementById('state').textContent") == "The answer is complete."


@in_browser
def test_an_answer_is_shown_with_its_origins_sources_and_warnings(page: Browser) -> None:
    ask(page, "When?")
    page.wait(lambda: has_ended(page) and text(page, "facts"))

    shown = page.js("document.getElementById('answer').textContent")
    assert shown.replace("[1]", "").replace("[2]", "") == ANSWER.replace("\u202e", "\ufffd")
    origins = "[...new Set([...document.querySelectorAll('#answer u')].map(e => e.dataset.origin))]"
    assert set(page.js(origins)) == set(ORIGINS) - {"model"}
    assert all(origin in text(page, "legend") for origin in ORIGINS[1:])

    quotations = page.js("[...document.querySelectorAll('.stretch')].map(e => e.textContent)")
    assert f"{FERRY}[1]" in quotations
    assert "deep/log.md, Harbour" in text(page, "places")
    assert FERRY in text(page, "places")

    facts = text(page, "facts")
    assert "not everything fits" in facts
    assert "acceptance length 3.00" in facts
    assert "cut off" in facts
    assert "/home" not in facts
    assert page.js("document.getElementById('thought-text').textContent") == "Let me see."


@in_browser
def test_hostile_markup_stays_text_and_causes_no_requests(page: Browser, live: Live) -> None:
    ask(page, HOSTILE)
    page.wait(lambda: has_ended(page) and text(page, "facts"))
    assert page.js("document.title") == "ngt"
    # The only element of these is the page's script.
    assert page.js("document.querySelectorAll('img, b b, script').length") == 1
    paths = {url.replace(live.url, "") for url in page.requests()}
    assert paths <= {"", "documents", "answer"}
    log_entries = [event for event in page.events if event["method"] == "Log.entryAdded"]
    assert all("favicon" in str(entry) for entry in log_entries), log_entries


@in_browser
def test_a_word_of_several_tokens_is_underlined_as_a_whole(page: Browser) -> None:
    ask(page, "in parts of words")
    page.wait(lambda: has_ended(page) and "growing" in text(page, "answer"))
    assert text(page, "answer") == "".join(PARTS_OF_WORDS)
    drafted = (
        "[...document.querySelectorAll('#answer u')].map(e => [e.textContent, e.dataset.origin])"
    )
    assert page.js(drafted) == [
        ["slate", "prompt"],
        ["slabs", "background"],
        ["growing", "scores"],
    ]


@in_browser
def test_more_passages_are_offered_as_a_button(page: Browser, live: Live) -> None:
    """The advice names a flag, which nobody can type into a page."""
    ask(page, "When, in passages?")
    page.wait(lambda: has_ended(page) and text(page, "facts"))
    assert "only 3 of 9 passages are read ·" in text(page, "facts")
    assert "--" not in text(page, "facts")
    assert text(page, "more") == "Read 6 passages"
    assert live.answers.last.settings.retrieval.passages == Settings().retrieval.passages
    page.click("#more")
    page.wait(lambda: has_ended(page) and live.answers.last.settings.retrieval.passages == 6)
    assert live.answers.last.question == "When, in passages?"
    ask(page, "When?")
    page.wait(lambda: has_ended(page) and "Yes." in text(page, "answer"))
    assert page.js("document.getElementById('more').hidden")


@in_browser
@pytest.mark.parametrize("control", ["Escape", "button"])
def test_a_stopped_answer_keeps_its_words(control: str, page: Browser, live: Live) -> None:
    ask(page, "When, slowly?")
    page.wait(lambda: "Reading 5 of 11" in text(page, "progress"))
    live.answers.release(2)
    page.wait(lambda: "So:" in text(page, "answer"))

    if control == "Escape":
        page.key("Escape")
    else:
        page.click("#stop")

    page.wait(lambda: has_ended(page))
    assert live.answers.ended.wait(10)
    assert "Stopped." in text(page, "facts")
    assert "So:" in text(page, "answer")
    assert "Yes." not in text(page, "answer")
    assert focused(page) == "question"


@in_browser
def test_the_keyboard_alone_chooses_documents_asks_and_reaches_the_sources(
    page: Browser, live: Live
) -> None:
    page.key("Tab")
    assert focused(page) == "question"
    page.type("When?")
    for element in ("ask", "summarize", "all", "INPUT"):
        page.key("Tab")
        assert focused(page) == element
    page.key(" ")  # leaves the first document out
    for _ in range(3):
        page.key("Tab", shift=True)
    assert focused(page) == "ask"
    page.key("Enter")
    page.wait(lambda: has_ended(page) and text(page, "places"))
    assert [document.name for document in live.answers.last.documents] == ["deep/log.md"]
    assert live.answers.last.question == "When?"

    page.js("document.querySelector('.stretch').focus()")
    page.key("Enter")
    page.wait(lambda: focused(page) == "place-1")
    page.key("Escape")
    assert focused(page).startswith("stretch-")


@in_browser
def test_a_question_without_a_document_is_refused(page: Browser) -> None:
    page.click("#all")
    page.click("#summarize")
    assert "Choose a document" in text(page, "failure")


@in_browser
def test_pasted_texts_and_dropped_files_are_sent(page: Browser, live: Live) -> None:
    page.click("#all")
    page.click("#own summary")
    page.click("#pasted")
    page.type(f"Pasted: {FERRY}")
    page.click("#add")
    page.js(
        "{ const data = new DataTransfer();"
        " data.items.add(new File(['A note.'], 'note.txt'));"
        " data.items.add(new File([new Uint8Array([255, 0, 1])], 'x.pdf'));"
        " document.body.dispatchEvent(new DragEvent('drop',"
        " {dataTransfer: data, bubbles: true, cancelable: true})); }"
    )
    page.wait(lambda: "x.pdf: not a text" in text(page, "failure"))
    assert "note.txt" in text(page, "given")

    page.click("#summarize")
    page.wait(lambda: has_ended(page) and text(page, "places"))
    request = live.answers.last
    assert request.task == "summarize"
    assert request.question == ""
    assert {document.name: document.text for document in request.documents} == {
        "Pasted text": f"Pasted: {FERRY}",
        "note.txt": "A note.",
    }

    page.click("#given button")
    assert "Pasted text" not in text(page, "given")


@in_browser
def test_an_error_is_shown_until_the_next_question(page: Browser) -> None:
    ask(page, "too long")
    page.wait(lambda: "the prompt has 9 tokens" in text(page, "failure"))
    ask(page, "When?")
    page.wait(lambda: has_ended(page) and "Yes." in text(page, "answer"))
    assert not text(page, "failure")


@in_browser
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_no_width_scrolls_sideways(page: Browser, width: int) -> None:
    page.size(width)
    ask(page, "When?")
    page.wait(lambda: has_ended(page) and text(page, "places"))
    assert page.js("document.documentElement.scrollWidth") <= width
    top = page.js("document.getElementById('answer').getBoundingClientRect().top")
    assert 0 < top < 800  # of 900: the answer is in sight


# The least contrast of a drafted word with its background, over all origins and hues.
LEAST_CONTRAST = """(() => {
  const { light, contrast, paper } = colours();
  const quotation = document.querySelector(".stretch");
  const word = quotation.querySelector("u");
  let least = 99;
  for (const origin of ["own text", "prompt", "pool", "background", "scores", "draft"])
    for (let hue = 0; hue < 360; hue += 15) {
      quotation.style.setProperty("--hue", hue);
      word.dataset.origin = origin;
      const background = light(paper, getComputedStyle(quotation).backgroundColor);
      const foreground = light(getComputedStyle(word).color);
      least = Math.min(least, contrast(foreground, background));
    }
  return least;
})()"""


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drafted_words_stand_out_from_every_colour(page: Browser, scheme: str) -> None:
    page.media(prefers_color_scheme=scheme)
    ask(page, "When?")
    page.wait(lambda: has_ended(page) and text(page, "places"))
    least_contrast = page.js(COLOURS + LEAST_CONTRAST)
    page.media()
    assert least_contrast >= 4.5
