"""What numba compiled is kept for the user, whatever happens to the folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ngtcli.system.compile_cache import CompileCache

# Two small functions in a file of their own, compiled as those of the package are.
PROGRAM = """
import sys
from ngtcli.system import compiled

@compiled.njit()
def twice(n):
    return 2 * n

@compiled.unowned
def thrice(n):
    return 3 * n

said = []
compiled.announce(said.append)
assert (twice(4), thrice(4)) == (8, 12)
print(said, repr(compiled.keep()))
"""


def run(folder: Path, **environ: str) -> str:
    """What a process that compiles says: its status lines and its remark."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    given = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **environ}
    done = subprocess.run(
        [sys.executable, program], env=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def filled(base: Path) -> CompileCache:
    """A cache after a run that compiled one function."""
    cache = CompileCache(base)
    assert cache.folder is not None
    (cache.folder / "trie_1").mkdir()
    (cache.folder / "trie_1" / "f.nbi").write_bytes(b"index")
    (cache.folder / "trie_1" / "f.1.nbc").write_bytes(b"code")
    cache.compiled = 1
    cache.close()
    return cache


def files(cache: CompileCache) -> dict[str, bytes]:
    assert cache.folder is not None
    return {f.name: f.read_bytes() for f in cache.folder.rglob("*.nb?")}


def test_what_was_compiled_serves_the_next_process(tmp_path: Path) -> None:
    assert "Compiling once (about" in run(tmp_path)
    assert run(tmp_path) == "[] ''"


@pytest.mark.parametrize("damage", [b"", b"cos\nsystem\n(S'exit 7'\ntR."])
def test_a_damaged_compile_cache_is_compiled_anew_with_a_remark(
    tmp_path: Path, damage: bytes
) -> None:
    run(tmp_path)
    for file in (tmp_path / "cache").rglob("*.nb[ic]"):
        file.write_bytes(damage)
    said = run(tmp_path)
    assert "Compiling once" in said and "damaged" in said
    assert run(tmp_path) == "[] ''"


def test_a_home_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert "not kept" in run(tmp_path)


def test_with_no_writable_folder_at_all_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    code = "import tempfile\ntempfile.tempdir = '/nowhere'\n" + PROGRAM
    (tmp_path / "other.py").write_text(code)
    done = subprocess.run(
        [sys.executable, tmp_path / "other.py"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert "not kept" in done.stdout, done.stderr


@pytest.mark.parametrize("damage", [b"", b"othr", b"code and more"])
def test_no_file_is_used_whose_checksum_differs(tmp_path: Path, damage: bytes) -> None:
    filled(tmp_path)
    next(tmp_path.rglob("f.1.nbc")).write_bytes(damage)
    cache = CompileCache(tmp_path)
    assert files(cache) == {} and "damaged" in cache.remark
    assert not list(tmp_path.glob("kept-*"))  # nor is it looked at again
    cache.close()


def test_a_file_without_a_checksum_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path)
    next(tmp_path.rglob("f.1.nbc")).with_name("g.nbi").write_bytes(b"more")
    cache = CompileCache(tmp_path)
    assert set(files(cache)) == {"f.nbi", "f.1.nbc"} and not cache.remark
    cache.close()


@pytest.mark.parametrize(
    "sums", ["", "[]", "{}", '{"../../x": "1"}', '{"trie_1/f.nbi": 1}', "[" * 9999]
)
def test_a_damaged_list_of_checksums_is_no_use(tmp_path: Path, sums: str) -> None:
    filled(tmp_path)
    next(tmp_path.rglob("checksums.json")).write_text(sums)
    cache = CompileCache(tmp_path)
    assert files(cache) == {} and cache.remark
    cache.close()


def test_what_one_process_writes_another_that_runs_does_not_see(tmp_path: Path) -> None:
    filled(tmp_path)
    one, two = CompileCache(tmp_path), CompileCache(tmp_path)
    assert one.folder is not None and one.folder != two.folder
    new = one.folder / "trie_1" / "new"
    new.write_bytes(b"other code")
    new.replace(one.folder / "trie_1" / "f.1.nbc")  # as numba writes
    one.compiled = 1
    one.close()
    assert files(two)["f.1.nbc"] == b"code"
    two.close()
    three = CompileCache(tmp_path)
    assert files(three)["f.1.nbc"] == b"other code"
    three.close()
    assert [p.name[:5] for p in tmp_path.iterdir()] == ["kept-"]


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    filled(tmp_path)
    tmp_path.chmod(0o777)
    cache = CompileCache(tmp_path)
    assert files(cache) == {} and "others may write" in cache.remark
    cache.close()
    assert list(tmp_path.glob("kept-*"))  # nothing in it is touched


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    filled(tmp_path)
    os.chown(tmp_path, 65534, 65534)
    cache = CompileCache(tmp_path)
    assert files(cache) == {} and "another user" in cache.remark
    cache.close()


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_stay(
    tmp_path: Path,
) -> None:
    running = CompileCache(tmp_path)
    assert running.folder is not None
    (tmp_path / "run-killed").mkdir()
    (tmp_path / "run-young").mkdir()
    for folder in (running.folder, tmp_path / "run-killed"):
        os.utime(folder, (1, 1))
    CompileCache(tmp_path).close()
    left = {f.name for f in tmp_path.iterdir()}
    assert left == {running.folder.name, "run-young"}
    running.close()


def test_another_source_of_any_room_that_compiles_has_another_folder(tmp_path: Path) -> None:
    import ngtcli.system.compiled as compiled

    package = Path(compiled.__file__).parents[1]
    looked = {f for room in ("trie", "draft") for f in package.glob(f"{room}/**/*.py")}
    users = {f for f in package.rglob("*.py") if "ngtcli.system.compiled import" in f.read_text()}
    assert users and users <= looked


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    filled(tmp_path / "base")
    kept = next((tmp_path / "base").glob("kept-*"))
    for folder in (tmp_path / "base", kept, kept / "trie_1"):
        assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_another_process_replaces_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "cache")
    take = CompileCache._take

    def replaced(self: CompileCache, kept: Path) -> bool:
        monkeypatch.setattr(CompileCache, "_take", take)
        kept.rename(kept.with_name("kept-successor"))
        return take(self, kept)

    monkeypatch.setattr(CompileCache, "_take", replaced)
    cache = CompileCache(tmp_path / "cache")
    assert not cache.remark and not cache.empty
    assert set(files(cache)) == {"f.nbi", "f.1.nbc"}


def test_a_fork_leaves_the_folder_of_its_parent_alone(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    assert cache.folder is not None
    process = os.fork()
    if process == 0:
        cache.compiled = 1
        cache.close()
        os._exit(0)
    os.waitpid(process, 0)
    assert cache.folder.is_dir() and not list(tmp_path.glob("kept-*"))
    cache.close()
    assert not list(tmp_path.glob("run-*"))
