"""Arrays mapped from a file: those that were written, and an error for anything else."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ngtcli.system import cache as cache_bound
from ngtcli.system import mapped
from ngtcli.system.arrays import write_arrays
from ngtcli.system.mapped import map_arrays
from ngtcli.system.storage import DamagedFileError

NAMES = ("a", "b", "c")
ARRAYS = {
    "a": np.arange(7, dtype=np.int32),
    "b": np.zeros(0, np.int32),
    "c": np.array([-5, 9], np.int32),
}
WANTED = {"format": "1"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = write_arrays(tmp_path / "x.safetensors", ARRAYS, {**WANTED, "of": "y"}, 10_000)
    os.utime(path, (1_000_000_000, 1_000_000_000))  # long ago
    return path


def read(path: Path, wanted: dict[str, str] = WANTED) -> dict[str, Any]:
    return map_arrays(path, NAMES, wanted, 10_000)[0]


def test_mapped_arrays_are_those_written_and_cannot_be_changed(written: Path) -> None:
    arrays, metadata = map_arrays(written, NAMES, WANTED, 10_000)
    assert all(np.array_equal(arrays[n], ARRAYS[n]) for n in NAMES) and metadata["of"] == "y"
    with pytest.raises(ValueError, match="read-only"):
        arrays["a"][0] = 1


def test_the_checksum_is_compared_once_and_again_after_a_change(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    whole = mapped.checksum
    monkeypatch.setattr(mapped, "checksum", lambda a: compared.append(1) or whole(a))
    for _ in range(3):
        read(written)
    assert len(compared) == 1
    data = written.read_bytes()
    written.write_bytes(data)
    read(written)
    assert len(compared) == 2
    written.write_bytes(data[:-1] + b"\7")
    with pytest.raises(DamagedFileError, match="checksum"):
        read(written)


def test_noting_its_use_costs_no_comparison(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    whole = mapped.checksum
    monkeypatch.setattr(mapped, "checksum", lambda a: compared.append(1) or whole(a))
    monkeypatch.setattr(cache_bound, "_MARK_S", -1.0)  # each use is noted
    for _ in range(3):
        read(written)
    assert len(compared) == 1


@pytest.mark.parametrize("metadata", [b"[]", b"null", b'"x"'])
def test_metadata_of_another_kind_are_refused(written: Path, metadata: bytes) -> None:
    header = b'{"__metadata__": ' + metadata + b"}"
    header += b" " * (-len(header) % 4)
    written.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedFileError, match="no metadata"):
        read(written)


def test_a_file_too_young_to_show_a_change_is_compared_each_time(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "x.safetensors", ARRAYS, WANTED, 10_000)
    read(path)
    assert list(tmp_path.iterdir()) == [path]


def test_whatever_stands_in_the_file_is_read_as_written_or_refused(written: Path) -> None:
    whole, rng = written.read_bytes(), random.Random(0)
    cases = [b"", b"\0" * 8, whole[:-1], whole[:20], b"\xff" * 100]
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(whole))] = rng.randrange(256)
        cases.append(bytes(broken))
    for case in cases:
        written.write_bytes(case)
        try:
            found = read(written)
        except DamagedFileError:
            continue
        assert all(np.array_equal(found[n], ARRAYS[n]) for n in NAMES)


def test_another_version_other_arrays_and_too_large_a_file_are_refused(written: Path) -> None:
    for attempt in (
        lambda: read(written, {"format": "2"}),
        lambda: map_arrays(written, ("a", "b"), WANTED, 10_000),
        lambda: map_arrays(written, NAMES, WANTED, 10),
        lambda: read(written.parent),
    ):
        with pytest.raises(DamagedFileError):
            attempt()


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"stamp": "x"}', b"\xff"])
def test_a_damaged_note_of_the_check_only_costs_a_check(written: Path, kept: bytes) -> None:
    read(written)
    written.with_suffix(".checked.json").write_bytes(kept)
    assert np.array_equal(read(written)["a"], ARRAYS["a"])
