"""What is said in a conversation: typed with line editing, or a line each from a pipe."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ngtcli.documents.text import utf8
from ngtcli.errors import InputError
from ngtcli.render.terminal import is_plain, visible
from ngtcli.system import reporting
from ngtcli.system.files import home, private_folder

_PROMPT, _BELOW = "> ", "  "
_NO_UTF8 = "the input is not UTF-8: invalid bytes are read as �; iconv -f LATIN1 converts it"
_HISTORY = "chat_history"  # a file of the state folder
_KEPT_BYTES = 500_000  # of that file, where it has grown to twice as many (guess)


def piped(stream: BinaryIO, max_mb: int) -> Iterator[str]:
    """Yield the lines of a pipe; a backslash at the end of a line joins it with the next.

    What is not UTF-8 becomes �, and a warning says so once.

    Args:
        stream: The pipe.
        max_mb: The maximum size of a line in megabytes.

    Raises:
        InputError: A line is too long.
    """
    max_bytes = max_mb * 1_000_000
    text = ""
    was_warned = False
    while line := stream.readline(max_bytes + 1):
        if len(text) + len(line) > max_bytes:
            raise InputError(
                f"a line exceeds {max_mb} MB", hint="Raise the limit with --set max_mb."
            )
        try:
            text += line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            text += line.decode("utf-8", "replace").rstrip("\r\n")
            if not was_warned:
                reporting.warn(_NO_UTF8)
            was_warned = True
        if text.endswith("\\"):
            text = text[:-1] + "\n"
            continue
        yield text
        text = ""
    if text:
        yield text


def typed(words: list[str], remember: bool) -> Iterator[str | None]:
    """Yield what is typed on a terminal, up to Ctrl-D; None for a Ctrl-C.

    Args:
        words: What Tab completes.
        remember: Whether to keep what is typed for the next time, in a file that only the user can
            read.
    """
    if is_plain() or not sys.stderr.isatty():
        yield from _plain()
        return
    session = _editor(words, history_path() if remember else None)
    while True:
        try:
            yield utf8(session.prompt(_PROMPT))
        except KeyboardInterrupt:
            yield None
        except EOFError:
            return


def _plain() -> Iterator[str | None]:
    """Yield lines as the terminal itself edits them; None for a Ctrl-C."""
    while True:
        try:
            sys.stderr.write(_PROMPT * sys.stderr.isatty())
            sys.stderr.flush()
            if not (line := sys.stdin.readline()):
                return
            while line.endswith("\\\n"):
                line = line[:-2] + "\n" + sys.stdin.readline()
            yield utf8(line.rstrip("\n"))
        except KeyboardInterrupt:
            yield None


def _editor(words: list[str], history: Path | None) -> Any:
    """Return an editor: Enter sends; Alt-Enter, or Enter after a backslash, begins a line."""
    from prompt_toolkit import PromptSession  # here: it takes 0.12 s
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output.vt100 import Vt100_Output

    keys = KeyBindings()
    screen = Vt100_Output.from_pty(sys.stderr, term=os.environ.get("TERM"))  # stdout has answers
    screen.enable_cpr = False  # the terminal's reply to it would be taken for typing

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and not buffer.document.text_after_cursor:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=InMemoryHistory() if history is None else history_of(history),
        key_bindings=keys,
        multiline=True,
        prompt_continuation=_BELOW,
        completer=WordCompleter(words, sentence=True),
        complete_while_typing=False,
        output=screen,
    )


def history_of(path: Path) -> Any:
    """Return the history in a file, which other chats may write to as well."""
    from prompt_toolkit.history import FileHistory  # here: see _editor

    class LockedHistory(FileHistory):
        def store_string(self, string: str) -> None:
            # A full disk does not end the conversation.
            with suppress(OSError), _locked(path):
                super().store_string(visible(string))

    return LockedHistory(str(path))


def history_path() -> Path | None:
    """Return the file of what was typed before, made or shortened; None if it cannot be."""
    path = home("state") / _HISTORY
    with suppress(OSError):
        private_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        path.chmod(0o600)
        with _locked(path):
            if path.stat().st_size > 2 * _KEPT_BYTES:
                _, _, last = path.read_bytes()[-_KEPT_BYTES:].partition(b"\n# ")
                path.write_bytes(b"\n# " + last)
        return path
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other chats from writing to the file of what was typed. Raises OSError."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
