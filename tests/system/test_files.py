"""Files: whose they are, reading no more than a bound allows, and writing whole or not at all."""

import errno
import io
import multiprocessing
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ngtcli.documents.load import load
from ngtcli.errors import UsageError
from ngtcli.system import files
from ngtcli.system.files import (
    DamagedFileError,
    home,
    key_of,
    new_file,
    parse_json,
    private_folder,
    read_bounded,
    read_stream,
    write_atomically,
)
from ngtcli.system.store import Kind
from tests.support.helpers import NGT, ROOT_FOLDER, ngt

OTHER = 65534  # the user nobody
FORK = multiprocessing.get_context("fork")


def in_process(work: Callable[[], object]) -> int | None:
    """The exit code of a process that does `work`."""
    process = FORK.Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_stored_files_are_private_under_any_umask(mask: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"tide": "noon"}')

    def work() -> None:
        os.umask(mask)
        load([str(tmp_path / "a.json")])
        Kind("parts", str).put("a", "b")
        private_folder(home("cache") / "tries")
        with new_file(home("cache") / "tries" / "a") as file:
            file.write(b"trie")
        write_atomically(tmp_path / "answer", "text")

    assert in_process(work) == 0
    every = [home("cache"), *home("cache").rglob("*")]
    assert {mode(path) for path in every if path.is_dir()} == {0o700}
    assert {mode(path) for path in every if path.is_file()} == {0o600}
    assert not mode(home("cache").parent) & 0o022
    assert mode(tmp_path / "answer") == 0o666 & ~mask  # the user's own


def test_folders_of_the_cache_that_others_could_enter_are_closed_and_no_others(
    tmp_path: Path,
) -> None:
    folder = home("cache") / "documents" / "texts"
    folder.mkdir(parents=True)
    own = folder, folder.parent, home("cache")
    for lax in (*own, home("cache").parent, tmp_path):
        lax.chmod(0o777)
    private_folder(folder)
    private_folder(tmp_path / "elsewhere")
    assert {mode(path) for path in own} == {0o700}
    assert mode(home("cache").parent) == mode(tmp_path) == 0o777
    assert mode(tmp_path / "elsewhere") == 0o755


def test_another_users_cache_is_not_used_though_it_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home("cache").mkdir(parents=True, mode=0o777)
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: OTHER)
        done = ngt("generate", "When?", "--max-tokens", "1")
    assert done.returncode == 2
    assert not list(home("cache").iterdir())
    told = f"ngt: {home('cache')} belongs to another user\nSet NGT_HOME to a folder that you own.\n"
    assert done.stderr.decode() == told


def test_a_closed_home_is_named_and_asking_for_a_folder_makes_none(tmp_path: Path) -> None:
    assert not home("cache").exists()
    assert not home("cache").parent.exists()
    (tmp_path / "ngt-home").mkdir(0o000)

    def work() -> None:
        if os.geteuid() == 0:
            os.setuid(OTHER)
        for kind in ("cache", "config"):
            with pytest.raises(UsageError, match=r"ngt-home/\w+ belongs to another user"):
                home(kind)

    assert in_process(work) == 0


def test_without_ngt_home_every_kind_of_folder_is_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*os.environ]:
        if name.startswith(("NGT_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = {home(kind) for kind in ("config", "cache", "state", "run")}
    assert len(folders) == 4
    assert all(tmp_path in folder.parents for folder in folders)
    monkeypatch.setenv("NGT_HOME", "~nobody-has-this-name/x")
    with pytest.raises(UsageError, match="no such home"):
        home("cache")


def test_a_current_folder_that_is_gone_is_told_in_two_lines(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT_FOLDER)}
    done = subprocess.run(
        ["sh", "-c", f'rmdir {gone}; exec "$@"', "sh", *NGT, "--version"],
        cwd=gone,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "ngt: the current folder no longer exists\nChange to another folder.\n"


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "disk full")


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / ("n" * 250 + ".txt")  # a name as long as the file system allows
    write_atomically(target, "first\n")
    target.chmod(0o640)
    for name in ("pathlib.Path.replace", "os.fsync"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
            patch.setattr(name, fail)
            write_atomically(target, "second\n")
    assert target.read_text() == "first\n"
    for name in ("os.umask", "os.scandir", "os.listdir"):  # other threads write, folders are long
        monkeypatch.setattr(name, fail)
    write_atomically(target, ["third ", "한\n"])
    monkeypatch.undo()
    assert target.read_text(encoding="utf-8") == "third 한\n"
    assert mode(target) == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_killed_run_leaves_the_last_file_as_it_was(tmp_path: Path) -> None:
    write_atomically(tmp_path / "answer", "whole")

    def work() -> None:
        with new_file(tmp_path / "answer") as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_process(work) == -signal.SIGKILL
    assert (tmp_path / "answer").read_text() == "whole"
    assert in_process(work) == -signal.SIGKILL
    assert len([*tmp_path.iterdir()]) == 2  # what the second left; that of the first is gone
    write_atomically(tmp_path / "other", "of another name")
    assert len([*tmp_path.iterdir()]) == 3
    write_atomically(tmp_path / "answer", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer", "other"]
    assert (tmp_path / "answer").read_text() == "new"


def test_two_who_write_one_file_at_once_disturb_each_other_in_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    with new_file(path) as first:
        first.write(b"first")
        with new_file(path) as second:  # takes nothing away from the first
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert [*tmp_path.iterdir()] == [path]


def test_writers_of_one_file_in_many_processes_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "answer"

    def work() -> None:
        for _ in range(200):
            write_atomically(path, "whole" * 1000)
            assert path.read_text() == "whole" * 1000

    children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [*tmp_path.iterdir()] == [path]


def test_where_files_have_no_locks_they_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fails)
    for text in ("one", "two"):
        write_atomically(tmp_path / "answer", text)
    assert (tmp_path / "answer").read_text() == "two"
    assert [*tmp_path.iterdir()] == [tmp_path / "answer"]


def test_a_file_of_another_that_has_the_passing_name_stays(tmp_path: Path) -> None:
    """As one that is a link: nothing is removed or written through it."""
    seen: list[Path] = []
    with new_file(tmp_path / "answer") as file:
        file.write(b"x")
        seen = [*tmp_path.iterdir()]
    (tmp_path / "far").write_text("far")
    seen[0].symlink_to(tmp_path / "far")
    write_atomically(tmp_path / "answer", "new")
    assert seen[0].is_symlink()
    assert (tmp_path / "far").read_text() == "far"
    assert (tmp_path / "answer").read_text() == "new"


def test_a_link_a_pipe_and_a_descriptor_are_written_through(tmp_path: Path) -> None:
    """Behind what a descriptor had before, and its file stays the same."""
    (tmp_path / "link").symlink_to(tmp_path / "far")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "far").read_text() == "text"
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        got = pool.submit((tmp_path / "pipe").read_text)
        write_atomically(tmp_path / "pipe", "text")
        assert got.result(10) == "text"
    with (tmp_path / "log").open("w", buffering=1) as log:
        log.write("before\n")
        for folder in ("dev", "proc/self"):
            write_atomically(Path(f"/{folder}/fd/{log.fileno()}"), ["an ", "answer\n"])
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nan answer\nan answer\nafter\n"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("/dev/zero", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("folder", "Is a directory"),
        ("pipe", "nobody wrote to"),
        ("pipe alone", "not a regular"),
    ],
)
def test_unreadable_kinds_of_files_are_reported_and_devices_not_opened(
    name: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    opened = list[str]()
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *a: opened.append(str(path)) or real(path, *a))
    monkeypatch.setattr(files, "WRITER_WAIT_S", 0.0)
    with pytest.raises(OSError, match=error):
        read_bounded(tmp_path / name.split()[0], 5, pipes=name != "pipe alone")
    assert opened == [str(tmp_path / "pipe")] * (name == "pipe")  # opening some sets them going


@pytest.mark.parametrize("kind", ["file", "pipe", "stream"])
@pytest.mark.parametrize("data", [b"", b"12345", b"123456"])
def test_files_are_read_completely_or_refused_beyond_the_limit(
    tmp_path: Path, kind: str, data: bytes
) -> None:
    (tmp_path / "file").write_bytes(data)
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    read = {
        "file": lambda: read_bounded(tmp_path / "file", 5),
        "pipe": lambda: read_bounded(Path(f"/dev/fd/{reader}"), 5, pipes=True),
        "stream": lambda: read_stream(io.BytesIO(data), 5),
    }[kind]
    if len(data) <= 5:
        assert read() == data
    else:
        with pytest.raises(OSError, match="more than 5e-06 MB") as caught:
            read()
        assert caught.value.errno == errno.EFBIG
    os.close(reader)
    if Path("/proc/self/status").exists():  # which has no size
        assert b"VmRSS" in read_bounded("/proc/self/status", 100_000)


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff\xfe\x00", "[" * 200_000, "[1]", "7", '{"a": NaN}', '{"a": 1e999}']
)
def test_any_invalid_json_is_one_error(text: str | bytes) -> None:
    with pytest.raises(DamagedFileError, match="not JSON"):
        parse_json(text, dict)


def test_keys_depend_on_every_part_and_on_their_borders() -> None:
    keys = {key_of("a", "b"), key_of("ab"), key_of("b", "a"), key_of("a"), key_of("a", "b", "")}
    assert len(keys) == 5
    assert all(len(key) == 32 for key in keys)
