"""What numba compiled is kept for the user, whatever happens to the folder."""

import ast
import os
import sys
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

# Two small functions in a file of their own, compiled as those of the package are.
FUNCTIONS = """
from ngtcli.system import compiled

@compiled.njit()
def twice(n):
    return 2 * n

@compiled.unowned
def thrice(n):
    return 3 * n
"""
PROGRAM = """
from ngtcli.system import compiled
from functions import thrice, twice

said = []
compiled.announce(said.append)
assert (twice(4), thrice(4)) == (8, 12)
print(said, repr(compiled.take_remark()))
"""


# Forks of a process that has numba loaded, and nothing opened.
FORKED = get_context("forkserver")
FORKED.set_forkserver_preload(["numba", "numba.core.event", "ngtcli.system.compiled"])
BEGIN = """
import os, sys
os.environ["NUMBA_CACHE_DIR"] = {folder!r} + "/cache"
sys.path.insert(0, {folder!r})
sys.stdout = open({out!r}, "w")
"""
_serial = count()


def begun(folder: Path, code: str = PROGRAM) -> tuple[Any, Path]:
    """A process that runs the code, and the file of what it says."""
    functions = folder / "functions.py"
    if not functions.exists():  # numba looks at its time
        functions.write_text(FUNCTIONS)
    out = folder / f"out-{next(_serial)}"
    begin = BEGIN.format(folder=str(folder), out=str(out))
    process = FORKED.Process(target=exec, args=(begin + code, {}))
    process.start()
    return process, out


def said_by(process: Any, out: Path) -> str:
    process.join(timeout=120)
    assert process.exitcode == 0
    return out.read_text().strip()


def run(folder: Path, code: str = PROGRAM) -> str:
    """What a process that compiles says: its status lines and its remark."""
    return said_by(*begun(folder, code))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a first run; whoever damages what is kept has it whole again afterwards."""
    folder = tmp_path_factory.mktemp("filled")
    assert "Compiling once (about" in run(folder)
    return folder


def change_byte(file: Path, data: bytes) -> None:
    """Machine code with a wrong byte may end the process that runs it."""
    at = len(data) // 2
    file.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])


@pytest.mark.parametrize(
    "damage",
    [
        lambda f, _: f.write_bytes(b"" if f.suffix == ".nbi" else b"no pickle"),
        lambda f, data: f.write_bytes(data[:-20] if f.suffix == ".nbc" else data[:40]),
        change_byte,
        lambda f, _: (f.unlink(), os.mkfifo(f)),  # which has no writer
    ],
    ids=["foreign", "cut", "a wrong byte", "a pipe"],
)
def test_what_is_damaged_is_compiled_again_with_one_remark(
    filled: Path, damage: Callable[[Path, bytes], object]
) -> None:
    """Of one function its index, of the other its code."""
    kept = filled / "cache"
    for file in (*kept.rglob("*twice*.nbi"), *kept.rglob("*thrice*.nbc")):
        damage(file, file.read_bytes())
    said = run(filled)
    assert "Compiling once" in said and said.count("damaged") == 1
    assert run(filled) == "[] ''"


def test_a_result_for_other_types_is_not_used(tmp_path: Path) -> None:
    """As two processes leave it that compile for different types at the same time."""
    run(tmp_path)
    other = PROGRAM.replace("twice(4), thrice(4)", "twice(4.5), thrice(4)").replace("(8,", "(9.0,")
    assert "Compiling once" in run(tmp_path, other)
    one, two = sorted((tmp_path / "cache").rglob("*twice*.nbc"))
    one.write_bytes(two.read_bytes())
    assert "Compiling once" in run(tmp_path)
    assert run(tmp_path) == run(tmp_path, other) == "[] ''"


def test_processes_that_start_at_once_on_an_empty_cache_agree(tmp_path: Path) -> None:
    running = [begun(tmp_path) for _ in range(4)]
    for process in running:
        assert (told := said_by(*process)).endswith("''"), told
    assert run(tmp_path) == "[] ''"
    assert not list((tmp_path / "cache").rglob("*.tmp.*"))


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n" + PROGRAM


def test_where_files_cannot_be_written_whole_nothing_is_kept_and_one_remark_made(
    tmp_path: Path,
) -> None:
    said = run(tmp_path, FULL)
    assert said.count("not kept") == 1 and "too large" in said
    assert not list((tmp_path / "cache").rglob("*.tmp.*"))
    run(tmp_path)
    assert run(tmp_path, FULL) == "[] ''"  # what was kept can be used


@pytest.mark.parametrize("trouble", ["a file in its place", "open to others", "another user's"])
def test_a_folder_that_cannot_be_used_costs_one_remark(trouble: str, tmp_path: Path) -> None:
    if trouble == "a file in its place":
        (tmp_path / "cache").write_text("")
    else:
        run(tmp_path, "import os; os.umask(0)\n" + PROGRAM)
        kept = next((tmp_path / "cache").iterdir())
        assert kept.stat().st_mode & 0o777 == 0o700  # no other user can enter
        assert sum(path.is_file() for path in kept.rglob("*")) == 4
        if trouble == "open to others":
            kept.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(kept, 65534, 65534)
        else:
            pytest.skip("only root can be another user")
    said = run(tmp_path)
    assert "Compiling once (about" in said and said.count("not kept") == 1


def test_what_other_versions_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / "cache" / "ngt-old", tmp_path / "cache" / "ngt-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (1, 1))
    run(tmp_path)
    assert young.exists() and not old.exists()


def test_all_that_compiled_code_is_made_of_is_in_the_name_of_its_folder() -> None:
    """The functions, and each name that they use of another module of the package."""
    import ngtcli.draft.auto.drafter  # noqa: F401 - imports what compiles
    from ngtcli.system import compiled

    package = Path(compiled.__file__).parents[1]
    sources = {file for pattern in compiled.SOURCES for file in package.glob(pattern)}
    used: set[Path] = set()
    for module in [m for name, m in sys.modules.items() if name.startswith("ngtcli.")]:
        functions = [x.py_func for x in vars(module).values() if hasattr(x, "py_func")]
        own = [f for f in functions if f.__module__ == module.__name__]
        names = {name for function in own for name in function.__code__.co_names}
        used |= {Path(str(module.__file__))} if own else set()
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())) if own else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ngtcli."):
                if names & {alias.asname or alias.name for alias in node.names}:
                    used.add(Path(str(sys.modules[str(node.module)].__file__)))
    assert len(used) > 8 and used <= sources
