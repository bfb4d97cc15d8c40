"""Reading no more than a bound allows, and nothing that never ends; writing whole or not."""

import errno
import io
import itertools
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ngtcli.system.cache import LEFT_S
from ngtcli.system.files import (
    DamagedFileError,
    key_of,
    parse_json,
    read_bounded,
    read_json,
    read_stream,
    write_atomically,
    write_json,
)


def test_a_descriptor_is_written_to_where_it_stands_and_its_file_stays(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        write_atomically(Path(f"/dev/fd/{log.fileno()}"), ["an ", "answer\n"])
        write_atomically(Path(f"/proc/self/fd/{log.fileno()}"), "another\n")
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nan answer\nanother\nafter\n"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices_are_refused_and_not_opened(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(Path(device), 5, pipes=True)
    assert not opened  # to open some devices is to set them going


def test_folders_are_refused_and_pipes_where_they_are_not_allowed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(pipe, 5)
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, 5)


def test_an_endless_pipe_ends_at_the_bound() -> None:
    reader, writer = os.pipe()

    def write_until_closed() -> None:
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BrokenPipeError:
            os.close(writer)

    thread = threading.Thread(target=write_until_closed)
    thread.start()
    with pytest.raises(OSError) as caught:
        read_bounded(Path(f"/dev/fd/{reader}"), 100_000, pipes=True)
    os.close(reader)
    thread.join(10)
    assert caught.value.errno == errno.EFBIG and not thread.is_alive()


def test_a_file_without_a_size_is_read_whole() -> None:
    if Path("/proc/self/status").exists():
        assert b"VmRSS" in read_bounded("/proc/self/status", 100_000)


@pytest.mark.parametrize("kind", ["file", "pipe", "stream"])
@pytest.mark.parametrize("data", [b"", b"12345", b"123456"])
def test_what_is_read_is_whole_or_refused_beyond_the_bound(
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


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "answer.txt"
    write_atomically(target, "first\n")
    target.chmod(0o640)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(target, "second\n")
    assert target.read_text() == "first\n"
    write_atomically(target, "third 한\n")
    assert target.read_text(encoding="utf-8") == "third 한\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_and_a_pipe_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "far")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "far").read_text() == "text" and (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_atomically(tmp_path / "pipe", "text")
    reader.join(10)
    assert got == ["text"]


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    name = "n" * 250 + ".txt"
    write_atomically(tmp_path / name, "text")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_the_next_write_removes_old_leftovers_and_no_young_ones(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f"{name}.partial" for name in ("old", "young", "folder"))
    old.write_text("half")
    young.write_text("half")
    other.mkdir()
    for path in (old, other):
        os.utime(path, (0, time.time() - LEFT_S - 1))
    write_json(tmp_path / "a.json", {})
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["a.json", "folder.partial", "young.partial"]


def test_in_a_folder_of_the_users_only_a_files_own_leftovers_are_removed(tmp_path: Path) -> None:
    own, foreign = tmp_path / ".a.txt.x1y2.partial", tmp_path / "download.partial"
    for path in (own, foreign):
        path.write_text("half")
        os.utime(path, (0, 0))
    write_atomically(tmp_path / "a.txt", "text")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "download.partial"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 200_000, "nested too deep"),
        ("[1]", "not an object"),
        ("7", "not an object"),
        ('{"a": NaN}', "out of range"),
        ('{"a": -Infinity}', "out of range"),
        ('{"a": 1e999}', "out of range"),
        ('{"a": %s}' % ("9" * 400), "out of range"),
        ('{"a": %s}' % ("9" * 6000), "out of range"),
        ('{"a": -9300000000000000000}', "out of range"),
        ('{"a": 9223372036854775809}', "out of range"),
        (b"\xff\xfe\x00", "not JSON"),
        (" " * 1001, "more than 0.001 MB"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_with_a_json_file_is_one_error(
    tmp_path: Path, text: str | bytes, why: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DamagedFileError, match=why):
        read_json(path, 1000 if why.startswith("more") else 2_000_000)


def test_a_byte_that_changed_after_it_was_written_never_changes_what_is_read(
    tmp_path: Path,
) -> None:
    path, value = tmp_path / "a.json", {"tokens": 13, "text": "The tide, \u00e9.", "of": {"a": [1]}}
    write_json(path, value)
    whole = path.read_bytes()
    assert read_json(path, 1000) == value == {k: json.loads(whole)[k] for k in value}
    for at, bit in itertools.product(range(len(whole)), (1, 8)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with suppress(DamagedFileError):
            assert value.items() <= read_json(path, 1000).items()


def test_ordinary_json_comes_back_as_it_was() -> None:
    for value in ({"a": [1, -2.5, 1e300, True, None, "é\ud800"]}, {}, {"x": {"y": 2**62}}):
        assert parse_json(json.dumps(value), dict) == value
    assert parse_json("[1]", list) == [1]


def test_keys_depend_on_every_part_and_on_their_borders() -> None:
    keys = {key_of("a", "b"), key_of("ab"), key_of("b", "a"), key_of("a"), key_of("a", "b", "")}
    assert len(keys) == 5 and all(len(key) == 32 for key in keys)
