"""The modules of a model whose weights may be converted to another format.

- Linear layers: nn.Linear, subclasses that compute the same (Falcon), and `transformers`' Conv1D
  (GPT-2), whose weight is stored as (in, out).
- Mixtures of experts that are stored as one weight of three dimensions and that `transformers` can
  compute by several functions.
- Embeddings that are tied to a linear layer.

Everything else stays unchanged: norms, biases, experts of other kinds (Llama 4, JetMoE, LongCat),
convolutions, layers with hooks, weights that more than two modules share, and weights that a model
uses without their layer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # Few CPUs multiply float16: `prepacks`.
_USED_WITHOUT_LAYER = "dt_proj"  # Mamba and Jamba multiply by the weight of this layer themselves.
_ROUTERS = ("gate", "router", "shared_expert_gate", "classifier")  # names of layers


@dataclass(frozen=True, slots=True)
class TargetModule:
    """A linear layer, an embedding tied to one, or the weight of all experts of a mixture.

    Attributes:
        parent: The module that has the layer, or the parameter of the experts, as an attribute.
        name: The name of that attribute.
        weight_name: The name of the weight in the model.
        transposed: The weight is (in, out), not (out, in).
        experts: The number of experts, 0 for a layer.
        tied: The embedding that shares the weight, None without one.
    """

    parent: Any
    name: str
    weight_name: str
    transposed: bool = False
    experts: int = 0
    tied: "TargetModule | None" = None

    @property
    def layer(self) -> Any:
        """The layer, or the parameter of the experts."""
        return getattr(self.parent, self.name)

    @property
    def weight(self) -> Any:
        """The parameter as it is stored: (out, in) or (in, out), after (experts,) for experts."""
        return self.layer if self.experts else self.layer.weight

    @property
    def bias(self) -> Any:
        """The bias of a layer; None for experts, whose module keeps their biases."""
        return None if self.experts else self.layer.bias

    @property
    def size(self) -> tuple[int, int]:
        """(out, in) of the layer, or of each expert."""
        first, second = self.weight.shape[-2:]
        return (second, first) if self.transposed else (first, second)

    @property
    def chooses_experts(self) -> bool:
        """Whether it is a router of experts."""
        out_features = getattr(self.layer, "out_features", None)
        return self.name in _ROUTERS or out_features == getattr(self.parent, "num_experts", 0)

    def matrices(self, weight: Tensor) -> Iterator[Tensor]:
        """Split a stored weight into matrices (out, in): one, or one for each expert."""
        matrices = weight if self.experts else weight[None]
        for matrix in matrices:
            yield matrix.t() if self.transposed else matrix

    def set_weight(self, weight: nn.Parameter) -> None:
        """Set the weight of the layer, or of the experts."""
        if self.experts:
            setattr(self.parent, self.name, weight)
        else:
            self.layer.weight = weight

    def replace(self, layers: Sequence[nn.Module]) -> None:
        """Replace the layer, or the weight of the experts by one layer for each expert."""
        if self.experts:
            delattr(self.parent, self.name)
            self.parent.forward = MethodType(experts_forward, self.parent)
            setattr(self.parent, self.name, nn.ModuleList(layers))
            return
        # transformers initializes the modules that lack this mark.
        layers[0]._is_hf_initialized = True  # type: ignore[assignment]
        setattr(self.parent, self.name, layers[0])


def target_modules(hf: Any, device: str = "cpu") -> list[TargetModule]:
    """List the modules with weights on a device: layers in the model's order, then experts."""
    names = {id(module): name for name, module in hf.named_modules()}
    layers = [
        (parent, name, layer) for parent in hf.modules() for name, layer in parent.named_children()
    ]
    users: dict[int, list[tuple[Any, str]]] = defaultdict(list)
    for parent, name, layer in layers:
        for parameter in layer.parameters(recurse=False):
            users[id(parameter)].append((parent, name))

    def target(parent: Any, name: str, tied: TargetModule | None = None) -> TargetModule:
        layer = getattr(parent, name)
        weight_name = f"{names[id(layer)]}.weight"
        return TargetModule(parent, name, weight_name, isinstance(layer, Conv1D), tied=tied)

    targets = []
    for parent, name, layer in layers:
        if name == _USED_WITHOUT_LAYER or not (_is_linear(layer) and _is_plain(layer, device)):
            continue
        others = [user for user in users[id(layer.weight)] if user != (parent, name)]
        if not others:
            targets.append(target(parent, name))
        elif len(others) == 1:
            other = getattr(*others[0])
            if is_embedding(other) and _is_plain(other, device):
                targets.append(target(parent, name, target(*others[0])))

    for module in hf.modules():
        for name in _expert_weights(module, device):
            weight_name = f"{names[id(module)]}.{name}"
            transposed = bool(module.is_transposed)
            count = int(module.num_experts)
            targets.append(TargetModule(module, name, weight_name, transposed, count))
    return targets


def tie(hf: Any) -> None:
    """Tie the weights that the model's class ties; transformers does so only after loading."""
    for tied, source in hf.all_tied_weights_keys.items():
        parent, _, name = tied.rpartition(".")
        setattr(hf.get_submodule(parent), name, hf.get_parameter(source))


def is_embedding(layer: Any) -> bool:
    """Return whether a module only looks up rows, perhaps scaled by one number (Gemma)."""
    is_scaled = isinstance(layer, nn.Embedding) and hasattr(layer, "scalar_embed_scale")
    return (type(layer) is nn.Embedding or is_scaled) and layer.max_norm is None


def _is_plain(layer: Any, device: str, *names: str) -> bool:
    """Return whether a module has no hooks, and dense weights of a supported dtype on a device.

    Args:
        layer: The module.
        device: The type of the device.
        names: The names of its weights; without any, "weight".
    """
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weights = [layer._parameters.get(name) for name in names or ("weight",)]
    return all(
        type(weight) is nn.Parameter
        and weight.device.type == device
        and weight.dtype in DTYPES
        and weight.numel() > 0
        for weight in weights
    )


def _is_linear(layer: Any) -> bool:
    """Return whether a layer computes what nn.Linear does, up to the order of adding the bias."""
    layer_class: Any = type(layer)
    if isinstance(layer, nn.Linear) and layer_class.forward is nn.Linear.forward:
        return True
    return isinstance(layer, Conv1D) or layer_class.__name__ == "FalconLinear"


def _expert_weights(module: Any, device: str) -> tuple[str, ...]:
    """Name the weights of a mixture of experts that `experts_forward` can compute; else ()."""
    # transformers gives this attribute to the modules whose computation can be chosen.
    if not hasattr(module, "_is_expert_parallel"):
        return ()
    up_proj = "gate_up_proj" if module.has_gate else "up_proj"
    names = (up_proj, "down_proj")
    if not _is_plain(module, device, *names):
        return ()
    if any(getattr(module, name).ndim != 3 for name in names):
        return ()
    return names


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a mixture of experts, each expert on the tokens that chose it.

    Args:
        hidden_states: (tokens, in).
        top_k_index: (tokens, k): the experts of each token.
        top_k_weights: (tokens, k): their weights, sometimes in a wider dtype.

    Returns:
        (tokens, in), in the dtype of `hidden_states`.
    """
    tokens, top_k = top_k_index.shape
    experts = top_k_index.flatten()
    order = experts.argsort(stable=True)
    counts = experts.bincount(minlength=self.num_experts).tolist()
    up_proj = self.gate_up_proj if self.has_gate else self.up_proj
    parts = []
    for expert, part in enumerate(torch.split(hidden_states[order // top_k], counts)):
        if expert >= self.num_experts:  # This index means that no expert was chosen.
            parts.append(torch.zeros_like(part))
        elif len(part):
            parts.append(_expert_forward(self, expert, up_proj, part))
    out = torch.cat(parts)
    if self.has_post_expert_norm:
        out = self.post_expert_norm(out)
    out = out * top_k_weights.flatten()[order, None]
    out = torch.empty_like(out).index_copy_(0, order, out)
    return out.view(tokens, top_k, -1).sum(1).to(hidden_states.dtype)


def _expert_forward(self: Any, expert: int, up_proj: Any, hidden_states: Tensor) -> Tensor:
    """Compute one expert of a mixture.

    Args:
        self: The mixture.
        expert: The index of the expert.
        up_proj: The first layers of all experts.
        hidden_states: (tokens, in).

    Returns:
        (tokens, in).
    """
    hidden = up_proj[expert](hidden_states)
    if self.has_bias:
        bias = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias
        hidden += bias[expert]
    hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
    out: Tensor = self.down_proj[expert](hidden)
    return out + self.down_proj_bias[expert] if self.has_bias else out
