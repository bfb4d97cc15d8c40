"""What numba compiled is kept for the user, whatever happens to the folder."""

import os
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
FORKED.set_forkserver_preload(["numba", "numba.core.event", "ngtcli.system.compile_cache"])
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


def make_pipe(file: Path, _: bytes) -> None:
    file.unlink()
    os.mkfifo(file)


def change_byte(file: Path, data: bytes) -> None:
    """Machine code with a wrong byte may end the process that runs it."""
    at = len(data) // 2
    file.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize(
    ("damages", "remarks"),
    [
        ([lambda f, _: f.write_bytes(b""), lambda f, _: f.write_bytes(b"no pickle")], 1),
        ([lambda f, data: f.write_bytes(data[:-20])] * 2, 1),
        ([change_byte] * 2, 1),
        ([make_pipe] * 2, 0),  # is not waited for
    ],
    ids=["foreign", "cut", "a wrong byte", "a pipe"],
)
def test_what_is_damaged_is_compiled_again_with_one_remark(
    filled: Path, kind: str, damages: list[Callable[[Path, bytes], object]], remarks: int
) -> None:
    files = sorted((filled / "cache").rglob(f"*.{kind}"))
    for file, damage in zip(files, damages, strict=True):
        damage(file, file.read_bytes())
    said = run(filled)
    assert "Compiling once" in said and said.count("damaged") == remarks
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


def test_a_home_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert "not kept" in run(tmp_path)


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n" + PROGRAM


def test_where_files_cannot_be_written_whole_nothing_is_kept_and_one_remark_made(
    tmp_path: Path,
) -> None:
    said = run(tmp_path, FULL)
    assert said.count("not kept") == 1 and "too large" in said
    assert not list((tmp_path / "cache").rglob("*.tmp.*"))
    run(tmp_path)
    assert run(tmp_path, FULL) == "[] ''"  # what was kept can be used


def test_what_others_might_have_written_is_not_used(tmp_path: Path) -> None:
    run(tmp_path)
    kept = next((tmp_path / "cache").iterdir())
    kept.chmod(0o777)
    assert "Compiling once" in run(tmp_path)
    assert kept.stat().st_mode & 0o777 == 0o700
    assert run(tmp_path) == "[] ''"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    run(tmp_path)
    kept = next((tmp_path / "cache").iterdir())
    os.chown(kept, 65534, 65534)
    assert "another user" in run(tmp_path)


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    run(tmp_path)
    kept = next((tmp_path / "cache").rglob("*.nbi"))
    old, young = kept.with_name("a.nbi.tmp.1"), kept.with_name("b.nbi.tmp.2")
    unused = tmp_path / "cache" / "ngt-other"
    unused.mkdir()
    for path in (old, young):
        path.write_text("")
    for path in (old, unused):
        os.utime(path, (1, 1))
    run(tmp_path)
    assert young.exists() and not old.exists() and not unused.exists()


def test_another_source_of_any_room_that_compiles_has_another_folder(tmp_path: Path) -> None:
    import ngtcli.system.compiled as compiled

    package = Path(compiled.__file__).parents[1]
    looked = {f for room in ("trie", "draft") for f in package.glob(f"{room}/**/*.py")}
    users = {f for f in package.rglob("*.py") if "ngtcli.system.compiled import" in f.read_text()}
    assert users and users <= looked


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    run(tmp_path, "import os; os.umask(0)\n" + PROGRAM)
    kept = next((tmp_path / "cache").iterdir())
    assert kept.stat().st_mode & 0o777 == 0o700
    assert sum(path.is_file() for path in kept.rglob("*")) == 4  # no other user can enter
