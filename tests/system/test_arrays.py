"""Array files of every kind: what was written comes back, and no damage misleads or crashes."""

import errno
import os
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
from ngtcli.system import arrays as module
from ngtcli.system import store
from ngtcli.system.arrays import PADDING, ArrayFile, ArrayWriter, read_header
from ngtcli.system.cache import store_of
from ngtcli.system.files import DamagedFileError, home
from tests.support.helpers import FakeBackend
from tests.support.recording_reporter import RecordingReporter

KINDS = (TRIES, DATASTORES, BACKGROUNDS, POOLS)
ABOUT = {"of": "y", "é": "\n\x00"}


def sample(kind: ArrayFile, rows: int = 5) -> dict[str, Any]:
    """Arrays as they are declared, full of numbers that differ."""
    numbers = np.random.default_rng(rows)
    return {n: numbers.integers(0, 99, rows).astype(a.dtype) for n, a in kind.arrays.items()}


def written(kind: ArrayFile, rows: int = 5) -> Path:
    path = kind.write(kind.path("x"), sample(kind, rows), ABOUT)
    os.utime(path, (1_000_000_000, 1_000_000_000))  # long ago
    return path


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[n].dtype == wanted[n].dtype and np.array_equal(found[n], wanted[n]) for n in wanted
    )


def put(path: Path, content: bytes) -> None:
    """Replace a file: another one has its name."""
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
        path = written(kind, rows)
        arrays, metadata = kind.map(path, ABOUT)
        assert same(arrays, sample(kind, rows))
        assert metadata == {**ABOUT, "format": kind.format}
        others = {n: a for n, a in load_file(path).items() if not n.endswith(PADDING)}
        assert same(others, sample(kind, rows))
        assert all(a.ctypes.data % 64 == 0 for a in arrays.values() if a.size)
        for array in arrays.values():
            array += 1  # neither the file nor what others see changes
        assert same(kind.map(path)[0], sample(kind, rows))
    assert path.stat().st_mode & 0o777 == 0o600
    assert kind.paths() == [path]
    assert (named := store_of(path, home("cache"))) and named.path == path.parent


@settings(max_examples=64, deadline=None)
@given(st.data())
def test_damage_is_refused_or_without_effect(data: st.DataObject) -> None:
    """Any byte or two flipped, cut, longer, foreign, or another file of ngt's in its place."""
    kind, rows = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from([0, 5, 70]))
    path = written(kind, rows)
    content = bytearray(path.read_bytes())
    place = st.integers(0, len(content) - 1) | st.integers(0, 300)
    match data.draw(st.sampled_from(["flip", "flip", "cut", "longer", "foreign", "other"])):
        case "flip":
            for _ in range(data.draw(st.integers(1, 2))):
                content[data.draw(place)] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[data.draw(place) :]
        case "longer":
            content += data.draw(st.binary(min_size=1, max_size=70))
        case "foreign":
            content = bytearray(data.draw(st.binary(max_size=200)))
        case "other":
            others = [k for k in KINDS if (k.folder, k.suffix) != (kind.folder, kind.suffix)]
            content = bytearray(written(data.draw(st.sampled_from(others)), rows).read_bytes())
    data.draw(st.sampled_from([put, overwrite]))(path, bytes(content))
    try:
        found, _ = kind.map(path)
    except DamagedFileError:
        return
    # Without effect: a change of what means nothing, or the counts of the same documents.
    alike = [k for k in KINDS if (k.arrays, k.format) == (kind.arrays, kind.format)]
    assert any(same(found, sample(k, rows)) for k in alike)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
def test_arrays_that_are_not_as_declared_are_refused(kind: ArrayFile) -> None:
    good = sample(kind)
    cases: list[dict[str, Any]] = [{**good, "more": next(iter(good.values()))}]
    for name, array in good.items():
        cases.append({n: a for n, a in good.items() if n != name})
        cases.append({**good, name: array.astype(np.int64)})
        cases.append({**good, name: array[None]})
        rows = [a.rows for a in kind.arrays.values() if a.rows]
        if rows.count(kind.arrays[name].rows) > 1:
            cases.append({**good, name: array[:-1]})
    for arrays in cases:
        with closing(ArrayWriter(kind.path("x").parent)) as writer:
            for name, array in arrays.items():
                writer.add(name, array)
            writer.finish(kind.path("x"), {"format": kind.format})
        with pytest.raises(DamagedFileError, match="arrays"):
            kind.map(kind.path("x"))
    save_file(good, kind.path("x"), {"format": kind.format})
    with pytest.raises(DamagedFileError, match="checksum"):
        kind.map(kind.path("x"))


def test_another_format_another_content_and_too_large_a_file_are_refused() -> None:
    path = written(TRIES)
    for attempt, wanted, why in (
        (replace(TRIES, format="other"), {}, "another"),
        (TRIES, {"of": "z"}, "another"),
        (replace(TRIES, most=2), {}, "more than"),
    ):
        with pytest.raises(DamagedFileError, match=why):
            attempt.map(path, wanted)
    with pytest.raises(OSError) as caught:
        replace(TRIES, most=2).write(TRIES.path("y"), sample(TRIES), ABOUT)
    assert caught.value.errno == errno.EFBIG
    assert not TRIES.path("y").exists()


def test_no_file_is_one_error_and_what_is_not_a_file_another() -> None:
    with pytest.raises(FileNotFoundError):
        TRIES.map(TRIES.path("none"))
    os.makedirs(TRIES.path("folder"))
    os.mkfifo(TRIES.path("pipe"))
    for name in ("folder", "pipe"):
        with pytest.raises(DamagedFileError, match="not a regular file"):
            TRIES.map(TRIES.path(name))
        with pytest.raises(DamagedFileError, match="not a regular file"):
            read_header(TRIES.path(name))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each comparison of a file with its checksum."""
    done: list[int] = []
    whole = module._checksum
    monkeypatch.setattr(module, "_checksum", lambda *given: done.append(1) or whole(*given))
    return done


def test_a_file_is_compared_once_and_again_after_a_change(compared: list[int]) -> None:
    path = DATASTORES.write(DATASTORES.path("x"), sample(DATASTORES), {})
    compared.clear()
    DATASTORES.map(path)
    assert not compared  # it is as it was written here
    os.utime(path, (1_000_000_000, 1_000_000_000))
    for _ in range(3):
        DATASTORES.map(path)
    assert len(compared) == 1
    data = path.read_bytes()
    overwrite(path, data)
    for _ in range(2):
        DATASTORES.map(path)
    assert len(compared) == 2
    overwrite(path, data[:-1] + b"\7")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    with pytest.raises(DamagedFileError, match="checksum"):
        DATASTORES.map(path)


def test_a_failed_write_leaves_nothing_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ngtcli.system.arrays.write_all", full)
    reported = RecordingReporter()
    documents = [Document("a", "The tide.")]
    reported.of(lambda: document_trie(documents, Tokenizer(FakeBackend()), 100, 3, 1))
    assert reported.warnings == ["the trie is not cached: no space left on device"]
    assert not list(TRIES.path("x").parent.iterdir())


def test_a_cache_whose_path_is_no_utf_8_is_like_another(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "\udcff"))
    path = TRIES.write(TRIES.path("x"), sample(TRIES), {})
    compared.clear()
    assert same(TRIES.map(path)[0], sample(TRIES))
    assert not compared
    assert not store.take_remark()
