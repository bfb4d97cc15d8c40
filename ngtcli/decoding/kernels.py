"""Parts of a `transformers` model that a GPU computes by fewer kernels.

A forward pass over a draft tree has few rows: many of its kernels take little longer than their
start. In half precision the fused ones round less often than those they replace.
"""

import inspect
from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import rotate_half

from ngtcli.decoding.attention import GROUPED
from ngtcli.decoding.logits import same_logits
from ngtcli.models.hf import attention_function, attention_name
from ngtcli.models.weights.trials import module_devices

# Families whose attention does no more than Llama's; some also norm queries and keys.
_FAMILIES = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe")
# Names that an unmodified gated MLP uses in forward(). Numbers alone would miss a clamp that the
# test input does not reach.
_MLP_NAMES = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_TEST_ROWS = 4  # of random numbers, by which a fused part is compared with the original


class FusedRMSNorm(nn.RMSNorm):
    """RMSNorm as one kernel of torch, in the dtype of its weight; `transformers` takes eight."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Norm rows (…, size); the result has their dtype."""
        return super().forward(hidden_states.to(self.weight.dtype)).to(hidden_states.dtype)


class FusedQKVAttention(nn.Module):
    """Attention with one matmul for queries, keys and values, which are rotated together.

    Args:
        attention: The module that it replaces; its projections become views of the fused weight.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.config = attention.config
        self.layer_idx = attention.layer_idx
        self.is_causal = attention.is_causal
        self.num_key_value_groups = attention.num_key_value_groups
        self.scaling = attention.scaling
        self.head_dim = attention.head_dim

        self.q_proj = attention.q_proj
        self.k_proj = attention.k_proj
        self.v_proj = attention.v_proj
        self.o_proj = attention.o_proj
        projections = (self.q_proj, self.k_proj, self.v_proj)
        self.qkv_proj = _fused_linear(projections)
        self.heads = [projection.out_features // self.head_dim for projection in projections]

        self.norm = getattr(attention, "q_norm", None)
        if self.norm is not None:
            norms = zip((attention.q_norm, attention.k_norm), self.heads, strict=False)
            self.scale = torch.cat([norm.weight.expand(count, -1) for norm, count in norms])

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """As the attention of `transformers`."""
        *rotated_heads, value_heads = self.heads
        qkv = self.qkv_proj(hidden_states).unflatten(-1, (-1, self.head_dim))
        rotated = qkv[:, :, :-value_heads]
        value = qkv[:, :, -value_heads:].transpose(1, 2)
        if self.norm is not None:  # values are normed, too: a part would be copied before
            normed = rms_norm(qkv, (self.head_dim,), None, self.norm.variance_epsilon)
            rotated = normed[:, :, :-value_heads] * self.scale

        cos, sin = (angles[:, :, None] for angles in position_embeddings)
        rotated = (rotated * cos + rotate_half(rotated) * sin).transpose(1, 2)
        query, key = rotated.split(rotated_heads, 1)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)

        attend = attention_function(self.config)
        out, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, **kwargs
        )
        return self.o_proj(out.flatten(2)), weights


class FusedGateUpMLP(nn.Module):
    """Gated MLP with one matmul for the gate and for what it gates.

    Args:
        mlp: The module that it replaces; its projections become views of the fused weight.
    """

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj = mlp.gate_proj
        self.up_proj = mlp.up_proj
        self.down_proj = mlp.down_proj
        self.gate_up_proj = _fused_linear((mlp.gate_proj, mlp.up_proj))
        self.act_fn = mlp.act_fn

    def forward(self, hidden_states: Tensor) -> Any:
        """As the MLP of `transformers`."""
        gate, up = self.gate_up_proj(hidden_states).chunk(2, -1)
        return self.down_proj(self.act_fn(gate) * up)


def _fused_linear(layers: Sequence[Any]) -> nn.Linear:
    """Join linear layers of the same input; their weights become views of the joined one."""
    sizes = [layer.out_features for layer in layers]
    fused = nn.Linear(layers[0].in_features, sum(sizes), device="meta")
    for name in ("weight", "bias"):
        tensors = [getattr(layer, name) for layer in layers]
        joined = None
        if all(tensor is not None for tensor in tensors):
            joined = nn.Parameter(torch.cat(tensors), False)
        setattr(fused, name, joined)
    for layer, weight in zip(layers, torch.split(fused.weight, sizes), strict=True):
        layer.weight = nn.Parameter(weight, False)  # learned heads may begin as copies of a layer
    return fused


@torch.no_grad()
def use_few_kernels(hf: Any) -> None:
    """Fuse norms, attentions and MLPs of a model on one GPU, where that gives the same numbers."""
    if hf.device.type == "cpu" or module_devices(hf):
        return
    uses = Counter(id(weight) for _, weight in hf.named_parameters(remove_duplicate=False))
    _fuse_children(hf, {weight for weight, count in uses.items() if count > 1})


def _fuse_children(parent: nn.Module, shared: Set[int]) -> None:
    """Fuse layer by layer, so that the memory of one is free before the next.

    Modules with parameters that others share, by their `id`, stay as they are.
    """
    for name, child in list(parent.named_children()):
        parameters = set(map(id, child.parameters()))
        fused = None
        if not parameters & shared:
            fused = _fused(child) or _fused_norm(child)
        if fused is None:
            _fuse_children(child, shared)
        else:
            setattr(parent, name, fused)


def _fused(module: Any) -> nn.Module | None:
    """The same attention or MLP, fused; None for what may do more, or has other kinds of layers."""
    is_attention = type(module).__name__.removesuffix("Attention") in _FAMILIES
    is_attention = is_attention and attention_name(module.config) in ("sdpa", GROUPED)
    code: Any = getattr(type(module).forward, "__code__", None)
    is_mlp = bool(code) and code.co_argcount == 2 and set(code.co_names) == _MLP_NAMES
    if not (is_attention or is_mlp):
        return None

    names = ("q", "k", "v") if is_attention else ("gate", "up", "down")
    projections: list[Any] = [getattr(module, f"{name}_proj", None) for name in names]
    if set(map(type, projections)) != {nn.Linear}:
        return None
    shapes = [projection.weight.shape for projection in projections]
    # Attention: q, k and v have the same inputs. MLP: gate and up have the same shape.
    comparable = [shape[1:] for shape in shapes] if is_attention else shapes[:2]
    if len(set(comparable)) > 1:
        return None

    weight = projections[0].weight
    generator = torch.Generator().manual_seed(0)
    hidden_states = torch.randn(1, _TEST_ROWS, weight.shape[1], generator=generator).to(weight)
    fused: nn.Module
    kwargs: dict[str, Any] = {}
    if is_attention:
        angles = torch.randn(2, 1, _TEST_ROWS, module.head_dim, generator=generator).to(weight)
        kwargs = {"position_embeddings": angles, "attention_mask": None}
        fused = FusedQKVAttention(module)
    else:
        fused = FusedGateUpMLP(module)
    out = fused(hidden_states, **kwargs)[0]
    expected = module(hidden_states, **kwargs)[0]
    return fused if same_logits([out], [expected], weight.dtype == torch.float32) else None


def _fused_norm(norm: Any) -> FusedRMSNorm | None:
    """The same norm as one kernel; None for what is no RMSNorm of one weight.

    Some families multiply by one more than the weight, in float32.
    """
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weights = dict(norm.named_parameters())
    parameters = inspect.signature(norm.forward).parameters
    if not eps or isinstance(norm, nn.RMSNorm):
        return None
    if weights.keys() != {"weight"} or len(parameters) != 1:
        return None
    # Rows with a mean, which other norms subtract.
    rows = torch.linspace(0.5, 1.5, 2 * len(norm.weight), device=norm.weight.device).view(2, -1)
    expected = norm(rows)
    for scale in (norm.weight, 1.0 + norm.weight.float()):
        out = rms_norm(rows, scale.shape, scale.float(), eps)
        if same_logits([out], [expected], exact=True):
            fused = FusedRMSNorm(scale.shape, eps, device="meta")
            fused.weight = nn.Parameter(scale, requires_grad=False)
            return fused
    return None
