"""Tries whether a model gives a token the same bits in forward passes of several shapes.

Exact decoding rests on that. A path of arbitrary tokens is read one token a forward pass, and again
in chains of several with other tokens in the same passes: the logits, and the rows in the cache,
must be equal bit for bit, after a short prompt and where the cache is nearly full. For any number
of rows each layer is tried by itself before (layers.py).

In a model with experts the tokens decide how many rows an expert multiplies. Some kernels give some
rows other bits if they are alone, or one of a few (seen on CPUs: torch's grouped matmul in float16
and float32). So more texts are tried there, in which rows that were alone get company of tokens
that go to the same experts. That finds what happens to one row in a hundred, nothing rarer.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ngtcli.decoding.exactness.layers import has_experts, layers_are_invariant
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.exactness.whole_vectors import RaggedFunctions
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.models.weights.trials import stored_trial

# Tokens compared; guess: enough for forward passes of 1 to 16 of them. With any number of rows so
# few are read one by one, and each size is compared with those before it.
_PATH_TOKENS = 16
_SINGLE_TOKENS = 8
_PROMPT_TOKENS = 24  # tokens before them; guess
_GROUPINGS = 3  # of the path into forward passes, each with other tokens beside it; guess
_EXPERT_TEXTS = 16  # more texts where there are experts, in one grouping each; guess
_TWIN_SHARE = 0.7  # of the other tokens, where they are to be those of the path; guess


def is_exact(
    model: TargetModel, rows: PassRows, capacity: int, progress: Callable[[str], None]
) -> bool:
    """Return whether forward passes of such `rows` over a cache of a capacity are exact.

    The result of a trial is stored where the files of the weights are known: some weights show a
    fault that others hide. The model's cache may be emptied.
    """

    def try_it() -> bool:
        shape = f"{rows.max} rows" if rows.are_fixed else f"{rows.min} to {rows.max} rows"
        progress(f"Checking once that {model.name} decodes exactly in passes of {shape} …")
        return gives_equal_bits(model, rows, capacity)

    if not model.origin.weights:
        return try_it()
    kinds = Counter(
        f"{type(module).__module__}.{type(module).__name__}" for module in model.hf.modules()
    )
    depends_on = (
        model.passes.kind,
        sorted(kinds.items()),
        model.origin.weights,
        rows.max,
        rows.min,
        capacity,
    )
    return stored_trial("exact", model.hf, bool, *depends_on).find(try_it)


@torch.inference_mode()
def gives_equal_bits(model: TargetModel, rows: PassRows, capacity: int) -> bool:
    """Return whether paths have the same bits in several groupings; False if the model raises."""
    last_length = min(capacity - rows.max, model.context) - max(_PATH_TOKENS, rows.max)
    lengths = sorted({max(1, min(_PROMPT_TOKENS, last_length)), max(1, last_length)})
    ragged = RaggedFunctions()
    trials = [PathTrial(model, 0, length, rows, capacity, ragged) for length in lengths]
    if has_experts(model.hf):
        for text in range(1, _EXPERT_TEXTS + 1):
            length = lengths[text % len(lengths)]
            trials.append(PathTrial(model, text, length, rows, capacity, ragged, twins=True))
    try:
        if not rows.are_fixed and not layers_are_invariant(model.hf, rows.sizes(model.device.type)):
            return False
        return all(trial.agrees() for trial in trials)
    except Exception as error:  # whatever a model's own code raises at such a shape
        if is_out_of_memory(error):
            raise
        return False


_Bits = list[Tensor]  # of the tokens of a path: their logits, then their rows in the cache


@dataclass(frozen=True, slots=True)
class PathTrial:
    """A path of arbitrary tokens, read in several groupings.

    Attributes:
        text: The seed of its tokens.
        length: Rows of the cache before it.
        ragged: Finds functions that compute the ends of vectors by another formula.
        twins: Whether most other tokens are those of the path; it is then read in one grouping.
    """

    model: TargetModel
    text: int
    length: int
    rows: PassRows
    capacity: int
    ragged: RaggedFunctions = field(default_factory=RaggedFunctions)
    twins: bool = False

    def agrees(self) -> bool:
        """Return whether the path has the same bits in all groupings and numbers one formula."""
        model = self.model
        rng = random.Random(self.text)
        sizes = self.rows.sizes(model.device.type)
        if self.twins:
            sizes = sizes[-1:]
        elif self.rows.are_fixed:
            sizes = sizes * _GROUPINGS

        model.start(self.capacity - self.rows.max, Numerics(self.rows))
        prompt = [rng.randrange(model.vocabulary) for _ in range(_PROMPT_TOKENS)]
        model.prefill(prompt[: self.length])
        model.cache.repeat(self.length)

        lengths = [
            _PATH_TOKENS if self._draws_sizes else max(size, _SINGLE_TOKENS) for size in sizes
        ]
        path = [rng.randrange(model.vocabulary) for _ in range(max(lengths))]
        expected = self._read(path[: min(lengths)])
        for seed, (size, length) in enumerate(zip(sizes, lengths, strict=True), self.text):
            bits = self._read(path[:length], size, random.Random(seed))
            compared = min(len(expected[0]), length)
            pairs = zip(expected, bits, strict=True)
            are_equal = all(torch.equal(a[:compared], b[:compared]) for a, b in pairs)
            if self.ragged.found or not are_equal:
                return False
            if compared < length:
                expected = bits
        return True

    @property
    def _draws_sizes(self) -> bool:
        """Whether a forward pass takes a random number of the path's tokens, and not the most."""
        return self.rows.are_fixed or self.twins

    def _read(self, path: list[int], size: int = 1, rng: random.Random | None = None) -> _Bits:
        """Read the path a token a forward pass, or several with `rng`, and others, up to `size`."""
        model = self.model
        logits: list[Tensor] = []
        first = 0
        model.truncate(self.length)
        while first < len(path):
            count = rng.randint(1, size) if rng and self._draws_sizes else size
            in_place = self.rows.rows_in_place(model.length)
            taken = min(count, len(path) - first, in_place)
            tree = DraftTree()
            if rng:
                taken = rng.randint(1, taken) if self._draws_sizes else taken
                tree = self._tree(path[first + 1 : first + taken], count - 1, rng)
            with self.ragged if self.rows.max > 1 else nullcontext():
                logits.append(model.forward(path[first], tree)[:taken].clone())
            model.keep(range(taken - 1))
            first += taken
        cached = [
            states[0, :, self.length :].transpose(0, 1).clone() for states in model.cache.rows()
        ]
        return [torch.cat(logits), *cached]

    def _tree(self, chain: list[int], nodes: int, rng: random.Random) -> DraftTree:
        """A chain below the root, and other nodes: arbitrary ones, or twins of the chain's."""
        tokens = list(chain)
        parents = list(range(ROOT, len(chain) - 1))
        while len(tokens) < nodes:
            twin = -1
            if self.twins and chain and rng.random() < _TWIN_SHARE:
                twin = rng.randrange(len(chain))
            parents.append(twin - 1 if twin >= 0 else rng.randrange(ROOT, len(tokens)))
            tokens.append(chain[twin] if twin >= 0 else rng.randrange(self.model.vocabulary))
        return DraftTree(tuple(tokens), tuple(parents))
