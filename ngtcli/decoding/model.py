"""The target model: any decoder-only `transformers` model, with passes over draft trees.

A text begins by `start` and `prefill`, then at each step come `lay_out` and `score` (one pass over
the last token of each text and a draft tree below it) and `keep` (which rows of that pass stay in
the cache). Each text has a region of the cache; a pass over the first alone can be captured.
A model that ignores a tree mask, or whose layers keep a state, has a cache of its own for one text,
and takes drafts without branches (plain.py), or where that gives other scores one token a pass.
`mode.why` says why.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.attention import use_registered
from ngtcli.decoding.captured import Outputs, Passes, Shape
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CHUNK, Keeping, RollbackCache, runs
from ngtcli.decoding.layout import (
    Layout,
    Root,
    Span,
    capacity_of_sequence,
    pack,
    pass_size,
)
from ngtcli.decoding.plain import OwnRows
from ngtcli.decoding.prefixes import Prefixes, fingerprint, prefix_caching
from ngtcli.decoding.replays import Replays
from ngtcli.decoding.runner import ModelRunner
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
        window = self.window if mode.window else None
        self.runner = ModelRunner(self.hf, window, self.verifies_trees)
        stay = self.device.type in STAYING_DEVICES
        self.cache = RollbackCache(self.runner.sliding_layers, 0, stay)
        self._at = 0  # the region of the text that was begun last
        self.passes.forget()
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
            is_split = self.runner.can_split and numerics.allows_any_kernel
            kernel = "apart" if is_split else ""
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
        if count > 1:
            use_registered(self.hf)
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
        layers = self.reader.layers if self.reader is not None else ()
        any_kernel = self._numerics.allows_any_kernel
        _, *states = self.runner.prefill(
            self.cache, region.start, start, ids, any_kernel=any_kernel, layers=layers
        )
        region.length += rows
        if self.reader is not None and states:
            self.reader.add(list(ids), states[0])
        cached_layers = self._layers_of_all_rows if states else ()
        return {layer: states[0][:, n] for n, layer in enumerate(cached_layers)}

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
        places = self.cache.places if texts > 1 else 0
        any_kernel = self._numerics.allows_any_kernel
        shape = Shape(layout.rows, layout.capacity, texts, places, layers, any_kernel)
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
        captures = self.passes.captures
        return self.runner.verify(self.cache, packed, shape, past, spans, captures=captures)

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
