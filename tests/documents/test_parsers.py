"""Parser processes: their limits, crashes, forged replies, and the sandbox around them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ngtcli.documents import parsers, worker
from ngtcli.documents.content import About, Extracted, ParserInput, Section
from ngtcli.documents.formats import FORMATS, PICTURE, Format
from ngtcli.documents.load import load
from ngtcli.documents.parsers import FailedParser, Parsers
from ngtcli.documents.text import Unreadable
from ngtcli.system import sandbox
from tests import document_files
from tests.support.helpers import wait_until
from tests.tools.hostile_documents import cases

pytest.importorskip("pypdfium2")
pytest.importorskip("trafilatura")
pytest.importorskip("lxml")
pytest.importorskip("reportlab")

SMALL = 20, 300  # seconds, megabytes
QUICK = 0.5, 300  # for what is not done in any time


BY_NAME = dict(cases())
DOCX, EPUB, JSON = (
    next(form for form in FORMATS if form.name == name) for name in ("docx", "epub", "json")
)


def source(data: bytes, suffix: str = ".json", max_bytes: int = 10_000_000) -> ParserInput:
    return ParserInput(data=data, suffix=suffix, max_bytes=max_bytes)


@pytest.fixture
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parsers]:
    """One worker with small limits."""
    monkeypatch.setattr(parsers, "MAX_WORKERS", 1)
    with closing(Parsers(*getattr(request, "param", SMALL))) as made_pool:
        yield made_pool


def child(code: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a separate process."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)


def workers_of(pool: Parsers) -> list[int]:
    """The process ids of the workers that were started."""
    return [worker._process.pid for worker in pool._workers if worker._process]


PAGES = "<itemref idref='a'/>" * 300
BOOK = {  # of 150 kB of text
    "META-INF/container.xml": "<c><rootfile full-path='p'/></c>",
    "p": f"<p><item id='a' href='a' media-type='text/html'/>{PAGES}</p>",
    "a": f"<p>{'word ' * 100}</p>",
}


@pytest.mark.parametrize(
    ("pool", "form", "make", "most", "told", "flag"),
    [
        (QUICK, EPUB, BY_NAME["often.epub"], 10**9, "EPUB that takes more than 0.5 s", "seconds"),
        (SMALL, DOCX, BY_NAME["tiny.docx"], 10**9, "document that takes more than 300 MB", "mb"),
        (
            SMALL,
            EPUB,
            lambda: document_files.zipped(BOOK),
            100_000,
            "an EPUB with too much text",
            "max_mb",
        ),
    ],
    ids=["time", "memory", "text"],
    indirect=["pool"],
)
def test_a_file_that_exceeds_a_limit_fails_and_the_next_is_read(
    pool: Parsers, form: Format, make: Callable[[], bytes], most: int, told: str, flag: str
) -> None:
    with pytest.raises(Unreadable, match=told) as caught:
        pool.extract(form, source(make(), form.suffixes[0], most))
    assert flag in caught.value.advice
    before = workers_of(pool)
    assert pool.extract(JSON, source(b"[1]")).text == "[1]"
    assert (workers_of(pool) == before) == (flag == "max_mb")  # others are replaced


# Workers that stand still, and how much is sent to them.
STILL = [
    ("import time; time.sleep(600)", 10_000_000),  # reads nothing
    ("import os, sys, time; os.write(int(sys.argv[1]), bytes(3)); time.sleep(600)", 9),
    ("while True: pass", 9),  # its timer is turned off
]


def test_a_hung_worker_is_killed_and_no_file_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parsers, "_START_CPU_S", 0.0)
    monkeypatch.setattr(parsers, "_WALL_PER_CPU_S", 1)
    pools = [Parsers(1, 300) for _ in STILL]
    with monkeypatch.context() as patch:
        for pool, (code, _) in zip(pools, STILL, strict=True):
            patch.setattr(parsers, "_CODE", code)
            for worker_ in pool._workers:
                worker_.ensure_running(is_fresh=False)

    def read(pool: Parsers, spaces: int) -> BaseException:
        with pytest.raises(Unreadable, match="its parser hung for 1 s") as caught:
            pool.extract(JSON, source(b"[2" + b" " * spaces))
        for worker_ in pool._workers:
            worker_.timeout_s = 100
        assert pool.extract(JSON, source(b"[3]")).text == "[3]"
        pool.close()
        return caught.value

    with ThreadPoolExecutor() as threads:
        for error in threads.map(read, pools, [spaces for _, spaces in STILL]):
            assert isinstance(error, Unreadable)
            assert not isinstance(error, FailedParser)
            assert not error.lasting


def test_a_worker_that_something_stops_for_a_while_is_waited_for(pool: Parsers) -> None:
    pool.extract(JSON, source(b"[1]"))
    (pid,) = workers_of(pool)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()
    assert pool.extract(JSON, source(b"[2]")).text == "[2]"
    assert workers_of(pool) == [pid]
    assert os.getsid(pid) == pid  # it has no terminal to type into


# A worker of which the first import of a format's module takes 0.6 s of CPU time.
SLOW_IMPORT = """
import sys, time; limits = float(sys.argv[2]), int(sys.argv[3]); sys.path[:] = sys.argv[4:]
from ngtcli.documents import formats, worker
real, seen = formats.import_module, []
def slow(name):
    end = time.process_time() + 0.6 * (name not in seen)
    while time.process_time() < end:
        pass
    seen.append(name)
    return real(name)
formats.import_module = slow
worker.serve(int(sys.argv[1]), *limits)
"""


def test_imports_of_a_format_do_not_count_as_its_files_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parsers, "_CODE", SLOW_IMPORT)
    with closing(Parsers(0.4, 300)) as pool:
        assert pool.extract(JSON, source(b"[1]")).text == "[1]"


NO_MEMORY = "x.so: failed to map segment from shared object"


@pytest.mark.parametrize(
    ("error", "said", "words"),
    [
        (ImportError(NO_MEMORY), "failed", "takes more than 1000 MB"),
        (OSError(NO_MEMORY), "failed", "takes more than 1000 MB"),
        (ImportError("no x", name="tide"), "unreadable", "needs the package tide"),
        (ImportError("get it " * 99), "unreadable", "needs a package (ImportError: get it get it"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_not_the_files_fault(
    error: Exception, said: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.documents.formats.import_module", Mock(side_effect=error))
    reply = worker._reply_to(JSON, source(b"[1]"), 10**9)[0]
    assert reply["error"] == said
    assert words in reply["reason"]
    assert len(reply["reason"]) < 250
    assert not reply.get("lasting")


def test_a_picture_without_the_ocr_extra_names_text_recognition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = ImportError("No module named 'PIL'", name="PIL")
    monkeypatch.setattr("ngtcli.documents.formats.import_module", Mock(side_effect=missing))
    reply = worker._reply_to(PICTURE, source(b"\x89PNG"), 10**9)[0]
    assert reply["reason"] == "a picture, which only text recognition (OCR) can read"
    assert reply["advice"] == "Install it: pip install 'ngtcli[ocr]'"
    assert not reply["lasting"]


def test_a_worker_that_cannot_start_is_reported_without_blaming_the_file(
    pool: Parsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError

    for _ in range(2):  # the first start and a later one
        with monkeypatch.context() as patch, pytest.raises(BlockingIOError):
            patch.setattr(subprocess, "Popen", no_process)
            pool.extract(JSON, source(b"[1]"))
        assert pool.extract(JSON, source(b"[2]")).text == "[2]"
        pool._workers[0].kill()


def dying_of(number: int, times: int, marks: Path) -> str:
    """Code of a worker that kills itself by a signal, for so many starts; each leaves a file."""
    return (
        "import os, pathlib\n"
        f"marks = pathlib.Path({str(marks)!r})\nstarts = len(list(marks.iterdir()))\n"
        f"(marks / str(starts)).touch()\nif starts < {times}: os.kill(os.getpid(), {number})\n"
    )


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTRAP])
def test_a_parser_that_crashes_is_tried_again_at_once_in_a_fresh_worker(
    pool: Parsers, number: signal.Signals, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = parsers._CODE
    monkeypatch.setattr(parsers, "_CODE", dying_of(number, 1, marks) + code)
    assert pool.extract(JSON, source(b"[1]")).text == "[1]"
    pool._workers[0].kill()  # an idle worker that has ended is no file's fault either
    monkeypatch.setattr(parsers, "_CODE", dying_of(number, 4, marks) + code)
    with pytest.raises(FailedParser, match=f"its parser crashed .{number.name}"):
        pool.extract(JSON, source(b"[2]"))
    assert len(list(marks.iterdir())) == 4
    assert pool.extract(JSON, source(b"[3]")).text == "[3]"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_worker_killed_from_outside_is_not_the_files_fault(
    pool: Parsers, number: signal.Signals, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsers, "_CODE", dying_of(number, 1, marks) + parsers._CODE)
    with pytest.raises(Unreadable, match=f"something else ended its parser .{number.name}") as told:
        pool.extract(JSON, source(b"[2]"))
    assert not told.value.lasting
    assert not isinstance(told.value, FailedParser)
    assert "Run it again" in told.value.advice
    assert pool.extract(JSON, source(b"[3]")).text == "[3]"


def test_a_pool_that_is_closed_while_it_parses_blames_no_file_and_leaves_no_worker() -> None:
    pool = Parsers(*SMALL)
    errors = list[BaseException]()

    def read() -> None:
        try:
            while True:
                pool.extract(EPUB, source(BY_NAME["often.epub"](), ".epub", 10**9))
        except Unreadable as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(pool.size)]
    for thread in threads:
        thread.start()
    wait_until(lambda: workers_of(pool))
    workers = workers_of(pool)
    pool.close()  # while workers start, too
    for thread in threads:
        thread.join()
    assert [str(error)[:9] for error in errors] == ["not read:"] * pool.size
    assert not any(error.lasting or isinstance(error, FailedParser) for error in errors)
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*workers, *workers_of(pool)))


def sending(data: bytes) -> str:
    """Code of a worker that sends these bytes whatever the request is."""
    return f"import sys, os; n = int(sys.argv[1]); os.write(n, {data!r}); os.read(n, 10 ** 6)"


def message(data: bytes) -> bytes:
    """Frame bytes as `multiprocessing.connection` does."""
    return len(data).to_bytes(4, "big") + data


FORGED = [
    b"",
    b"x",
    b"\xff" * 16,
    b"\xff" * 4 + (2**63).to_bytes(8, "big"),
    b"\x80" + bytes(15),
    message(b"{}") + message(b""),
    message(b"[1, 2]") + message(b""),
    message(b"null") + message(b""),
    message(b'{"about": "hm"}') + message(b"\xff"),
    message(b"[" * 100_000) + message(b""),
]


@pytest.mark.parametrize("reply", FORGED)
def test_a_reply_that_makes_no_sense_is_an_error(
    pool: Parsers, reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsers, "_CODE", sending(reply))
    with pytest.raises(Unreadable) as caught:
        pool.extract(JSON, source(b"[1]"))
    assert caught.value.advice


def test_a_description_arrives_unchanged_and_a_forged_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = About("pdf", 3, 2, (Section(0, 1), Section(5, 2, "Two")), ("w",), True)
    plain = asdict(about)

    def extract(max_bytes: int = 10, **change: object) -> Extracted:
        described = json.dumps({"about": plain | change}).encode()
        code = sending(message(described) + message(b"Text here."))
        with monkeypatch.context() as patch, closing(Parsers(*SMALL)) as pool:
            patch.setattr(parsers, "_CODE", code)
            return pool.extract(JSON, source(b"[1]", max_bytes=max_bytes))

    with pytest.raises(Unreadable):
        extract(max_bytes=9)  # less than it sends
    assert extract() == Extracted("Text here.", about)
    for name, value in (
        ("pages", -1),
        ("pages", True),
        ("format", 3),
        ("warnings", [1]),
        ("warnings", ["\ud800"]),
        ("pages", 10**30),
        ("sections", [{"start": 99, "page": 1, "heading": ""}]),
        ("sections", [plain["sections"][1], plain["sections"][0]]),
    ):
        with pytest.raises(Unreadable, match="invalid result"):
            extract(**{name: value})


# What a parser that was taken over might try, each in a worker of its own.
TRIES = [
    "import socket; socket.create_connection(('127.0.0.1', 9))",
    "import socket; socket.getaddrinfo('localhost', 9)",
    "import subprocess; subprocess.run(['true'])",
    "import os; os.system('true')",
    "import os; f = open({path!r}, 'w'); f.write('x'); f.close()",
    "bytes(400_000_000)",
]
CONFINED = "import sys\nfrom ngtcli.documents.worker import _confine\n_confine(300_000_000)\n"


@pytest.mark.parametrize("attempt", TRIES)
def test_a_worker_opens_no_connection_starts_nothing_and_writes_nothing(
    attempt: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = child(
        f"{CONFINED}try:\n    {attempt.format(path=str(out))}\n"
        "except (OSError, MemoryError):\n    print('refused')\n"
    )
    assert done.stdout == "refused\n", done
    assert not (out.exists() and out.read_text())


# The same by system calls of a library, of which Python sees nothing. Each gives -1.
NATIVE = {
    "seccomp": [
        "libc.socket(2, 1, 0)",
        "libc.socket(1, 1, 0)",
        "libc.fork()",
        "libc.vfork()",
        "libc.execv(b'/bin/true', None)",
        "libc.kill(os.getppid(), 0)",
        "libc.chmod({path}, 0o777)",
        "libc.ptrace(16, os.getppid(), 0, 0)",
        "libc.syscall(425, 8, bytes(120))",
        "libc.mq_open(b'/ngt', 0o102, 0o600, None)",
        "libc.ioctl(other, 0x5412, b'x')",  # TIOCSTI types a character
        "libc.ioctl(other, 0x541C, b'x')",
        "libc.ioctl(other, 0x5413, size)",
        "libc.open({path}, 1)",
        "libc.open({path}, 2)",
        "libc.open({path}, 0o1000)",
        "libc.open({path} + b'1', 0o100, 0o600)",
        "libc.creat({path} + b'1', 0o600)",
        "libc.openat(-100, {path}, 0o1001)",
        "libc.truncate({path}, 0)",
        "libc.syscall(437, -100, {path}, struct.pack('QQQ', 1, 0, 0), 24)",
        "libc.unlink({path})",
        "libc.unlinkat(-100, {path}, 0)",
        "libc.remove({path})",
        "libc.rename({path}, {path} + b'2')",
        "libc.renameat(-100, {path}, -100, {path} + b'2')",
        "libc.renameat2(-100, {path}, -100, {path} + b'2', 0)",
        "libc.mkdir({path} + b'3', 0o700)",
        "libc.mkdirat(-100, {path} + b'3', 0o700)",
        "libc.rmdir({path} + b'-folder')",
        "libc.link({path}, {path} + b'4')",
        "libc.linkat(-100, {path}, -100, {path} + b'4', 0)",
        "libc.symlink(b'/', {path} + b'5')",
        "libc.symlinkat(b'/', -100, {path} + b'5')",
        "libc.mknod({path} + b'6', 0o010600, 0)",
        "libc.mkfifo({path} + b'6', 0o600)",
    ],
    "Landlock": [
        "libc.open({path}, 0)",
        "libc.open({path}, 1)",
        "libc.unlink({path})",
        "libc.rename({path}, {path} + b'2')",
        "libc.mkdir({path} + b'3', 0o700)",
        "libc.open(b'/proc/self/environ', 0)",
        "libc.open(b'/etc/passwd', 0)",
        "libc.symlink(b'/', {path} + b'4')",
    ],
}


@pytest.mark.parametrize("means", NATIVE)
def test_native_code_in_a_worker_reaches_no_network_no_program_and_no_file(
    means: str, tmp_path: Path
) -> None:
    if means not in sandbox.holds():
        pytest.skip(f"this system has no {means}")
    path = tmp_path / "private.txt"
    path.write_text("private")
    (tmp_path / "private.txt-folder").mkdir()
    attempts = [attempt.format(path=os.fsencode(path)) for attempt in NATIVE[means]]
    code = (
        "import ctypes, os, struct\nfrom ngtcli.documents.worker import _confine\n"
        "from ngtcli.system import sandbox\nlibc = ctypes.CDLL(None)\n"
        f"if {means == 'seccomp'}: sandbox._landlock_version = lambda: 0\n"  # as before Linux 5.13
        "import pty\nmain, other = pty.openpty()\nsize = ctypes.create_string_buffer(8)\n"
        f"before = [libc.open({os.fsencode(path)!r}, 0) >= 0, libc.socket(2, 1, 0) >= 0,"
        " libc.ioctl(other, 0x5413, size) == 0]\n"
        f"_confine(300_000_000)\nprint(before, [{', '.join(attempts)}])\n"
    )
    done = child(code)
    assert done.stdout.strip() == f"[True, True, True] {[-1] * len(attempts)}", done
    assert path.read_text() == "private"
    assert len(os.listdir(tmp_path)) == 2


def test_a_worker_that_aborts_is_seen_to_and_threads_still_start() -> None:
    done = child(
        f"{CONFINED}import os, threading\n"
        "thread = threading.Thread(target=lambda: print('ran', flush=True))\n"
        "thread.start(); thread.join()\nos.abort()\n"
    )
    assert done.returncode == -signal.SIGABRT, done
    assert done.stdout == "ran\n"


def test_parsers_beside_ngt_are_loaded_wherever_it_is_installed(tmp_path: Path) -> None:
    """As by `pip install --user` or `--target`; of a checkout only the package can be read."""
    if "Landlock" not in sandbox.holds():
        pytest.skip("this system has no Landlock")
    shutil.copytree(Path(sandbox.__file__).parents[1], tmp_path / "ngtcli")
    (tmp_path / "some_parser.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    code = (
        f"{CONFINED}try:\n    import some_parser\nexcept (ImportError, PermissionError):\n"
        "    print('cannot be read')\n"
    )

    def run() -> str:
        return child(code, env=environ, cwd="/", check=True).stdout

    assert run() == ""
    (tmp_path / "pyproject.toml").touch()
    assert run() == "cannot be read\n"


def test_workers_load_neither_torch_nor_numpy() -> None:
    code = (
        "import contextlib, sys\nfrom ngtcli.documents import worker\n"
        "from ngtcli.documents.content import ParserInput\n"
        "from ngtcli.documents.formats import format_of, suffix_of\n"
        "from tests.document_files import FILES\n"
        "for name, make in FILES.items():\n"
        "    data, suffix = make(), suffix_of(name)\n"
        "    with contextlib.suppress(Exception):\n"
        "        source = ParserInput(data=data, suffix=suffix, max_bytes=10**8)\n"
        "        worker.parse(format_of(suffix, data[:1024]).name, source)\n"
        "print({'torch', 'numba', 'transformers', 'yaml', 'typer'} & set(sys.modules))\n"
    )
    done = child(code)
    assert done.stdout.strip() == "set()", done


def test_a_file_named_like_a_module_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("json.py", "docx.py", "ngtcli.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit(3)")
    (tmp_path / "docs" / "a.docx").write_bytes(document_files.docx())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert load(["docs"]).documents[0].text == document_files.DOCX_TEXT
