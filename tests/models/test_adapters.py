"""Adapters, merged into their base models, compared with the products of their factors."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.errors import ModelError
from ngtcli.models import adapters
from ngtcli.models.checkpoint import BUILTIN_PATH, find
from ngtcli.models.pretrained import load_tokenizer, tokenizer_class
from ngtcli.models.quantized import cached_weights, identity
from ngtcli.models.stand_in import source_of
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.system.files import home
from tests.support.helpers import HARBOUR, copy_builtin_model, ngt
from tests.support.int8_layers import INT8, KERNEL
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import decode, generate, make_drafter

pytestmark = pytest.mark.cpu
needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="the package peft is missing")
R = 4
ALPHA = 2.0
CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": R,
    "lora_alpha": ALPHA,
    "target_modules": ["q_proj", "down_proj"],
}


def write_adapter(folder: Path, base: str = str(BUILTIN_PATH), **changes: Any) -> str:
    """Write an adapter of random factors in the format of peft, without peft; return its folder."""
    folder.mkdir(exist_ok=True)
    config = CONFIG | {"base_model_name_or_path": base} | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    factors = {}
    for name, weight in load_file(BUILTIN_PATH / "model.safetensors").items():
        if "q_proj" in name or "down_proj" in name:
            prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            rows, inputs = weight.shape
            factors[f"{prefix}A.weight"] = torch.randn(R, inputs) / inputs**0.5
            factors[f"{prefix}B.weight"] = torch.randn(rows, R)
    save_file(factors, folder / "adapter_model.safetensors")
    return str(folder)


def merge_in_float64(folder: str) -> Any:
    """Return the base model with the products of the factors added to its weights in float64."""
    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=torch.float32)
    factors = load_file(Path(folder) / "adapter_model.safetensors")
    for name, parameter in hf.named_parameters():
        prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{prefix}A.weight" in factors:
            a, b = (factors[f"{prefix}{factor}.weight"].double() for factor in "AB")
            parameter.data = (parameter.double() + ALPHA / R * (b @ a)).float()
    return hf.eval()


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if peft were installed; finding an adapter does not use it."""
    monkeypatch.setattr(adapters, "require", lambda *_: None)


@needs_peft
def test_the_weights_are_those_with_the_adapters_products_added(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    reported = RecordingReporter()
    expected = merge_in_float64(folder)
    spec = ModelSpec(folder, "cpu", "float32", packed=False)
    model = reported.of(lambda: load_model(spec))
    assert reported.warnings == [
        f"{folder} is an adapter (LORA) merged into {BUILTIN_PATH}; computed in float32"
    ]
    tensors = model.hf.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-6)
    base_weight = load_file(BUILTIN_PATH / "model.safetensors")[
        "model.layers.0.self_attn.q_proj.weight"
    ]
    assert not torch.allclose(
        tensors["model.layers.0.self_attn.q_proj.weight"], base_weight.float()
    )
    prompt = [5, 6, 7, 8, 9] * 6
    drafted = decode(model, make_drafter("trie", DraftSettings(lp=2)), prompt, max_tokens=20)
    assert drafted.output == generate(expected, prompt, 20)[: len(drafted.output)]


@needs_peft
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")
def test_merged_weights_equal_those_of_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    folder = write_adapter(tmp_path / "adapter", use_rslora=True)
    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=torch.float32)
    expected = PeftModel.from_pretrained(hf, folder).merge_and_unload().state_dict()
    tensors = load_model(ModelSpec(folder, "cpu", "float32", packed=False)).hf.state_dict()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@needs_peft
@pytest.mark.filterwarnings("ignore")  # of tied weights
@pytest.mark.parametrize("kind", ["modules_to_save", "target_modules"])
@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"], ["lm_head", "embed_tokens"]])
def test_a_weight_that_was_tied_is_its_own_where_an_adapter_changes_it(
    kind: str, names: list[str], tmp_path: Path
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=torch.float32)
    targets: dict[str, Any] = {"target_modules": ["q_proj"], kind: names}
    config = LoraConfig(task_type="CAUSAL_LM", r=R, **targets)
    config.base_model_name_or_path = str(BUILTIN_PATH)
    expected: PeftModel = get_peft_model(hf, config).eval()
    torch.manual_seed(0)
    for parameter in expected.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn_like(parameter) / 50
    expected.save_pretrained(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text(json.dumps(config.to_dict(), default=list))
    loaded = load_model(ModelSpec(str(tmp_path), "cpu", "float32", packed=False)).hf
    with torch.inference_mode():
        ids = torch.arange(3, 40)[None]
        torch.testing.assert_close(loaded(ids).logits, expected(ids).logits, rtol=1e-3, atol=1e-3)


@needs_peft
@pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
def test_int8_is_that_of_the_merged_checkpoint_and_is_kept_for_each_adapter(tmp_path: Path) -> None:
    assert KERNEL is not None
    folder = write_adapter(tmp_path / "adapter")
    dtype = transformers.AutoConfig.from_pretrained(BUILTIN_PATH).dtype
    merge_in_float64(folder).to(dtype).save_pretrained(tmp_path / "true")
    expected, _ = load_quantized(str(tmp_path / "true"), INT8)
    logits = []
    reported = RecordingReporter()
    for _ in range(2):
        quantized, report = reported.of(lambda: load_quantized(find(folder), INT8))
        assert not any(report.values())
        logits.append(quantized(torch.arange(3, 40)[None]).logits)
    statuses = reported.statuses
    assert statuses[0].startswith("Quantizing")
    assert statuses[-1].startswith("Read")
    assert torch.equal(*logits)
    # Sums of peft in bfloat16 round otherwise than those in float64.
    torch.testing.assert_close(
        logits[0], expected(torch.arange(3, 40)[None]).logits, rtol=0.05, atol=0.5
    )
    assert folder in {cached.folder for cached in cached_weights()}
    assert find(folder) != str(BUILTIN_PATH)


@needs_peft
def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", target_modules=["nothing"])
    with pytest.raises(ModelError, match=r"cannot be loaded \(Target modules"):
        load_model(ModelSpec(folder, "cpu"))
    folder = write_adapter(tmp_path / "other", target_modules=["q_proj", "v_proj"])
    with pytest.raises(ModelError, match=r"cannot be loaded \(Found missing adapter keys"):
        load_model(ModelSpec(folder, "cpu"))


@needs_peft
def test_commands_answer_with_an_adapter(tmp_path: Path, own_home: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    done = ngt("summarize", "-m", folder, "--dtype", "float32", "--max-tokens", "4", HARBOUR)
    assert done.returncode == 0, done.stderr
    assert b"merged into" in done.stderr
    assert done.stdout.strip()
    assert [*(home("cache") / "stand-ins").iterdir()]


@pytest.mark.usefixtures("present")
def test_an_adapters_identity_covers_its_base_model(tmp_path: Path) -> None:
    base = shutil.copytree(BUILTIN_PATH, tmp_path / "base")
    folder = write_adapter(tmp_path / "adapter", str(base))
    identities = {find(folder): identity(find(folder))}
    assert identities == {find(folder): identity(find(folder))}
    for path in (Path(folder, "adapter_model.safetensors"), base / "model.safetensors"):
        path.write_bytes(path.read_bytes() + b" ")
        assert find(folder) not in identities
        assert identity(find(folder)) not in identities.values()
        identities[find(folder)] = identity(find(folder))
    assert {known_identity["folder"] for known_identity in identities.values()} == {folder}
    source = source_of(find(folder))
    assert source
    assert source.file == folder
    assert source.base == str(base)


@pytest.mark.parametrize("base", ["", str(BUILTIN_PATH)])
def test_a_model_of_somebody_else_does_not_say_which_files_are_read(
    base: str, tmp_path: Path
) -> None:
    source = {"file": "/etc/passwd", "words": "mine", "base": base, "files": {}}
    folder = copy_builtin_model(tmp_path / "model", model_type="other", ngt_source=source)
    (home("cache") / "stand-ins").mkdir(parents=True, exist_ok=True)
    link = home("cache") / "stand-ins" / "link"
    link.symlink_to(folder)
    assert source_of(folder) is None
    assert source_of(link) is None
    assert identity(folder)["folder"] == folder
    assert tokenizer_class(folder) == ""


@pytest.mark.usefixtures("present")
def test_the_tokenizer_is_the_adapters_where_it_has_one(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    (tmp_path / "adapter/.#notes").symlink_to("nowhere")  # as editors leave them
    (tmp_path / "adapter/logs.json").mkdir()
    plain = load_tokenizer(str(BUILTIN_PATH))
    assert load_tokenizer(folder).fingerprint == plain.fingerprint
    (tmp_path / "adapter/chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert load_tokenizer(folder).backend.chat_template == "{{ messages[0].content }}!"


@pytest.mark.usefixtures("present")
def test_a_wrong_base_model_is_reported(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    quantized = copy_builtin_model(
        tmp_path / "quantized", quantization_config={"quant_method": "awq"}
    )
    for base, words in (
        (str(tmp_path / "nowhere"), "its base model: .*nowhere: no such folder"),
        (folder, "its base model: .*: an adapter, where a whole folder is needed"),
        ("", "its base model: the model's name is empty"),
        (None, "names no base model"),
        (quantized, "is quantized"),
    ):
        write_adapter(tmp_path / "adapter", base)  # type: ignore[arg-type]
        with pytest.raises(ModelError, match=words) as caught:
            find(folder)
        assert caught.value.exit_code == 4
        assert caught.value.hint == "Correct base_model_name_or_path in its adapter_config.json."
    (tmp_path / "adapter/adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="names no base model"):
        find(folder)
