"""The forward passes of a model over its KV cache, each by a plan."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.attention import use_registered
from ngtcli.decoding.batched_attention import BatchedAttention, BatchKeys
from ngtcli.decoding.captured import Outputs, Shape
from ngtcli.decoding.kv_cache import KVCache, KVSlot, PlannedCache
from ngtcli.decoding.layout import Inputs, Masks, Span, unpack
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.split_attention import (
    ALIGNED,
    SPLIT_FROM,
    PrefillChunk,
    PrefixAndTree,
    can_split,
)
from ngtcli.models.hf import LongRope, PassAttention, attending, forward_parameters

# Captured forward passes copy the keys of a window where there are this many times more keys in
# all (guess: to copy one and to attend to it takes as long as attending to two or three).
_GATHERS_FROM = 3


def sliding_layers(config: Any, window: int | None) -> list[bool]:
    """Say of each layer whether it attends to a sliding window.

    Args:
        config: The configuration of a text model.
        window: Its tokens; None: no layer slides.
    """
    count = int(config.num_hidden_layers)
    if window is None or not _is_mixed(config):
        return [window is not None] * count
    return [kind == "sliding_attention" for kind in config.layer_types[:count]]


def _is_mixed(config: Any) -> bool:
    """Return whether the layers of a text model are of several kinds."""
    return len(set(getattr(config, "layer_types", None) or ())) > 1


class ModelRunner:
    """Plans the forward passes of a model that verifies draft trees, and runs them.

    Attributes:
        window: The tokens that sliding layers attend to; None: no layer slides.
        sliding_layers: Which layers slide.
        long_rope: Its rotary positions.
        can_split: Whether the prefix may be read by a kernel of its own (split_attention.py).
    """

    def __init__(self, hf: Any, window: int | None) -> None:
        config = hf.config.get_text_config()
        self._hf = hf
        self._device: torch.device = hf.device
        self._accepted = forward_parameters(hf)
        self.long_rope = LongRope(hf)
        self.window = window
        self.sliding_layers = sliding_layers(config, window)
        self.masks = Masks(hf.dtype, hf.device, window, _is_mixed(config))
        # What is read apart replaces the attention of a forward pass, which must be a registered
        # one; a model without groups of heads has transformers' own until then.
        self.can_split = window is None and can_split(hf) and use_registered(hf)

    def prefill(
        self,
        cache: KVCache,
        slot: KVSlot,
        ids: Sequence[int],
        *,
        any_kernel: bool,
        layers: Sequence[int],
        has_long_rope: bool = False,
    ) -> Outputs:
        """Prefill the next chunk of a prompt.

        Args:
            cache: The KV cache, with room for the chunk.
            slot: Of the sequence.
            ids: The token ids of the chunk.
            any_kernel: Whether bits may depend on the kernel.
            layers: The layers whose hidden states are wanted.
            has_long_rope: As in a plan.

        Returns:
            The logits of the last token, (1, vocab_size), and where they are wanted the hidden
            states of all, (tokens, layers, hidden size).
        """
        length = slot.length
        end = length + len(ids)
        positions = torch.arange(length, end, device=self._device)
        token_ids = torch.tensor(list(ids), device=self._device)
        first = max(0, length - self.window + 1) if self.window else 0
        mask: Any = None
        attention: PassAttention | None = None
        # At the beginning the model's own causal mask is faster: often it needs none.
        if length and self.can_split and any_kernel:
            attention = PrefillChunk()
            mask = token_ids.new_empty((1, 1, 1, 1))  # any that the model takes
        elif length:
            mask = self.masks.of_chunk(length, len(ids), first)
        plan = PassPlan(
            write_at=positions + slot.start if slot.start else positions,
            write_windows_at=positions + slot.window_origin if cache.has_windows else None,
            full=range(slot.start, slot.start + end),
            sliding=range(slot.window_origin + first, slot.window_origin + end),
            length=length,
            mask=mask,
            attention=attention,
            has_long_rope=has_long_rope,
        )
        return self.run(cache, plan, token_ids, positions, last_logits=1, layers=layers)

    def verify(
        self,
        cache: KVCache,
        packed: Tensor,
        shape: Shape,
        length: int,
        spans: Sequence[Span] = (),
        *,
        captures: bool = False,
    ) -> Outputs:
        """Compute the logits of draft trees.

        Args:
            cache: The KV cache, with room for the trees.
            packed: The inputs (layout.py).
            shape: The size of the forward pass.
            length: The tokens of the sequence so far, where it is one, for a model that asks.
            spans: The sequences, where their sizes differ.
            captures: Whether this may be recorded as a CUDA graph: then nothing but `packed` may
                say where keys lie.

        Returns:
            The logits (rows, vocab_size), and where they are wanted the hidden states.
        """
        inputs = unpack(packed.to(self._device, non_blocking=True), shape.rows)
        if shape.sequences > 1:
            plan = self._plan_batch(cache, inputs, shape, spans, captures)
        elif shape.narrow:
            plan = self._plan_window(cache.slots[0], inputs, shape, length, captures)
        else:
            plan = self._plan_tree(inputs, shape, length)
        plan = replace(plan, has_long_rope=shape.has_long_rope)
        return self.run(cache, plan, inputs.ids, inputs.positions, layers=shape.layers)

    def run(
        self,
        cache: KVCache,
        plan: PassPlan,
        ids: Tensor,
        positions: Tensor,
        *,
        last_logits: int = 0,
        layers: Sequence[int] = (),
    ) -> Outputs:
        """Run one forward pass.

        Args:
            cache: The KV cache.
            plan: Where the pass writes, and what it attends to.
            ids: The token ids of the query tokens, int64 (queries,).
            positions: Their positions, int64 (queries,).
            last_logits: How many query tokens at the end need logits, if the model can leave out
                the others; 0: all.
            layers: The layers whose hidden states are wanted.

        Returns:
            The logits (queries, vocab_size), and where they are wanted the hidden states (queries,
            layers, hidden size).
        """
        options: dict[str, Any] = {}
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = last_logits
        if layers:
            options["output_hidden_states"] = list(layers)
        with attending(plan.attention), self.long_rope.using(plan.has_long_rope):
            output = self._hf(
                input_ids=ids[None],
                use_cache=True,
                position_ids=positions[None],
                attention_mask=plan.mask,
                past_key_values=PlannedCache(cache, plan),
                **options,
            )
        logits: Tensor = output.logits[0]
        if not layers:
            return (logits,)
        states = [output.hidden_states[layer][0] for layer in layers]
        return logits, torch.stack(states, dim=1)

    # --- plans ---

    def is_narrow(self, cache: KVCache, shape: Shape, captures: bool) -> bool:
        """Return whether sliding layers get only the keys of their window.

        Otherwise they get all keys, under a mask: if the window saves no time, and in exact forward
        passes, because the order in which keys are summed may change the result. There is no choice
        if their buffers do not have all keys.
        """
        if self.window is None or not shape.any_kernel:
            return False
        slots = cache.slots[: shape.sequences]
        if shape.capacity > cache.window_capacity or any(slot.dropped for slot in slots):
            return True
        times = _GATHERS_FROM if captures else 1
        return shape.capacity > times * (self.window - 1 + shape.rows // shape.sequences)

    def _plan_tree(self, inputs: Inputs, shape: Shape, length: int) -> PassPlan:
        """Plan a tree of one sequence, which attends to its complete slot under a mask."""
        attention: PassAttention | None = None
        is_split = self.can_split and shape.any_kernel and shape.capacity >= SPLIT_FROM
        if is_split and shape.rows % ALIGNED == 0:
            mask = self.masks.of_seen(inputs.ancestors)
            attention = PrefixAndTree(inputs.slots, inputs.reach[0], mask)
        else:
            mask = self.masks.of_tree(inputs, shape.capacity)
        keys = range(shape.capacity)
        return PassPlan(
            inputs.slots, keys, keys, length, mask, attention, self._window_slots(inputs)
        )

    def _window_slots(self, inputs: Inputs) -> Tensor | None:
        return None if self.window is None else inputs.window_slots

    def _plan_window(
        self, slot: KVSlot, inputs: Inputs, shape: Shape, length: int, captures: bool
    ) -> PassPlan:
        """Plan a tree of one sequence whose sliding layers get the keys of their window."""
        sliding: range | Tensor
        if captures:
            sliding, seen = self._gathered(inputs, shape)
        else:
            first = max(0, length - (self.window or 0) + 1)
            before = torch.arange(first, length, device=self._device)
            origin = slot.window_origin
            sliding = range(origin + first, origin + length + shape.rows)
            seen = self.masks.of_window(inputs, before[None])
        mask = self.masks.of_tree(inputs, shape.capacity, seen)
        full = range(shape.capacity)
        return PassPlan(inputs.slots, full, sliding, length, mask, None, self._window_slots(inputs))

    def _plan_batch(
        self,
        cache: KVCache,
        inputs: Inputs,
        shape: Shape,
        spans: Sequence[Span],
        captures: bool,
    ) -> PassPlan:
        """Trees of several sequences, which find their own slots among all keys."""
        full_keys = range(cache.slot_capacity * len(cache.slots))
        sliding: range | Tensor = range(cache.window_capacity * len(cache.slots))
        seen: Tensor | None = None
        in_windows: BatchKeys | None = None
        if self.window is not None and not spans and shape.narrow:
            sliding, seen = self._gathered(inputs, shape)
            in_windows = _gathered_keys(shape, len(sliding) // shape.sequences)
        elif self.window is not None:
            # Spans of equal size do not say how long the sequences are.
            has_lengths = bool(spans) and shape.any_kernel
            is_narrow = has_lengths and (shape.narrow or self._device.type == "cpu")
            in_windows = BatchKeys.of_windows(
                spans or _equal_spans(shape, cache.window_capacity),
                cache.window_capacity,
                self.window if is_narrow else None,
            )
        full = BatchKeys(spans or _equal_spans(shape, cache.slot_capacity), cache.slot_capacity)
        attention = BatchedAttention(full, in_windows, self.sliding_layers)
        mask = self.masks.of_tree(inputs, shape.capacity, seen)
        return PassPlan(
            inputs.slots,
            full_keys,
            sliding,
            shape.capacity,
            mask,
            attention,
            self._window_slots(inputs),
        )

    def _gathered(self, inputs: Inputs, shape: Shape) -> tuple[Tensor, Tensor]:
        """Gather the windows of sequences that have as many query tokens each.

        Returns:
            The KV positions in the windows of all sequences, int64, and which of those of its
            sequence each query token sees, bool (rows, keys of a sequence).
        """
        before = self.masks.window_before(inputs, shape.sequences)
        seen = self.masks.of_window(inputs, before)
        written = inputs.window_slots.view(shape.sequences, -1)
        origins = written[:, :1] - inputs.positions.view(shape.sequences, -1)[:, :1]
        before = before.clamp_min(0) + origins
        return torch.cat([before, written], 1).flatten(), seen


def _equal_spans(shape: Shape, capacity: int) -> list[Span]:
    """Return the spans of sequences with as many query tokens each, in slots of this capacity."""
    rows_each = shape.rows // shape.sequences
    spans = []
    for number in range(shape.sequences):
        rows = slice(number * rows_each, (number + 1) * rows_each)
        start = number * capacity
        spans.append(Span(rows, start, shape.capacity, start))
    return spans


def _gathered_keys(shape: Shape, count: int) -> BatchKeys:
    """Return the keys of sequences that have `count` keys each, in the order of the sequences."""
    rows_each = shape.rows // shape.sequences
    spans = []
    for number in range(shape.sequences):
        rows = slice(number * rows_each, (number + 1) * rows_each)
        spans.append(Span(rows, number * count, count))
    return BatchKeys(spans, count)
