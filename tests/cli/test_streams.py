"""Standard streams: what is styled, and which systems and descriptors there are."""

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


def on_a_terminal(*words: str, **environ: str) -> bytes:
    """What a command writes to a terminal, to both of its streams."""
    pid, handle = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100", **environ})
        os.execv(sys.executable, [sys.executable, "-m", "ngtcli", *words])
    found = b""
    while True:
        try:
            part = os.read(handle, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        found += part
    os.close(handle)
    assert os.waitpid(pid, 0)[1] == 0, found.decode()
    return found


DRY = ("ask", "-d", HARBOUR, "When is high tide?", "--dry-run", "--show-passages", "-v")


@pytest.mark.parametrize("how", ["flag", "variable", "file"])
def test_no_color_styles_neither_stream(how: str, own_home: Path) -> None:
    assert STYLES.search(on_a_terminal(*DRY))
    assert STYLES.search(on_a_terminal("docs", "list", HARBOUR))
    flag = ("--color", "never") if how == "flag" else ()
    environ = {"NGT_COLOR": "never"} if how == "variable" else {}
    if how == "file":
        (own_home / "config").mkdir(exist_ok=True)
        (own_home / "config" / "config.yaml").write_text("color: never\n")
    assert not STYLES.search(on_a_terminal(*DRY, *flag, **environ))
    if how != "flag":
        assert not STYLES.search(on_a_terminal("docs", "list", HARBOUR, **environ))


def test_an_empty_hub_id_is_named() -> None:
    done = ngt("models", "pull", "")
    assert done.returncode == 2
    assert done.stderr.startswith(b"ngt: '': not a Hugging Face id\n")


def test_windows_is_refused_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import ngtcli.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    said = b"ngt: Windows is not supported\nUse Linux or macOS, or on Windows WSL.\n"
    assert done.returncode == 1
    assert done.stderr == said


def test_a_process_with_many_open_files_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor from 1024 on is one as any other."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    own, other = socket.socketpair(socket.AF_UNIX)
    try:
        assert own.fileno() >= 1024
        monkeypatch.setattr(Place, "connect", lambda _: own)
        reply = client.Reply(Place.of(Settings()), "GET /about")
        other.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + wire.encode(Message("warn", "here")) + b"\n")
        assert reply.next() == Message("warn", "here")
        reply.close()
    finally:
        other.close()
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


ANSWER = "At twelve \x1b]0;pwned\x07 or so, \u202ewhen all of them had left."
ESCAPES = "The tide \x1b]0;pwned\x07 came \u202ein at noon. The tide came in at noon."


@pytest.mark.parametrize("command", ["ask", "each", "batch", "dry run", "save"])
def test_no_control_character_comes_out_of_json(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escaped, it would reach the terminal by another program, as with `| jq -r .text`."""
    answers = FakeAnswers()
    answers.say = lambda _: ANSWER
    answer_with(monkeypatch, answers)
    (tmp_path / "tide.txt").write_text(ESCAPES)
    (tmp_path / "in.jsonl").write_text(json.dumps({"context": ESCAPES, "question": "When?"}))
    words = {
        "ask": ("ask", "-d", "tide.txt", "When?", "--json-tokens"),
        "each": ("ask", "--each", "tide.txt", "When?", "--json"),
        "batch": ("batch", "in.jsonl"),
        "dry run": ("ask", "-d", "tide.txt", "When?", "--dry-run", "--json"),
        "save": ("chat", "-d", "tide.txt"),
    }[command]
    done = ngt(*words, cwd=tmp_path, stdin=b"When?\n/save chat.json\n")
    assert done.returncode == 0, done.stderr
    out = (tmp_path / "chat.json").read_bytes() if command == "save" else done.stdout
    texts = [*strings(json.loads(out))]
    assert any("pwned" in text for text in texts)
    assert not [t for t in texts for c in t if ord(c) < 32 and c not in "\n\t" or c == "\u202e"]


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def test_extracted_values_in_json_have_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Customer: Ana \x1b[31mRuiz\nTotal: 12.50\n")
    done = ngt("extract", "a.txt", "--schema", "customer, total float", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    texts = [*strings(json.loads(done.stdout))]
    assert any("Ruiz" in text for text in texts)
    assert not any("\x1b" in text for text in texts)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_pipe_gets_utf_8_whatever_the_locale(encoding: str, tmp_path: Path) -> None:
    text = "Zoë paid 5 € – “now” 👍 한국."
    (tmp_path / "uni.txt").write_text(text, "utf-8")
    command = [sys.executable, "-m", "ngtcli", "docs", "show", "uni.txt"]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    for more in ("--text", "--json"):
        done = subprocess.run([*command, more], cwd=tmp_path, capture_output=True, env=environ)
        assert done.returncode == 0, done.stderr
        out = done.stdout.decode("utf-8")
        assert text in (json.dumps(json.loads(out), ensure_ascii=False) if "{" in out else out)


def test_a_warning_about_many_prompts_is_shown_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = Notes()
    for message in ("one", "two", "one"):
        notes.warn_once(message)
    assert capsys.readouterr().err == "ngt: one\nngt: two\n"
