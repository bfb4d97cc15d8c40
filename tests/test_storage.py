"""Reading no more than a bound allows, and nothing that never ends."""

import errno
import io
import os
import threading
from pathlib import Path

import pytest

from ngtcli.storage import read_bounded, read_stream


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert read_bounded(file, 5) == b"12345"
    with pytest.raises(OSError) as caught:
        read_bounded(file, 4)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices_are_refused(device: str) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(Path(device), 5, pipes=True)


def test_a_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, 5)


def test_a_pipe_is_read_only_where_pipes_are_allowed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(pipe, 5)
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    os.close(writer)
    assert read_bounded(Path(f"/dev/fd/{reader}"), 5, pipes=True) == b"abc"
    os.close(reader)


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


def test_no_device_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded("/dev/zero", 5)
    assert not opened  # to open some devices is to set them going


def test_a_pipe_whose_first_bytes_are_more_than_the_bound() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"123456")
    os.close(writer)
    with pytest.raises(OSError) as caught:
        read_bounded(Path(f"/dev/fd/{reader}"), 5, pipes=True)
    os.close(reader)
    assert caught.value.errno == errno.EFBIG


def test_a_file_without_a_size_is_read_whole() -> None:
    if Path("/proc/self/status").exists():
        assert b"VmRSS" in read_bounded("/proc/self/status", 100_000)


def test_a_stream_is_read_up_to_its_bound() -> None:
    assert read_stream(io.BytesIO(b"12345"), 5) == b"12345"
    assert read_stream(io.BytesIO(b""), 5) == b""
    with pytest.raises(OSError, match="more than 4e-06 MB"):
        read_stream(io.BytesIO(b"12345"), 4)
