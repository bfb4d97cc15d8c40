"""Does a model give a token the same bits however tokens are grouped into passes of one shape?

Exact decoding (exact.py) rests on that. A path of arbitrary tokens is read one token a pass, and
again in chains of several with other tokens beside them: its scores, and its rows in the cache,
must be equal bit for bit, after a short prompt and where the cache is nearly full. What is found is
stored for each model, device, dtype, shape, number of threads and version.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli import __version__
from ngtcli.decode.model import TargetModel
from ngtcli.decode.shapes import rows_alike
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.system.storage import home, key_of, read_json, write_json

_FORMAT = 1
_MOST_BYTES = 4096
_PATH = 16  # tokens compared; guess: enough for passes of 1 to 16 of them
_PROMPT = 24  # tokens before them; guess
_GROUPINGS = 3  # of the path into passes, each with other tokens beside it; guess
EAGER = "eager"
REASON = "tokens get other scores where passes group them differently"


@dataclass(frozen=True, slots=True)
class Exactness:
    """`reason`: why decoding cannot be exact, "" if it can; `attention`: with which one it can.

    An empty `attention` is the one that the model was loaded with.
    """

    reason: str = ""
    attention: str = ""


def find_exactness(
    model: TargetModel, rows: int, places: int, progress: Callable[[str], None] = lambda _: None
) -> Exactness:
    """Whether passes of `rows` rows over `places` places are exact, as stored or checked now.

    The model is left with the attention that the result names, and its cache empty.
    """
    path = _path(model, rows, places)
    found = _load(path)
    if found is None:
        progress(f"Checking once that {model.name} decodes exactly in passes of {rows} rows …")
        found = _check(model, rows, places)
        with suppress(OSError):  # a cache folder that cannot be written to
            write_json(path, asdict(found))
    elif found.attention:
        model.use_attention(found.attention)
    return found


def _check(model: TargetModel, rows: int, places: int) -> Exactness:
    own = model.attention
    for attention in ("", EAGER) if own != EAGER else ("",):
        if attention:
            model.use_attention(attention)
        if not model.plain_reason and gives_equal_bits(model, rows, places):
            return Exactness("", attention)
    if model.attention != own:
        model.use_attention(own)
    return Exactness(REASON)


@torch.inference_mode()
def gives_equal_bits(model: TargetModel, rows: int, places: int) -> bool:
    """Whether a path has the same bits in several groupings. False where the model raises."""
    rng = random.Random(0)
    text = [rng.randrange(model.vocabulary) for _ in range(_PROMPT + _PATH)]
    last = min(places - rows, model.context) - _PATH
    try:
        for length in sorted({min(_PROMPT, last), last}):
            case = _Case(model, text[:_PROMPT], text[_PROMPT:], max(length, 1), rows, places)
            truth = case.read(None)
            with model.passes.capturing_at_once():  # eager passes are compared with captured ones
                for seed in range(_GROUPINGS):
                    if not _equal(case.read(random.Random(seed)), truth):
                        return False
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # whatever a model's own code raises at such a shape
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Case:
    """A path that begins behind `length` rows of the cache."""

    model: TargetModel
    prompt: list[int]
    path: list[int]
    length: int
    rows: int
    places: int

    def read(self, rng: random.Random | None) -> list[Tensor]:
        """The scores after each token of the path, and its rows in the cache.

        Without `rng` one token a pass; with it several, and arbitrary tokens below and beside them.
        """
        model, out, at = self.model, list[Tensor](), 0
        model.start(self.places - self.rows, self.rows)
        model.prefill(self.prompt[: self.length])
        model.repeat_rows(self.length)
        while at < len(self.path):
            alike = rows_alike(model.length, self.rows)
            longest = min(self.rows, len(self.path) - at, alike)
            together = rng.randint(1, longest) if rng else 1
            tree = self._tree(at, together, rng) if rng else DraftTree()
            out += model.forward(self.path[at], tree)[:together].clone()
            model.keep(range(together - 1))
            at += together
        return out + [rows[:, :, self.length :].clone() for rows in model.cached()]

    def _tree(self, at: int, together: int, rng: random.Random) -> DraftTree:
        """The path's next tokens in a chain, and arbitrary ones that hang below any node."""
        chain = self.path[at + 1 : at + together]
        more = rng.randint(0, self.rows - together)
        tokens = [*chain, *(rng.randrange(self.model.vocabulary) for _ in range(more))]
        parents = [*range(ROOT, len(chain) - 1)]
        parents += [rng.randrange(ROOT, len(chain) + i) for i in range(more)]
        return DraftTree(tuple(tokens), tuple(parents))


def _equal(found: Sequence[Tensor], truth: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))


def _path(model: TargetModel, rows: int, places: int) -> Path:
    """The file of a result; its name is a hash of all that the result depends on."""
    versions = [__version__, *(version(name) for name in ("transformers", "torch"))]
    device = model.device.type
    if device == "cuda":
        machine: list[object] = [torch.cuda.get_device_name(model.device)]
    else:
        machine = [device, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    parts = Counter(f"{type(m).__module__}.{type(m).__name__}" for m in model.hf.modules())
    config = model.config.to_json_string(use_diff=False)
    ways = [model.dtype, model.attention, model.passes.kind, sorted(parts.items())]
    state: list[Any] = [*versions, *machine, *ways]
    return home("cache") / "exact" / f"{key_of(_FORMAT, *state, config, rows, places)}.json"


def _load(path: Path) -> Exactness | None:
    """The stored result; None where there is none, or where its file holds no valid one."""
    try:
        stored = read_json(path, _MOST_BYTES)
    except Exception:  # checking anew replaces a file that is wrong in any way
        return None
    if set(stored) != {f.name for f in fields(Exactness)}:
        return None
    known = stored["reason"] in ("", REASON) and stored["attention"] in ("", EAGER)
    return Exactness(**stored) if known else None
