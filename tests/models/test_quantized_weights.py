"""Quantized weights that the cache keeps: read instead of the checkpoint, never a wrong file."""

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ngtcli.models.quantized import QUANTIZED, cache_path, cached_weights
from ngtcli.models.weights import load_quantized as module
from ngtcli.models.weights.linear import MappedEmbedding
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.models.weights.tensor_store import TensorStore, to_tensors
from ngtcli.models.weights.trials import model_fingerprint
from ngtcli.system.arrays import HEADER_SIZE, PADDING, ArrayWriter
from ngtcli.system.files import home, write_all
from tests.support.helpers import ngt
from tests.support.int8_layers import INT8, KERNEL
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import make_hf, saved, scores

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers"),
]


class Loader:
    """Loads a checkpoint as a start of ngt does; counts how often it was quantized."""

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.quantized = 0
        self._reported = RecordingReporter()
        read_checkpoint = module.read_checkpoint

        def read_and_count(*args: Any, **kwargs: Any) -> Any:
            self.quantized += 1
            return read_checkpoint(*args, **kwargs)

        monkeypatch.setattr(module, "read_checkpoint", read_and_count)

    def __call__(self) -> torch.Tensor:
        hf, report = self._reported.of(lambda: load_quantized(self.folder, INT8))
        assert not report["missing_keys"]
        return scores(hf)

    @property
    def warnings(self) -> list[str]:
        return self._reported.warnings

    @property
    def file(self) -> Path:
        return cache_path({"folder": self.folder})


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    hf = make_hf("qwen2", tie_word_embeddings=True)
    return Loader(saved(tmp_path / "model", hf), monkeypatch)


def test_the_second_start_reads_one_file(loads: Loader) -> None:
    first = loads()
    assert torch.equal(loads(), first)
    assert loads.quantized == 1
    assert not loads.warnings
    assert [(cached.folder, cached.bytes) for cached in cached_weights()] == [
        (os.path.realpath(loads.folder), loads.file.stat().st_size)
    ]


def test_replaced_weights_are_quantized(loads: Loader, tmp_path: Path) -> None:
    """The new file has the size and the time of the old one, as some copies have."""
    first = loads()
    weights = Path(loads.folder) / "model.safetensors"
    status = weights.stat()
    saved(tmp_path / "other", make_hf("qwen2", seed=1, tie_word_embeddings=True))
    (tmp_path / "other" / weights.name).replace(weights)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_size == status.st_size
    assert not torch.equal(loads(), first)
    assert loads.quantized == 2
    assert len(loads.warnings) == 1
    assert "made again" in loads.warnings[0]


@pytest.mark.parametrize("kept_bytes", [0, 40, -1, None])
def test_damage_costs_quantizing_again(loads: Loader, kept_bytes: int | None) -> None:
    first = loads()
    content = loads.file.read_bytes()
    broken = content[:-200] + bytes([content[-200] ^ 1]) + content[-199:]
    loads.file.rename(loads.file.with_name("old"))
    loads.file.write_bytes(broken if kept_bytes is None else content[:kept_bytes])
    assert torch.equal(loads(), first)
    assert loads.quantized == 2
    assert len(loads.warnings) == 1
    assert "made again" in loads.warnings.pop()
    assert torch.equal(loads(), first)
    assert loads.quantized == 2


def test_a_cached_file_is_in_the_format_of_safetensors(tmp_path: Path) -> None:
    """Other libraries read it, whatever its dtypes and sizes, but not before it is finished."""
    source = torch.Generator().manual_seed(0)
    wide = torch.randn(3, 7, generator=source)
    dtypes = torch.int8, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.float64
    tensors = {str(dtype): (wide * 9).to(dtype) for dtype in dtypes}
    tensors |= {"whole": torch.ones(16, 64), "none": torch.ones(0, 5), "one": torch.tensor(7)}
    path = tmp_path / "weights.safetensors"
    with closing(ArrayWriter(tmp_path)) as writer:
        store = TensorStore(writer)
        for name, tensor in tensors.items():
            store.add(name, tensor)
        with pytest.raises(SafetensorError):
            load_file(f"/dev/fd/{writer._file.fileno()}")
        mapped = store.finish(path, {"unused": ["é\udc80"]})
    mapped_again = to_tensors(QUANTIZED.map(path, {"unused": json.dumps(["é\udc80"])})[0])
    by_safetensors = {
        name: value for name, value in load_file(path).items() if not name.endswith(PADDING)
    }
    for read_tensors in (mapped, mapped_again, by_safetensors):
        assert read_tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert read_tensors[name].dtype == tensor.dtype
            assert torch.equal(read_tensors[name], tensor)
    assert all(value.data_ptr() % 64 == 0 for value in mapped_again.values() if value.numel())


def test_tensors_that_a_file_cannot_hold_stay_in_memory(
    tmp_path: Path, loads: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ArrayWriter(tmp_path)) as writer:
        store = TensorStore(writer)
        for dtype in (torch.complex128, torch.float8_e5m2):
            with pytest.raises(OSError, match=f"cannot hold numbers of type {str(dtype)[6:]}"):
                store.add("b", torch.ones(2).to(dtype))
        store.add("a" * HEADER_SIZE, torch.ones(3))
        with pytest.raises(OSError, match="too many"):
            store.finish(tmp_path / "a.safetensors")
    expected = loads()
    loads.file.unlink()
    monkeypatch.setattr(
        "ngtcli.models.weights.tensor_store.to_array", lambda _: np.ones(2, complex)
    )
    assert torch.equal(loads(), expected)
    assert "a file cannot hold numbers of type complex128" in loads.warnings.pop()
    assert not list(loads.file.parent.iterdir())


def test_a_changed_checkpoint_is_quantized_again(loads: Loader) -> None:
    first = loads()
    config = Path(loads.folder) / "config.json"
    for number, change in enumerate(({"rope_theta": 77.0}, {"rms_norm_eps": 0.5}), 2):
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        loads()
        assert loads.quantized == number
    saved(Path(loads.folder), make_hf("qwen2", seed=1, tie_word_embeddings=True))
    last = loads()
    assert loads.quantized == 4
    assert not torch.equal(last, first)
    assert len(cached_weights()) == 1


def test_weights_that_cannot_be_cached_are_still_used(loads: Loader) -> None:
    home("cache").mkdir(parents=True, exist_ok=True)
    (home("cache") / "quantized").write_text("a file where the folder should be")
    for number in (1, 2):
        first = loads()
        assert loads.quantized == number
        assert "not cached" in loads.warnings.pop()
    (home("cache") / "quantized").unlink()
    assert torch.equal(loads(), first)
    assert not loads.warnings


def test_a_full_disk_causes_one_warning_and_leaves_no_file(
    loads: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_all
    writes = [0]

    def fill_the_disk(file: IO[bytes], data: memoryview) -> None:
        writes[0] += 1
        if writes[0] > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("ngtcli.system.arrays.write_all", fill_the_disk)
        first = loads()
    assert loads.warnings == ["the quantized weights are not cached: no space left on device"]
    assert not list(loads.file.parent.iterdir())
    loads.warnings.clear()
    with monkeypatch.context() as patch:  # the free space is checked first
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
        assert torch.equal(loads(), first)
    assert "not cached" in loads.warnings.pop()
    assert not list(loads.file.parent.iterdir())
    assert torch.equal(loads(), first)
    assert not loads.warnings


def test_no_file_is_written_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_hf("llama", tie_word_embeddings=False, hidden_size=256, intermediate_size=512)
    folder = saved(tmp_path, hf)
    size = (tmp_path / "model.safetensors").stat().st_size
    reported = RecordingReporter()
    warnings = reported.warnings

    def load_with(free: int) -> int:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
        reported.of(lambda: load_quantized(folder, INT8))
        return len(cached_weights())

    assert load_with(size // 10) == 0
    assert len(warnings) == 1
    # 8-bit integers take less than the file in float32 that they are made of.
    assert load_with(int(0.9 * size)) == 1
    assert len(warnings) == 1


def test_two_starts_at_once_leave_one_complete_file(loads: Loader) -> None:
    """The second start begins to write, and finishes, while the first one writes."""
    load_again = Loader.__call__
    add_tensor = ArrayWriter.add
    results = list[torch.Tensor]()

    def add(self: ArrayWriter, *args: Any) -> None:
        add_tensor(self, *args)
        if not results:
            results.append(torch.zeros(0))
            results.append(load_again(loads))

    ArrayWriter.add = add  # type: ignore[method-assign]
    try:
        first = loads()
    finally:
        ArrayWriter.add = add_tensor  # type: ignore[method-assign]
    assert loads.quantized == 2
    assert torch.equal(results[1], first)
    assert torch.equal(loads(), first)
    assert loads.quantized == 2
    assert not loads.warnings
    assert len(list(loads.file.parent.glob("*.safetensors"))) == 1


def test_trials_of_the_first_start_count_at_the_second(loads: Loader) -> None:
    first, second = (load_quantized(loads.folder, INT8)[0] for _ in range(2))
    assert model_fingerprint(first) == model_fingerprint(second)
    assert loads.folder in str(model_fingerprint(first))


def test_an_embedding_of_its_own_keeps_the_narrower_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path, make_hf("llama", tie_word_embeddings=False).to(torch.bfloat16))
    hf, _ = load_quantized(folder, INT8)
    assert hf.dtype == torch.float32
    kept = hf.get_input_embeddings()
    assert isinstance(kept, MappedEmbedding)
    assert kept.weight.dtype == torch.bfloat16
    true = kept.weight.float()
    assert torch.equal(kept(torch.arange(9)[None]), true[None, :9])


def test_models_list_shows_what_is_kept(loads: Loader) -> None:
    loads()
    size = loads.file.stat().st_size
    rows = {row["name"]: row for row in json.loads(ngt("models", "list", "--json").stdout)}
    assert rows["builtin"]["quantized_bytes"] == 0
    row = rows[os.path.realpath(loads.folder)]
    assert row["quantized_bytes"] == size
    assert row["bytes"] > 0
    assert row["kinds"] == ["int8"]
    assert b" in int8" in ngt("models", "list").stdout
    assert os.path.realpath(loads.folder).encode() in ngt("models", "list").stdout
    Path(loads.folder).rename(f"{loads.folder}-moved")
    assert b"\tgone\t" in ngt("models", "list").stdout
    loads.file.write_bytes(b"damaged")
    assert len(json.loads(ngt("models", "list", "--json").stdout)) == len(rows) - 1
