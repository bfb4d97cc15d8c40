"""Models that accelerate places on several devices; here in the memory of a CPU and on the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ngtcli.config import Settings
from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.probe import find_batching
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.pretrained import loading
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.onednn import Int8Kernel
from ngtcli.models.weights.trials import SPREAD, model_fingerprint, module_devices
from tests.support.families import build, family, target
from tests.support.helpers import HARBOUR, ngt
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import decode, generate, make_drafter

pytestmark = pytest.mark.loads
PROMPT = [5, 6, 7, 8, 9] * 6
Place = Callable[..., None]


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a function that makes "auto" put the named modules on disk, all others in memory."""

    def place(*names: str) -> None:
        def device_map(hf: Any, *_: object) -> dict[str, str]:
            return dict(parts("", hf))

        def parts(name: str, module: Any) -> Iterator[tuple[str, str]]:
            if name in names:
                yield name, "disk"
            elif name and not any(on_disk_name.startswith(f"{name}.") for on_disk_name in names):
                yield name, "cpu"
            else:
                for child_name, child in module.named_children():
                    yield from parts(f"{name}.{child_name}".lstrip("."), child)

        monkeypatch.setattr("transformers.modeling_utils._get_device_map", device_map)

    return place


def test_a_model_that_fits_on_one_device_runs_as_without_a_device_map() -> None:
    reported = RecordingReporter()
    spec = ModelSpec("builtin", "cpu", "float32", packed=False, device_map="auto")
    model = reported.of(lambda: load_model(spec))
    alone = load_model(ModelSpec("builtin", "cpu", "float32", packed=False))
    assert reported.warnings == []
    assert module_devices(model.hf) == ()
    assert model_fingerprint(model.hf) == model_fingerprint(alone.hf)
    assert model.hf.state_dict().keys() == alone.hf.state_dict().keys()
    for name, weight in alone.hf.state_dict().items():
        assert torch.equal(model.hf.state_dict()[name], weight)


def test_layers_on_the_disk_give_the_tokens_of_generate(on_disk: Place) -> None:
    on_disk("model.layers.1", "model.layers.4")
    reported = RecordingReporter()
    spec = ModelSpec("builtin", "cpu", "auto", device_map="auto")
    model = reported.of(lambda: load_model(spec))
    (warning,) = reported.warnings
    assert warning.endswith(", 2 on disk")
    assert model.dtype == torch.float32
    assert model.hf.model.layers[4].mlp.up_proj.weight.is_meta
    hf = AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=torch.float32)
    drafted = decode(model, make_drafter("trie", DraftSettings(lp=2)), PROMPT, max_tokens=24)
    assert drafted.output == generate(hf, PROMPT, 24)[: len(drafted.output)]
    assert len(drafted.output) > 2
    assert model.verifies_trees
    assert find_batching(model).why == SPREAD
    assert module_devices(model.hf) == model_fingerprint(model.hf)[-len(module_devices(model.hf)) :]


@pytest.mark.parametrize(
    ("name", "sharded"),
    [("llama", True), ("gemma2", False), ("lfm2", True), ("falcon_h1", False), ("bloom", True)],
)
def test_families_draft_as_far_as_the_probe_finds_it(
    name: str, sharded: bool, tmp_path: Path, on_disk: Place
) -> None:
    original = build(family(name))
    original.save_pretrained(tmp_path, max_shard_size="40KB" if sharded else "1GB")
    layers = "transformer.h" if name == "bloom" else "model.layers"
    on_disk(f"{layers}.1")
    hf, report = read_checkpoint(
        str(tmp_path), AutoConfig.from_pretrained(tmp_path), None, torch.float32, device_map="auto"
    )
    assert not any(report.values())
    assert module_devices(hf)
    model = target(hf, name)
    alone = target(original, name)
    assert model.mode.support is alone.mode.support
    assert model.takes_drafts
    drafter = make_drafter("prompt-lookup")
    for prompt in (PROMPT, [*range(3, 20), *range(3, 12)]):
        assert decode(model, drafter, prompt, max_tokens=24).output == generate(
            original, prompt, 24
        )


def test_converted_weights_cannot_stay_on_the_disk(tmp_path: Path, on_disk: Place) -> None:
    build(family("mixtral")).save_pretrained(tmp_path)
    on_disk("model.layers.1")
    with (
        pytest.raises(ModelError, match="a: cannot be loaded .not all fits in memory"),
        loading("a"),
    ):
        config = AutoConfig.from_pretrained(tmp_path)
        read_checkpoint(str(tmp_path), config, None, torch.float32, device_map="auto")


def test_a_command_says_where_the_parts_are(on_disk: Place) -> None:
    on_disk("model.layers.2")
    flags = ["summarize", HARBOUR, "--max-tokens", "24", "--dtype", "float32", "-v"]
    done = ngt(*flags, "--set", "device_map=auto")
    alone = ngt(*flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout
    assert b"on cpu, 1 on disk" in done.stderr
    assert f"not captured: {SPREAD}." in done.stderr.decode()


def test_an_embedding_on_disk_is_refused(on_disk: Place) -> None:
    on_disk("model.embed_tokens")
    with pytest.raises(ModelError, match="^builtin: "):
        load_model(ModelSpec("builtin", "cpu", device_map="auto"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "int8"}, "quantize is 'int8'"),
        ({"device": "cpu"}, "device is 'cpu'"),
        ({"exact": "on"}, "exact is 'on'"),
    ],
)
def test_settings_for_a_single_device_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=f"^device_map is auto and {words}$"):
        Settings.of(device_map="auto", **options)


def test_a_missing_package_is_named_before_documents_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ngtcli.models.requirements.find_spec", lambda _: None)
    with pytest.raises(ModelError) as caught:
        load_model(ModelSpec("builtin", device_map="auto"))
    assert str(caught.value) == "--set device_map=auto needs accelerate, which is not installed"
    assert caught.value.hint == "pip install 'ngtcli[accelerate]'"
    done = ngt("summarize", str(tmp_path / "nowhere.txt"), "--set", "device_map=auto")
    assert done.returncode == 4
    assert b"nowhere" not in done.stderr


def test_integers_of_our_own_layers_are_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.decoding.load.require_for_weights", lambda *_: None)
    monkeypatch.setattr("ngtcli.decoding.load.int8_kernel", lambda _: Int8Kernel())
    with pytest.raises(ModelError, match="places no integers that ngt computes itself"):
        load_model(ModelSpec("builtin", "cpu", quantize="int8", device_map="auto"))
