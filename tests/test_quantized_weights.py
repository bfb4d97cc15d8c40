"""Quantised weights that the cache keeps: read instead of the checkpoint, never a wrong file."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_quantize import WAY, saved, scores
from tiny_models import make_hf

from ngtcli.decode import load_quantized as module
from ngtcli.decode.int8_order import makes_opaque
from ngtcli.decode.load_quantized import load_quantized
from ngtcli.model_files.quantized import kept, kept_file
from ngtcli.system.storage import home

pytestmark = pytest.mark.skipif(
    WAY is None or not makes_opaque(), reason="no product of 8-bit integers, or not in a file"
)


class Loads:
    """Loads a checkpoint as a start does; notes what was said, and how often it was quantised."""

    def __init__(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.said, self.quantised = folder, list[str](), 0
        real = module.read_checkpoint

        def counted(*given: Any) -> Any:
            self.quantised += 1
            return real(*given)

        monkeypatch.setattr(module, "read_checkpoint", counted)

    def __call__(self) -> torch.Tensor:
        assert WAY is not None
        hf, report = load_quantized(self.folder, torch.float32, WAY, self.said.append)
        assert not report["missing_keys"]
        return scores(hf)

    @property
    def file(self) -> Path:
        return kept_file(self.folder)


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    hf = make_hf("qwen2", tie_word_embeddings=True)
    return Loads(saved(tmp_path / "model", hf), monkeypatch)


def test_the_second_start_reads_one_file(loads: Loads) -> None:
    first = loads()
    weights = Path(loads.folder) / "model.safetensors"
    about = weights.stat()
    weights.write_bytes(b"\0" * about.st_size)  # it is not looked into
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert torch.equal(loads(), first) and loads.quantised == 1 and not loads.said
    assert [(one.folder, one.bytes) for one in kept()] == [
        (os.path.realpath(loads.folder), loads.file.stat().st_size)
    ]


def test_damage_costs_quantising_again(loads: Loads) -> None:
    first, rng = loads(), random.Random(0)
    whole = loads.file.read_bytes()
    cases = [whole[:keep] for keep in (0, 7, 40, 4096, -1)] + [os.urandom(5000), whole + b"\0"]
    for place in (100, len(whole) // 2, len(whole) - 100, len(whole) - 41, len(whole) - 1):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        cases.append(bytes(broken))
    for done, case in enumerate(cases, 2):
        loads.file.write_bytes(case)
        assert torch.equal(loads(), first)
        assert loads.quantised == done
        assert len(loads.said) == 1 and "made again" in loads.said.pop()


def test_a_changed_checkpoint_is_quantised_again(loads: Loads) -> None:
    first = loads()
    config = Path(loads.folder) / "config.json"
    for number, change in enumerate(({"rope_theta": 77.0}, {"rms_norm_eps": 0.5}), 2):
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        loads()
        assert loads.quantised == number
    saved(Path(loads.folder), make_hf("qwen2", seed=1, tie_word_embeddings=True))
    other = loads()
    assert loads.quantised == 4 and not torch.equal(other, first)
    assert len(list(kept())) == 1


def test_what_cannot_be_kept_is_computed_all_the_same(loads: Loads) -> None:
    home("cache").mkdir(parents=True, exist_ok=True)
    (home("cache") / "quantized").write_text("a file where the folder should be")
    for number in (1, 2):
        first = loads()
        assert loads.quantised == number and "not kept" in loads.said.pop()
    (home("cache") / "quantized").unlink()
    assert torch.equal(loads(), first) and not loads.said
