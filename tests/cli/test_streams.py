"""Standard streams: styles, encodings, control characters and descriptors."""

import json
import os
import pty
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ngtcli.cli.notes import Notes
from ngtcli.config import Settings
from ngtcli.engine.events import Message
from ngtcli.server import client, wire
from ngtcli.server.places import Place
from tests.support.fakes import FakeAnswers, answer_with
from tests.support.helpers import HARBOUR, ngt

STYLES = re.compile(rb"\x1b\[[0-9;]*m")


def run_on_terminal(*arguments: str, **environ: str) -> bytes:
    """Run a command whose two streams are a terminal; return what the terminal gets."""
    pid, handle = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", **environ})
        os.execv(sys.executable, [sys.executable, "-m", "ngtcli", *arguments])
    output = b""
    while True:
        try:
            part = os.read(handle, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(handle)
    _, status = os.waitpid(pid, 0)
    assert status == 0, output.decode()
    return output


DRY_RUN = ("ask", "-d", HARBOUR, "When is high tide?", "--dry-run", "--show-passages", "-v")
LIST = ("docs", "list", HARBOUR)


@pytest.mark.parametrize("command", [DRY_RUN, LIST])
def test_a_terminal_gets_styles(command: tuple[str, ...]) -> None:
    assert STYLES.search(run_on_terminal(*command))


def test_the_flag_turns_styles_off_on_both_streams() -> None:
    assert not STYLES.search(run_on_terminal(*DRY_RUN, "--color", "never"))


@pytest.mark.parametrize("command", [DRY_RUN, LIST])
def test_the_variable_turns_styles_off_on_both_streams(command: tuple[str, ...]) -> None:
    assert not STYLES.search(run_on_terminal(*command, NGT_COLOR="never"))


@pytest.mark.parametrize("command", [DRY_RUN, LIST])
def test_the_settings_file_turns_styles_off_on_both_streams(
    command: tuple[str, ...], own_home: Path
) -> None:
    (own_home / "config").mkdir(parents=True)
    (own_home / "config" / "config.yaml").write_text("color: never\n")
    assert not STYLES.search(run_on_terminal(*command))


def test_an_empty_hub_id_is_named() -> None:
    done = ngt("models", "pull", "")
    assert done.returncode == 2
    assert done.stderr.startswith(b"ngt: '': not a Hugging Face id\n")


def test_windows_is_refused_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import ngtcli.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        b"ngt: Windows is not supported\nUse Linux or macOS, or on Windows WSL.\n"
    )


def test_a_process_with_many_open_files_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """`select` would not accept a descriptor from 1024 on."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    open_files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    connection, server = socket.socketpair(socket.AF_UNIX)
    try:
        assert connection.fileno() >= 1024
        monkeypatch.setattr(Place, "connect", lambda _: connection)
        reply = client.Reply(Place.of(Settings()), "GET /about")
        server.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + wire.encode(Message("warn", "here")) + b"\n")
        assert reply.next() == Message("warn", "here")
        reply.close()
    finally:
        server.close()
        for descriptor in open_files:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


ANSWER = "At twelve \x1b]0;pwned\x07 or so, \u202ewhen all of them had left."
ESCAPES = "The tide \x1b]0;pwned\x07 came \u202ein at noon. The tide came in at noon."


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a document and a batch that have control characters, as the answers have."""
    answers = FakeAnswers()
    answers.say = lambda _: ANSWER
    answer_with(monkeypatch, answers)
    (tmp_path / "tide.txt").write_text(ESCAPES)
    (tmp_path / "in.jsonl").write_text(json.dumps({"context": ESCAPES, "question": "When?"}))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "-d", "tide.txt", "When?", "--json-tokens"),
        ("ask", "--each", "tide.txt", "When?", "--json"),
        ("batch", "in.jsonl"),
        ("ask", "-d", "tide.txt", "When?", "--dry-run", "--json"),
    ],
)
def test_texts_in_json_have_no_control_characters(
    arguments: tuple[str, ...], hostile_folder: Path
) -> None:
    """Escaped, they would reach the terminal by another program, as with `| jq -r .text`."""
    done = ngt(*arguments, cwd=hostile_folder)
    assert done.returncode == 0, done.stderr
    assert_texts_are_harmless(json.loads(done.stdout))


def test_texts_of_a_saved_conversation_have_no_control_characters(hostile_folder: Path) -> None:
    stdin = b"When?\n/save chat.json\n"
    done = ngt("chat", "-d", "tide.txt", cwd=hostile_folder, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert_texts_are_harmless(json.loads((hostile_folder / "chat.json").read_bytes()))


def assert_texts_are_harmless(value: Any) -> None:
    texts = list(texts_in(value))
    assert any("pwned" in text for text in texts)
    for text in texts:
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for member in value.values():
            yield from texts_in(member)
    elif isinstance(value, list):
        for element in value:
            yield from texts_in(element)


def test_extracted_values_in_json_have_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Customer: Ana \x1b[31mRuiz\nTotal: 12.50\n")
    done = ngt("extract", "a.txt", "--schema", "customer, total float", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    texts = list(texts_in(json.loads(done.stdout)))
    assert any("Ruiz" in text for text in texts)
    assert not any("\x1b" in text for text in texts)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_pipe_gets_utf_8_whatever_the_locale(encoding: str, tmp_path: Path) -> None:
    text = "Zoë paid 5 € – “now” 👍 한국."
    (tmp_path / "uni.txt").write_text(text, "utf-8")
    environ = {**os.environ, "PYTHONIOENCODING": encoding}

    def show(flag: str) -> str:
        command = [sys.executable, "-m", "ngtcli", "docs", "show", "uni.txt", flag]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8")

    assert text in show("--text")
    assert any(text in part for part in texts_in(json.loads(show("--json"))))


def test_a_warning_about_many_prompts_is_shown_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = Notes()
    for message in ("one", "two", "one"):
        notes.warn_once(message)
    assert capsys.readouterr().err == "ngt: one\nngt: two\n"
