"""The target model: any decoder-only `transformers` model, with passes over draft trees.

A text begins by `start` and `prefill`, then at each step come `lay_out` and `score` (one pass over
the last token of each text and a draft tree below it) and `keep` (which rows of that pass stay in
the cache). Each text has a region of the cache; a pass over the first alone can be captured.
A model that ignores a tree mask, or whose layers keep a state, has a cache of its own for one text,
and takes drafts without branches (plain.py), or where that gives other scores one token a pass.
`mode.why` says why.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.attention import (
    ALIGNED,
    APART_FROM,
    Behind,
    Prefix,
    Spans,
    attending,
    reads_apart,
)
from ngtcli.decoding.captured import Outputs, Passes, Shape
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CHUNK, Keeping, RollbackCache, runs
from ngtcli.decoding.layout import (
    Layout,
    Masks,
    Root,
    Span,
    capacity_of_sequence,
    pack,
    pass_size,
    unpack,
)
from ngtcli.decoding.plain import OwnRows, accepted
from ngtcli.decoding.prefixes import Prefixes, fingerprint, prefix_caching
from ngtcli.decoding.replays import Replays
from ngtcli.decoding.scores import rounds
from ngtcli.decoding.sizes import capacity_for, row_size
from ngtcli.decoding.support import UNTRIED, DraftSupport, ExecutionMode, Support
from ngtcli.drafting.guesses import StateReader
from ngtcli.drafting.steps import Reused
from ngtcli.drafting.tree import DraftTree
from ngtcli.models.pretrained import context_limit, end_ids, sliding_window, unused_suggestions
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.machine import free_memory

PREFILL_CHUNK = CHUNK
# Kinds of devices on which the buffers of the cache stay where they are, as captured passes read
# them by their addresses.
STAYING_DEVICES = frozenset({"cuda"})
_SPARE = 64  # places behind the last draft, for padding; a guess. More are made when needed
# Of a GPU's free memory, so much at most is for buffers that stay. Guess: the rest is for several
# texts, for what is kept of prompts, and for passes.
_SHARE = 0.25


# Captured passes copy the places of a window where all places are this many times more; guess: to
# copy one and to attend to it takes as long as attending to two or three.
_GATHERS_FROM = 3


class TargetModel:
    """A loaded model, its tokenizer, its `masks` and the `cache` of the texts that it reads.

    `context` is in tokens; `context_why` says why it is less than the model's, "" if it is not.
    `unused` are settings that the checkpoint suggests and ngt replaces by its own. It is run as a
    family that takes drafts until `use` says otherwise (probe.py).
    """

    def __init__(self, hf: Any, tokenizer: Tokenizer, name: str) -> None:
        self.hf, self.tokenizer, self.name = hf, tokenizer, name
        self.config = hf.config.get_text_config()
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype
        self.vocabulary = int(self.config.vocab_size)
        limit = context_limit(self.config, tokenizer)
        self.context, self.context_why = limit.tokens, limit.reason
        self.end_ids = end_ids(hf, tokenizer)
        self.unused = unused_suggestions(hf)
        self.window = sliding_window(self.config)
        self.dtype_why = ""  # why it is in this dtype, where a rule has chosen
        self.half_by_rule = False  # a rule chose half precision, provided that it is exact
        self._accepts = accepted(hf)
        self.layers = int(self.config.num_hidden_layers)
        self.passes = Passes(self._tree_pass, self.vocabulary, not rounds(hf))
        self.draws: Replays | None = None  # captured, where passes are
        self.weights = ""  # what tells the files of the weights; "" where they are not known
        self.prefixes: Prefixes | None = None  # see `keep_prefixes`
        self.reused = Reused()  # what `start` found of the prompt
        self.reader: StateReader | None = None  # see `start`
        self._read: tuple[list[int], Tensor] = [], torch.empty(0)  # ids and states of a pass
        self.batching = UNTRIED  # whether several sequences can be decoded in one batch
        self.use(ExecutionMode())

    def use(self, mode: ExecutionMode) -> None:
        """Run the model in this mode from now on. Empties the cache."""
        self.mode = mode
        kinds = list(getattr(self.config, "layer_types", None) or ())
        window, mixed = self.window if mode.window else None, len(set(kinds)) > 1
        self.masks = Masks(self.dtype, self.device, window, mixed)
        self._narrow = [
            window is not None and (not mixed or kinds[i] == "sliding_attention")
            for i in range(self.layers)
        ]
        self.cache = RollbackCache(self._narrow, 0, stay=self.device.type in STAYING_DEVICES)
        self._at = 0  # the region of the text that was begun last
        self.passes.forget()
        self._reads_apart = self.verifies_trees and window is None and reads_apart(self.hf)
        self._own = OwnRows(self.hf, self.mode)  # what reads a sequence into a cache of the model's
        self._numerics = NOT_EXACT  # of the sequence that was begun last

    @property
    def verifies_trees(self) -> bool:
        """Whether this model verifies any draft tree; its cache can be rolled back."""
        return self.mode.support is DraftSupport.TREES

    @property
    def takes_chains(self) -> bool:
        """Whether this model verifies drafts that have no branches, and no others."""
        return self.mode.support is DraftSupport.CHAINS

    @property
    def takes_drafts(self) -> bool:
        """Whether this model verifies drafts at all."""
        return self.mode.support is not DraftSupport.STEPS

    @property
    def length(self) -> int:
        """Rows that are kept of the text that was begun last."""
        return self.cache.regions[self._at].length if self.verifies_trees else self._own.length

    @property
    def took_longer(self) -> bool:
        """Whether the last pass took longer than others of its size.

        It was one of those before a capture, or one without drafts that read tokens again.
        """
        return self.passes.took_longer or self._own.read_again

    @property
    def prefix_caching(self) -> Support:
        """Whether what is prefilled can be cached for later prompts."""
        if not self.verifies_trees:
            return Support.no(self.mode.why)
        return prefix_caching(self.hf)

    def keep_prefixes(self, memory: bool) -> None:
        """Keep rows of prompts from now on, if that is possible; `memory`: prompts may follow."""
        if self.prefix_caching.is_supported:
            name = fingerprint(self.hf, self.weights, self.mode.window)
            self.prefixes = Prefixes(name, self.device, memory)

    @torch.inference_mode()
    def start(
        self,
        capacity: int,
        numerics: Numerics = NOT_EXACT,
        ids: Sequence[int] = (),
        keeping: Keeping | None = None,
        reader: StateReader | None = None,
        beside: int = 0,
    ) -> None:
        """Begin a text behind `beside` others, which stay; all others go.

        The first gets `capacity` places, drafts included; for others `resize` has made room.
        `numerics` says until the next `start` which sizes forward passes have. With `keeping` and
        `prefixes`, the rows of chunks that `ids` begin with are there already, and those of the
        prompt may be kept. `reused` then says what was found. `reader` is given the hidden states
        of all rows that are read or kept from now on; a model whose cache cannot be rolled back
        gives none.
        """
        self.reused = Reused()
        self.reader = reader if self.verifies_trees else None
        if not self.verifies_trees:
            self._own = OwnRows(self.hf, self.mode)
            return
        self._numerics, self._at, cache = numerics, beside, self.cache
        places = cache.places
        if not beside:
            places = capacity_of_sequence(capacity, numerics, spare=_SPARE, context=self.context)
            if cache.stay:
                places = self._room(places)
            # Exact passes get buffers of their own: how far apart heads lie may change bits.
            elif len(cache.regions) == 1 and not numerics.is_exact:
                places = max(places, cache.places)
        if self.prefixes is None:
            cache.reset(cache.regions[beside])
            self._fit(places)
        else:
            if reader is not None and not reader.reads_all:
                ids = ids[:-1]  # it wants the last row, which is then read in any case
            layers, region = self._layers_of_all_rows, cache.regions[beside]
            kernel = (
                "apart" if self._reads_apart and numerics.allows_any_kernel else ""
            )  # see `_read_chunk`
            restored = self.prefixes.start(cache, region, ids, keeping, layers, kernel)
            self._fit(places)
            self.reused = restored()
        self._give_kept()

    def use_any_rows(self) -> None:
        """From now on forward passes are exact no more: each has as many rows as it needs."""
        self._numerics = NOT_EXACT

    @property
    def _layers_of_all_rows(self) -> Sequence[int]:
        """The hidden states that are wanted of each row, not of the last alone."""
        return self.reader.layers if self.reader is not None and self.reader.reads_all else ()

    def _give_kept(self) -> None:
        """Begin the reader's text with the rows that were kept, whose states lie beside them."""
        if self.reader is None:
            return
        layers = self._layers_of_all_rows
        self.reader.reset(0 if layers else self.length)
        for chunk in self.cache.regions[0].chunks if layers else ():
            self.reader.add(chunk.tokens, torch.stack([chunk.states[n] for n in layers], dim=1))

    def _room(self, needed: int) -> int:
        """Places of buffers that stay, and what is captured with them, however prompts grow.

        They hold the whole context, or as much as a share of the memory allows.
        """
        if needed <= self.cache.capacity:
            return self.cache.capacity
        if not self.cache.bytes_of(1):  # a pass shows how large rows are
            reader, self.reader = self.reader, None
            self.resize(1, capacity_for(1))
            self._read_chunk([0])
            self.cache.regions[0].cut(0)
            self.reader = reader
        free = free_memory(str(self.device)) or 0
        most = int(_SHARE * free) // max(1, self.cache.bytes_of(1))
        return max(needed, min(capacity_for(self.context + _SPARE), most))

    def _fit(self, places: int) -> None:
        """Let the first region have so many places, and be the only one, if it has not."""
        if not self._at and (places != self.cache.places or len(self.cache.regions) > 1):
            self.resize(1, places)

    @torch.inference_mode()
    def resize(self, count: int, places: int) -> None:
        """Have room for `count` texts of so many places. Raises as RollbackCache.resize."""
        if self.cache.resize(count, places):
            self.passes.forget()
        self._at = min(self._at, count - 1)

    @torch.inference_mode()
    def close(self, at: int, last: int) -> None:
        """A text beside others is done: the `last` takes its place. With the last memory goes."""
        if self.verifies_trees and len(self.cache.regions) > 1:
            self.cache.close(at, last)
            if not last:
                self.resize(1, 0)

    @torch.inference_mode()
    def prefill(
        self,
        ids: Sequence[int],
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Read `ids` in chunks; the model computes scores for one row of each only.

        `progress` is called before each chunk with the number of ids read.
        """
        if not self.verifies_trees:
            self._own.prefill(ids, chunk, progress)
            return
        for at in range(0, len(ids), chunk):
            progress(at)
            clock = perf_counter()
            states = self._read_chunk(ids[at : at + chunk])
            if self.prefixes is not None:
                self.finish_device_work()
                region, seconds = self.cache.regions[self._at], perf_counter() - clock
                self.prefixes.read(region, ids[at : at + chunk], seconds, states)

    def _read_chunk(self, ids: Sequence[int]) -> dict[int, Tensor]:
        """The hidden states that are wanted of each row, (rows, hidden size), by layer."""
        start, rows = self.length, len(ids)
        region = self.cache.regions[self._at]
        self._reserve(start + rows, self._at)
        positions = torch.arange(start, start + rows, device=self.device)
        first = max(0, start - self.masks.window + 1) if self.masks.window else 0
        slots = positions + region.start if region.start else positions
        self.cache.aim(slots, start + rows, start, first, region.start)
        ids_here = torch.tensor(list(ids), device=self.device)
        # Behind nothing the model's own causal mask is quicker: often it needs none.
        apart = start > 0 and self._reads_apart and self._numerics.allows_any_kernel
        with attending(self.config, Behind()) if apart else nullcontext():
            mask = self.masks.of_chunk(start, rows, first) if start and not apart else None
            mask = ids_here.new_empty((1, 1, 1, 1)) if apart else mask  # any that the model takes
            _, *states = self.run_pass(ids_here, positions, mask, self.cache, 1)
        region.length += rows
        if self.reader is not None and states:
            self.reader.add(list(ids), states[0])
        layers = self._layers_of_all_rows if states else ()
        return {layer: states[0][:, n] for n, layer in enumerate(layers)}

    def lay_out(self, roots: Sequence[Root]) -> Layout:
        """The inputs of one pass over a last token and a draft tree below it for each text.

        Raises ValueError for one with branches where the model does not take them.
        """
        ids, spans = list[int](), list[Span]()
        each = self.rows_of([tree for _, tree in roots])
        for at, (token, tree) in enumerate(roots):
            first = at * each or len(ids)
            place = slice(first, first + len(tree) + 1)
            region = self.cache.regions[at]
            length = region.length if self.verifies_trees else self._own.length
            spans.append(Span(place, region.start, length + len(tree) + 1))
            ids += (token, *tree.tokens)
        if not self.verifies_trees:
            if (tree := roots[0][1]).first_chain() is not tree:
                raise ValueError("a draft with branches")
            return Layout(ids, tuple(spans), len(ids), 0, torch.empty(0))
        rows, capacity = len(ids), max(span.length for span in spans)
        if len(spans) == 1:
            rows, capacity = self._shape(rows, capacity - rows)
            each = rows
        elif each:
            rows, capacity = each * len(spans), capacity_for(capacity + each, doubled=True)
            capacity = min(capacity, self.cache.places)
        for at, span in enumerate(spans):
            self._reserve(span.own.start + max(span.count, each), at)
        packed = pack(roots, spans, rows)
        if self.device.type == "cuda":  # else the host would wait for its copy
            packed = packed.pin_memory()
        return Layout(ids, tuple(spans), rows, capacity, packed)

    def rows_of(self, trees: Sequence[DraftTree]) -> int:
        """Rows of each of several texts where they have as many, so that passes can be captured.

        0 where each has as many as it needs: on a CPU all rows take time.
        """
        if not self.cache.stay or len(trees) == 1:
            return 0
        return row_size(self.device.type, max(map(len, trees)) + 1)

    def _shape(self, used: int, length: int) -> tuple[int, int]:
        """Rows and capacity of a pass over `used` rows of the first text; it makes room for it."""
        size = pass_size(
            used,
            length,
            self._numerics,
            device=self.device.type,
            context=self.context,
            doubled=self.cache.stay,
        )
        self._reserve(size.reserved)
        return size.rows, min(size.capacity, self.cache.places)

    def _reserve(self, places: int, at: int = 0) -> None:
        if self.cache.reserve(places, self.cache.regions[at]):
            self.passes.forget()

    @torch.inference_mode()
    def score(self, layout: Layout) -> list[Tensor]:
        """For each text scores (k + 1, vocabulary) after its root and its k nodes.

        They hold until the next pass.
        """
        if not self.verifies_trees:
            return [self._own.score(layout.ids)]
        layers = self.reader.layers if self.reader is not None else ()
        texts = len(layout.spans)
        shape = Shape(layout.rows, layout.capacity, texts, self.cache.places * (texts > 1), layers)
        if texts > 1 and not self.cache.stay:
            self.passes.took_longer = False
            scores, *states = self._tree_pass(layout.packed, shape, 0, layout.spans)
        else:
            scores, *states = self.passes.run(layout.packed, shape, layout.spans[0].own.start)
        if states:
            self._read = layout.ids, states[0]
        return [scores[span.rows] for span in layout.spans]

    def _tree_pass(
        self, packed: Tensor, shape: Shape, past: int, spans: Sequence[Span] = ()
    ) -> Outputs:
        inputs = unpack(packed.to(self.device, non_blocking=True), shape.rows)
        how: Any = nullcontext()
        near: Tensor | None = None  # what sliding layers see of the places that they attend to
        gathered: Tensor | None = None  # these places, where a captured pass finds them
        by_window = self._attends_to_window(shape)
        if by_window and self.passes.captures:  # it reads nothing but its inputs
            before = self.masks.window_before(inputs, shape.texts)
            near = self.masks.of_window(inputs, before)
            before = before.clamp_min(0) + inputs.begins.view(shape.texts, -1)[:, :1]
            own = inputs.slots.view(shape.texts, -1)
            gathered = torch.cat([before, own], 1).flatten()
        if shape.texts > 1:  # they find their own regions among all places
            every = self.cache.places * len(self.cache.regions)
            self.cache.aim(inputs.slots, every, shape.capacity, gathered=gathered)
            places = 0 if gathered is None else len(gathered) // shape.texts
            # How long texts are is not known to spans of texts with as many rows each.
            narrow = self._narrow if spans or places else ()
            of_texts = Spans(
                spans or _even(shape), self.cache.places, narrow, self.masks.window, places
            )
            how = attending(self.config, of_texts)
        elif by_window and gathered is None:
            first = max(0, past - (self.masks.window or 0) + 1)
            before = torch.arange(first, past, device=self.device)
            near = self.masks.of_window(inputs, before[None])
            end = past + shape.rows
            self.cache.aim(inputs.slots, shape.capacity, past, first, narrow_end=end)
        else:
            self.cache.aim(inputs.slots, shape.capacity, past, gathered=gathered)
        apart = self._reads_apart and self._numerics.allows_any_kernel and shape.texts == 1
        if apart and shape.capacity >= APART_FROM and shape.rows % ALIGNED == 0:
            mask = self.masks.of_seen(inputs.ancestors)
            how = attending(self.config, Prefix(inputs.slots, inputs.reach[0], mask))
        else:
            mask = self.masks.of_tree(inputs, shape.capacity, near)
        with how:
            return self.run_pass(inputs.ids, inputs.positions, mask, self.cache)

    def _attends_to_window(self, shape: Shape) -> bool:
        """Whether sliding layers attend to their window alone.

        Else they attend to all places under a mask, as where that saves nothing; and in exact
        passes, as the order in which a row's places are added up may change its bits.
        """
        if self.masks.window is None or not self._numerics.allows_any_kernel:
            return False
        times = _GATHERS_FROM if self.passes.captures else 1
        return shape.capacity > times * (self.masks.window - 1 + shape.rows // shape.texts)

    def forward(self, token: int, tree: DraftTree) -> Tensor:
        """`lay_out` and `score` in one, of one text: (k + 1, vocabulary)."""
        return self.score(self.lay_out([(token, tree)]))[0]

    def finish_device_work(self) -> None:
        """Wait until the device has done its queued work, so that a clock read next is right."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def truncate(self, length: int) -> None:
        """Drop the first text's rows from `length` on. Does nothing in a model's own cache."""
        if self.verifies_trees:
            self.cache.regions[0].cut(length)

    @torch.inference_mode()
    def keep(self, *paths: Sequence[int]) -> None:
        """Keep, of each text's rows in the last pass, those of its root and of these nodes."""
        if not self.verifies_trees:
            self._own.keep(len(paths[0]) + 1)
            return
        rows = [[0, *(node + 1 for node in path)] for path in paths]
        self.cache.keep(rows)
        if self.reader is not None and self.reader.layers:
            ids, states = self._read
            kept = [states[source : source + number] for source, _, number in runs(rows[0])]
            self.reader.add([ids[row] for row in rows[0]], torch.cat(kept))

    def run_pass(
        self, ids: Tensor, positions: Tensor, mask: Any, cache: RollbackCache, keep: int = 0
    ) -> Outputs:
        """One pass in a cache that is aimed: scores (rows, vocabulary).

        `ids` and `positions` are int64 (rows,). Without a mask the model makes its own. With `keep`
        there are scores for the last `keep` rows only, if the model can leave out others. With a
        reader the hidden states that it wants follow, (rows, layers, hidden size).
        """
        more: dict[str, Any] = {}
        if "logits_to_keep" in self._accepts:
            more["logits_to_keep"] = keep
        layers = self.reader.layers if self.reader is not None else ()
        if layers:
            more["output_hidden_states"] = list(layers)
        output = self.hf(
            input_ids=ids[None],
            use_cache=True,
            position_ids=positions[None],
            attention_mask=mask,
            past_key_values=cache,
            **more,
        )
        scores: Tensor = output.logits[0]
        if not layers:
            return (scores,)
        return scores, torch.stack([output.hidden_states[layer][0] for layer in layers], dim=1)


def _even(shape: Shape) -> list[Span]:
    """The spans of several texts with as many rows each."""
    each = shape.rows // shape.texts
    return [
        Span(slice(at * each, (at + 1) * each), at * shape.places, shape.capacity)
        for at in range(shape.texts)
    ]
