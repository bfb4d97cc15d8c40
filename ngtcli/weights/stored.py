"""The layers of a checkpoint whose weights are quantised: their very integers and scales.

`transformers` gets one of these in the place of a weight, which it hands on as it is; it is read
when the layer is made. The formats are those of the libraries that write them: integers of 8 bits
with a scale for each output (compressed-tensors' "int-quantized"), or of 4 bits, eight in an int32,
with a scale and a zero point for some inputs of each output. GPTQ packs eight inputs into a number,
and takes one off each of the zero points in a number (its second form does not); AWQ packs eight
outputs, the even ones first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ngtcli.errors import ModelError
from ngtcli.model_files.scheme import Scheme

_BITS, _IN_ONE = 4, 8  # of an integer; integers in an int32
_HINT = "Name the checkpoint that it was made of."
_ONES = 0x11111111  # one in each of them
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # where output 8 c + i is in number c of AWQ


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer, whose `parts` are read by their names in the file, without the layer's own.

    `size` are its outputs and inputs. `order`, int64 (in,), brings inputs that share a scale beside
    each other; None where they are so in the model.
    """

    scheme: Scheme
    size: tuple[int, int]
    parts: Mapping[str, Any]
    order: Tensor | None

    def get_dtype(self) -> str:
        """A name that stands for integers in safetensors."""
        return "I8"

    def __getitem__(self, _: object) -> "StoredLayer":
        return self

    def to(self, **_: Any) -> "StoredLayer":
        """Itself, in whatever dtype it is asked for."""
        return self

    def integers(self) -> tuple[Tensor, Tensor]:
        """Of 8 bits: int8 (out, in), and the scale (out,), float32."""
        return self.parts["weight"][...], self.parts["weight_scale"][...].flatten().float()

    def four_bits(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Of 4 bits: uint8 (out, in), its inputs in `order`, which is the last of the results.

        Between them are scales and zero points, float32 (groups, out).
        """
        weight, zeros = self.parts["qweight"][...], self.parts["qzeros"][...]
        zeros = zeros + self.scheme.add * _ONES  # before they are parted: what is lacking borrows
        awq = self.scheme.method == "awq"
        whole = _integers(weight, 1, _AWQ) if awq else _integers(weight, 0)
        zeros = _integers(zeros, 1, _AWQ if awq else range(_IN_ONE)).float()
        if self.order is not None:
            whole = whole[self.order]
        return whole.t(), self.parts["scales"][...].float(), zeros, self.order

    def dequantised(self) -> Tensor:
        """float32 (out, in): each integer, less its zero point, times its scale."""
        if self.scheme.bits == 8:
            whole, scale = self.integers()
            return whole.float() * scale[:, None]
        whole, scales, zeros, order = self.four_bits()
        each = self.size[1] // len(scales)
        below = (whole.t() - zeros.repeat_interleave(each, 0)).t()
        made = below * scales.repeat_interleave(each, 0).t()
        return made if order is None else torch.empty_like(made).index_copy_(1, order, made)


def _integers(packed: Tensor, axis: int, places: Any = range(_IN_ONE)) -> Tensor:
    """Integers of 4 bits, uint8, of int32 (n, m) that hold eight along an axis in such places."""
    parts = [(packed >> _BITS * place).to(torch.uint8) & 15 for place in places]
    return torch.stack(parts, axis + 1).flatten(axis, axis + 1)


def stored_layers(tensors: Mapping[str, Any], scheme: Scheme) -> dict[str, Any]:
    """Tensors of a checkpoint by names, each layer that is quantised in one under its weight's.

    Raises ModelError where its tensors do not belong together.
    """
    end = ".weight_scale" if scheme.bits == 8 else ".qweight"
    rest = dict(tensors)
    for name in tensors:
        if not name.endswith(end):
            continue
        own = name.removesuffix(end) + "."
        parts = {
            key.removeprefix(own): rest.pop(key)
            for key in tensors
            if key.startswith(own) and "." not in key.removeprefix(own) and not key.endswith("bias")
        }
        if ".experts." in own:
            raise ModelError(f"{own[:-1]} is quantised, an expert of a mixture", _HINT)
        size = _size(own, parts, scheme)
        rest[own + "weight"] = StoredLayer(scheme, size, parts, _order(own, parts, size))
    if len(rest) == len(tensors):
        raise ModelError(f"none of its weights are quantised by {scheme.method}", _HINT)
    return rest


def _order(own: str, parts: Mapping[str, Any], size: tuple[int, int]) -> Tensor | None:
    """The order of a layer's inputs. Raises ModelError for groups of several sizes."""
    if "g_idx" not in parts:
        return None
    groups, inputs = parts["scales"].get_shape()[0], size[1]
    found, wanted = parts["g_idx"][...].long(), torch.arange(inputs) // (inputs // groups)
    if torch.equal(found, wanted):
        return None
    order: Tensor = found.argsort(stable=True)
    if not torch.equal(found[order], wanted):
        raise ModelError(f"{own[:-1]}: as many inputs do not always share a scale", _HINT)
    return order


def _size(own: str, parts: Mapping[str, Any], scheme: Scheme) -> tuple[int, int]:
    """Outputs and inputs of a layer. Raises ModelError where its parts differ in them."""
    shapes = {key: tuple(part.get_shape()) for key, part in parts.items()}
    try:
        if scheme.bits == 8:
            outputs, inputs = shapes["weight"]
            true = parts["weight"].get_dtype() == "I8"
            if true and shapes["weight_scale"] in ((outputs,), (outputs, 1)):
                return outputs, inputs
        else:
            inputs, outputs = shapes["qweight"]
            if scheme.method == "awq":
                outputs *= _IN_ONE
            else:
                inputs *= _IN_ONE
            groups, rest = divmod(inputs, scheme.group or inputs)
            wanted = {"qzeros": (groups, outputs // _IN_ONE), "scales": (groups, outputs)}
            true = not rest and parts["qweight"].get_dtype() == "I32"
            if true and wanted == {key: shapes[key] for key in wanted}:
                return outputs, inputs
    except (KeyError, ValueError):
        pass
    told = ", ".join(f"{key} {'×'.join(map(str, shape))}" for key, shape in sorted(shapes.items()))
    raise ModelError(f"{own[:-1]} is not quantised as config.json says: it has {told}", _HINT)
