"""Does a model give a token the same bits however tokens are grouped into passes?

Exact decoding (exact.py) rests on that, for passes of one shape or of any number of rows. A path of
arbitrary tokens is read one token a pass, and again in chains of several with other tokens in the
same passes: its scores, and its rows in the cache, must be equal bit for bit, after a short prompt
and where the cache is nearly full.

In a model with experts the tokens decide how many rows an expert multiplies. Some kernels give some
rows other bits if they are alone, or one of a few (seen on CPUs: torch's grouped products in
float16 and float32). So more texts are tried there, in which rows that were alone get company of
tokens that go to the same experts. That finds what happens to one row in a hundred, nothing rarer.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.layout import exact_size, rows_alike
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import use_attention
from ngtcli.decode.row_bits import Watched, layers_are_alike
from ngtcli.draft.drafter import PassRows
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.weights.onednn import elements
from ngtcli.weights.trials import remembered

# Tokens compared; guess: enough for passes of 1 to 16 of them. In passes of any number of rows so
# few are read one by one, and each size is compared with those before it.
_PATH, _FEW = 16, 8
_PROMPT = 24  # tokens before them; guess
_GROUPINGS = 3  # of the path into passes, each with other tokens in its passes; guess
_TEXTS = 16  # more texts where there are experts, in one grouping each
_SAMPLED = 64  # elements of each parameter that tell weights apart; guess
EAGER = "eager"
REASON = "tokens get other scores where passes group them differently"


@dataclass(frozen=True, slots=True)
class Exactness:
    """`reason`: why decoding cannot be exact, "" if it can; `attention`: with which one it can.

    An empty `attention` is the one that the model was loaded with. Raises ValueError for others.
    """

    reason: str = ""
    attention: str = ""

    def __post_init__(self) -> None:
        if self.reason not in ("", REASON) or self.attention not in ("", EAGER):
            raise ValueError("another result")


def find_exactness(
    model: TargetModel, rows: PassRows, places: int, progress: Callable[[str], None]
) -> Exactness:
    """Whether passes of such `rows` over `places` places are exact, as stored or checked now.

    The model is left with the attention that the result names, and its cache empty. Only for passes
    of one shape another one is tried: it would make others slower.
    """
    own, modules = model.attention, (type(module) for module in model.hf.modules())
    kinds = Counter(f"{kind.__module__}.{kind.__name__}" for kind in modules)
    # By some weights a fault shows, by others it stays hidden.
    shape = (rows.most, rows.least, places)
    parts = (model.passes.kind, sorted(kinds.items()), _weights(model.hf), *shape)

    def attend(name: str) -> None:
        if name != model.attention:
            use_attention(model, name, progress)

    def check() -> Exactness:
        shape = f"{rows.most} rows" if rows.are_fixed else f"{rows.least} to {rows.most} rows"
        progress(f"Checking once that {model.name} decodes exactly in passes of {shape} …")
        for name in dict.fromkeys((own, EAGER) if rows.are_fixed else (own,)):
            attend(name)
            if not model.tree_reason and gives_equal_bits(model, rows, places):
                return Exactness("", "" if name == own else name)
        return Exactness(REASON)

    found = remembered("exact", model.hf, Exactness, *parts).find(check)
    attend(found.attention or own)
    return found


def _weights(hf: Any) -> str:
    """A hash of elements at equal distances of each parameter; others may differ unseen."""
    digest = hashlib.sha256()
    for name, parameter in hf.named_parameters():
        flat = elements(parameter) if parameter.is_mkldnn else parameter.detach().flatten()
        some = flat[torch.arange(_SAMPLED, device=flat.device) * len(flat) // _SAMPLED]
        digest.update(name.encode() + some.cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.inference_mode()
def gives_equal_bits(model: TargetModel, rows: PassRows, places: int) -> bool:
    """Whether paths have the same bits in several groupings. False where the model raises."""
    try:
        if not rows.are_fixed and not layers_are_alike(model.hf, sizes_of(model, rows)):
            return False
        return all(case.agrees() for case in _cases(model, rows, places))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a model's own code raises at such a shape
        return False


def sizes_of(model: TargetModel, rows: PassRows) -> list[int]:
    """All sizes of exact passes, rising."""
    device = model.device.type
    return sorted({exact_size(device, count, rows) for count in range(1, rows.most + 1)})


def has_experts(hf: Any) -> bool:
    """Whether parts of a model are named as experts are."""
    names = (f"{name}.{type(module).__name__}" for name, module in hf.named_modules())
    return any("expert" in name.lower() for name in names)


def _cases(model: TargetModel, rows: PassRows, places: int) -> "Iterator[_Case]":
    last = min(places - rows.most, model.context) - max(_PATH, rows.most)
    lengths, watched = sorted({max(1, min(_PROMPT, last)), max(1, last)}), Watched()
    for length in lengths:
        yield _Case(model, 0, length, rows, places, watched)
    for text in range(1, _TEXTS + 1) if has_experts(model.hf) else ():
        length = lengths[text % len(lengths)]
        yield _Case(model, text, length, rows, places, watched, alike=True)


@dataclass(frozen=True, slots=True)
class _Case:
    """A path that begins behind `length` rows of the cache; `text` is the seed of its tokens.

    With `alike` it is read in one grouping, where most other tokens are those of the path.
    """

    model: TargetModel
    text: int
    length: int
    rows: PassRows
    places: int
    watched: Watched = field(default_factory=Watched)
    alike: bool = False

    def agrees(self) -> bool:
        """Whether the path has the same bits in all its groupings, and numbers one formula."""
        model, source, sizes = self.model, random.Random(self.text), sizes_of(self.model, self.rows)
        model.start(self.places - self.rows.most, self.rows)
        model.prefill([source.randrange(model.vocabulary) for _ in range(_PROMPT)][: self.length])
        model.cache.repeat(self.length)
        if self.alike:
            sizes = sizes[-1:]
        elif self.rows.are_fixed:
            sizes *= _GROUPINGS
        lengths = [_PATH if self._is_random else max(size, _FEW) for size in sizes]
        path = [source.randrange(model.vocabulary) for _ in range(max(lengths))]
        known = self._read(path[: min(lengths)])
        for seed, (size, length) in enumerate(zip(sizes, lengths, strict=True), self.text):
            found = self._read(path[:length], size, random.Random(seed))
            if not (self.watched.alike and found.agrees(known)):
                return False
            known = max(known, found, key=lambda reading: len(reading.scores))
        return True

    @property
    def _is_random(self) -> bool:
        """Whether passes take any number of the path's tokens, and not the most."""
        return self.rows.are_fixed or self.alike

    def _read(self, path: list[int], size: int = 1, rng: random.Random | None = None) -> "_Reading":
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
            with self.watched if self.rows.most > 1 else nullcontext():
                scores += model.forward(path[at], tree)[:together].clone()
            model.keep(range(together - 1))
            at += together
        return _Reading(scores, [rows[:, :, self.length :].clone() for rows in model.cache.rows()])

    def _tree(self, chain: list[int], most: int, rng: random.Random) -> DraftTree:
        """A chain below the root, and other nodes: arbitrary ones, or, alike, twins of its own."""
        tokens, parents = list(chain), [*range(ROOT, len(chain) - 1)]
        while len(tokens) < most:
            if self.alike and chain and rng.random() < 0.7:
                twin = rng.randrange(len(chain))
                tokens.append(chain[twin])
                parents.append(twin - 1)
            else:
                parents.append(rng.randrange(ROOT, len(tokens)))
                tokens.append(rng.randrange(self.model.vocabulary))
        return DraftTree(tuple(tokens), tuple(parents))


@dataclass(frozen=True, slots=True)
class _Reading:
    """The scores after each token of a path that was read, and its rows in the cache."""

    scores: list[Tensor]
    rows: list[Tensor]

    def agrees(self, other: "_Reading") -> bool:
        """Whether what both have read has the same bits."""
        count = min(len(self.scores), len(other.scores))
        mine, theirs = (
            [*one.scores[:count], *(rows[:, :, :count] for rows in one.rows)]
            for one in (self, other)
        )
        return all(map(torch.equal, mine, theirs))
