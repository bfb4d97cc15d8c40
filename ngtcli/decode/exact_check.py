"""Does a model give a token the same bits however tokens are grouped into passes of one shape?

Exact decoding (exact.py) rests on that. A path of arbitrary tokens is read one token a pass, and
again in chains of several with other tokens in the same passes: its scores, and its rows in the
cache, must be equal bit for bit, after a short prompt and where the cache is nearly full.

In a model with experts the tokens decide how many rows an expert multiplies. Some kernels give some
rows other bits if they are alone, or one of a few (seen on CPUs: torch's grouped products in
float16 and float32). So more texts are tried there, in which rows that were alone get company of
tokens that go to the same experts. That finds what happens to one row in a hundred, nothing rarer.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.layout import capacity_for, rows_alike
from ngtcli.decode.model import TargetModel
from ngtcli.decode.packed import elements
from ngtcli.decode.probe import use_attention
from ngtcli.decode.trials import remembered
from ngtcli.draft.costs import SHORT, Costs
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError

_PATH = 16  # tokens compared; guess: enough for passes of 1 to 16 of them
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
    model: TargetModel, rows: int, places: int, progress: Callable[[str], None]
) -> Exactness:
    """Whether passes of `rows` rows over `places` places are exact, as stored or checked now.

    The model is left with the attention that the result names, and its cache empty.
    """
    own, modules = model.attention, (type(module) for module in model.hf.modules())
    kinds = Counter(f"{kind.__module__}.{kind.__name__}" for kind in modules)
    # By some weights a fault shows, by others it stays hidden.
    parts = (model.passes.kind, sorted(kinds.items()), _weights(model.hf), rows, places)

    def attend(name: str) -> None:
        if name != model.attention:
            use_attention(model, name, progress)

    def check() -> Exactness:
        progress(f"Checking once that {model.name} decodes exactly in passes of {rows} rows …")
        for name in dict.fromkeys((own, EAGER)):
            attend(name)
            if not model.plain_reason and gives_equal_bits(model, rows, places):
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
def gives_equal_bits(model: TargetModel, rows: int, places: int) -> bool:
    """Whether paths have the same bits in several groupings. False where the model raises."""
    try:
        return all(case.agrees() for case in _cases(model, rows, places))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a model's own code raises at such a shape
        return False


def has_experts(hf: Any) -> bool:
    """Whether parts of a model are named as experts are."""
    names = (f"{name}.{type(module).__name__}" for name, module in hf.named_modules())
    return any("expert" in name.lower() for name in names)


def _cases(model: TargetModel, rows: int, places: int) -> "Iterator[_Case]":
    last = min(places - rows, model.context) - _PATH
    lengths = sorted({max(1, min(_PROMPT, last)), max(1, last)})
    for length in lengths:
        yield _Case(model, 0, length, rows, places)
    for text in range(1, _TEXTS + 1) if has_experts(model.hf) else ():
        yield _Case(model, text, lengths[text % len(lengths)], rows, places, alike=True)


@dataclass(frozen=True, slots=True)
class _Case:
    """A path that begins behind `length` rows of the cache; `text` is the seed of its tokens.

    With `alike` it is read in one grouping, where most other tokens are those of the path.
    """

    model: TargetModel
    text: int
    length: int
    rows: int
    places: int
    alike: bool = False

    def agrees(self) -> bool:
        """Whether the path has the same bits in all its groupings."""
        truth = self._read(None)
        with self.model.passes.capturing_at_once():  # eager passes are compared with captured ones
            seeds = (self.text,) if self.alike else range(_GROUPINGS)
            found = (self._read(random.Random(seed)) for seed in seeds)
            return all(all(map(torch.equal, one, truth)) for one in found)

    def _read(self, rng: random.Random | None) -> list[Tensor]:
        """The scores after each token of the path, and its rows in the cache.

        Without `rng` one token a pass; with it several, and other tokens in the same passes.
        """
        source = random.Random(self.text)
        tokens = [source.randrange(self.model.vocabulary) for _ in range(_PROMPT + _PATH)]
        model, path, out, at = self.model, tokens[_PROMPT:], list[Tensor](), 0
        model.start(self.places - self.rows, self.rows)
        model.prefill(tokens[:_PROMPT][: self.length])
        model.cache.repeat(self.length)
        while at < len(path):
            alike = rows_alike(model.length, self.rows)
            longest = min(self.rows, len(path) - at, alike)
            together = rng.randint(1, longest) if rng else 1
            tree = self._tree(path[at + 1 : at + together], rng) if rng else DraftTree()
            out += model.forward(path[at], tree)[:together].clone()
            model.keep(range(together - 1))
            at += together
        return out + [rows[:, :, self.length :].clone() for rows in model.cache.rows()]

    def _tree(self, chain: list[int], rng: random.Random) -> DraftTree:
        """A chain below the root, and other nodes: arbitrary ones, or, alike, twins of its own."""
        tokens, parents = list(chain), [*range(ROOT, len(chain) - 1)]
        for _ in range(rng.randint(0, self.rows - 1 - len(chain))):
            if self.alike and chain and rng.random() < 0.7:
                twin = rng.randrange(len(chain))
                tokens.append(chain[twin])
                parents.append(twin - 1)
            else:
                tokens.append(rng.randrange(self.model.vocabulary))
                parents.append(rng.randrange(ROOT, len(tokens) - 1))
        return DraftTree(tuple(tokens), tuple(parents))


# With --exact auto, a pass over all rows may take this many times as long as one over a single row.
# Guess: two measurements on a machine in use differ by more.
_MOST_COST = 1.05
_BLOCK = 32  # rows that attention kernels take at once; other sizes gave other bits (33, in SDPA)


def block_rows(most: int) -> int:
    """The most rows, up to `most`, that are a power of two or a multiple of a kernel's block.

    >>> [block_rows(most) for most in (1, 7, 9, 33, 65, 100)]
    [1, 4, 8, 32, 64, 96]
    """
    return most // _BLOCK * _BLOCK or 1 << (max(1, most).bit_length() - 1)


class ExactRows:
    """Decides for each answer. `costs` gives what passes cost as they were measured, or None."""

    def __init__(
        self,
        model: TargetModel,
        costs: Callable[[], Costs | None],
        progress: Callable[[str], None],
    ) -> None:
        self._model, self._costs, self._progress = model, costs, progress
        self._reasons: dict[tuple[int, int, str], str] = {}  # by rows, places and attention

    def with_costs(self, costs: Callable[[], Costs | None]) -> "ExactRows":
        """The same model by other costs; what was found of it is shared."""
        other = copy(self)
        other._costs = costs
        return other

    def choose(self, wanted: str, num_draft: int, tokens: int) -> int | None:
        """The rows of every pass, drafts of up to `num_draft` nodes among them; None: not exact.

        `wanted` is "auto", "on" or "off", `tokens` the most of prompt and answer. Raises ModelError
        where decoding is to be exact and cannot be.
        """
        model, rows = self._model, block_rows(num_draft + 1)
        if wanted == "off" or model.plain_reason:
            return None
        if wanted == "auto" and not self._costs_nothing(rows):
            return None
        places = capacity_for(tokens + rows)
        key = rows, places, model.attention
        if key not in self._reasons:
            self._reasons[key] = find_exactness(model, rows, places, self._progress).reason
        reason = self._reasons[key]
        if reason and wanted == "on":
            raise ModelError(
                f"{model.name} cannot decode exactly here: {reason}, with eager attention as well",
                "Leave out --exact, or try another --dtype, --device or --num-draft.",
            )
        return None if reason else rows

    def _costs_nothing(self, rows: int) -> bool:
        """Whether a pass over `rows` rows was measured to take no longer than one over one row."""
        single = self._model.device.type == "cpu" and self._model.dtype == torch.float32
        if single or (costs := self._costs()) is None:
            return False
        table = costs.at_length(SHORT).table_measured(rows)
        return bool(table[rows - 1] <= _MOST_COST * table[0])
