"""Standard streams: what is styled, and which systems and descriptors there are."""

import os
import pty
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.serve import client, wire
from ngtcli.serve.places import Place
from ngtcli.session.events import Message
from tests.support.helpers import HARBOUR

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
def test_without_colour_nothing_is_styled_on_either_stream(how: str, own_home: Path) -> None:
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


def test_windows_is_refused_in_one_line() -> None:
    code = "import sys; sys.platform = 'win32'; import ngtcli.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    said = b"ngt: Windows is not supported\nUse Linux or macOS, or on Windows WSL.\n"
    assert (done.returncode, done.stderr) == (1, said)


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
