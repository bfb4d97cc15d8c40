"""The command line in this process, files to read, and a tokenizer that needs no library.

Nothing here loads torch: models and drafters are in `tiny_models`.
"""

import contextlib
import io
import json
import os
import pty
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.system.yaml_file import parse_yaml

ROOT_FOLDER = Path(__file__).parents[2]
HARBOUR = str(ROOT_FOLDER / "ngtcli" / "examples" / "harbour.txt")
# As a new process, which takes seconds: where starting is the point. Else see `warm`.
# Without a background: else a process is started that outlives the test.
NGT = ["env", "NGT_BACKGROUND=none", sys.executable, "-m", "ngtcli"]
SHARED = Path(os.environ.get("NGT_SHARED", ROOT_FOLDER.parent / "shared")) / "data"
# Of the examples of each property, and of the cases of each search; .ci/run tries all. A guess.
EXAMPLES = float(os.environ.get("NGT_EXAMPLES", "0.2"))
STORIES = SHARED / "models" / "stories260k"

# --- the command line ---


@dataclass(frozen=True)
class Done:
    """How a command ended; named as in `subprocess`."""

    returncode: int
    stdout: bytes
    stderr: bytes


def ngt(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **environ: str) -> Done:
    """`ngt ARGUMENTS` in this process, with streams that are no terminal; as a shell sees it."""
    streams = [io.BytesIO(stdin), io.BytesIO(), io.BytesIO()]
    texts = [io.TextIOWrapper(s, encoding="utf-8", errors="replace") for s in streams]
    code = _run(arguments, texts, cwd, environ)
    return Done(code, streams[1].getvalue(), streams[2].getvalue())


def tool(
    command: Callable[..., Any], module: str, *arguments: str, cwd: Path | None = None, **env: str
) -> Done:
    """`python -m MODULE ARGUMENTS` of a tool with this command, in this process."""
    from tests.tools.measuring.flags import main

    def run() -> int:
        try:
            main(command, module)
        except SystemExit as done:
            return int(done.code or 0)

    streams = [io.BytesIO(), io.BytesIO(), io.BytesIO()]
    texts = [io.TextIOWrapper(s, encoding="utf-8", errors="replace") for s in streams]
    code = _run(arguments, texts, cwd, env, run)
    return Done(code, streams[1].getvalue(), streams[2].getvalue())


def without_note(stderr: bytes) -> bytes:
    """What a command says on stderr besides what the built-in model is."""
    lines = stderr.splitlines(keepends=True)
    return b"".join(line for line in lines if b"built-in model is a demonstration" not in line)


def in_terminal(*arguments: str, columns: int = 80, **environ: str) -> tuple[str, int]:
    """Output (stdout and stderr together) and exit code of `ngt` on a pseudo-terminal."""
    main, other = pty.openpty()
    environ = {"TERM": "xterm-256color", "COLUMNS": str(columns), **environ}
    out: list[bytes] = []
    reader = threading.Thread(target=lambda: out.extend(iter(lambda: read_terminal(main), b"")))
    reader.start()
    with open(other, encoding="utf-8") as stdin:
        with (
            open(other, "w", encoding="utf-8", closefd=False) as stdout,
            open(other, "w", encoding="utf-8", closefd=False) as stderr,
        ):
            code = _run(arguments, [stdin, stdout, stderr], None, environ)
    reader.join()
    os.close(main)
    return b"".join(out).decode(), code


def examples(most: int) -> int:
    """How many of so many examples are tried: the share of them that counts now, but two."""
    return max(min(most, 2), round(most * EXAMPLES))


def sample_cases(cases: Sequence[Any]) -> list[Any]:
    """Of each stretch of the cases one by chance, always the same: so many as are tried now."""
    count, rng = max(1, min(len(cases), round(len(cases) * EXAMPLES))), random.Random(len(cases))
    ends = [len(cases) * i // count for i in range(count + 1)]
    return [cases[rng.randrange(*pair)] for pair in pairwise(ends)]


def read_terminal(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # how a pseudo-terminal ends
        return b""


def _run(
    arguments: Iterable[str],
    streams: Sequence[Any],
    cwd: Path | None,
    environ: dict[str, str],
    run: Callable[[], int] | None = None,
) -> int:
    """`run`, or the command line; what a process does once, at its end, is left out."""
    if run is None:
        from ngtcli.cli import app

        run = app.run

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environ))
        stack.enter_context(patch.object(sys, "argv", ["ngt", *arguments]))
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            stack.enter_context(patch.object(sys, name, stream))
        stack.enter_context(patch("ngtcli.system.process.unwind_on_interrupt"))
        if "torch" in sys.modules:
            from tests.support import loaded_once

            stack.enter_context(
                patch("ngtcli.system.trials.Trial.find", loaded_once.find_trial_once)
            )
            stack.enter_context(loaded_once.lending())
        stack.enter_context(lending_tokenizer())
        stack.enter_context(_restoring_threads())
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        code = run()
        for stream in streams[1:]:
            stream.flush()
    return code


_parsed: dict[str, Any] = {}


def parse_yaml_once(text: str, where: object, real: Any = parse_yaml) -> Any:
    """`parse_yaml`, which takes 8 ms of a preset that ships."""
    if text not in _parsed:
        _parsed[text] = real(text, where)
    return deepcopy(_parsed[text])


_tokenizers: dict[type, tuple[Any, str]] = {}  # of the built-in model by class, with their states


@contextlib.contextmanager
def lending_tokenizer() -> Iterator[None]:
    """Within, the built-in model's tokenizer is read once in a process, or again once changed."""
    library: Any = sys.modules.get("transformers.tokenization_utils_base")
    if library is None:
        yield
        return
    real = library.PreTrainedTokenizerBase.from_pretrained.__func__

    def state(backend: Any) -> str:
        own = {name: value for name, value in vars(backend).items() if name != "_tokenizer"}
        return repr((own, len(backend), backend._tokenizer.truncation, backend._tokenizer.padding))

    def lent(cls: type, path: object, *given: object, **options: object) -> Any:
        if path != str(BUILTIN_PATH):
            return real(cls, path, *given, **options)
        backend, before = _tokenizers.get(cls, (None, ""))
        if backend is None or state(backend) != before:
            backend = real(cls, path, *given, **options)
            _tokenizers[cls] = backend, state(backend)
        return backend

    with patch.object(library.PreTrainedTokenizerBase, "from_pretrained", classmethod(lent)):
        yield


@contextlib.contextmanager
def _restoring_threads() -> Iterator[None]:
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)


def assert_not_loaded(commands: Sequence[Sequence[str]], unwanted: set[str]) -> None:
    """Run commands in one new process; after none of them a module of `unwanted` is loaded."""
    code = (
        "import json, sys\nfrom ngtcli.cli.app import run\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['ngt', *words]\n"
        "    run()\n"
        f"    found = {unwanted!r} & set(sys.modules)\n"
        "    assert not found, (words, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def wait_until(holds: Callable[[], object]) -> None:
    """Return when `holds` says so, however slow the machine is; AssertionError after a minute."""
    patience = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < patience
        time.sleep(0.01)


def wait_until_loading(process: "subprocess.Popen[bytes]") -> None:
    """Return when `process`, a run of ngt, has begun to load torch."""
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: not maps.exists() or "libtorch" in maps.read_text())
    if not maps.exists():
        time.sleep(2)  # no such file on this system


def in_memory(kind: int = 1) -> int:
    """Bytes of this process in memory (1) or addresses (0); 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[kind]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# --- a tokenizer ---

VOCABULARY = 97
CONTEXT = 160
END = 3


class FakeBackend:
    """A tokenizer of one letter a token: id i is chr(32 + i)."""

    eos_token_id = END
    chat_template = None
    is_fast = False
    model_max_length = CONTEXT

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [min(ord(c) - 32, VOCABULARY - 1) for c in text if ord(c) >= 32]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(32 + i) for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(32 + i): i for i in range(VOCABULARY)}


def write_files(folder: Path, **files: str | bytes) -> Path:
    """Files by name, "__" for a slash and "_" for a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def template(name: str) -> str:
    """A chat template of `tests/support/templates`."""
    place = ROOT_FOLDER / "tests" / "support" / "templates" / f"{name}.jinja"
    return place.read_text("utf-8").removesuffix("\n")


def copy_builtin_model(folder: Path, **values: Any) -> str:
    """A copy of the built-in model with other values in its config.json."""
    shutil.copytree(BUILTIN_PATH, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return str(folder)
