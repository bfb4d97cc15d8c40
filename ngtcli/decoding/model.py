"""The target model: any decoder-only `transformers` model, which verifies draft trees.

A sequence begins with `start` and `prefill`. Each step then calls `lay_out` and `score`, one
forward pass over the last token of each sequence and a draft tree below it, and `keep` with the
nodes that stay in the cache. slots.py holds what the sequences have in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.attention import use_registered
from ngtcli.decoding.captured import Outputs, Passes, Shape
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CHUNK, CachePolicy, KVCache
from ngtcli.decoding.layout import Layout, Root
from ngtcli.decoding.logits import rounds
from ngtcli.decoding.prefixes import Prefixes, fingerprint, prefix_caching
from ngtcli.decoding.replays import Replays
from ngtcli.decoding.runner import ModelRunner
from ngtcli.decoding.slots import Need, StateSlots, TreeSlots, finish_device_work
from ngtcli.decoding.state_slot import StateSlot
from ngtcli.decoding.support import UNTRIED, Ability, DraftSupport, ExecutionMode, Support
from ngtcli.drafting.guesses import StateReader
from ngtcli.drafting.steps import Reused
from ngtcli.drafting.tree import DraftTree
from ngtcli.models.hf import LongRope
from ngtcli.models.pretrained import context_limit, end_ids, sliding_window, unused_suggestions
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.trials import SPREAD, module_devices

PREFILL_CHUNK = CHUNK
# Types of devices on which the buffers of the cache must keep their addresses, because captured
# forward passes read them there.
STAYING_DEVICES = frozenset({"cuda"})

_NO_LONG_ROPE = (
    "Beyond {} tokens the model's rotary positions (longrope) change for all tokens, earlier ones"
    " too, which its own cache cannot follow."
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The files that a model was read from, and the reason for its dtype.

    Attributes:
        weights: What identifies the files of the weights; "" if they are not known.
        dtype_why: Why the model has its dtype, if a rule chose it.
        half_by_rule: Whether a rule chose half precision on condition that it is exact.
    """

    weights: str = ""
    dtype_why: str = ""
    half_by_rule: bool = False


class TargetModel:
    """A loaded model, its tokenizer, and the slots of the sequences that it decodes.

    Only its methods set its attributes.

    Args:
        hf: The model of `transformers`.
        tokenizer: Its tokenizer.
        name: The name of the model, as users give it.
        origin: The files that it was read from.
        mode: How it is run; None: as a model that verifies draft trees. A trial (probe.py) may find
            another mode.

    Attributes:
        context: The maximum number of tokens of a sequence.
        context_why: Why that is less than the model's own maximum; "" if it is not.
        unused: The settings that the checkpoint suggests and ngt replaces by its own.
        mode: How it is run.
        slots: What the sequences have in memory.
        origin: The files that it was read from.
        reused: How much of the prompt `start` found in the prefix cache.
        batching: Whether several sequences can be decoded in one batch.
    """

    def __init__(
        self,
        hf: Any,
        tokenizer: Tokenizer,
        name: str,
        origin: Origin | None = None,
        mode: ExecutionMode | None = None,
    ) -> None:
        self.hf = hf
        self.tokenizer = tokenizer
        self.name = name
        self.origin = origin or Origin()
        self.config = hf.config.get_text_config()
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype
        self.vocabulary = int(self.config.vocab_size)
        limit = context_limit(self.config, tokenizer)
        self.context = limit.tokens
        self.context_why = limit.reason
        self.end_ids = end_ids(hf, tokenizer)
        self.unused = unused_suggestions(hf)
        self.layers = int(self.config.num_hidden_layers)
        self.window = sliding_window(self.config)
        self.passes = Passes(self._tree_pass, self.vocabulary, not rounds(hf))
        self.draws: Replays | None = None  # captured, where forward passes are
        self.reused = Reused()
        self.batching = UNTRIED
        self._prefixes: Prefixes | None = None
        self.use(mode or ExecutionMode())

    def use(self, mode: ExecutionMode) -> None:
        """Run the model in this mode from now on, and empty the cache. Trials of modes do so."""
        self.mode = mode
        self.passes.forget()
        self.slots: TreeSlots | StateSlots
        if self.verifies_trees:
            self.slots = TreeSlots(
                ModelRunner(self.hf, self.window if mode.window else None),
                self.passes,
                device=self.device,
                fixed_buffers=self.device.type in STAYING_DEVICES,
                use_batches=partial(use_registered, self.hf),
            )
        else:
            self.slots = StateSlots(self.hf, mode)
            border = LongRope(self.hf).border
            if border is not None and border < self.context:
                self.context = border
                self.context_why = _NO_LONG_ROPE.format(border)
        self.slots.prefixes = self._prefixes

    def drop_cache(self) -> None:
        """Empty the cache, and give its memory back."""
        self.use(self.mode)

    def capture(self) -> None:
        """Capture forward passes and draws as CUDA graphs from now on, if the device has graphs.

        If that fails, the current reporter gets a warning with the reason.
        """
        if module_devices(self.hf):
            self.passes.refuse(SPREAD)
            return
        self.passes.switch_on(self.device)
        if self.passes.captures:
            self.draws = Replays("draws are", self.device, captures=True)

    def find_batching(self, try_batching: Callable[["TargetModel"], Support]) -> Support:
        """Return whether several sequences can be decoded in one batch, which is tried once."""
        if self.batching.ability is Ability.UNTRIED:
            self.batching = try_batching(self)
        return self.batching

    @property
    def verifies_trees(self) -> bool:
        """Whether this model verifies draft trees: its cache can be rolled back."""
        return self.mode.support is DraftSupport.TREES

    @property
    def takes_chains(self) -> bool:
        """Whether this model verifies only drafts without branches."""
        return self.mode.support is DraftSupport.CHAINS

    @property
    def takes_drafts(self) -> bool:
        """Whether this model verifies drafts at all."""
        return self.mode.support is not DraftSupport.NONE

    @property
    def runner(self) -> ModelRunner:
        """What plans and runs the forward passes, if the model verifies draft trees."""
        assert isinstance(self.slots, TreeSlots)
        return self.slots.runner

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self.slots.cache

    @property
    def prefixes(self) -> Prefixes | None:
        """The prefix cache; None if there is none."""
        return self._prefixes

    @property
    def reader(self) -> StateReader | None:
        """The reader of the hidden states of the sequence that began last."""
        return self.slots.reader

    @property
    def length(self) -> int:
        """How many tokens of the sequence that began last are in its slot."""
        return self.slots.last.length

    @property
    def was_unusually_slow(self) -> bool:
        """Whether the last forward pass took longer than others of its size.

        It did if it preceded a capture, or if it had no drafts and had to read tokens again.
        """
        last = self.slots.last
        return self.passes.was_unusually_slow or (isinstance(last, StateSlot) and last.read_again)

    @property
    def prefix_caching(self) -> Support:
        """Whether prefilled tokens can be cached for later prompts."""
        if not self.verifies_trees:
            return Support.no(self.mode.why)
        return prefix_caching(self.hf)

    def keep_prefixes(self, memory: bool) -> None:
        """Cache prompts from now on, if that is possible.

        Args:
            memory: Whether to keep them in memory, too, as later prompts may need them.
        """
        if self.prefix_caching.is_supported:
            name = fingerprint(self.hf, self.origin.weights, self.mode.window)
            self._prefixes = Prefixes(name, self.device, memory)
            self.slots.prefixes = self._prefixes

    # --- sequences ---

    def start(
        self,
        capacity: int,
        numerics: Numerics = NOT_EXACT,
        token_ids: Sequence[int] = (),
        cache_policy: CachePolicy | None = None,
        reader: StateReader | None = None,
        slot: int = 0,
        length: int = 0,
    ) -> None:
        """Begin a sequence in a slot; later slots are discarded.

        Args:
            capacity: The number of tokens that the first slot has room for, drafts included;
                `resize` makes room in other slots.
            numerics: The sizes of forward passes until the next `start`.
            token_ids: The prompt; its cached chunks are copied into the slot.
            cache_policy: How the prompt may use the prefix cache; None: it is not cached.
            reader: Receives the hidden states of all tokens that are prefilled or kept from now on,
                if the model verifies draft trees.
            slot: The index of the slot, which is also the number of sequences that stay.
            length: The number of tokens of the sequence now; 0: its maximum.
        """
        need = Need(capacity, numerics, token_ids, cache_policy, reader, length)
        _, self.reused = self.slots.open(slot, need, self.context)

    def context_left(self, tokens: int) -> int:
        """Return how many tokens fit after `tokens`, before the sequence is prefilled again."""
        longest = self.slots.max_length
        limit = self.context if longest is None else min(self.context, longest)
        return limit - tokens

    def must_restart(self, tokens: int) -> bool:
        """Return whether a sequence of `tokens` tokens must be prefilled again to continue."""
        longest = self.slots.max_length
        return longest is not None and tokens > longest

    def use_any_rows(self) -> None:
        """End exact decoding: from now on a forward pass has as many query tokens as it needs."""
        self.slots.use_any_rows()

    def resize(self, count: int, capacity: int) -> None:
        """Make room for `count` sequences of this capacity. Raises what `KVCache.resize` does."""
        self.slots.resize(count, capacity)

    def close(self, number: int, last: int) -> None:
        """Free the slot of a sequence of a batch, as `TreeSlots.close`."""
        self.slots.close(number, last)

    def prefill(
        self,
        token_ids: Sequence[int],
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Prefill tokens in chunks, into the slot of the sequence that began last.

        `progress` is called before each chunk with the number of tokens that are prefilled.
        """
        self.slots.last.prefill(token_ids, chunk, progress)

    # --- forward passes over drafts ---

    def lay_out(self, roots: Sequence[Root]) -> Layout:
        """Return the inputs of a forward pass over a last token and a draft tree of each sequence.

        Raises ValueError for a tree with branches if the model does not take such trees.
        """
        return self.slots.lay_out(roots, self.context)

    def rows_of(self, trees: Sequence[DraftTree]) -> int:
        """Return the rows that each tree is padded to; 0: none. See `TreeSlots.rows_of`."""
        return self.slots.rows_of(trees)

    def score(self, layout: Layout) -> list[Tensor]:
        """Return the logits (k + 1, vocab_size) of each sequence after its root and its k nodes.

        They are valid until the next forward pass.
        """
        return self.slots.score(layout)

    def _tree_pass(self, packed: Tensor, shape: Shape, length: int) -> Outputs:
        """Run a forward pass; `passes` calls this, and may capture it."""
        return self.slots.run(packed, shape, length)

    def forward(self, token: int, tree: DraftTree) -> Tensor:
        """Call `lay_out` and `score` for a single sequence; return (k + 1, vocab_size)."""
        return self.score(self.lay_out([(token, tree)]))[0]

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, or earlier ones, of the sequence that began last.

        See `Slot.cut`. A model's own cache is not changed.
        """
        self.slots.last.cut(length)

    def keep(self, *paths: Sequence[int]) -> None:
        """Keep the root and these nodes of each sequence of the last forward pass."""
        self.slots.keep(paths)

    def finish_device_work(self) -> None:
        """Wait until the device has done its queued work, so that a clock read next is right."""
        finish_device_work(self.device)
