"""Checkpoints quantised as the libraries write them: compressed-tensors, GPTQ, AWQ.

They are written by their definitions, number by number where that is the form's own, without those
libraries. Sources: compressed_tensors/compressors/naive_quantized/base.py; AutoGPTQ's `pack` in
auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py; AutoAWQ's WQLinear_GEMM in
awq/modules/linear/gemm.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

W8A8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
    "quantization_status": "compressed", "kv_cache_scheme": None,
    "config_groups": {"group_0": {
        "targets": ["Linear"], "output_activations": None,
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True,
                    "dynamic": False, "group_size": None},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token",
                              "symmetric": True, "dynamic": True, "group_size": None},
    }},
}  # fmt: skip
# Form 1 of GPTQ lacks so much in each number of eight zero points, with the borrow of int32, as
# gptqmodel's `convert_gptq_v2_to_v1_format_module` (utils/model.py) takes it off.
_ONES = 0x11111111
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that place i of a number has


@dataclass(frozen=True)
class Made:
    """The tensors of a layer in a file, and its weight (out, in) by them, float64."""

    tensors: Mapping[str, Tensor]
    weight: Tensor


def w8a8(weight: Tensor, scale_dtype: torch.dtype = torch.bfloat16) -> Made:
    """As compressed-tensors: integers from -128, and a scale for each output."""
    scale = (weight.abs().amax(1, keepdim=True) / 127.5).clamp(min=1e-12).to(scale_dtype)
    whole = (weight.double() / scale.double()).round().clamp(-128, 127).to(torch.int8)
    return Made({"weight": whole, "weight_scale": scale}, whole.double() * scale.double())


def _four(weight: Tensor, group: int, sym: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Integers (out, in), scales and zero points (groups, out), and the weight that they are."""
    outputs, inputs = weight.shape
    parts = weight.double().view(outputs, inputs // group, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    if sym:
        high = torch.maximum(high, -low)
        low = -high
    scale = ((high - low) / 15).clamp(min=1e-6).half()
    zero = (-low / scale.double()).round().clamp(0, 15)
    if sym:
        zero = torch.full_like(zero, 8)
    steps, lost = scale.double()[..., None], zero[..., None]
    whole = (parts / steps + lost).round().clamp(0, 15)
    made = ((whole - lost) * steps).view(outputs, inputs)
    return whole.view(outputs, inputs).int(), scale.t().contiguous(), zero.t().int(), made


def _pack(values: Tensor, places: Any = range(8)) -> Tensor:
    """int32 (n, m) as int32 (n, m / 8), where place i of a number has value `places[i]`."""
    out = torch.zeros(len(values), values.shape[1] // 8, dtype=torch.int64)
    for at, value in enumerate(places):
        out |= values[:, value::8].long() << 4 * at
    return torch.where(out >= 1 << 31, out - (1 << 32), out).to(torch.int32)


def gptq(
    weight: Tensor, group: int, sym: bool = True, order: Tensor | None = None, second: bool = False
) -> Made:
    """As GPTQ: with an `order` inputs share a scale in it (desc_act); `second`: as its form v2."""
    own = torch.arange(weight.shape[1]) if order is None else order
    whole, scale, zero, made = _four(weight[:, own], group, sym)
    back = own.argsort()
    tensors = {
        "qweight": _pack(whole[:, back]).t().contiguous(),
        "qzeros": _pack(zero) if second else _pack(zero) - _ONES,
        "scales": scale,
        "g_idx": (back // group).int(),
    }
    return Made(tensors, made[:, back])


def awq(weight: Tensor, group: int, sym: bool = False) -> Made:
    """As AutoAWQ's form "gemm"."""
    whole, scale, zero, made = _four(weight, group, sym)
    tensors = {
        "qweight": _pack(whole.t().contiguous(), AWQ_ORDER),
        "qzeros": _pack(zero, AWQ_ORDER),
        "scales": scale,
    }
    return Made(tensors, made)


def four_bits(method: str, group: int, **more: Any) -> dict[str, Any]:
    """The quantization_config of GPTQ or AWQ."""
    own = (
        {"version": "gemm", "zero_point": True}
        if method == "awq"
        else {"checkpoint_format": "gptq"}
    )
    return {"quant_method": method, "bits": 4, "group_size": group, **own, **more}


@dataclass
class Written:
    """A checkpoint that was written, and the model whose weights it has, in its dtype."""

    folder: str
    dequantised: Any
    layers: dict[str, Made] = field(default_factory=dict)


def write(
    folder: Path, hf: Any, about: Mapping[str, Any], make: Callable[[Tensor], Made],
    keep: tuple[str, ...] = ("lm_head",),
) -> Written:  # fmt: skip
    """Write a `transformers` model with its linear layers, but for those to `keep`, quantised.

    The model gets the weights that they have then.
    """
    hf.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": about}))
    done = Written(str(folder), hf)
    tensors = {name: one.detach().clone() for name, one in hf.named_parameters()}
    for name, layer in hf.named_modules():
        if isinstance(layer, nn.Linear) and not name.endswith(keep):
            made = done.layers[name] = make(layer.weight.detach())
            tensors.pop(f"{name}.weight")
            tensors |= {f"{name}.{key}": one for key, one in made.tensors.items()}
            layer.weight = nn.Parameter(made.weight.to(layer.weight.dtype), requires_grad=False)
    save_file(tensors, folder / "model.safetensors")
    return done
