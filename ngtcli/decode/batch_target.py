"""The target model over several sequences: one pass serves the draft trees of all of them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.attention import Rows, Span, attending
from ngtcli.decode.kv_cache import RollbackCache
from ngtcli.decode.layout import capacity_for
from ngtcli.decode.loop import Root
from ngtcli.decode.model import TargetModel
from ngtcli.decode.scores import rounds, same_scores
from ngtcli.draft.steps import Stopwatch
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.system.machine import free_memory
from ngtcli.weights.trials import SPREAD, places_of

# Of the memory that is free, so much is for caches. Guess: the rest is for scores, prompts being
# read and what else the machine does.
_SHARE = 0.5
# Rotary frequencies that depend on the longest text of a pass: sequences would change each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_LENGTHS = 5, 9  # ids of the two texts that are tried; a guess


class BatchTarget:
    """Sequences are numbered from 0; `lengths[i]` rows of sequence i are kept.

    Prompts are read into the model's own cache and copied from there. There is room for `size`
    sequences, for fewer where memory does not allow that many of the longest. Each has a region of
    `_places` places of one cache, region 0 first.
    """

    took_longer = False  # passes over several sequences are not captured

    def __init__(self, model: TargetModel, size: int) -> None:
        self.model, self.size = model, size
        self.drop()

    def drop(self) -> None:
        """Forget all sequences and free their memory."""
        self.lengths, self._needs = list[int](), list[int]()  # needs: places that were promised
        self._cache = RollbackCache([], 0)
        self.room = self._places = 0  # how many sequences have room, and how much

    @torch.inference_mode()
    def take(self, places: int) -> None:
        """One more sequence: that which the model has just read; at first it gets `places`.

        Raises MemoryError and the like where there is no room.
        """
        length, region = self.model.length, len(self.lengths)
        if not self.reserve(max(places, length)):
            raise MemoryError
        self._cache.copy_from(self.model.cache, 0, region * self._places, length)
        self.lengths.append(length)
        self._needs.append(places)

    def reserve(self, places: int, more: int = 1) -> bool:
        """Make room for `more` sequences, and so many places of each; False if memory is short.

        Raises MemoryError and the like where that shows only meanwhile.
        """
        sequences = len(self.lengths) + more
        if self._places >= places and self.room >= sequences:
            return True
        places = max([places, *self._needs, *self.lengths])
        most = self._most(places)
        if sequences > max(1, most):
            return False
        self._resize(max(sequences, min(self.size, most)), places)
        return True

    def _resize(self, size: int, places: int) -> None:
        """A cache with room for `size` sequences; it gets the rows of those that there are."""
        places = capacity_for(places)
        cache = RollbackCache([False] * self.model.layers, size * places)
        for i, length in enumerate(self.lengths):
            cache.copy_from(self._cache, i * self._places, i * places, length)
        self._cache, self.room, self._places = cache, size, places

    def _most(self, places: int) -> int:
        """How many sequences of so many places the free memory allows; `size` if it is unknown."""
        free = free_memory(self.model.device.type)
        each: int = sum(buffer[:, :, :1].nbytes for buffer in self.model.cache.buffers())
        if free is None or not each:
            return max(self.size, len(self.lengths) + 1)
        return int(_SHARE * free) // (each * capacity_for(places))

    @torch.inference_mode()
    def refit(self) -> None:
        """Make room for more sequences, if those that are left need fewer places than there are.

        Raises MemoryError and the like; nothing is lost then.
        """
        places = max([1, *self._needs, *self.lengths])
        if 0 < self.room < self.size and capacity_for(places) < self._places:
            self._resize(max(self.room, min(self.size, self._most(places))), places)

    @torch.inference_mode()
    def score(self, roots: Sequence[Root], watch: Stopwatch) -> list[Tensor]:
        """For each sequence, scores (k + 1, vocabulary) after its root and its k nodes."""
        with watch("forward"):
            counts = [len(tree) + 1 for _, tree in roots]
            ends = np.cumsum(counts).tolist()
            lengths = [old + new for old, new in zip(self.lengths, counts, strict=True)]
            if not self.reserve(max(lengths), 0):
                raise MemoryError
            spans = [
                Span(slice(end - count, end), i * self._places, length)
                for i, (count, end, length) in enumerate(zip(counts, ends, lengths, strict=True))
            ]
            scores = self._pass(roots, Rows(spans, self._places, self.model.device))
            return [scores[span.rows] for span in spans]

    def _pass(self, roots: Sequence[Root], rows: Rows) -> Tensor:
        model, windowed = self.model, self.model.masks.window is not None
        ids, positions, slots = list[int](), list[int](), list[int]()
        seen = np.zeros((rows.spans[-1].rows.stop, rows.longest), np.bool_)
        at = np.arange(rows.longest)  # positions of what the rows see; of nodes where it matters
        if windowed:
            at = np.tile(at, (len(seen), 1))
        for length, (token, tree), span in zip(self.lengths, roots, rows.spans, strict=True):
            own = [length + depth for depth in (0, *tree.depths())]
            ids += (token, *tree.tokens)
            positions += own
            slots += range(span.start + length, span.start + span.length)
            seen[span.rows, :length] = True
            seen[span.rows, length : span.length] = tree.ancestors()
            if windowed:
                at[span.rows, length : span.length] = own
        sent = torch.tensor([ids, positions, slots], device=model.device)
        sees, places = (torch.from_numpy(array).to(model.device) for array in (seen, at))
        self._cache.aim(sent[2], self._cache.capacity, rows.longest)
        with attending(model.config, rows):
            masks = model.masks.of_seen(sees, places, sent[1])
            return model.run_pass(sent[0], sent[1], masks, self._cache)[0]

    @torch.inference_mode()
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, of each sequence's rows in the last pass, those of its root and of these nodes."""
        sources, to = list[int](), list[int]()
        for i, nodes in enumerate(paths):
            start = i * self._places + self.lengths[i] + 1  # of the first node's row
            for place, node in enumerate(nodes):
                if node != place:
                    sources.append(start + node)
                    to.append(start + place)
            self.lengths[i] += len(nodes) + 1
        self._cache.copy(sources, to)

    @torch.inference_mode()
    def remove(self, sequence: int) -> None:
        """A sequence is done: the last one gets its number."""
        last, to = len(self.lengths) - 1, sequence * self._places
        self._cache.clear(to, to + self._places)
        if sequence != last:
            self._cache.copy_from(self._cache, last * self._places, to, self.lengths[last])
        for numbers in (self.lengths, self._needs):
            numbers[sequence] = numbers[last]
            del numbers[last]


def why_not(model: TargetModel) -> str:
    """Why several sequences cannot be decoded together; "" if they can.

    The first time that a model is asked about, its cache is emptied.
    """
    if model.joint_reason is None:
        model.joint_reason = _why_not(model)
    return model.joint_reason


def _why_not(model: TargetModel) -> str:
    if model.tree_reason or places_of(model.hf):
        return model.tree_reason or SPREAD
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
    roots = [(texts[0][-1], forked), (texts[1][-1], DraftTree())]
    target, truth = BatchTarget(model, len(texts)), []
    for ids, (token, tree) in zip(texts, roots, strict=True):
        places = len(ids) + len(tree) + 1
        model.start(places)
        model.prefill(ids[:-1])
        target.take(places)
        truth.append(model.forward(token, tree).clone())
    exact = not rounds(model.hf)
    found = target.score(roots, Stopwatch())
    return all(same_scores(a, b, exact) for a, b in zip(map(list, found), truth, strict=True))
