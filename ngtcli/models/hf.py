"""The only file that touches globals and private names of transformers."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface


def accepted(hf: Any) -> frozenset[str]:
    """The names of the parameters that a model's forward pass takes."""
    return frozenset(inspect.signature(hf.forward).parameters)


# --- attention ---
# transformers looks an attention up by the name in a model's configuration. The names below are
# registered once and stay; which attention a forward pass takes is said by `attending`.

# A model's attention: of a module, queries, keys, values (1, heads, length, head_dim) and a mask
# (1, 1, queries, keys); gives (1, queries, heads, head_dim) and no weights.
AttentionFunction = Callable[..., tuple[Tensor, Any]]


class PassAttention(Protocol):
    """How the query tokens of one forward pass attend."""

    def attend(
        self,
        single: "SingleAttention",
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> Tensor:
        """(1, queries, heads, head_dim); `single` is the model's attention of one sequence."""


@dataclass(frozen=True, slots=True)
class SingleAttention:
    """The attention of one sequence that a name in a configuration stands for.

    Attributes:
        name: In the configuration.
        base: transformers' own name of what it takes the place of, "sdpa" or "eager".
        replacement: What computes it. None: transformers' own.
    """

    name: str
    base: str
    replacement: AttentionFunction | None = None

    @property
    def is_sdpa(self) -> bool:
        """Whether it is a softmax of the products of queries and keys, and nothing more."""
        return self.base == "sdpa"

    def attend(self, module: nn.Module, *states: Any, **options: Any) -> tuple[Tensor, Any]:
        """As `AttentionFunction`."""
        if self.replacement is not None:
            return self.replacement(module, *states, **options)
        if self.is_sdpa:
            sdpa: tuple[Tensor, Any] = sdpa_attention_forward(module, *states, **options)
            return sdpa
        # The eager attention is the family's own.
        eager = sys.modules[type(module).__module__].eager_attention_forward
        weighted: tuple[Tensor, Any] = eager(module, *states, **options)
        return weighted


_registered: dict[str, SingleAttention] = {}
_of_pass: ContextVar[PassAttention | None] = ContextVar("ngt_attention", default=None)


def register_attention(single: SingleAttention) -> None:
    """Let configurations name an attention. Forward passes within `attending` take another."""
    _registered[single.name] = single
    AttentionInterface.register(single.name, partial(_dispatch, single))
    AttentionMaskInterface.register(single.name, sdpa_mask if single.is_sdpa else eager_mask)


def _dispatch(
    single: SingleAttention,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Any]:
    attention = _of_pass.get()
    if attention is None:
        return single.attend(module, query, key, value, attention_mask, **options)
    return attention.attend(single, module, query, key, value, attention_mask, **options), None


@contextmanager
def attending(attention: PassAttention | None) -> Iterator[None]:
    """Within it models with a registered attention attend so; None: each as its name says."""
    token = _of_pass.set(attention)
    try:
        yield
    finally:
        _of_pass.reset(token)


def use_attention(hf: Any, name: str) -> bool:
    """Let a model attend by a registered attention; whether it takes it."""
    hf.set_attn_implementation(name)
    return attention_name(hf.config.get_text_config()) == name


def attention_name(config: Any) -> str:
    """The name of the attention of a configuration, "" where it has none."""
    return getattr(config, "_attn_implementation", None) or ""


def base_attention(config: Any) -> str:
    """transformers' own name of it, "" where there is none."""
    name = attention_name(config)
    return _registered[name].base if name in _registered else name


def settled_attention(config: Any) -> str:
    """The name of what computes one sequence by itself.

    It is the same where forward passes may replace that and where they may not.
    """
    name = attention_name(config)
    if name in _registered and _registered[name].replacement is None:
        return _registered[name].base
    return name


def attention_function(config: Any) -> AttentionFunction:
    """What computes the attention of a configuration, which is not eager."""
    function: AttentionFunction = ALL_ATTENTION_FUNCTIONS[attention_name(config)]
    return function
