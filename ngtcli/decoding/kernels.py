"""Parts of a `transformers` model that a GPU computes by fewer kernels.

A pass over a draft tree has few rows: many of its kernels take little longer than their start. In
half precision these round less often than those they replace.
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
from ngtcli.decoding.scores import same_scores
from ngtcli.models.hf import attention_function, attention_name
from ngtcli.models.weights.trials import places_of

# Families whose attentions do no more than Llama's, but that some norm queries and keys.
_FAMILIES = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe")
# All that a perceptron's forward names. Numbers alone do not show a limit that they do not reach.
_NAMES = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class OneNorm(nn.RMSNorm):
    """An RMS norm by torch's own kernel, in the dtype of its weight; `transformers` takes eight."""

    def forward(self, given: Tensor) -> Tensor:
        """The rows (…, size), normed, in their dtype."""
        return super().forward(given.to(self.weight.dtype)).to(given.dtype)


class JoinedAttention(nn.Module):
    """An attention with one product for queries, keys and values, whose positions come at once."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = own.config, own.layer_idx, own.is_causal
        self.num_key_value_groups, self.scaling = own.num_key_value_groups, own.scaling
        parts = self.q_proj, self.k_proj, self.v_proj = own.q_proj, own.k_proj, own.v_proj
        self.size, self.qkv_proj = own.head_dim, _one_product(parts)
        self.heads = [one.out_features // self.size for one in parts]
        self.o_proj, self.norm = own.o_proj, getattr(own, "q_norm", None)
        if self.norm is not None:
            norms = zip((own.q_norm, own.k_norm), self.heads, strict=False)
            self.scale = torch.cat([norm.weight.expand(count, -1) for norm, count in norms])

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None, past_key_values: Any = None, **more: Any,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """As `transformers`' attentions."""
        *both, of_values = self.heads
        every = self.qkv_proj(hidden_states).unflatten(-1, (-1, self.size))
        turned, value = every[:, :, :-of_values], every[:, :, -of_values:].transpose(1, 2)
        if self.norm is not None:  # values are normed with them: a part would be copied before
            normed = rms_norm(every, (self.size,), None, self.norm.variance_epsilon)
            turned = normed[:, :, :-of_values] * self.scale
        cos, sin = (one[:, :, None] for one in position_embeddings)
        query, key = (turned * cos + rotate_half(turned) * sin).transpose(1, 2).split(both, 1)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = attention_function(self.config)
        states = query, key, value, attention_mask
        out, weights = attend(self, *states, scaling=self.scaling, **more)
        return self.o_proj(out.flatten(2)), weights


class JoinedPerceptron(nn.Module):
    """A gated perceptron with one product for the gate and what passes it."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = own.gate_proj, own.up_proj, own.down_proj
        self.gate_up_proj, self.act_fn = _one_product((own.gate_proj, own.up_proj)), own.act_fn

    def forward(self, given: Tensor) -> Any:
        """As `transformers`' perceptrons."""
        gate, passed = self.gate_up_proj(given).chunk(2, -1)
        return self.down_proj(self.act_fn(gate) * passed)


def _one_product(parts: Sequence[Any]) -> nn.Linear:
    """Layers of the same input as one, whose outputs are theirs in a row; they get views of it."""
    sizes = [one.out_features for one in parts]
    made = nn.Linear(parts[0].in_features, sum(sizes), device="meta")
    for name in ("weight", "bias"):
        every = [getattr(one, name) for one in parts]
        whole = None if any(one is None for one in every) else nn.Parameter(torch.cat(every), False)
        setattr(made, name, whole)
    for one, part in zip(parts, torch.split(made.weight, sizes), strict=True):
        one.weight = nn.Parameter(part, False)  # where heads begin as the model's layers
    return made


@torch.no_grad()
def use_few_kernels(hf: Any) -> None:
    """Replace norms, attentions and perceptrons on one GPU, where that gives the same numbers."""
    if hf.device.type != "cpu" and not places_of(hf):
        uses = Counter(id(one) for _, one in hf.named_parameters(remove_duplicate=False))
        _replace_in(hf, {one for one, count in uses.items() if count > 1})


def _replace_in(parent: nn.Module, shared: Set[int]) -> None:
    """Layer by layer, so that one's memory is free before the next; what has `shared` ids stays."""
    for name, child in [*parent.named_children()]:
        own = {*map(id, child.parameters())}
        made = None if own & shared else _joined(child) or _one_norm(child)
        if made is None:
            _replace_in(child, shared)
        else:
            setattr(parent, name, made)


def _joined(own: Any) -> nn.Module | None:
    """The same attention or perceptron; None for what may do more, or has layers of other kinds."""
    attends = type(own).__name__.removesuffix("Attention") in _FAMILIES
    attends = attends and attention_name(own.config) in ("sdpa", GROUPED)
    names = ("q", "k", "v") if attends else ("gate", "up", "down")
    parts: list[Any] = [getattr(own, f"{name}_proj", None) for name in names]
    code = getattr(type(own).forward, "__code__", None)
    is_perceptron = code and code.co_argcount == 2 and {*code.co_names} == _NAMES
    if {*map(type, parts)} != {nn.Linear} or not (attends or is_perceptron):
        return None
    if len({one.weight.shape[attends:] for one in parts[: 2 + attends]}) > 1:  # of the same inputs
        return None
    weight, source = parts[0].weight, torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 4, weight.shape[1], generator=source).to(weight)
    turns = torch.randn(2, 1, 4, getattr(own, "head_dim", 0), generator=source).to(weight)
    more = {"position_embeddings": turns, "attention_mask": None} if attends else {}
    made = JoinedAttention(own) if attends else JoinedPerceptron(own)
    found, true = (one(hidden, **more)[0] for one in (made, own))
    return made if same_scores([found], [true], weight.dtype == torch.float32) else None


def _one_norm(norm: Any) -> OneNorm | None:
    """The same norm, None for what is no RMS norm of one weight.

    Some families multiply by one more than the weight, in float32.
    """
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weights, takes = dict(norm.named_parameters()), inspect.signature(norm.forward).parameters
    if not eps or isinstance(norm, nn.RMSNorm) or weights.keys() != {"weight"} or len(takes) != 1:
        return None
    # Rows with a mean, which other norms subtract.
    given = torch.linspace(0.5, 1.5, 2 * len(norm.weight), device=norm.weight.device).view(2, -1)
    for scale in (norm.weight, 1.0 + norm.weight.float()):
        found = rms_norm(given, scale.shape, scale.float(), eps)
        if same_scores([found], [norm(given)], exact=True):
            made = OneNorm(scale.shape, eps, device="meta")
            made.weight = nn.Parameter(scale, requires_grad=False)
            return made
    return None
