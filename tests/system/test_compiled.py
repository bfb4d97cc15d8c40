"""What numba compiled is kept for the user, whatever happens to the folder."""

import ast
import os
import sqlite3
import sys
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from ngtcli.system.store import NAME

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
from ngtcli.system import compiled, store
from ngtcli.system.reporting import reporting_to
from functions import thrice, twice

said = []
class Said:
    status = warn = said.append

with reporting_to(Said):
    assert (twice(4), thrice(4)) == (8, 12)
print(said, repr(store.take_remark()))
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


def run(folder: Path, code: str = PROGRAM) -> str:
    """What a process that compiles says: its status lines and its remark."""
    functions = folder / "functions.py"
    out = folder / "out"
    if not functions.exists():  # numba looks at its time
        functions.write_text(FUNCTIONS)
    begin = BEGIN.format(folder=str(folder), out=str(out))
    process = FORKED.Process(target=exec, args=(begin + code, {}))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
    return out.read_text().strip()


def stored(folder: Path) -> Path:
    """The file of the store."""
    return folder / "cache" / "ngt" / NAME


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a first run; whoever damages what is kept has it whole again afterwards."""
    folder = tmp_path_factory.mktemp("filled")
    assert "Compiling once (about" in run(folder)
    return folder


def test_damaged_code_is_compiled_again(filled: Path) -> None:
    """One result, whose checksum tells it."""
    with closing(sqlite3.connect(stored(filled))) as connection, connection:
        change = "UPDATE piece SET value = substr(value, 2) WHERE rowid = 1"
        assert connection.execute(change).rowcount == 1
    assert "Compiling once" in run(filled)
    assert run(filled) == "[] ''"


@pytest.mark.search
@pytest.mark.parametrize("trouble", ["a file in its place", "open to others", "another user's"])
def test_a_store_that_others_may_have_written_to_is_not_used(trouble: str, tmp_path: Path) -> None:
    if trouble == "a file in its place":
        (tmp_path / "cache").write_text("")
    else:
        run(tmp_path, "import os; os.umask(0)\n" + PROGRAM)
        kept = stored(tmp_path)
        assert kept.stat().st_mode & 0o777 == 0o600
        assert not kept.parent.stat().st_mode & 0o022
        if trouble == "open to others":
            kept.parent.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(kept, 65534, 65534)
        else:
            pytest.skip("only root can be another user")
    said = run(tmp_path)
    assert "Compiling once (about" in said
    assert said.count("nothing is stored") == 1


def test_all_that_compiled_code_is_made_of_is_in_the_name_of_its_folder() -> None:
    """The functions, and each name that they use of another module of the package."""
    import ngtcli.drafting.auto.drafter  # noqa: F401 - imports what compiles
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
    assert len(used) > 8
    assert used <= sources
