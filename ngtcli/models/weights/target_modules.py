"""The modules of a model whose weights may get another format, found in one walk.

Linear layers: nn.Linear, subclasses that compute the same (Falcon's), and `transformers`' Conv1D
(GPT-2's), whose weight is stored (in, out). Mixtures of experts: those stored as one weight of
three dimensions that `transformers` computes by a function of its own choice. An embedding tied to
a linear layer comes with it.

All else stays as it is: norms, biases, experts of other kinds (Llama 4, JetMoE, LongCat),
convolutions, layers with hooks, weights that several others share, and those used without a layer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float16 on few CPUs: tried
_USED_WITHOUT_LAYER = "dt_proj"  # of Mamba and Jamba, which multiply by its weight themselves
_ROUTERS = ("gate", "router", "shared_expert_gate", "classifier")  # an error is another expert


@dataclass(frozen=True, slots=True)
class TargetModule:
    """A linear layer, an embedding tied to one, or the weight of all experts of a mixture.

    Attributes:
        parent, name: `parent`.`name` is the layer, or the parameter of the experts.
        weight_name: The name of the weight in the model.
        transposed: The weight is (in, out), not (out, in).
        experts: How many experts; 0 for a layer.
        tied: The embedding that shares the weight.
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
        """The weight as it is stored."""
        return self.layer if self.experts else self.layer.weight

    @property
    def bias(self) -> Any:
        """The bias of a layer; that of experts stays with them."""
        return None if self.experts else self.layer.bias

    @property
    def size(self) -> tuple[int, int]:
        """(out, in) of a layer."""
        first, second = self.weight.shape[-2:]
        return (second, first) if self.transposed else (first, second)

    @property
    def chooses_experts(self) -> bool:
        """Whether it is a router of experts."""
        out_features = getattr(self.layer, "out_features", None)
        return self.name in _ROUTERS or out_features == getattr(self.parent, "num_experts", 0)

    def matrices(self, weight: Tensor) -> Iterator[Tensor]:
        """Split a stored weight into that of each layer, (out, in)."""
        for matrix in weight if self.experts else weight[None]:
            yield matrix.t() if self.transposed else matrix

    def set_weight(self, weight: nn.Parameter) -> None:
        """Give the layer, or the experts, a weight."""
        if self.experts:
            setattr(self.parent, self.name, weight)
        else:
            self.layer.weight = weight

    def replace(self, layers: Sequence[nn.Module]) -> None:
        """Put a layer, or one for each expert, in the place of the weight."""
        if self.experts:
            delattr(self.parent, self.name)
            self.parent.forward = MethodType(experts_forward, self.parent)
            setattr(self.parent, self.name, nn.ModuleList(layers))
            return
        layers[0]._is_hf_initialized = True  # type: ignore[assignment]  # for transformers
        setattr(self.parent, self.name, layers[0])


def target_modules(hf: Any, device: str = "cpu") -> list[TargetModule]:
    """List those with weights on a device: layers in the model's order, then experts."""
    names = {id(module): name for name, module in hf.named_modules()}
    layers = [(p, name, layer) for p in hf.modules() for name, layer in p.named_children()]
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
    """Tie the weights that the model ties; it is not done while it loads."""
    for tied, source in hf.all_tied_weights_keys.items():
        parent, _, name = tied.rpartition(".")
        setattr(hf.get_submodule(parent), name, hf.get_parameter(source))


def is_embedding(layer: Any) -> bool:
    """Return whether a module looks up rows as they are, or scaled by one number (Gemma's)."""
    scaled = isinstance(layer, nn.Embedding) and hasattr(layer, "scalar_embed_scale")
    return (type(layer) is nn.Embedding or scaled) and layer.max_norm is None


def _is_plain(layer: Any, device: str, *names: str) -> bool:
    """Return whether a layer has no hooks, and dense weights of a known dtype on the device."""
    weights = [layer._parameters.get(name) for name in names or ("weight",)]
    return not (layer._forward_hooks or layer._forward_pre_hooks) and all(
        type(weight) is nn.Parameter
        and weight.device.type == device
        and weight.dtype in DTYPES
        and weight.numel() > 0
        for weight in weights
    )


def _is_linear(layer: Any) -> bool:
    """Return whether it computes what nn.Linear does; Falcon's adds its bias in a second step."""
    kind: Any = type(layer)
    multiplies = isinstance(layer, nn.Linear) and kind.forward is nn.Linear.forward
    return multiplies or isinstance(layer, Conv1D) or kind.__name__ == "FalconLinear"


def _expert_weights(module: Any, device: str) -> tuple[str, ...]:
    """The names of the weights of experts that `experts_forward` computes; none elsewhere."""
    if not hasattr(module, "_is_expert_parallel"):  # of those whose computation can be chosen
        return ()
    names = "gate_up_proj" if module.has_gate else "up_proj", "down_proj"
    if not _is_plain(module, device, *names):
        return ()
    return names if all(getattr(module, name).ndim == 3 for name in names) else ()


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute a module of experts, each on the rows that chose it.

    Args:
        hidden_states: (rows, in).
        top_k_index, top_k_weights: (rows, experts of a row).

    Returns:
        (rows, in).
    """
    rows, experts_of_row = top_k_index.shape
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)
    sizes = chosen.bincount(minlength=self.num_experts).tolist()
    up_proj = self.gate_up_proj if self.has_gate else self.up_proj
    parts = []
    for expert, part in enumerate(torch.split(hidden_states[order // experts_of_row], sizes)):
        if expert >= self.num_experts:  # stands for none
            parts.append(torch.zeros_like(part))
        elif len(part):
            parts.append(_expert(self, expert, up_proj, part))
    out = torch.cat(parts)
    if self.has_post_expert_norm:
        out = self.post_expert_norm(out)
    out = out * top_k_weights.flatten()[order, None]  # may be float32 between layers of less
    out = torch.empty_like(out).index_copy_(0, order, out)
    return out.view(rows, experts_of_row, -1).sum(1).to(hidden_states.dtype)


def _expert(self: Any, expert: int, up_proj: Any, rows: Tensor) -> Tensor:
    hidden = up_proj[expert](rows)
    if self.has_bias:
        bias = self.gate_up_proj_bias if self.has_gate else self.up_proj_bias
        hidden += bias[expert]
    hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
    out: Tensor = self.down_proj[expert](hidden)
    return out + self.down_proj_bias[expert] if self.has_bias else out
