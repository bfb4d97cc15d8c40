"""The target model over several sequences: one pass serves the draft trees of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ngtcli.decode.batch.attention import Rows, Span, attending
from ngtcli.decode.batch.regions import Regions
from ngtcli.decode.memory_limits import free_memory
from ngtcli.decode.model import TargetModel
from ngtcli.decode.reference import same_scores
from ngtcli.decode.shapes import capacity_for
from ngtcli.draft.tree import ROOT, DraftTree

# Of the memory that is free, so much is for caches. Guess: the rest is for scores, prompts being
# read and what else the machine does.
_SHARE = 0.5
_ANY = 1 << 20  # sequences
# Rotary frequencies that depend on the longest text of a pass: sequences would change each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_LENGTHS = 5, 9  # ids of the two texts that are tried; a guess


@dataclass(frozen=True, slots=True)
class Root:
    """What a pass does for one sequence: its last token, and the draft below it."""

    token: int
    tree: DraftTree

    @property
    def rows(self) -> int:
        """Rows of the pass."""
        return len(self.tree) + 1


class BatchTarget:
    """Sequences are numbered from 0; `lengths[i]` rows of sequence i are kept.

    Prompts are read into the model's own cache and copied from there. There is room for `size`
    sequences at once, more by a copy.
    """

    def __init__(self, model: TargetModel, size: int = 1) -> None:
        self.model, self.size = model, size
        self.lengths: list[int] = []
        self._cache: Regions | None = None

    @torch.inference_mode()
    def take(self, places: int) -> None:
        """One more sequence: that which the model has just read; at first it gets `places`.

        Raises MemoryError and the like where there is no room.
        """
        self.reserve(max(places, self.model.length))
        assert self._cache is not None
        self._cache.fill(len(self.lengths), self.model.cache)
        self.lengths.append(self.model.length)

    def reserve(self, places: int) -> None:
        """Make room for one more sequence, and so many places of each. Raises as `take`."""
        self._reserve(places, len(self.lengths) + 1)

    def _reserve(self, places: int, sequences: int) -> None:
        old = self._cache
        if old is not None and old.places >= places and old.size >= sequences:
            return
        places = capacity_for(max(places, old.places if old else 0))
        size = max(self.size, sequences)
        self._check(size * places)
        if old is None:
            self._cache = Regions(int(self.model.config.num_hidden_layers), size, places)
        else:
            self._cache = old.resized(size, places, self.lengths)

    def _check(self, places: int) -> None:
        """Raise MemoryError where so many places are more than there should be beside others."""
        free = free_memory(self.model.device.type)
        if free is not None and places * self._place_bytes > _SHARE * free:
            raise MemoryError

    @property
    def _place_bytes(self) -> int:
        """Bytes of a place in the cache, as the model's own cache has them; 0 before it is used."""
        layers = [layer for layer in self.model.cache.layers if layer.is_initialized]
        return sum(b[:, :, :1].nbytes for layer in layers for b in (layer.keys, layer.values))

    def most(self, places: int) -> int:
        """How many sequences of so many places memory allows; any number where it does not tell."""
        free, each = free_memory(self.model.device.type), self._place_bytes
        if free is None or not each:
            return _ANY
        return int(_SHARE * free) // (each * capacity_for(places))

    @torch.inference_mode()
    def score(self, roots: Sequence[Root]) -> list[Tensor]:
        """For each sequence, scores (k + 1, vocabulary) after its root and its k nodes."""
        ends = np.cumsum([root.rows for root in roots]).tolist()
        needed = max(n + r.rows for n, r in zip(self.lengths, roots, strict=True))
        self._reserve(needed, len(roots))
        cache = self._cache
        assert cache is not None
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
        slots = [p for s in spans for p in range(s.start + s.length - s.end + s.first,
                                                 s.start + s.length)]  # fmt: skip
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
        del self.lengths[last]

    def drop(self) -> None:
        """Forget all sequences and free their memory."""
        self.lengths.clear()
        self._cache = None


def why_not(model: TargetModel) -> str:
    """Why several sequences cannot be decoded together; "" if they can. Empties the cache."""
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
    found = target.score(roots)
    return all(same_scores(a, b, exact) for a, b in zip(map(list, found), truth, strict=True))
