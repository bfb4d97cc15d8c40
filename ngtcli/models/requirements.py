"""Requirements of checkpoints: packages, and for some quantized weights a GPU.

It is checked before anything large is read.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import read_object
from ngtcli.system.machine import pick_device

# Packages by the `quant_method` of config.json, by the names that pip knows: what transformers 5.23
# asks for. transformers itself reports what it needs for a method that is not listed.
_PACKAGES = {
    "aqlm": ("aqlm", "accelerate"),
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel", "accelerate"),
    "bitnet": ("accelerate",),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("accelerate",),
    "gptq": ("gptqmodel", "optimum"),
    "hqq": ("hqq",),
    "mxfp4": ("accelerate",),
    "torchao": ("torchao",),
}
# Their kernels are made for GPUs.
_GPU_ONLY = ("awq", "compressed-tensors", "gptq")


def quantization_method(folder: str | Path) -> str:
    """Return how the weights in a model's folder are quantized, as config.json names it.

    "" for weights that are not quantized, "unknown" where config.json does not name the method.
    """
    config = read_object(Path(folder) / "config.json")
    for part in (config, config.get("text_config")):
        quantization = part.get("quantization_config") if isinstance(part, dict) else None
        if isinstance(quantization, dict):
            return str(quantization.get("quant_method") or "unknown")
    return ""


def runs_on(method: str, device: str) -> bool:
    """Return whether weights quantized by a method run on a device ("cpu", "cuda" or "mps")."""
    return device != "cpu" or method not in _GPU_ONLY


def require(purpose: str, packages: Sequence[str], install: str = "") -> None:
    """Raise ModelError where a package that a purpose needs is missing.

    Args:
        purpose: The subject of the message, such as "reading GGUF files".
        packages: Names that pip knows.
        install: What the hint passes to `pip install`; the missing packages by default.
    """
    missing = [name for name in packages if find_spec(name.replace("-", "_")) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        message = f"{purpose} needs {' and '.join(missing)}, which {are} not installed"
        raise ModelError(message, hint=f"pip install {install or ' '.join(missing)}")


def require_for_weights(
    name: str, folder: str | Path, device: str = "cpu", device_map: str = "none"
) -> None:
    """Raise ModelError where the weights in a folder need a GPU or a package that is missing.

    Args:
        name: The model as the user named it.
        folder: Where its config.json lies.
        device: "auto", "cpu", "cuda" or "mps".
        device_map: "auto" needs the package accelerate.
    """
    if device_map == "auto":
        require("--set device_map=auto", ["accelerate"], "'ngtcli[accelerate]'")
    method = quantization_method(folder)
    if method in _GPU_ONLY and not runs_on(method, pick_device(device)):
        raise ModelError(
            f"{name}: its weights are quantized by {method}, which runs on a GPU only",
            hint="Name a GGUF file of the model, or its original checkpoint with --quantize int8.",
        )
    if method:
        require(f"{name}: reading weights quantized by {method}", _PACKAGES.get(method, ()))
