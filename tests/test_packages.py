"""Checkpoints that need packages: one line names them, before anything is read."""

from pathlib import Path
from typing import Any

import pytest

from ngtcli.decode.load import Wanted, load_model
from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import find
from ngtcli.model_files.scheme import require_for_weights, scheme_of
from tests.support.helpers import changed, ngt

METHODS = {
    "bitsandbytes": "bitsandbytes and accelerate", "gptq": "optimum",  # gptqmodel is there
    "awq": "accelerate", "torchao": "torchao",
    "compressed-tensors": "compressed-tensors", "fp8": "accelerate", "mxfp4": "accelerate",
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_package_is_named_with_the_command(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = "ngtcli.model_files.scheme.find_spec"
    monkeypatch.setattr(there, lambda name: name == "gptqmodel" or None)
    folder = changed(tmp_path / "model", quantization_config={"quant_method": method})
    assert scheme_of(folder).method == method
    are = "are" if " and " in METHODS[method] else "is"

    def loaded(name: str) -> object:
        return load_model(Wanted(name))

    for read in (loaded, lambda name: require_for_weights(name, name)):
        with pytest.raises(ModelError) as caught:
            read(folder)
        line = f"{folder}: reading weights quantised by {method}"
        assert str(caught.value).startswith(line)
        assert str(caught.value).endswith(f" needs {METHODS[method]}, which {are} not installed")
        assert caught.value.hint == f"pip install {METHODS[method].replace(' and ', ' ')}"
    done = ngt("summarize", "-m", folder, str(tmp_path / "nowhere.txt"))
    assert (done.returncode, b"nowhere" in done.stderr) == (4, False)


@pytest.mark.parametrize(("file", "package"), [("a.gguf", "gguf"), ("adapter_config.json", "peft")])
def test_the_extra_is_named_that_a_kind_of_file_needs(
    file: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.model_files.scheme.find_spec", lambda _: None)
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
    assert scheme_of(changed(tmp_path / "model", **values)).method == method
    assert not scheme_of(tmp_path / "nothing").method
