"""Requirements of checkpoints: packages, and for some quantized weights a GPU.

They are checked before anything large is read.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import read_object
from ngtcli.system.machine import pick_device

# The packages that transformers 5.23 requires for each `quant_method` of config.json, by their
# names on PyPI. For other methods transformers itself reports what is missing.
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
# Methods whose kernels run on GPUs only.
_GPU_ONLY = ("awq", "compressed-tensors", "gptq")


def quantization_method(folder: str | Path) -> str:
    """Return the quantization method that config.json names for the weights in a folder.

    Returns:
        "" for weights that are not quantized, "unknown" if config.json does not name the method.
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
    """Raise ModelError if a package that a purpose needs is missing.

    Args:
        purpose: The subject of the message, such as "reading GGUF files".
        packages: Their names on PyPI.
        install: The argument of `pip install` in the hint; by default the missing packages.
    """
    missing = [name for name in packages if find_spec(name.replace("-", "_")) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ModelError(
            f"{purpose} needs {' and '.join(missing)}, which {verb} not installed",
            hint=f"pip install {install or ' '.join(missing)}",
        )


def require_for_weights(
    name: str, folder: str | Path, device: str = "cpu", device_map: str = "none"
) -> None:
    """Raise ModelError if the weights in a folder need a GPU or a package that is missing.

    Args:
        name: The model as the user named it.
        folder: The folder with its config.json.
        device: "auto", "cpu", "cuda" or "mps".
        device_map: "auto" needs the package accelerate.
    """
    if device_map == "auto":
        require("--set device_map=auto", ["accelerate"], "'ngtcli[accelerate]'")
    method = quantization_method(folder)
    if method in _GPU_ONLY and not runs_on(method, pick_device(device)):
        raise ModelError(
            f"{name}: the weights are quantized by {method}, which runs on GPUs only",
            hint="Use a GGUF file of the model, or its original checkpoint with --quantize int8.",
        )
    if method:
        require(f"{name}: reading weights quantized by {method}", _PACKAGES.get(method, ()))
