"""Checkpoints that need packages: one line names them, before anything is read."""

from pathlib import Path
from typing import Any

import pytest

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import find
from ngtcli.models.requirements import quantization_method, require_for_weights
from tests.support.helpers import copy_builtin_model, ngt

METHODS = {
    "bitsandbytes": "bitsandbytes and accelerate",
    "torchao": "torchao",
    "fp8": "accelerate",
    "mxfp4": "accelerate",
}
ON_GPU = {"gptq": "optimum", "awq": "accelerate", "compressed-tensors": "compressed-tensors"}


def _load(name: str) -> object:
    return load_model(ModelSpec(name))


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only gptqmodel is installed."""
    find_spec = "ngtcli.models.requirements.find_spec"
    monkeypatch.setattr(find_spec, lambda name: name == "gptqmodel" or None)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize("method", METHODS)
def test_a_missing_package_is_named_with_the_command(method: str, tmp_path: Path) -> None:
    folder = copy_builtin_model(tmp_path / "model", quantization_config={"quant_method": method})
    assert quantization_method(folder) == method
    are = "are" if " and " in METHODS[method] else "is"
    for read in (_load, lambda name: require_for_weights(name, name)):
        with pytest.raises(ModelError) as caught:
            read(folder)
        line = f"{folder}: reading weights quantized by {method}"
        assert str(caught.value).startswith(line)
        assert str(caught.value).endswith(f" needs {METHODS[method]}, which {are} not installed")
        assert caught.value.hint == f"pip install {METHODS[method].replace(' and ', ' ')}"
    done = ngt("summarize", "-m", folder, str(tmp_path / "nowhere.txt"))
    assert done.returncode == 4
    assert b"nowhere" not in done.stderr


@pytest.mark.parametrize("method", ON_GPU)
def test_weights_for_gpus_are_refused_on_a_cpu_before_documents_are_read(
    method: str, tmp_path: Path
) -> None:
    folder = copy_builtin_model(tmp_path / "model", quantization_config={"quant_method": method})
    for read in (_load, lambda name: require_for_weights(name, name, "auto")):
        with pytest.raises(ModelError, match=f"quantized by {method}, which runs on GPUs only"):
            read(folder)
    done = ngt("summarize", "-m", folder, str(tmp_path / "nowhere.txt"))
    assert done.returncode == 4
    assert b"nowhere" not in done.stderr
    assert b"GGUF" in done.stderr
    assert b"--quantize int8" in done.stderr


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize("method", ON_GPU)
def test_on_a_gpu_the_package_is_named_that_runs_such_weights(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_builtin_model(tmp_path / "model", quantization_config={"quant_method": method})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ModelError, match=f"needs {ON_GPU[method]}, which is not installed"):
        require_for_weights(folder, folder, "cuda")


@pytest.mark.parametrize(("file", "package"), [("a.gguf", "gguf"), ("adapter_config.json", "peft")])
def test_the_extra_is_named_that_a_kind_of_file_needs(
    file: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.models.requirements.find_spec", lambda _: None)
    (tmp_path / file).write_text("{}")
    with pytest.raises(ModelError, match=f"needs {package}, which is not installed") as caught:
        find(str(tmp_path))
    assert caught.value.hint == f"pip install 'ngtcli[{package}]'"


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({}, ""),
        ({"quantization_config": {"load_in_4bit": True}}, "unknown"),
        ({"quantization_config": "x"}, ""),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
    ],
)
def test_the_method_is_that_of_the_configuration(
    values: dict[str, Any], method: str, tmp_path: Path
) -> None:
    assert quantization_method(copy_builtin_model(tmp_path / "model", **values)) == method
    assert not quantization_method(tmp_path / "nothing")
