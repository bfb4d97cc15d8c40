"""Processes forked from one that has torch and ngt loaded: milliseconds in place of seconds.

A server, one for all workers of a run, has one thread, which a fork can take over. Each request
names the descriptors 0 to 2 and comes back as a process with its own id, group, folder and
environment, which signals reach as they do any other. Only what starting up itself does is left
out: tests of that start a new process (`helpers.NGT`, `sys.executable`).
"""

import atexit
import functools
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ngtcli import __main__
from tests.support.helpers import HARBOUR, ROOT_FOLDER, in_memory, ngt

# Set before torch is imported: forks share one thread; no network is asked.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
_PLACE = "TESTS_FORK_SERVER"  # the variable that names the server's socket
# A program that is ngt for shells, once the server runs.
COMMAND = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT_FOLDER)!r})
from tests.support.warm import Warm
sys.exit(Warm(*sys.argv[1:], stdin=0, stdout=1, stderr=2).wait())
"""


class Warm:
    """A forked process, with the names of `subprocess.Popen`; its outputs are pipes by default.

    `arguments` are ngt's, or with `code` those of that Python program. `closed` are descriptors
    that the process lacks; `environ` is added to `env`, which is this process's environment unless
    it is given. `space` bounds the bytes of addresses that the process may add. After its end
    `memory` has the bytes that it took in addition to those it was born with.
    """

    def __init__(
        self,
        *arguments: str | Path,
        code: str = "",
        cwd: Path | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.PIPE,
        closed: Sequence[int] = (),
        start_new_session: bool = False,
        env: Mapping[str, str] | None = None,
        space: int = 0,
        **environ: str,
    ) -> None:
        self.returncode: int | None = None
        self.memory = 0
        own, theirs = zip(*map(_ends, (stdin, stdout, stderr), (0, 1, 2)), strict=True)
        self.stdin, self.stdout, self.stderr = own
        self._status, status = os.pipe()
        request = {
            "arguments": [str(a) for a in arguments],
            "code": code,
            "cwd": str(cwd or Path.cwd()),
            "closed": list(closed),
            "session": start_new_session,
            "space": space,
            # Without a background: else a process is started that outlives the test.
            "environ": {"NGT_BACKGROUND": "none", **(env or os.environ), **environ},
        }
        handles = [_handle(stream) for stream in theirs]
        with tempfile.TemporaryFile("w+") as file:  # longer than a message may be
            json.dump(request, file)
            file.seek(0)
            _ask([*handles, status, file.fileno()])
        os.close(status)
        for stream in theirs:
            if stream not in (stdin, stdout, stderr):
                os.close(stream)
        self.pid = int(self._line())

    def _line(self) -> bytes:
        """A line of what is told of the process: its id, then its status and memory."""
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self._status, 1)
            assert part, "the server of forks ended"
            line += part
        return line

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended the process. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("ngt", timeout or 0.0)
            ended, self.memory = map(int, self._line().split())
            self.returncode = os.waitstatus_to_exitcode(ended)
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        """Write all input, read both outputs to their ends, and wait. Raises TimeoutExpired."""
        found: dict[int, bytes] = {}
        readers = [
            threading.Thread(target=lambda n, s: found.update({n: s.read()}), args=(n, stream))
            for n, stream in ((1, self.stdout), (2, self.stderr))
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.write(input or b"")
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self._close()
        return found.get(1, b""), found.get(2, b"")

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> "Warm":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()


def run(*arguments: str | Path, input: bytes = b"", timeout: float = 120, **more: Any) -> Any:
    """`subprocess.run` of a forked process, whose output is captured."""
    process = Warm(*arguments, stdin=subprocess.PIPE, **more)
    out, errors = process.communicate(input, timeout)
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out, errors)


def _ends(wanted: Any, number: int) -> tuple[IO[bytes] | None, Any]:
    """This process's end of a pipe, where one is wanted, and what the other process gets."""
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_RDWR)
    if wanted != subprocess.PIPE:
        return None, wanted
    read, write = os.pipe()
    if number == 0:
        return open(write, "wb", buffering=0), read
    return open(read, "rb"), write


def _handle(stream: Any) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def start_server() -> None:
    """Start the server of this process and of those that it starts; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="ngt-forks-")
    place = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm", place],
        cwd=ROOT_FOLDER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin and server.stdout
    assert server.stdout.readline(), "no server of forks"
    os.environ[_PLACE] = place

    server.stdout.close()

    def end() -> None:
        assert server.stdin
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(end)


def _ask(descriptors: Sequence[int]) -> None:
    """Send a request, of which the last descriptor has the words, to the server."""
    if _PLACE not in os.environ:
        start_server()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(os.environ[_PLACE])
        socket.send_fds(channel, [b"fork"], descriptors)


# --- in the server ---


def serve(place: str) -> None:
    """Fork for each request until standard input ends. Signals for the tests' group are not the
    server's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for those that watch
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(64)
        print("ready", flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else forks would hold the other end open
        _warm_up()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            with listener.accept()[0] as channel:
                _, handles, _, _ = socket.recv_fds(channel, 9, 5)
            if os.fork() == 0:
                listener.close()
                with open(handles.pop(), encoding="utf-8") as file:
                    request = json.load(file)
                _watch(request, handles)
            for handle in handles:
                os.close(handle)


def _watch(request: dict[str, Any], handles: list[int]) -> None:
    """In a fork: fork the process wanted, and tell how it ends. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = handles
    born = in_memory(1)
    process = os.fork()
    if process == 0:
        _be(request, streams, status)
    for handle in streams:
        os.close(handle)
    _, ended, used = os.wait4(process, 0)
    os.write(status, b"%d %d\n" % (ended, used.ru_maxrss * 1024 - born))
    os._exit(0)


def _be(request: dict[str, Any], streams: list[int], status: int) -> None:
    """In the fork of a fork: become the process. Never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # until ngt has a handler
        if request["session"]:
            os.setsid()
        os.chdir(request["cwd"])
        for number, handle in enumerate(streams):
            os.dup2(handle, number)
            os.close(handle)
        for number in request["closed"]:
            os.close(number)
        if request["space"]:
            space = request["space"] + in_memory(0)
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(status, b"%d\n" % os.getpid())
        os.close(status)
        main: Callable[[], object] = __main__.main
        if request["code"]:
            program = compile(request["code"], "<test>", "exec")
            main = functools.partial(exec, program, {"__name__": "__main__"})
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts
        code = become(main, request["arguments"], request["environ"])
    finally:
        os._exit(code)


def become(main: Callable[[], object], arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """In a fork: call what the installed command calls, which ends the process; else its code.

    The descriptors 0 to 2 are in place. torch is loaded, and has one thread.
    """
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[misc, assignment]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _stream(2, "w")  # type: ignore[misc, assignment]
    sys.argv = ["ngt", *arguments]
    import torch

    torch.set_num_threads(1)  # makes torch's pool anew; two threads doing so at once would clash
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):  # as Python does
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return code


def _stream(number: int, mode: str) -> IO[str] | None:
    """Standard input, output or error as Python opens them; None for a closed one."""
    try:
        os.fstat(number)
    except OSError:
        return None
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    return open(number, mode, encoding="utf-8", errors=errors, buffering=1 if number == 2 else -1)


def _warm_up() -> None:
    """Load here what answers need: weights, trials and costs for all forks."""
    from ngtcli.decoding import load
    from ngtcli.engine import memory
    from ngtcli.system.trials import Trial
    from tests.support import loaded_once

    memory.calibrate = loaded_once.measured_costs  # type: ignore[attr-defined, assignment]
    load.read = loaded_once.lend_model  # type: ignore[assignment]
    Trial.find = loaded_once.find_trial_once  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as home:
        for _ in range(2):  # the first one makes trials
            ngt("summarize", HARBOUR, "--max-tokens", "2", NGT_HOME=home, NGT_BACKGROUND="none")
    gc.collect()
    gc.freeze()  # else collections of a fork would look through it, and copy its memory


if __name__ == "__main__":
    os.environ |= ONE_THREAD
    serve(sys.argv[1])
