"""The target model over several sequences: one pass serves the draft trees of all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ngtcli.decode.attention import Rows, Span, attending
from ngtcli.decode.kv_cache import Regions
from ngtcli.decode.layout import capacity_for
from ngtcli.decode.loop import Root
from ngtcli.decode.memory_limits import free_memory
from ngtcli.decode.model import TargetModel
from ngtcli.decode.scores import same_scores
from ngtcli.decode.steps import Stopwatch
from ngtcli.draft.tree import ROOT, DraftTree

# Of the memory that is free, so much is for caches. Guess: the rest is for scores, prompts being
# read and what else the machine does.
_SHARE = 0.5
# Rotary frequencies that depend on the longest text of a pass: sequences would change each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_LENGTHS = 5, 9  # ids of the two texts that are tried; a guess


class BatchTarget:
    """Sequences are numbered from 0; `lengths[i]` rows of sequence i are kept.

    Prompts are read into the model's own cache and copied from there. There is room for `size`
    sequences, for fewer where memory does not allow that many of the longest.
    """

    first_use = False  # passes over several sequences are not captured

    def __init__(self, model: TargetModel, size: int) -> None:
        self.model, self.size = model, size
        self.lengths: list[int] = []
        self._needs: list[int] = []  # places that each sequence was promised
        self._cache: Regions | None = None

    @property
    def room(self) -> int:
        """How many sequences have room; 0 before the first."""
        return self._cache.size if self._cache else 0

    @torch.inference_mode()
    def take(self, places: int) -> None:
        """One more sequence: that which the model has just read; at first it gets `places`.

        Raises MemoryError and the like where there is no room.
        """
        self.reserve(max(places, self.model.length))
        assert self._cache is not None
        self._cache.fill(len(self.lengths), self.model.cache)
        self.lengths.append(self.model.length)
        self._needs.append(places)

    def reserve(self, places: int) -> None:
        """Make room for one more sequence, and so many places of each. Raises as `take`."""
        self._reserve(places, len(self.lengths) + 1)

    def _reserve(self, places: int, sequences: int) -> None:
        old = self._cache
        if old is not None and old.places >= places and old.size >= sequences:
            return
        places = max([places, *self._needs, *self.lengths])
        size = max(sequences, min(self.size, self._most(places)))
        if sequences > 1 and size > self._most(places):
            raise MemoryError
        self._resize(size, places)

    def _resize(self, size: int, places: int) -> None:
        places = capacity_for(places)
        if self._cache is None:
            self._cache = Regions(int(self.model.config.num_hidden_layers), size, places)
        else:
            self._cache = self._cache.resized(size, places, self.lengths)

    def _most(self, places: int) -> int:
        """How many sequences of so many places the free memory allows; `size` if it is unknown."""
        free = free_memory(self.model.device.type)
        layers = [layer for layer in self.model.cache.layers if layer.is_initialized]
        each: int = sum(b[:, :, :1].nbytes for r in layers for b in (r.keys, r.values))
        if free is None or not each:
            return max(self.size, len(self.lengths) + 1)
        return int(_SHARE * free) // (each * capacity_for(places))

    @torch.inference_mode()
    def refit(self) -> None:
        """Make room for more sequences, if those that are left need fewer places than there are.

        Raises MemoryError and the like; nothing is lost then.
        """
        places = max([1, *self._needs, *self.lengths])
        if 0 < self.room < self.size and self._cache and capacity_for(places) < self._cache.places:
            self._resize(max(self.room, min(self.size, self._most(places))), places)

    @torch.inference_mode()
    def score(self, roots: Sequence[Root], watch: Stopwatch) -> list[Tensor]:
        """For each sequence, scores (k + 1, vocabulary) after its root and its k nodes."""
        with watch("forward"):
            needed = max(n + r.rows for n, r in zip(self.lengths, roots, strict=True))
            self._reserve(needed, len(roots))
            cache = self._cache
            assert cache is not None
            ends = np.cumsum([root.rows for root in roots]).tolist()
            spans = [
                Span(end - root.rows, end, i * cache.places, self.lengths[i] + root.rows)
                for i, (root, end) in enumerate(zip(roots, ends, strict=True))
            ]
            scores = self._pass(cache, roots, Rows(spans, cache.places, self.model.device))
            return [scores[span.first : span.end] for span in spans]

    def _pass(self, cache: Regions, roots: Sequence[Root], rows: Rows) -> Tensor:
        model, spans = self.model, rows.spans
        ids = [token for root in roots for token in (root.token, *root.tree.tokens)]
        positions = [
            self.lengths[i] + depth
            for i, root in enumerate(roots)
            for depth in (0, *root.tree.depths())
        ]
        slots = [place for span in spans for place in span.written]
        sent = torch.tensor([ids, positions, slots], device=model.device)
        cache.aim(sent[2], cache.capacity, rows.longest)
        masks = self._masks(roots, rows, positions)
        with attending(model.config, rows):
            return model.run_pass(sent[0], sent[1], masks, cache)

    def _masks(self, roots: Sequence[Root], rows: Rows, positions: Sequence[int]) -> Any:
        """What each row sees of its own region; (1, 1, rows, longest)."""
        seen = np.zeros((len(positions), rows.longest), np.bool_)
        window = self.model.masks.window
        near = None if window is None else np.zeros_like(seen)
        for i, (root, span) in enumerate(zip(roots, rows.spans, strict=True)):
            length = self.lengths[i]
            own = seen[span.first : span.end, : span.length]
            own[:, :length], own[:, length:] = True, root.tree.ancestors()
            if near is not None and window is not None:
                own_positions = np.array(positions[span.first : span.end])
                places = np.concatenate([np.arange(length), own_positions])
                near[span.first : span.end, : span.length] = own & (
                    places > own_positions[:, None] - window
                )
        return self.model.masks.of_seen(
            self._sent(seen), near if near is None else self._sent(near)
        )

    def _sent(self, seen: npt.NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(seen).to(self.model.device)

    @torch.inference_mode()
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, of each sequence's rows in the last pass, those of its root and of these nodes."""
        assert self._cache is not None
        sources, to = list[int](), list[int]()
        for i, nodes in enumerate(paths):
            start = i * self._cache.places + self.lengths[i] + 1  # of the first node's row
            for place, node in enumerate(nodes):
                if node != place:
                    sources.append(start + node)
                    to.append(start + place)
            self.lengths[i] += len(nodes) + 1
        self._cache.copy(sources, to)

    @torch.inference_mode()
    def remove(self, sequence: int) -> None:
        """A sequence is done: the last one gets its number."""
        assert self._cache is not None
        last = len(self.lengths) - 1
        self._cache.clear(sequence)
        if sequence != last:
            self._cache.move(last, sequence, self.lengths[last])
            self.lengths[sequence] = self.lengths[last]
            self._needs[sequence] = self._needs[last]
        del self.lengths[last], self._needs[last]

    def drop(self) -> None:
        """Forget all sequences and free their memory."""
        self.lengths.clear()
        self._needs.clear()
        self._cache = None


def why_not(model: TargetModel) -> str:
    """Why several sequences cannot be decoded together; "" if they can.

    The first time that a model is asked about, its cache is emptied.
    """
    if model.joint_reason is None:
        model.joint_reason = _why_not(model)
    return model.joint_reason


def _why_not(model: TargetModel) -> str:
    if model.plain_reason:
        return model.plain_reason
    rope = getattr(model.config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {v.get("rope_type") for v in rope.values() if type(v) is dict}
    if kinds & _ROPE_OF_LENGTH:
        return "its positions depend on the longest text of a pass"
    try:
        agrees = _agrees(model)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a model's own code raises
        agrees = False
    return "" if agrees else "several texts in one pass get other scores than one does"


@torch.inference_mode()
def _agrees(model: TargetModel) -> bool:
    """Whether two short texts, one with a draft, have the scores together that each has alone."""
    forked = DraftTree((1 % model.vocabulary, 2 % model.vocabulary), (ROOT, ROOT))
    texts = [[(7 * i + n) % model.vocabulary for i in range(n)] for n in _LENGTHS]
    roots = [Root(texts[0][-1], forked), Root(texts[1][-1], DraftTree())]
    target, truth = BatchTarget(model, len(texts)), []
    for ids, root in zip(texts, roots, strict=True):
        model.start(len(ids) + root.rows)
        model.prefill(ids[:-1])
        target.take(len(ids) + root.rows)
        truth.append(model.forward(root.token, root.tree).clone())
    exact = model.dtype == torch.float32
    found = target.score(roots, Stopwatch())
    return all(same_scores(a, b, exact) for a, b in zip(map(list, found), truth, strict=True))
