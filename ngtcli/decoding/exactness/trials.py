"""Test whether a model gives the same bits for a token in forward passes of several shapes.

Exact decoding relies on that. A path of arbitrary tokens is read with one token per forward pass,
and again with several, together with other tokens. Logits and KV entries must be equal bit for bit,
after a short prompt and with a nearly full cache. If forward passes may have any number of query
tokens, each layer is tested alone before (layers.py).

In a mixture of experts the tokens decide how many rows an expert multiplies. Some kernels give
other bits for a row if it is alone or one of a few (seen on CPUs: torch's grouped matmul in float16
and float32). So more texts are tried for such models, in which rows that were alone are joined by
tokens that go to the same experts. This finds faults of one row in a hundred, but no rarer ones.
"""

import random
from collections import Counter
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
from ngtcli.system import reporting

# Tokens of a path that are compared (guess: enough for forward passes of 1 to 16 of them).
_PATH_TOKENS = 16
# The same if forward passes may have any number of query tokens: only these are read one by one,
# and each size is compared with those before it.
_SINGLE_TOKENS = 8
_PROMPT_TOKENS = 24  # tokens before the path (guess)
_GROUPINGS = 3  # groupings of a path into forward passes, each with other tokens added (guess)
_EXPERT_TEXTS = 16  # further texts for mixtures of experts, in one grouping each (guess)
_TWIN_SHARE = 0.7  # the share of added tokens that repeat tokens of the path, for experts (guess)


def is_exact(model: TargetModel, rows: PassRows, capacity: int) -> bool:
    """Return whether forward passes of such `rows` over a cache of a capacity are exact.

    The result of a trial is stored where the files of the weights are known: some weights show a
    fault that others hide. The model's cache may be emptied.
    """

    def try_it() -> bool:
        shape = f"{rows.max} rows" if rows.are_fixed else f"{rows.min} to {rows.max} rows"
        reporting.status(f"Checking once that {model.name} decodes exactly in passes of {shape} …")
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
    """Return whether paths have the same bits in several groupings; False if the model fails."""
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


_Bits = list[Tensor]  # the logits after the tokens of a path, then their KV entries


@dataclass(frozen=True, slots=True)
class PathTrial:
    """A path of arbitrary tokens, read in several groupings.

    Attributes:
        text: The seed of its tokens.
        length: The number of tokens in the cache before it.
        ragged: Finds functions that compute the ends of vectors by another formula.
        twins: Most added tokens repeat tokens of the path, which is read in one grouping only.
    """

    model: TargetModel
    text: int
    length: int
    rows: PassRows
    capacity: int
    ragged: RaggedFunctions = field(default_factory=RaggedFunctions)
    twins: bool = False

    def agrees(self) -> bool:
        """Return whether the path has the same bits in all groupings."""
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
        """Whether a forward pass has a random number of the path's tokens, not the maximum."""
        return self.rows.are_fixed or self.twins

    def _read(self, path: list[int], size: int = 1, rng: random.Random | None = None) -> _Bits:
        """Read the path.

        Args:
            path: Its tokens.
            size: The number of query tokens of a forward pass.
            rng: Draws how many of them are tokens of the path, and the others. None: the path is
                read one token at a time, without others.
        """
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
        """Make a tree of a chain and of further nodes, arbitrary ones or twins of the chain's.

        Args:
            chain: The tokens of the chain.
            nodes: The number of all nodes.
            rng: Draws the further nodes.
        """
        tokens = list(chain)
        parents = list(range(ROOT, len(chain) - 1))
        while len(tokens) < nodes:
            twin = -1
            if self.twins and chain and rng.random() < _TWIN_SHARE:
                twin = rng.randrange(len(chain))
            parents.append(twin - 1 if twin >= 0 else rng.randrange(ROOT, len(tokens)))
            tokens.append(chain[twin] if twin >= 0 else rng.randrange(self.model.vocabulary))
        return DraftTree(tuple(tokens), tuple(parents))
