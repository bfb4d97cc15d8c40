"""The kinds of learned heads, and how one is made of its files."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from ngtcli.errors import ModelError
from ngtcli.heads import dflash, eagle, mtp, perceptrons
from ngtcli.heads.files import HeadFiles, Notify, Target, first_line, open_head
from ngtcli.heads.head import AtOnce, ByPath, Head
from ngtcli.heads.places import HINT, OWN


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of head.

    Files are of it if each of `marks` begins a name of a tensor or of what config.json sets, and
    `lacks` none. `network` makes what computes of their config.json and names, with no values yet;
    it raises ModelError for a head of another target. Tensors whose names have `left_out` are not
    used. `rename` has patterns of published names and what takes their place in the network's; in
    those that match `numbered`, (before)(number), the numbers there are become 0, 1, … Unless it
    `is_filled`, the network comes with its values. `at_once`: its guesses do not depend on the
    tokens that lead to a node.
    """

    name: str
    marks: tuple[str, ...]
    network: Callable[[HeadFiles, Target], Any]
    lacks: str = "$^"
    left_out: str = "$^"
    rename: tuple[tuple[str, str], ...] = ()
    numbered: str = "$^"
    is_filled: bool = True
    at_once: bool = False

    def is_of(self, files: HeadFiles) -> bool:
        """Whether files are of this kind."""
        config = files.config.get("text_config") or files.config
        if not isinstance(config, Mapping):
            raise files.refused(f"its config.json says text_config: {config!r:.200}, no object")
        names = [*files.tensors, *(name for name, value in config.items() if value)]
        found = [any(re.match(mark, name) for name in names) for mark in (*self.marks, self.lacks)]
        return all(found[:-1]) and not found[-1]

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """The names of the tensors that are used, by those that they have in the network."""
        used = [name for name in stored if not re.search(self.left_out, name)]
        found = {reduce(_renamed, self.rename, name): name for name in used}
        numbers: dict[str, set[int]] = {}
        for match in filter(None, (re.match(self.numbered, own) for own in found)):
            numbers.setdefault(match[1], set()).add(int(match[2]))

        def in_turn(match: re.Match[str]) -> str:
            return f"{match[1]}{sorted(numbers[match[1]]).index(int(match[2]))}"

        return {re.sub(self.numbered, in_turn, own): name for own, name in found.items()}


def _renamed(name: str, rule: tuple[str, str]) -> str:
    return re.sub(*rule, name)


_OF_TARGET = r"^d2t$|^t2d$|^verifier_"  # what files say of the target's tokens, or hold of it
_MTP = Kind("mtp", (r"num_(nextn_predict|mtp)_layers$",), mtp.network, is_filled=False)
_HYDRA = (
    (r"^hydra_head\.", ""),
    (r"^(hydra_lm_head\.\d+)\.(?:\d+\.)?(weight|bias)$", r"\1.\2"),
    (r"^prefix_embedd?ing_layer\.", "prefix_embedding_layer."),  # published with one d
)
# The first that the files are of makes the head.
KINDS = (
    Kind(
        "medusa", (r"(medusa_heads?\.)?\d+\.\d+\.linear\.",), perceptrons.medusa, at_once=True,
        left_out=r"^(?!medusa_heads?\.|\d+\.\d+\.)", rename=((r"^medusa_heads?\.", ""),),
    ),
    Kind(
        "hydra", (r"hydra_(mlp|head)\.|hydra_head_arch$",), perceptrons.hydra, rename=_HYDRA,
        left_out=r"(input_embed_fn\.weight|embed_tokens\.weight|inv_freq)$",
        numbered=r"(hydra_mlp\.\d+\.)(\d{1,4})(?=\.)",
    ),
    Kind(
        "eagle3", (r"fc\.", r"(midlayer|layers\.0)\.hidden_norm\."), eagle.network3,
        left_out=_OF_TARGET, rename=((r"^layers\.0\.", "midlayer."),),
    ),
    Kind(
        "eagle", (r"fc\.", r"layers\.0\.self_attn\.q_proj\."), eagle.network,
        lacks=r"layers\.0\.input_layernorm\.", left_out=r"inv_freq$",
    ),
    Kind(
        "dflash", (r"fc\.", r"hidden_norm\.", r"layers\.0\.mlp\."), dflash.network, at_once=True,
        left_out=rf"{_OF_TARGET}|^embed_tokens\.weight$",
    ),
    _MTP,
)  # fmt: skip
_DEEPEST = 64  # tokens; guess: published heads guess 16 at most


def load_head(
    name: str,
    hf: Any,
    device: torch.device,
    dtype: torch.dtype,
    progress: Notify = lambda _: None,
    warn: Notify | None = None,
) -> Head:
    """The head in a folder, or under ID[@REVISION] of the hub, for the `transformers` model `hf`.

    "mtp" are the model's own MTP layers, as is the folder that it comes from. It computes in
    `dtype` on `device`, in captured passes where `warn` is given; it may be downloaded. Raises
    ModelError for files that cannot be read, of no known kind, not complete, or of a head for
    another model.
    """
    target = Target(hf, device, dtype)
    if name == OWN:
        own = HeadFiles(name, Path(hf.config.name_or_path), {}, {})
        return _built(_MTP, own, target, warn)
    files = open_head(name, progress)
    if kind := next((kind for kind in KINDS if kind.is_of(files)), None):
        return _built(kind, files, target, warn)
    what = f"no known kind of head has a tensor {min(files.tensors)[:100]}"
    raise files.refused(what, f"{HINT} Known kinds: {', '.join(kind.name for kind in KINDS)}.")


def _built(kind: Kind, files: HeadFiles, target: Target, warn: Notify | None) -> Head:
    """The head, which has made a guess. Raises ModelError where it cannot."""
    files = replace(files, stored=kind.names(files.tensors))
    try:
        with torch.device("meta") if kind.is_filled else nullcontext():
            network = kind.network(files, target)
        if kind.is_filled:
            files.fill(network, target)
        head = (AtOnce if kind.at_once else ByPath)(kind.name, network, target, warn)
        if not 0 < head.depth <= _DEEPEST:
            raise files.refused(f"it guesses {head.depth} tokens ahead, not 1 to {_DEEPEST}")
        states = torch.zeros(2, len(head.layers) * target.width)
        head.read(states, torch.zeros(2, dtype=torch.int64), 0)
        head.first(0)
    except ModelError:
        raise
    except Exception as error:  # configurations and families fail in many ways
        what = f"it does not run as its config.json says ({first_line(error)})"
        raise files.refused(what) from error
    head.reset()
    return head
