"""Packages that some checkpoints need beside `transformers`, looked for before anything is read."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ngtcli.errors import ModelError
from ngtcli.model_files.scheme import scheme_of

# By the `quant_method` of config.json, as packages are named where they are installed from: what
# transformers 5.23 asks for. A method that is not here is left to what it says itself.
_QUANTISED = {
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


def require(what: str, packages: Sequence[str], install: str = "") -> None:
    """Raise ModelError where a package that `what` needs is missing; `install` is what pip gets."""
    missing = [name for name in packages if find_spec(name.replace("-", "_")) is None]
    if missing:
        needs, are = " and ".join(missing), "is" if len(missing) == 1 else "are"
        hint = f"pip install {install or ' '.join(missing)}"
        raise ModelError(f"{what} needs {needs}, which {are} not installed", hint)


def require_for_weights(name: str, folder: str | Path, device: str = "cpu") -> None:
    """Raise ModelError where a package is missing that reads the quantised weights in a folder.

    None is needed for a scheme that is computed here on a CPU, for which "auto" may stand.
    """
    scheme = scheme_of(folder)
    if not scheme.bits or device not in ("cpu", "auto"):
        why = f" ({scheme.reason})" if scheme.reason else ""
        what = f"{name}: reading weights quantised by {scheme.method}{why}"
        require(what, _QUANTISED.get(scheme.method, ()))
