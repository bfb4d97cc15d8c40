"""Which rows exact passes have, and whether a model gives a token the same bits in all of them.

Exact decoding (exact.py) rests on that. In passes of any number of rows each kind and size of layer
is first given random rows by itself: one that adds up in another order shows in one number of ten
thousand, once it is rounded to half precision, and a model's passes show too few. Then a path of
arbitrary tokens is read one token a pass, and again in chains of several with other tokens in the
same passes: its scores, and its rows in the cache, must be equal bit for bit, after a short prompt
and where the cache is nearly full.

In a model with experts the tokens decide how many rows an expert multiplies. Some kernels give some
rows other bits if they are alone, or one of a few (seen on CPUs: torch's grouped products in
float16 and float32). So more texts are tried there, in which rows that were alone get company of
tokens that go to the same experts. That finds what happens to one row in a hundred, nothing rarer.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.layout import BLOCK, LEAST, capacity_for, exact_size, most_rows, rows_alike
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.decoding.scores import rounds
from ngtcli.decoding.whole_vectors import RaggedFunctions
from ngtcli.drafting.drafter import PassRows
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from ngtcli.models.weights.trials import places_of, remembered

# Tokens compared; guess: enough for passes of 1 to 16 of them. In passes of any number of rows so
# few are read one by one, and each size is compared with those before it.
_PATH, _FEW = 16, 8
_PROMPT = 24  # tokens before them; guess
_GROUPINGS = 3  # of the path into passes, each with other tokens in its passes; guess
_TEXTS = 16  # more texts where there are experts, in one grouping each
_NUMBERS = 1 << 17  # compared of each layer and size; guess: ten times what shows a difference
_SINGLE = 8  # rows that a layer computes in passes of the smallest size, of each draw; guess


def block_rows(most: int) -> int:
    """The most rows, up to `most`, that are a power of two or a multiple of a kernel's block.

    Other sizes gave other bits (33 rows, in SDPA).

    >>> [block_rows(most) for most in (1, 7, 9, 33, 65, 100)]
    [1, 4, 8, 32, 64, 96]
    """
    return most // BLOCK * BLOCK or 1 << (max(1, most).bit_length() - 1)


class ExactRows:
    """Decides for each answer."""

    def __init__(self, model: TargetModel, progress: Callable[[str], None]) -> None:
        self._model, self._progress = model, progress
        self._exact: dict[tuple[PassRows, int], bool] = {}  # by rows and places

    def choose(self, wanted: str, num_draft: int, tokens: int) -> PassRows | None:
        """The rows of passes, drafts of up to `num_draft` nodes among them; None: not exact.

        `wanted` is "auto", "on" or "off", `tokens` the most of prompt and answer. Passes of any
        number of rows come first, for they cost nothing. Raises ModelError where decoding is to be
        exact and cannot be. A model that takes chains alone then decodes plainly, by single rows.
        """
        model, on_cpu = self._model, self._model.device.type == "cpu"
        if wanted == "off" or model.plain_reason or places_of(model.hf):
            return None
        # Half precision that was chosen for being exact stays so, at the price of rows.
        is_chosen = model.dtype != torch.float32 and bool(model.dtype_reason)
        if model.tree_reason:
            return PassRows.fixed(1) if wanted == "on" or is_chosen else None
        # Elsewhere kernels are chosen by the number of rows.
        if on_cpu and (wanted == "on" or rounds(model.hf)):
            found = self.of_any_number(num_draft, tokens)
            if found is not None:
                return found
        rows = PassRows.fixed(block_rows(num_draft + 1))
        if wanted == "auto" and not is_chosen:
            return None
        if self._is_exact(rows, capacity_for(tokens + rows.most)):
            return rows
        if wanted == "on":
            raise ModelError(
                f"{model.name} cannot decode exactly here: tokens get other scores where passes"
                " group them differently",
                "Leave out --exact, or try another --dtype, --device or --num-draft.",
            )
        return None

    def of_any_number(self, num_draft: int, tokens: int) -> PassRows | None:
        """Rows of passes that have as many as they need; None where a row's bits show how many.

        On some machines it does for one to three rows alone, which are padded then.
        """
        most = most_rows(self._model.device.type, num_draft + 1)
        # Checked once for each power of two, as kernels depend little on the capacity.
        needed = capacity_for(tokens + most)
        places = min(1 << (needed - 1).bit_length(), capacity_for(self._model.context + most))
        sizes = (PassRows(max(most, least), least) for least in (1, LEAST))
        return next((rows for rows in sizes if self._is_exact(rows, places)), None)

    def _is_exact(self, rows: PassRows, places: int) -> bool:
        if (rows, places) not in self._exact:
            found = find_exactness(self._model, rows, places, self._progress)
            self._exact[rows, places] = found
        return self._exact[rows, places]


def find_exactness(
    model: TargetModel, rows: PassRows, places: int, progress: Callable[[str], None]
) -> bool:
    """Whether passes of such `rows` over `places` places are exact, as stored or checked now.

    It is stored of weights whose files are known: by some a fault shows that others hide. The
    model's cache may be emptied.
    """

    def check() -> bool:
        shape = f"{rows.most} rows" if rows.are_fixed else f"{rows.least} to {rows.most} rows"
        progress(f"Checking once that {model.name} decodes exactly in passes of {shape} …")
        return gives_equal_bits(model, rows, places)

    if not model.weights:
        return check()
    kinds = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in model.hf.modules())
    parts = model.passes.kind, sorted(kinds.items()), model.weights, rows.most, rows.least, places
    return remembered("exact", model.hf, bool, *parts).find(check)


@torch.inference_mode()
def gives_equal_bits(model: TargetModel, rows: PassRows, places: int) -> bool:
    """Whether paths have the same bits in several groupings. False where the model raises."""
    last = min(places - rows.most, model.context) - max(_PATH, rows.most)
    lengths, ragged = sorted({max(1, min(_PROMPT, last)), max(1, last)}), RaggedFunctions()
    cases = [_Case(model, 0, length, rows, places, ragged) for length in lengths]
    for text in range(1, _TEXTS + 1) if has_experts(model.hf) else ():
        length = lengths[text % len(lengths)]
        cases.append(_Case(model, text, length, rows, places, ragged, twins=True))
    try:
        if not rows.are_fixed and not layers_are_alike(model.hf, sizes_of(model, rows)):
            return False
        return all(case.agrees() for case in cases)
    except Exception as error:  # whatever a model's own code raises at such a shape
        if is_out_of_memory(error):
            raise
        return False


def sizes_of(model: TargetModel, rows: PassRows) -> list[int]:
    """All sizes of exact passes, rising."""
    device = model.device.type
    return sorted({exact_size(device, count, rows) for count in range(1, rows.most + 1)})


def layers_are_alike(hf: Any, sizes: Sequence[int]) -> bool:
    """Whether each kind and size of layer gives a row the same bits in passes of these `sizes`.

    A layer is what has no weight of several dimensions but `weight`, (out, in): those that choose
    experts, too. False where there are others, as those of experts; a bias is only added.
    """
    kinds: dict[tuple[Any, ...], Any] = {}
    for module in hf.modules():
        if hasattr(module, "in_features") and hasattr(module, "out_features"):
            size = module.out_features, module.in_features
        else:
            own = {n: p.shape for n, p in module.named_parameters(recurse=False) if p.ndim > 1}
            shapes = [shape for name, shape in own.items() if not name.endswith("bias")]
            if not shapes or hasattr(module, "num_embeddings"):
                continue
            if shapes != [own.get("weight")] or len(size := shapes[0]) != 2:
                return False
        kinds.setdefault((type(module), *size), module)
    dtype = getattr(hf, "dtype", None) or next(hf.parameters()).dtype
    return all(is_alike(one, (out, width), dtype, sizes) for (_, out, width), one in kinds.items())


@torch.inference_mode()
def is_alike(layer: Any, size: tuple[int, int], dtype: torch.dtype, sizes: Sequence[int]) -> bool:
    """The same of one layer of a size, (out, in), for rows of a dtype, in all that it gives."""

    def given(rows: Tensor) -> list[Tensor]:
        found = layer(rows if hasattr(layer, "in_features") else rows[0])  # as models give them
        found = found if isinstance(found, tuple) else (found,)
        return [one.reshape(rows.shape[1], -1) for one in found]

    (outputs, inputs), least = size, min(sizes[0], _SINGLE)
    source = torch.Generator().manual_seed(0)
    for _ in range(-(-_NUMBERS // (_SINGLE * outputs))):
        rows = torch.randn((1, max(_SINGLE, sizes[-1]), inputs), generator=source).to(dtype)
        parts = [given(rows[:, at : at + least]) for at in range(0, _SINGLE - least + 1, least)]
        true = [torch.cat(part) for part in zip(*parts, strict=True)]
        for count in sizes:
            for found, own in zip(given(rows[:, :count]), true, strict=True):
                if not torch.equal(found[: len(own)], own[:count]):
                    return False
    return True


def has_experts(hf: Any) -> bool:
    """Whether parts of a model are named as experts are."""
    names = (f"{name}.{type(module).__name__}" for name, module in hf.named_modules())
    return any("expert" in name.lower() for name in names)


_Reading = list[Tensor]  # of the tokens of a path: their scores, and their rows in the cache


@dataclass(frozen=True, slots=True)
class _Case:
    """A path that begins behind `length` rows of the cache; `text` is the seed of its tokens.

    With `twins` it is read in one grouping, where most other tokens are those of the path.
    """

    model: TargetModel
    text: int
    length: int
    rows: PassRows
    places: int
    ragged: RaggedFunctions = field(default_factory=RaggedFunctions)
    twins: bool = False

    def agrees(self) -> bool:
        """Whether the path has the same bits in all its groupings, and numbers one formula."""
        model, source, sizes = self.model, random.Random(self.text), sizes_of(self.model, self.rows)
        model.start(self.places - self.rows.most, self.rows)
        model.prefill([source.randrange(model.vocabulary) for _ in range(_PROMPT)][: self.length])
        model.cache.repeat(self.length)
        sizes = sizes[-1:] if self.twins else sizes * (_GROUPINGS if self.rows.are_fixed else 1)
        lengths = [_PATH if self._is_random else max(size, _FEW) for size in sizes]
        path = [source.randrange(model.vocabulary) for _ in range(max(lengths))]
        known = self._read(path[: min(lengths)])
        for seed, (size, length) in enumerate(zip(sizes, lengths, strict=True), self.text):
            found = self._read(path[:length], size, random.Random(seed))
            same = min(len(known[0]), length)
            pairs = zip(known, found, strict=True)
            if self.ragged.found or not all(torch.equal(a[:same], b[:same]) for a, b in pairs):
                return False
            known = known if same == length else found
        return True

    @property
    def _is_random(self) -> bool:
        """Whether passes take any number of the path's tokens, and not the most."""
        return self.rows.are_fixed or self.twins

    def _read(self, path: list[int], size: int = 1, rng: random.Random | None = None) -> _Reading:
        """Read the path: a token a pass, or with `rng` several, and others, `size` at most."""
        model, scores, at = self.model, list[Tensor](), 0
        model.truncate(self.length)
        while at < len(path):
            count = rng.randint(1, size) if rng and self._is_random else size
            together = min(count, len(path) - at, rows_alike(model.length, self.rows.most))
            tree = DraftTree()
            if rng:
                together = rng.randint(1, together) if self._is_random else together
                tree = self._tree(path[at + 1 : at + together], count - 1, rng)
            with self.ragged if self.rows.most > 1 else nullcontext():
                scores.append(model.forward(path[at], tree)[:together].clone())
            model.keep(range(together - 1))
            at += together
        rows = [one[0, :, self.length :].transpose(0, 1).clone() for one in model.cache.rows()]
        return [torch.cat(scores), *rows]

    def _tree(self, chain: list[int], most: int, rng: random.Random) -> DraftTree:
        """A chain below the root, and other nodes: arbitrary ones, or twins of the chain's."""
        tokens, parents = list(chain), [*range(ROOT, len(chain) - 1)]
        while len(tokens) < most:
            twin = rng.randrange(len(chain)) if self.twins and chain and rng.random() < 0.7 else -1
            parents.append(twin - 1 if twin >= 0 else rng.randrange(ROOT, len(tokens)))
            tokens.append(chain[twin] if twin >= 0 else rng.randrange(self.model.vocabulary))
        return DraftTree(tuple(tokens), tuple(parents))
