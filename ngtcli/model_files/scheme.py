"""How weights of a checkpoint are quantised, and what reads them: layers of ngt, or packages.

What needs a package is looked for before anything is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import read_object

GROUPS = (256, 128, 64, 32)  # inputs that share a scale, as torch's product of 4 bits takes them


@dataclass(frozen=True, slots=True)
class Scheme:
    """The `method` by which weights are quantised as config.json names it; "" for none.

    `bits` of those that layers of weights/ compute on a CPU; 0 for others, of which `reason` says
    what keeps them from it. So many inputs as `group` share a scale, 0: all of them. `add` is what
    stored zero points lack.
    """

    method: str = ""
    bits: int = 0
    reason: str = ""
    group: int = 0
    add: int = 0


def scheme_of(folder: str | Path) -> Scheme:
    """The scheme of a model's folder; a method that config.json does not name is "unknown"."""
    config = read_object(Path(folder) / "config.json")
    for part in (config, config.get("text_config")):
        about = part.get("quantization_config") if isinstance(part, dict) else None
        if isinstance(about, dict):
            method = str(about.get("quant_method") or "unknown")
            try:
                return _READERS[method](method, about) if method in _READERS else Scheme(method)
            except (KeyError, TypeError, ValueError, AttributeError):
                return Scheme(method, reason="its quantization_config is not understood")
    return Scheme()


# What compressed-tensors calls W8A8; what is not given has the last value.
_W8A8: dict[str, dict[str, tuple[Any, Any]]] = {
    part: {
        "num_bits": (8, 8), "type": ("int", "int"), "strategy": (strategy, None),
        "symmetric": (True, True), "dynamic": (dynamic, False),
    }
    for part, strategy, dynamic in (
        ("weights", "channel", False), ("input_activations", "token", True)
    )
}  # fmt: skip


def _compressed(method: str, about: Mapping[str, Any]) -> Scheme:
    """Of compressed-tensors: weights by channel and inputs by token, symmetric, in 8-bit integers.

    Source of the names: compressed_tensors/quantization/quant_args.py and quant_scheme.py.
    """
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if about.get(key) and about[key] != {"format": "dense"}:
            return Scheme(method, reason=f"it has a {key}")
    for group in about["config_groups"].values():
        form = group.get("format") or about.get("format")
        if form != "int-quantized":
            return Scheme(method, reason=f"its format is {form}")
        if group.get("output_activations"):
            return Scheme(method, reason="outputs of layers are quantised")
        for part, key in ((part, key) for part, keys in _W8A8.items() for key in keys):
            value, default = _W8A8[part][key]
            if (found := (group.get(part) or {}).get(key, default)) != value:
                return Scheme(method, reason=f"{part} have {key} {found!r}, not {value!r}")
    return Scheme(method, 8)


def _four_bits(method: str, about: Mapping[str, Any], forms: Mapping[str, int]) -> Scheme:
    """Of GPTQ and AWQ: 4 bits in one of the `forms`, each with what its zero points lack."""
    form = str(about.get("checkpoint_format") or about.get("version") or about.get("format") or "")
    form = form.lower() or next(iter(forms))
    bits, group = about.get("bits", about.get("w_bit")), about.get("group_size", 128)
    group = 0 if group == -1 else int(about.get("q_group_size", group))
    if bits != 4:
        return Scheme(method, reason=f"its weights have {bits} bits, not 4")
    if form not in forms:
        return Scheme(method, reason=f"its form is {form}, not {' or '.join(forms)}")
    if group % GROUPS[-1]:
        return Scheme(method, reason=f"{group} inputs share a scale, no multiple of {GROUPS[-1]}")
    return Scheme(method, 4, group=group, add=forms[form])


_READERS: dict[str, Callable[[str, Mapping[str, Any]], Scheme]] = {
    "compressed-tensors": _compressed,
    "gptq": partial(_four_bits, forms={"gptq": 1, "gptq_v2": 0}),
    "awq": partial(_four_bits, forms={"gemm": 0}),
}

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


def require_for_weights(
    name: str, folder: str | Path, device: str = "cpu", device_map: str = "none"
) -> None:
    """Raise ModelError where a package is missing that reads, or places, weights in a folder.

    None is needed for a scheme that is computed here on a CPU, for which "auto" may stand.
    """
    if device_map == "auto":
        require("--set device_map=auto", ["accelerate"], "'ngtcli[accelerate]'")
    scheme = scheme_of(folder)
    if not scheme.bits or device not in ("cpu", "auto"):
        why = f" ({scheme.reason})" if scheme.reason else ""
        what = f"{name}: reading weights quantised by {scheme.method}{why}"
        require(what, _QUANTISED.get(scheme.method, ()))
