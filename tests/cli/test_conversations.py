"""`ngt chat` in pipes and on a pseudo-terminal."""

import io
import json
import os
import pty
import select
import signal
import stat
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ngtcli.cli import typed
from ngtcli.cli.answer_flags import Output
from ngtcli.cli.chat import Conversation
from ngtcli.cli.typed import piped
from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.documents.selection import Excerpt
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.events import Ended, Started, Stepped
from ngtcli.engine.report import with_sources
from ngtcli.engine.request import Request
from ngtcli.errors import InputError
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.reports import Selection
from ngtcli.server.answerer import Answerer
from tests.support.helpers import HARBOUR, ngt, read_terminal
from tests.support.recording_reporter import RecordingReporter
from tests.support.warm import Warm

PATIENCE_S = 60
READY = "[2C"  # how the editor puts the cursor after its prompt
SHORT = ("--max-tokens", "12", "--method", "none")
ORCHARD = str(Path(HARBOUR).with_name("orchard.md"))


def test_each_line_of_a_pipe_is_a_question(tmp_path: Path) -> None:
    lines = [
        "Who built the harbour?",
        "",
        "/docs list",
        f"/docs add '{ORCHARD}' {HARBOUR}",
        "And \\",
        "when?\r",
        "/system Be brief.",
        "/system",
        "/sources",
        "/save a.json",
        "/save a.md",
        "/save a.md",
        "/reset",
        " Why?",
        "/save b.json",
        "/quit",
        "Not asked.",
    ]
    stdin = "".join(f"{line}\n" for line in lines).encode()

    done = ngt("chat", "-d", HARBOUR, *SHORT, stdin=stdin, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.decode().split("\n\n")
    assert third.endswith("\n")
    assert "\n" not in first
    stderr = done.stderr.decode()
    assert "harbour.txt: 1,905 characters\nadded 1 document; there are 2\n" in stderr
    assert "\nBe brief.\n[1] harbour.txt: " in stderr

    saved = json.loads((tmp_path / "a.json").read_text())
    assert [document["name"] for document in saved["documents"]] == ["harbour.txt", "orchard.md"]
    exchanges = {exchange["question"]: exchange["answer"] for exchange in saved["exchanges"]}
    assert exchanges == {"Who built the harbour?": first, "And \nwhen?": second}
    page = (tmp_path / "a.md").read_text()
    assert page.startswith("# A conversation with builtin\n\nDocuments: harbour.txt, orchard.md\n")
    assert f"## Question 1\n\nWho built the harbour?\n\n## Answer 1\n\n{first}\n\n- [1]" in page

    (after_reset,) = json.loads((tmp_path / "b.json").read_text())["exchanges"]
    assert after_reset["question"] == "Why?"
    prompt_tokens = [
        exchange["statistics"]["prompt_tokens"] for exchange in (*saved["exchanges"], after_reset)
    ]
    assert prompt_tokens[0] < prompt_tokens[1] > prompt_tokens[2]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        ([], b"/sorces\n", 2, "unknown command /sorces"),
        ([], b"/docs add /no/such\n", 3, "/no/such"),
        ([], b"/docs add 'x\n", 2, "Close the quotes."),
        ([], b"/docs drop x\n", 2, "Use /docs add"),
        ([], b"/save\n", 2, "/save requires a file"),
        ([], b"/save in.txt\n", 2, "in.txt already exists"),
        (["-d", "-"], b"x\n", 2, "the questions come from standard input"),
        (["--overflow", "truncate"], b"x\n", 2, "no room for the conversation"),
    ],
)
def test_an_error_in_a_pipe_ends_the_conversation(
    arguments: list[str], stdin: bytes, code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("x")
    done = ngt("chat", *arguments, stdin=stdin + b"Never asked.\n", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr.decode()
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 2


@pytest.mark.parametrize("name", ["/quit", "/exit", "/bye", "/q"])
def test_names_of_other_programs_end_the_conversation(name: str) -> None:
    done = ngt("chat", stdin=f"/system\n{name}\n/sorces\n".encode())
    assert done.returncode == 0
    assert done.stdout == b""
    assert done.stderr == b"There is no system prompt.\n"


def test_commands_need_no_model() -> None:
    done = ngt("chat", stdin=b"\n \n/docs\n/sources\n/system\n/help\n")
    assert done.returncode == 0
    assert done.stdout == b""
    stderr = done.stderr.decode()
    assert stderr.startswith("There are no documents; /docs add PATH reads some.\nThere is no")
    assert "There is no system prompt.\n" in stderr
    assert "/quit " in stderr


def test_a_line_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"x" * 1_000_001)
    with path.open("rb") as stream, pytest.raises(InputError, match="exceeds 1 MB"):
        list(piped(stream, 1))


def test_a_pipe_that_is_not_utf_8_is_reported_once() -> None:
    reporter = RecordingReporter()
    stream = io.BytesIO(b"caf\xe9?\nd\xe9j\xe0\ncaf\xc3\xa9\n")
    lines = reporter.of(lambda: list(piped(stream, 1)))
    assert lines == ["caf�?", "d�j�", "café"]
    (warning,) = reporter.warnings
    assert "not UTF-8" in warning
    assert "iconv" in warning


class Terminal:
    """`ngt chat` on a pseudo-terminal."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._main, terminal = pty.openpty()
        self.process = Warm(
            "chat",
            *arguments,
            start_new_session=True,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            **{"TERM": "xterm-256color", "COLUMNS": "60", **environ},
        )
        os.close(terminal)
        self._unread = ""  # shown, and not returned by `until` yet

    def until(self, words: str) -> str:
        """Wait for words; return the text that is shown from now on up to them."""
        while words not in self._unread:
            readable, _, _ = select.select([self._main], [], [], PATIENCE_S)
            assert readable, self._unread
            part = read_terminal(self._main)
            assert part, self._unread
            self._unread += part.decode(errors="replace")
        before, _, self._unread = self._unread.partition(words)
        return before + words

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self) -> int:
        while read_terminal(self._main):
            pass
        os.close(self._main)
        return self.process.wait(60)


# An answer of random words that does not end in the time of a test.
ENDLESS = (
    "--temperature=100",
    "--seed=3",
    "--max-tokens=3500",
    "--set=max_repeats=0",
    "--method=none",
)


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_conversation(tmp_path: Path, own_home: Path) -> None:
    chat = Terminal(*ENDLESS, NO_COLOR="1", NGT_HOME=str(own_home))
    chat.until(READY)
    chat.type("\x03")
    chat.until("Ctrl-D or /quit leaves.")

    for _ in range(2):
        chat.until(READY)
        chat.type("Tell \\\rme\x1b\r\x1b[200~all\x07\x1b[201~.\r")
        chat.until("\x1b[?2004l")  # the editor ends
        while len(chat.until("\n")) < 45:  # a line of the answer
            pass
        os.kill(chat.process.pid, signal.SIGINT)
        shown = chat.until("incomplete")
        assert "interrupted; the answer is" in shown
        assert "\x1b[3" not in shown

    page_file = tmp_path / "a.md"
    chat.until(READY)
    chat.type(f"/save {page_file}\r")
    chat.until("saved 2 questions")
    chat.until(READY)
    page = page_file.read_text()
    assert "## Question 2\n\nTell \nme\nall" in page
    assert "## Answer 2 (interrupted)\n\n" in page
    chat.type("\x04")
    assert chat.end() == 0
    history = own_home / "state" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "\x07" not in history.read_text()


def test_an_error_at_a_terminal_does_not_end_the_conversation(
    tmp_path: Path, own_home: Path
) -> None:
    edited = tmp_path / "a.md"
    edited.write_text("edited")
    chat = Terminal(NGT_HOME=str(own_home))
    chat.until(READY)
    chat.type(f"/save {edited}\r")
    chat.until("Name a file that does not exist yet.")
    assert edited.read_text() == "edited"
    chat.until(READY)
    chat.type("/nothing\r")
    chat.until("unknown command /nothing")
    chat.until(READY)
    chat.type("\x04")
    assert chat.end() == 0


def test_a_plain_terminal_gets_no_control_sequences(own_home: Path) -> None:
    chat = Terminal(*SHORT, "--set", "history=no", TERM="dumb", NGT_HOME=str(own_home))
    chat.until("> ")
    chat.type("Who \\\nis it?\n")
    assert "\x1b" not in chat.until("tokens in")
    chat.type("/quit\n")
    assert chat.end() == 0
    assert not (own_home / "state" / "chat_history").exists()


def test_ctrl_c_in_a_pipe_ends_the_command() -> None:
    process = Warm("chat", *ENDLESS, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Tell me.\nMore.\n")
    process.stdout.read1(1)  # type: ignore[attr-defined]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in stderr


def test_a_shortened_history_keeps_the_lines_of_another_chat(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = typed.history_path()
    assert path is not None
    path.write_bytes(b"".join(b"\n# then\n+%d\n" % i for i in range(100_000)))
    size = path.stat().st_size
    read_bytes = Path.read_bytes
    another_chat = threading.Thread(
        target=typed.history_of(path).store_string, args=("of another",)
    )

    def read_while_another_writes(self: Path) -> bytes:
        data = read_bytes(self)
        another_chat.start()
        another_chat.join(0.5)  # it waits, or has written by now
        return data

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_while_another_writes)
        assert typed.history_path() == path
        another_chat.join(60)
    assert path.stat().st_size < size
    history = path.read_text()
    assert "+of another\n" in history
    assert "+99999\n" in history


@pytest.mark.parametrize(
    ("flags", "command"), [(["--continue"], ""), ([], "/load {folder}/talk.json\n")]
)
def test_a_saved_conversation_is_continued_in_another_folder(
    flags: list[str], command: str, tmp_path: Path
) -> None:
    home = str(tmp_path / "home")
    notes = tmp_path / "notes.txt"
    notes.write_text("The quay was built in 1871.\nThe tide is high at noon.\n")
    stdin = b"Who built it?\n/system Be brief.\nWhen?\n/save talk.json\n"
    done = ngt("chat", "-d", "notes.txt", *SHORT, stdin=stdin, cwd=tmp_path, NGT_HOME=home)
    assert done.returncode == 0, done.stderr
    before = json.loads((tmp_path / "talk.json").read_text())

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stdin = command.format(folder=tmp_path).encode() + b"/docs list\n/system\nAnd then?\n/save\n"
    done = ngt("chat", *flags, *SHORT, stdin=stdin, cwd=elsewhere, NGT_HOME=home)

    assert done.returncode == 0, done.stderr
    assert b"loaded 2 questions from" in done.stderr
    assert b"notes.txt: 54 characters" in done.stderr
    assert b"Be brief." in done.stderr

    after = json.loads((tmp_path / "talk.json").read_text())
    for member in ("documents", "paths", "system"):
        assert after[member] == before[member]
    for exchange in (*before["exchanges"], *after["exchanges"]):
        del exchange["statistics"]["tokens_per_s"]  # computed again, of rounded seconds
    assert after["exchanges"][:2] == before["exchanges"]
    questions = [exchange["question"] for exchange in after["exchanges"]]
    assert questions == ["Who built it?", "When?", "And then?"]
    prompt_tokens = [exchange["statistics"]["prompt_tokens"] for exchange in after["exchanges"]]
    assert prompt_tokens == sorted(prompt_tokens)


class ScriptedAnswerer(Answerer):
    """Answers each question with the same text, after reading one passage of the document."""

    def __init__(self, text: str, read: Excerpt) -> None:
        super().__init__()
        selection = Selection((), (read,), of_passages=2, of_documents=1, index="built", seconds=0)
        step = Step((Token(0, text),), finish_reason="stop")
        self._events = [Stepped(step), Ended(finish_reason="stop", steps=(step,))]
        self._selection = selection

    def ask(self, request: Request, *, owner: str = "") -> Any:
        stepped, ended = self._events
        assert isinstance(ended, Ended)
        answer = with_sources(replace(ended, selection=self._selection), request.documents)
        return (event for event in (Started(), stepped, answer))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The tide is high at noon.", "[1] notes.txt"),
        ("The quay was built in 1871.", "Quoted from passages that were not read for the last"),
        ("Nobody ever said this.", "Nothing in the last answer is quoted from the documents."),
    ],
)
def test_sources_include_passages_that_were_not_read(
    answer: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "The quay was built in 1871.\nThe tide is high at noon.\n"
    loaded = Loaded([Document("notes.txt", text)])
    request = Request(task="chat", settings=Settings(), preset=load_preset("ask"), loaded=loaded)
    conversation = Conversation(request, Output())
    conversation.answerer = ScriptedAnswerer(answer, Excerpt(0, text.index("The tide"), len(text)))
    conversation.take("/sources")
    assert "There is no answer yet." in capsys.readouterr().err
    conversation.take("When?")
    capsys.readouterr()
    conversation.take("/sources")
    listed = capsys.readouterr().err
    assert listed.startswith(words)
    assert ("[1] notes.txt" in listed) == ("Nothing" not in words)


def test_changes_since_a_conversation_was_saved_are_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"This is {name}, and it is short.\n")
    stdin = b"What?\n/save talk.json\n"
    ngt("chat", "-d", "a.txt", "-d", "b.txt", *SHORT, stdin=stdin, cwd=tmp_path)
    (tmp_path / "a.txt").write_text("Another text.\n")
    (tmp_path / "b.txt").unlink()
    done = ngt("chat", *SHORT, stdin=b"/load talk.json\n/docs list\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"b.txt no longer exists" in done.stderr
    assert b"changed or missing since the conversation was saved: a.txt, b.txt" in done.stderr


def test_a_conversation_continues_without_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name in ("notes/a.txt", "b.txt"):
        (tmp_path / name).write_text(f"This is {name}, and it is short.\n")
    stdin = b"What?\n/save talk.json\n"
    ngt("chat", "-d", "notes", "-d", "b.txt", *SHORT, stdin=stdin, cwd=tmp_path)
    (tmp_path / "notes/a.txt").unlink()
    done = ngt("chat", *SHORT, stdin=b"/load talk.json\n/docs list\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"no documents in this folder: the conversation continues without it" in done.stderr
    assert b"changed or missing since the conversation was saved: a.txt" in done.stderr
    assert b"loaded 1 question from talk.json\nb.txt: " in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, b"no such file"),
        (b"{}", b"is not a saved conversation"),
        (b"# A conversation", b"is not a saved conversation"),
        (b'{"exchanges": [{"question": 1}]}', b"is not a saved conversation"),
        (b"\xff\xfe", b"is not a saved conversation"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused(
    content: bytes | None, message: bytes, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    done = ngt("chat", *SHORT, stdin=b"/load x.json\n", cwd=tmp_path)
    assert done.returncode == 3
    assert message in done.stderr


def test_continue_without_a_saved_conversation_is_an_error(tmp_path: Path) -> None:
    done = ngt("chat", "--continue", stdin=b"", NGT_HOME=str(tmp_path))
    assert done.returncode == 3
    assert b"no conversation has been saved" in done.stderr
    assert b"/save FILE.json" in done.stderr


def test_documents_of_a_conversation_are_named_with_or_without_d(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"This is {name}, and it is short.\n")
    done = ngt("chat", "a.txt", "-d", "b.txt", *SHORT, stdin=b"/docs list\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"a.txt: " in done.stderr
    assert b"b.txt: " in done.stderr
