"""Code that numba compiled is cached for the user, and never used if others could write it."""

import ast
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from types import FunctionType, ModuleType

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

messages = []
class Reporter:
    status = warn = messages.append

with reporting_to(Reporter):
    assert (twice(4), thrice(4)) == (8, 12)
print(messages, repr(store.take_remark()))
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
    """Run a process that compiles; return its status lines and its remark, as printed."""
    functions = folder / "functions.py"
    out = folder / "out"
    if not functions.exists():  # numba compiles again if its time changes
        functions.write_text(FUNCTIONS)
    begin = BEGIN.format(folder=str(folder), out=str(out))
    process = FORKED.Process(target=exec, args=(begin + code, {}))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
    return out.read_text().strip()


def store_file(folder: Path) -> Path:
    return folder / "cache" / "ngt" / NAME


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compiled code, which was stored with a mask that forbids nothing."""
    folder = tmp_path_factory.mktemp("compiled")
    assert "Compiling once (about" in run(folder, "import os; os.umask(0)\n" + PROGRAM)
    return folder


def test_only_the_user_can_write_to_the_store(folder: Path) -> None:
    file = store_file(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o022 == 0


def test_damaged_code_is_compiled_again(folder: Path) -> None:
    with closing(sqlite3.connect(store_file(folder))) as connection, connection:
        change = "UPDATE piece SET value = substr(value, 2) WHERE rowid = 1"
        assert connection.execute(change).rowcount == 1
    assert "Compiling once" in run(folder)
    assert run(folder) == "[] ''"


def put_file_in_place(folder: Path) -> None:
    (folder / "cache").write_text("")


def open_to_others(folder: Path) -> None:
    run(folder)
    store_file(folder).parent.chmod(0o777)


def give_to_another_user(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    run(folder)
    os.chown(store_file(folder), 65534, 65534)


@pytest.mark.search
@pytest.mark.parametrize("act", [put_file_in_place, open_to_others, give_to_another_user])
def test_a_store_that_others_may_have_written_to_is_not_used(
    act: Callable[[Path], None], tmp_path: Path
) -> None:
    act(tmp_path)
    output = run(tmp_path)
    assert "Compiling once (about" in output
    assert output.count("nothing is stored") == 1


def test_sources_of_compiled_code_are_in_the_name_of_its_folder() -> None:
    """Sources are the modules of compiled functions, and those from which they import names."""
    import ngtcli.drafting.auto.drafter  # noqa: F401 - imports all modules that compile
    from ngtcli.system import compiled

    package = Path(compiled.__file__).parents[1]
    declared = {file for pattern in compiled.SOURCES for file in package.glob(pattern)}
    used: set[Path] = set()
    for name, module in list(sys.modules.items()):
        functions = compiled_functions(module) if name.startswith("ngtcli.") else []
        if functions:
            file = Path(str(module.__file__))
            used |= {file, *imported_files(file, functions)}
    assert len(used) > 8
    assert used <= declared


def compiled_functions(module: ModuleType) -> list[FunctionType]:
    """The Python functions of a module that numba compiles."""
    functions = [value.py_func for value in vars(module).values() if hasattr(value, "py_func")]
    return [function for function in functions if function.__module__ == module.__name__]


def imported_files(file: Path, functions: list[FunctionType]) -> set[Path]:
    """The files of the package from which a file imports names that these functions use."""
    names = {name for function in functions for name in function.__code__.co_names}
    files = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("ngtcli."):
            imported = {alias.asname or alias.name for alias in node.names}
            if names & imported:
                files.add(Path(str(sys.modules[str(node.module)].__file__)))
    return files
