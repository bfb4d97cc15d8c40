"""The process: missing and full streams, signals at any moment, how it ends."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ngtcli.cli import app as app_module
from ngtcli.cli.app import run
from ngtcli.errors import InputError
from tests.support import warm
from tests.support.helpers import HARBOUR, NGT, in_terminal, read_terminal
from tests.support.warm import Warm

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and /dev")


def python(code: str) -> "subprocess.Popen[bytes]":
    """A process that runs `code` below our handlers, and prints "ready" where the code does."""
    head = "import os, sys, time\nfrom ngtcli.system import process\nprocess.guard()\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_ready(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os, sys\nprint(os.getcwd(), sys.argv[1:], sys.stdin.read(), os.getenv('NGT_HOME'))",
        "import os, sys\nprint('out')\nprint('err', file=sys.stderr, flush=True)\n"
        "sys.stdout.flush()\nos.kill(os.getpid(), 15)",
        "import sys\nprint(sys.stdout.isatty(), sys.stdout.line_buffering, sys.stderr.encoding)\n"
        "sys.exit('words')",
    ],
)
def test_a_forked_process_is_as_a_new_one(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked = warm.run("an ö", code=code, input=b"typed")
    new = subprocess.run([sys.executable, "-c", code, "an ö"], input=b"typed", capture_output=True)
    assert forked.returncode == new.returncode
    assert forked.stdout == new.stdout
    assert forked.stderr == new.stderr


# --- streams ---


COMMANDS = {"presets list": 0, "nonsense": 2, "summarize nowhere.txt": 3}


@needs_linux
@pytest.mark.parametrize("closed", [[0], [1], [0, 1, 2]])
def test_exit_codes_and_output_are_kept_if_streams_are_closed(closed: list[int]) -> None:
    for command, exit_code in COMMANDS.items():
        assert warm.run(*command.split(), closed=closed).returncode == exit_code

    done = warm.run("presets", "list", closed=closed)
    assert not done.stderr
    assert (b"summarize" in done.stdout) == (1 not in closed)


@needs_linux
def test_exit_codes_and_output_are_kept_if_stderr_is_full() -> None:
    with open("/dev/full", "wb") as full:
        for command, exit_code in COMMANDS.items():
            assert warm.run(*command.split(), stderr=full).returncode == exit_code
        assert b"summarize" in warm.run("presets", "list", stderr=full).stdout


def test_a_process_that_starts_without_streams_ends_as_any_other() -> None:
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *NGT]
    assert subprocess.run([*command, "nonsense"], timeout=120).returncode == 2


@needs_linux
@pytest.mark.parametrize("arguments", [["--help"], ["config", "show"]])
def test_a_full_disk_behind_stdout_is_named(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = warm.run(*arguments, stdout=full)
    first, second = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert first == "ngt: standard output: no space left on device"
    assert "elsewhere" in second
    done = warm.run("summarize", HARBOUR, "-o", "/dev/full")
    assert done.returncode == 1
    assert done.stdout
    assert b"Make room" in done.stderr


# --- signals ---


def wait_for_handlers(process: "subprocess.Popen[bytes]") -> None:
    """Return when SIGTERM is caught, which Python itself does not do."""
    status = Path(f"/proc/{process.pid}/status")
    bit = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        caught = next(x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
        if int(caught.split()[1], 16) & bit:
            return
        time.sleep(0.001)


@needs_linux
@pytest.mark.parametrize(
    ("arguments", "moments"),
    [(["--help"], (0, 0.1)), (["trie", "list"], (0.02, 0.1, 0.4))],
)
def test_ctrl_c_at_any_moment_of_a_start_leaves_no_traceback(
    arguments: list[str], moments: Sequence[float]
) -> None:
    for moment in moments:
        process = subprocess.Popen(
            [*NGT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wait_for_handlers(process)
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=30)[1]
        assert b"Traceback" not in errors
        assert b"Error" not in errors
        assert process.returncode in (0, 130)  # 0 where it came after all was done


@needs_linux
def test_sigterm_wipes_the_status_line() -> None:
    main, other = pty.openpty()
    process = Warm("summarize", HARBOUR, stdin=other, stdout=other, stderr=other, TERM="xterm")
    os.close(other)
    shown = b""
    while "…".encode() not in shown:
        shown += read_terminal(main)
    process.terminate()
    assert process.wait(timeout=30) == 143
    while part := read_terminal(main):
        shown += part
    os.close(main)
    # The signal may come between one status line and the next, after a note.
    assert b"\r\x1b[K" in shown[shown.rindex("…".encode()) :]


IN_LIBRARY = (
    "import hashlib\nprint('ready', flush=True)\n"
    "hashlib.pbkdf2_hmac('sha256', b'x', b'y', 1_000_000_000)\n"
)
WRITING = (
    "process.WRITE_S = 60\nwith process.unbroken():\n    print('ready', flush=True)\n"
    "    while not os.path.exists({path!r} + '.sent'):\n        time.sleep(0.01)\n"
    "    open({path!r}, 'w').close()\nprint('after', flush=True)\n"
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("work", [IN_LIBRARY, WRITING], ids=["in a library", "while writing"])
def test_a_signal_ends_a_library_that_does_not_return_and_a_file_is_written_to_its_end(
    tmp_path: Path, work: str, number: int, code: int
) -> None:
    """A thousand million rounds of a hash take ten minutes, in which Python runs no handler."""
    process = python(work.format(path=str(tmp_path / "whole")))
    wait_ready(process)
    time.sleep(0.1)
    process.send_signal(number)
    (tmp_path / "whole.sent").touch()
    out, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == b""
    assert b"Traceback" not in errors
    assert (tmp_path / "whole").exists() == (work == WRITING)


# Programs below our handlers; where one prints "ready" a signal may come.
KEEPS = (
    "process.unwind_on_interrupt()\ntry:\n    print('ready', flush=True)\n    time.sleep(30)\n"
    "except KeyboardInterrupt:\n    print('kept', process.interrupted(), flush=True)\n"
)
SLOW_END = (
    "class Slow:\n    def __del__(self):\n        print('ready', flush=True)\n"
    "        time.sleep(30)\n" + KEEPS.replace("    print('ready', flush=True)\n", "    Slow()\n")
)
OUTSIDE = "process.unwind_on_interrupt()\nprint('ready', flush=True)\ntime.sleep(30)\n"
RESUMES = (
    "process.unwind_on_interrupt()\nfor n in range(3):\n    try:\n"
    "        print('ready', flush=True)\n        time.sleep(30)\n"
    "    except KeyboardInterrupt:\n        process.resume()\n        time.sleep(0.3)\n"
    "print('left', flush=True)\n"
)
# The system hands the signal to another thread, as where it comes just before the main thread
# begins to wait: Python runs no handler then.
ELSEWHERE = (
    "import signal, threading\nprocess.unwind_on_interrupt()\n"
    "def get():\n    signal.pthread_kill(threading.get_ident(), signal.SIGINT)\n"
    "threading.Timer(0.3, get).start()\nclock = time.monotonic()\n"
    "try:\n    time.sleep(60)\n"
    "except KeyboardInterrupt:\n    print(time.monotonic() - clock < 30, flush=True)\n"
)
WRITER = (
    "import threading\nprocess.unwind_on_interrupt()\ndef write():\n    try:\n"
    "        with process.unbroken():\n"
    "            print('ready', flush=True)\n            told.wait()\n"
    "    except BaseException as error:\n        print('broken by', repr(error), flush=True)\n"
    "told, thread = threading.Event(), threading.Thread(target=write)\n"
    "try:\n    thread.start()\n    time.sleep(30)\nexcept KeyboardInterrupt:\n"
    "    print('interrupted', thread.is_alive(), flush=True)\n    told.set()\n    thread.join()\n"
)
CHILD = (
    "import signal\nchild = os.fork()\n"
    "if not child:\n    time.sleep(30)\n    os._exit(0)\n"
    "os.kill(child, signal.SIGTERM)\n"
    "print(os.waitpid(child, 0)[1], flush=True)\ntime.sleep(0.3)\n"
)
READY = -1.0


@pytest.mark.parametrize(
    ("code", "waits", "kept", "told", "exit_code"),
    [
        pytest.param(OUTSIDE, [READY], b"", b"\nngt: interrupted\n", 130, id="outside of blocks"),
        pytest.param(SLOW_END, [READY], b"kept True\n", b"", 0, id="it comes after a finalizer"),
        pytest.param(
            f"process.AGAIN_S = 60\n{KEEPS}    time.sleep(0.5)\n    print('done', flush=True)\n",
            [READY, 0.02],
            b"kept True\ndone\n",
            b"",
            0,
            id="two of one key press are one",
        ),
        pytest.param(
            KEEPS + "    time.sleep(30)\n",
            [READY, 0.6],
            b"kept True\n",
            b"\nngt: interrupted\n",
            130,
            id="the second one ends it",
        ),
        pytest.param(RESUMES, [READY] * 3, b"left\n", b"", 0, id="each is the first once resumed"),
        pytest.param(ELSEWHERE, [], b"True\n", b"", 0, id="it comes to another thread"),
        pytest.param(WRITER, [READY], b"interrupted True\n", b"", 0, id="a thread that writes"),
        pytest.param(CHILD, [], b"15\n", b"", 0, id="a forked child ends alone"),
        pytest.param(
            "print('last words')\nprocess.leave(6)\n", [], b"last words\n", b"", 6, id="leaving"
        ),
    ],
)
def test_a_ctrl_c_keeps_what_there_is_and_leaves_no_traceback(
    code: str, waits: list[float], kept: bytes, told: bytes, exit_code: int
) -> None:
    """`waits` are the times before each signal."""
    process = python(code)
    for pause_s in waits:
        if pause_s == READY:
            wait_ready(process)
        else:
            time.sleep(pause_s)
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=90) == (kept, told)
    assert process.returncode == exit_code


# --- errors, and words before and after the command ---


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ngt", *arguments])
    return run()


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


class Panic(BaseException):
    """What a library written in Rust raises."""


@pytest.mark.parametrize(
    "error",
    [RuntimeError("odd"), EOFError("odd"), Panic("odd"), OSError("odd"), MemoryError("odd")],
)
def test_a_mistake_of_ours_is_two_lines_and_exit_1(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ngtcli.cli.about.load_presets", raising(error))
    assert call(monkeypatch, "presets", "list") == 1
    told = capsys.readouterr().err
    assert told == f"ngt: {type(error).__name__}: odd\nRun it again with --debug for details.\n"
    assert call(monkeypatch, "presets", "list", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_long_text_of_an_error_is_cut_and_debug_keeps_code_and_lines(monkeypatch, capsys) -> None:
    monkeypatch.setattr("ngtcli.cli.about.load_presets", raising(ValueError("x" * 10**6)))
    assert call(monkeypatch, "presets", "list") == 1
    assert len(capsys.readouterr().err) < 600
    error = InputError("a.txt: empty", hint="Give another.")
    monkeypatch.setattr("ngtcli.cli.about.load_presets", raising(error))
    for arguments in (("--debug", "presets", "list"), ("presets", "list", "--debug")):
        assert call(monkeypatch, *arguments) == 3
        told = capsys.readouterr().err
        assert "Traceback" in told
        assert told.endswith("ngt: a.txt: empty\nGive another.\n")


def test_help_is_a_word_as_well_and_v_the_version(monkeypatch, capsys) -> None:
    for arguments, words in (
        (("help",), "documents"),
        (("help", "trie", "list"), "Usage: ngt trie list"),
        (("-V",), "ngt 0"),
        (("--version",), "ngt 0"),
    ):
        assert call(monkeypatch, *arguments) == 0
        assert words in capsys.readouterr().out
    assert call(monkeypatch, "help", "nonsense") == 2
    behind = ["summarize", "--", "--debug"]  # a name
    assert app_module._read(behind) == behind


def test_a_plain_terminal_of_no_size_gets_the_answer_and_no_control_sequence() -> None:
    shown, code = in_terminal("summarize", HARBOUR, "--max-tokens", "40", columns=0, TERM="dumb")
    lines = shown.replace("\r\n", "\n")
    assert code == 0
    assert "\x1b" not in lines
    assert "\r" not in lines
    remark, _, answer = lines.partition("\n\n")
    assert remark.startswith("The built-in model is a demonstration")
    assert answer.startswith("The harbour")
    assert max(map(len, lines.split("\n"))) <= 80
