"""Where weights of a model stand that can be quantised, and what takes their place.

Of linear layers: nn.Linear, subclasses that compute the same (Falcon's), and `transformers`' Conv1D
(GPT-2's), whose weight is stored (in, out). Of mixtures: the experts that are stored as one weight
of three dimensions and that `transformers` computes by a function of its own choice. An embedding
tied to a linear layer reads its rows from the layer's integers, scaled as Gemma's are.

What stays as it is: norms, biases, embeddings of their own, layers that choose experts, experts of
other forms (Llama 4, JetMoE, LongCat), convolutions, and weights used without a layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ngtcli.weights.int8 import Int8Embedding
from ngtcli.weights.places import Place, is_embedding, is_plain, packable

_ROUTERS = ("gate", "router", "shared_expert_gate")  # choose experts: a small error is another one


@dataclass(frozen=True, slots=True)
class Int8Place(Place):
    """A place of one or of `experts` weights, each (out, in), or (in, out) if it is `turned`.

    Where there are experts, `parent`.`name` is the weight of all; otherwise it is a layer.
    """

    turned: bool = False
    experts: int = 0

    @property
    def weight(self) -> Any:
        """The weight as it is stored."""
        return self.layer if self.experts else self.layer.weight

    @property
    def size(self) -> tuple[int, int]:
        """Outputs and inputs of a layer."""
        first, second = self.weight.shape[-2:]
        return (second, first) if self.turned else (first, second)

    def matrices(self, weight: Tensor) -> Iterator[Tensor]:
        """Of a stored weight each layer's, (out, in)."""
        for one in weight if self.experts else weight[None]:
            yield one.t() if self.turned else one

    def empty(self) -> None:
        """Let go of the weight's values."""
        none = nn.Parameter(self.weight.detach().to("meta"), requires_grad=False)
        if self.experts:
            setattr(self.parent, self.name, none)
            return
        self.layer.weight = none
        if self.tied is not None:
            getattr(*self.tied).weight = none

    def put(self, layers: Sequence[Any], order: int | None, dtype: torch.dtype) -> None:
        """Put layers in the place of the weight; `order` and `dtype` as for `Int8Embedding`."""
        if self.experts:
            delattr(self.parent, self.name)
            self.parent.forward = MethodType(experts_forward, self.parent)
            setattr(self.parent, self.name, nn.ModuleList(layers))
            return
        if self.tied is not None and order is not None:
            factor = getattr(getattr(*self.tied), "scalar_embed_scale", None)
            setattr(*self.tied, Int8Embedding(layers[0], order, dtype, factor))
        setattr(self.parent, self.name, layers[0])


def quantizable(hf: nn.Module, device: str = "cpu") -> list[Int8Place]:
    """Where weights stand that can be quantised, in the model's order."""
    found = [
        Int8Place(place.parent, place.name, place.tied, isinstance(place.layer, Conv1D))
        for place in packable(hf, device, _is_linear, _is_embedding)
        if not _chooses_experts(place)
    ]
    for module in hf.modules():
        for name in _expert_weights(module, device):
            experts: Any = module
            turned, count = bool(experts.is_transposed), int(experts.num_experts)
            found.append(Int8Place(module, name, None, turned, count))
    return found


def _chooses_experts(place: Place) -> bool:
    outputs = getattr(place.layer, "out_features", None)
    return place.name in _ROUTERS or outputs == getattr(place.parent, "num_experts", 0)


def _is_linear(layer: Any) -> bool:
    kind: Any = type(layer)
    return isinstance(layer, Conv1D) or (isinstance(layer, nn.Linear) and _multiplies(kind))


@cache
def _multiplies(kind: Any) -> bool:
    """Whether a subclass computes what nn.Linear does: tried on a small one of it."""
    if kind is nn.Linear:
        return True
    with torch.device("cpu"), torch.no_grad():  # models are made on another, without values
        own, rows = nn.Linear(3, 2), torch.linspace(-1, 2, 12).view(1, 4, 3)
        own.weight.copy_(torch.linspace(-2, 1, 6).view(2, 3))
        own.bias.copy_(torch.tensor([3.0, -1.0]))
        true, own.__class__ = own(rows), kind
        try:
            return torch.allclose(own(rows), true)
        except Exception:  # it needs what nn.Linear has not, or gives something else
            return False


def _is_embedding(layer: Any) -> bool:
    scaled = isinstance(layer, nn.Embedding) and hasattr(layer, "scalar_embed_scale")
    return is_embedding(layer) or (scaled and layer.max_norm is None)


def _expert_weights(module: Any, device: str) -> tuple[str, ...]:
    """The names of the weights of experts that `experts_forward` computes; none elsewhere."""
    if not hasattr(module, "_is_expert_parallel"):  # of those whose computation can be chosen
        return ()
    names = "gate_up_proj" if module.has_gate else "up_proj", "down_proj"
    if not is_plain(module, device, *names):
        return ()
    return names if all(getattr(module, name).ndim == 3 for name in names) else ()


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """What a module of experts computes, on the rows of each expert that has some.

    (rows, in) to (rows, in); the other two are (rows, experts of a row).
    """
    rows, several = top_k_index.shape
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)
    sizes = chosen.bincount(minlength=self.num_experts).tolist()
    first = self.gate_up_proj if self.has_gate else self.up_proj
    parts = []
    for expert, part in enumerate(torch.split(hidden_states[order // several], sizes)):
        if expert >= self.num_experts:  # stands for none
            parts.append(torch.zeros_like(part))
        elif len(part):
            parts.append(_expert(self, expert, first, part))
    out = torch.cat(parts)
    if self.has_post_expert_norm:
        out = self.post_expert_norm(out)
    out = out * top_k_weights.flatten()[order, None]  # may be float32 between layers of less
    out = torch.empty_like(out).index_copy_(0, order, out)
    return out.view(rows, several, -1).sum(1).to(hidden_states.dtype)


def _expert(self: Any, expert: int, first: Any, rows: Tensor) -> Tensor:
    inner = first[expert](rows)
    if self.has_bias:
        inner += (self.gate_up_proj_bias if self.has_gate else self.up_proj_bias)[expert]
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    out: Tensor = self.down_proj[expert](inner)
    return out + self.down_proj_bias[expert] if self.has_bias else out
