"""Array files of every kind: arrays are read as written, and damage is found."""

import errno
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ngtcli.documents.load import Document
from ngtcli.drafting.tries.files import BACKGROUNDS, DATASTORES, POOLS, TRIES
from ngtcli.drafting.tries.store import document_trie
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system import arrays as arrays_module
from ngtcli.system import store
from ngtcli.system.arrays import PADDING, ArrayFile, ArrayWriter, read_header
from ngtcli.system.cache import store_of
from ngtcli.system.files import DamagedFileError, home
from tests.support.helpers import FakeBackend
from tests.support.recording_reporter import RecordingReporter

KINDS = (TRIES, DATASTORES, BACKGROUNDS, POOLS)
METADATA = {"of": "y", "é": "\n\x00"}
LONG_AGO = (1_000_000_000, 1_000_000_000)


def sample(kind: ArrayFile, rows: int = 5) -> dict[str, Any]:
    """Random arrays as a kind declares them."""
    random = np.random.default_rng(rows)
    return {
        name: random.integers(0, 99, rows).astype(array.dtype)
        for name, array in kind.arrays.items()
    }


def write_sample(kind: ArrayFile, rows: int = 5) -> Path:
    path = kind.write(kind.path("x"), sample(kind, rows), METADATA)
    os.utime(path, LONG_AGO)
    return path


def are_equal(arrays: dict[str, Any], expected: dict[str, Any]) -> bool:
    if arrays.keys() != expected.keys():
        return False
    return all(
        arrays[name].dtype == expected[name].dtype and np.array_equal(arrays[name], expected[name])
        for name in expected
    )


def replace_file(path: Path, content: bytes) -> None:
    """Put another file in place of a file."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


def overwrite(path: Path, content: bytes) -> None:
    """Write to the same file, whose times show it as soon as the file system's clock has moved."""
    before = os.stat(path).st_ctime_ns
    while os.stat(path).st_ctime_ns == before:
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_arrays_are_read_as_written(kind: ArrayFile) -> None:
    for rows in (70, 5, 0):
        path = write_sample(kind, rows)
        arrays, metadata = kind.map(path, METADATA)
        assert are_equal(arrays, sample(kind, rows))
        assert metadata == {**METADATA, "format": kind.format}
        assert all(array.ctypes.data % 64 == 0 for array in arrays.values() if array.size)

        by_safetensors = load_file(path)
        without_padding = {
            name: array for name, array in by_safetensors.items() if not name.endswith(PADDING)
        }
        assert are_equal(without_padding, sample(kind, rows))

        for array in arrays.values():
            array += 1  # which changes neither the file nor other mappings
        assert are_equal(kind.map(path)[0], sample(kind, rows))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_array_files_are_private_and_listed(kind: ArrayFile) -> None:
    path = write_sample(kind)
    assert path.stat().st_mode & 0o777 == 0o600
    assert kind.paths() == [path]
    cache_store = store_of(path, home("cache"))
    assert cache_store is not None
    assert cache_store.path == path.parent


@settings(max_examples=64, deadline=None)
@given(st.data())
def test_damage_is_refused_or_without_effect(data: st.DataObject) -> None:
    """Flip one or two bits, cut or extend the file, or put another file in its place."""
    kind = data.draw(st.sampled_from(KINDS))
    rows = data.draw(st.sampled_from([0, 5, 70]))
    path = write_sample(kind, rows)
    content = bytearray(path.read_bytes())
    position = st.integers(0, len(content) - 1) | st.integers(0, 300)
    match data.draw(st.sampled_from(["flip", "flip", "cut", "longer", "foreign", "other"])):
        case "flip":
            for _ in range(data.draw(st.integers(1, 2))):
                content[data.draw(position)] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[data.draw(position) :]
        case "longer":
            content += data.draw(st.binary(min_size=1, max_size=70))
        case "foreign":
            content = bytearray(data.draw(st.binary(max_size=200)))
        case "other":
            other_kinds = [
                other
                for other in KINDS
                if (other.folder, other.suffix) != (kind.folder, kind.suffix)
            ]
            other = data.draw(st.sampled_from(other_kinds))
            content = bytearray(write_sample(other, rows).read_bytes())
    write = data.draw(st.sampled_from([replace_file, overwrite]))
    write(path, bytes(content))

    try:
        arrays, _ = kind.map(path)
    except DamagedFileError:
        return
    # The change was in unused bytes, or the file is of a kind with the same arrays.
    same_arrays = [k for k in KINDS if (k.arrays, k.format) == (kind.arrays, kind.format)]
    assert any(are_equal(arrays, sample(k, rows)) for k in same_arrays)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_arrays_that_are_not_as_declared_are_refused(kind: ArrayFile) -> None:
    arrays = sample(kind)
    wrong_arrays: list[dict[str, Any]] = [{**arrays, "extra": next(iter(arrays.values()))}]
    row_names = [array.rows for array in kind.arrays.values() if array.rows]
    for name, array in arrays.items():
        wrong_arrays.append({other: arrays[other] for other in arrays if other != name})
        wrong_arrays.append({**arrays, name: array.astype(np.int64)})
        wrong_arrays.append({**arrays, name: array[None]})
        if row_names.count(kind.arrays[name].rows) > 1:  # which must be as long as another one
            wrong_arrays.append({**arrays, name: array[:-1]})

    path = kind.path("x")
    for wrong in wrong_arrays:
        with closing(ArrayWriter(path.parent)) as writer:
            for name, array in wrong.items():
                writer.add(name, array)
            writer.finish(path, {"format": kind.format})
        with pytest.raises(DamagedFileError, match="arrays"):
            kind.map(path)


def test_a_file_without_a_checksum_is_refused() -> None:
    path = TRIES.path("x")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(sample(TRIES), path, {"format": TRIES.format})
    with pytest.raises(DamagedFileError, match="checksum"):
        TRIES.map(path)


@pytest.mark.parametrize(
    ("kind", "metadata", "message"),
    [
        (replace(TRIES, format="other"), {}, "another"),
        (TRIES, {"of": "z"}, "another"),
        (replace(TRIES, most=2), {}, "more than"),
    ],
    ids=["format", "metadata", "size"],
)
def test_files_of_another_format_or_content_or_too_large_are_refused(
    kind: ArrayFile, metadata: dict[str, str], message: str
) -> None:
    path = write_sample(TRIES)
    with pytest.raises(DamagedFileError, match=message):
        kind.map(path, metadata)


def test_arrays_that_are_too_large_are_not_written() -> None:
    path = TRIES.path("y")
    with pytest.raises(OSError) as caught:
        replace(TRIES, most=2).write(path, sample(TRIES), METADATA)
    assert caught.value.errno == errno.EFBIG
    assert not path.exists()


def test_a_missing_file_is_not_a_damaged_one() -> None:
    with pytest.raises(FileNotFoundError):
        TRIES.map(TRIES.path("none"))


@pytest.mark.parametrize("make", [os.makedirs, os.mkfifo])
def test_folders_and_pipes_are_refused(make: Callable[[Path], None]) -> None:
    path = TRIES.path("x")
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises(DamagedFileError, match="not a regular file"):
        TRIES.map(path)
    with pytest.raises(DamagedFileError, match="not a regular file"):
        read_header(path)


@pytest.fixture
def checksums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by each checksum that is computed."""
    computed: list[int] = []
    compute = arrays_module._checksum

    def recording_checksum(*arguments: Any) -> Any:
        checksum = compute(*arguments)
        computed.append(checksum)
        return checksum

    monkeypatch.setattr(arrays_module, "_checksum", recording_checksum)
    return computed


def test_a_file_is_checked_once_and_again_after_a_change(checksums: list[int]) -> None:
    path = DATASTORES.write(DATASTORES.path("x"), sample(DATASTORES), {})
    checksums.clear()
    DATASTORES.map(path)
    assert not checksums  # This process has written the file and knows its checksum.

    os.utime(path, LONG_AGO)
    for _ in range(3):
        DATASTORES.map(path)
    assert len(checksums) == 1

    content = path.read_bytes()
    overwrite(path, content)
    for _ in range(2):
        DATASTORES.map(path)
    assert len(checksums) == 2

    overwrite(path, content[:-1] + b"\7")
    os.utime(path, LONG_AGO)
    with pytest.raises(DamagedFileError, match="checksum"):
        DATASTORES.map(path)


def test_a_failed_write_leaves_nothing_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ngtcli.system.arrays.write_all", fail)
    reporter = RecordingReporter()
    documents = [Document("a", "The tide.")]
    reporter.of(lambda: document_trie(documents, Tokenizer(FakeBackend()), 100, 3, 1))
    assert reporter.warnings == ["the trie is not cached: no space left on device"]
    assert not list(TRIES.path("x").parent.iterdir())


def test_the_path_of_the_cache_may_have_bytes_that_are_not_utf_8(
    tmp_path: Path, checksums: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "\udcff"))
    path = TRIES.write(TRIES.path("x"), sample(TRIES), {})
    checksums.clear()
    assert are_equal(TRIES.map(path)[0], sample(TRIES))
    assert not checksums
    assert not store.take_remark()
