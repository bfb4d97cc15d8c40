"""The kinds of learned heads: how their files are recognized, renamed and loaded."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ngtcli.errors import ModelError
from ngtcli.heads import dflash, eagle, mtp, perceptrons
from ngtcli.heads.files import HeadFiles, Target, first_line, open_head
from ngtcli.heads.head import AtOnce, ByPath, Head
from ngtcli.heads.places import HINT, OWN

_NO_NAME = "$^"  # a pattern that matches no name


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of head. Its patterns are regular expressions.

    Attributes:
        name: The name for people.
        required: Each of these patterns must match the beginning of at least one tensor's name, or
            of a key that config.json sets.
        network: Makes the network of the head's files and the target. It raises ModelError for a
            head of another target.
        forbidden: None of these patterns may match the beginning of such a name or key.
        ignored: Tensors with a match anywhere in their names are not used.
        rename: Patterns of published names, and what replaces them in the network's names.
        numbered: Names with (prefix)(number), whose numbers are replaced by 0, 1, … in order.
        is_filled: Whether the network comes without values and is filled from the files.
        at_once: Whether draft tokens do not depend on the tokens that lead to a node.
    """

    name: str
    required: tuple[str, ...]
    network: Callable[[HeadFiles, Target], Any]
    forbidden: tuple[str, ...] = ()
    ignored: str = _NO_NAME
    rename: tuple[tuple[str, str], ...] = ()
    numbered: str = _NO_NAME
    is_filled: bool = True
    at_once: bool = False

    def matches(self, files: HeadFiles) -> bool:
        """Return whether files are of this kind. Raises ModelError for a malformed config.json."""
        config = files.config.get("text_config") or files.config
        if not isinstance(config, Mapping):
            raise files.refused(f"its config.json says text_config: {config!r:.200}, no object")
        names = [*files.tensors, *(name for name, value in config.items() if value)]

        def occurs(pattern: str) -> bool:
            return any(re.match(pattern, name) for name in names)

        return all(map(occurs, self.required)) and not any(map(occurs, self.forbidden))

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """Return, for each tensor that is used, its name in the network and its name in the files.

        Args:
            stored: The names of the tensors in the files.
        """
        stored_names: dict[str, str] = {}  # by new name
        for name in stored:
            if re.search(self.ignored, name):
                continue
            new_name = name
            for pattern, replacement in self.rename:
                new_name = re.sub(pattern, replacement, new_name)
            stored_names[new_name] = name

        numbers: dict[str, set[int]] = {}  # the numbers after each prefix
        for new_name in stored_names:
            match = re.match(self.numbered, new_name)
            if match:
                numbers.setdefault(match[1], set()).add(int(match[2]))

        def renumber(match: re.Match[str]) -> str:
            prefix, number = match[1], int(match[2])
            return f"{prefix}{sorted(numbers[prefix]).index(number)}"

        return {
            re.sub(self.numbered, renumber, new_name): name
            for new_name, name in stored_names.items()
        }


# Tensors that describe the target's tokens, or copy parts of the target.
_TARGETS_TENSORS = r"^d2t$|^t2d$|^verifier_"
_MTP = Kind("mtp", (r"num_(nextn_predict|mtp)_layers$",), mtp.network, is_filled=False)
_HYDRA = (
    (r"^hydra_head\.", ""),
    (r"^(hydra_lm_head\.\d+)\.(?:\d+\.)?(weight|bias)$", r"\1.\2"),
    (r"^prefix_embedd?ing_layer\.", "prefix_embedding_layer."),  # published with one d
)
# The first kind that files match is theirs.
KINDS = (
    Kind(
        "medusa",
        (r"(medusa_heads?\.)?\d+\.\d+\.linear\.",),
        perceptrons.medusa,
        at_once=True,
        ignored=r"^(?!medusa_heads?\.|\d+\.\d+\.)",
        rename=((r"^medusa_heads?\.", ""),),
    ),
    Kind(
        "hydra",
        (r"hydra_(mlp|head)\.|hydra_head_arch$",),
        perceptrons.hydra,
        rename=_HYDRA,
        ignored=r"(input_embed_fn\.weight|embed_tokens\.weight|inv_freq)$",
        numbered=r"(hydra_mlp\.\d+\.)(\d{1,4})(?=\.)",
    ),
    Kind(
        "eagle3",
        (r"fc\.", r"(midlayer|layers\.0)\.hidden_norm\."),
        eagle.network3,
        ignored=_TARGETS_TENSORS,
        rename=((r"^layers\.0\.", "midlayer."),),
    ),
    Kind(
        "eagle",
        (r"fc\.", r"layers\.0\.self_attn\.q_proj\."),
        eagle.network,
        forbidden=(r"layers\.0\.input_layernorm\.",),
        ignored=r"inv_freq$",
    ),
    Kind(
        "dflash",
        (r"fc\.", r"hidden_norm\.", r"layers\.0\.mlp\."),
        dflash.network,
        at_once=True,
        ignored=rf"{_TARGETS_TENSORS}|^embed_tokens\.weight$",
    ),
    _MTP,
)
_MAX_DEPTH = 64  # draft tokens in a row (guess: published heads propose 16 at most)


def load_head(
    name: str,
    hf: Any,
    device: torch.device,
    dtype: torch.dtype,
    *,
    captures: bool = False,
) -> Head:
    """Load a head, downloading it if needed.

    Args:
        name: A folder, ID[@REVISION] on the hub, or "mtp" for the model's own MTP layers.
        hf: The target, a `transformers` model.
        device: The device on which the head computes.
        dtype: The dtype in which it computes.
        captures: Whether its forward passes are captured as CUDA graphs. If they cannot be, a
            warning says why.

    Raises:
        ModelError: The files cannot be read, are incomplete or of no known kind, or belong to a
            head for another model.
    """
    target = Target(hf, device, dtype)
    if name == OWN:
        model_files = HeadFiles(name, Path(hf.config.name_or_path), {}, {})
        return _build(_MTP, model_files, target, captures)
    files = open_head(name)
    for kind in KINDS:
        if kind.matches(files):
            return _build(kind, files, target, captures)
    kinds = ", ".join(kind.name for kind in KINDS)
    raise files.refused(
        f"no known kind of head has a tensor {min(files.tensors)[:100]}",
        f"{HINT} Known kinds: {kinds}.",
    )


def _build(kind: Kind, files: HeadFiles, target: Target, captures: bool) -> Head:
    """Build a head and test that it can make a draft. Raises ModelError if it cannot."""
    files = replace(files, stored=kind.names(files.tensors))
    try:
        with torch.device("meta") if kind.is_filled else nullcontext():
            network = kind.network(files, target)
        if kind.is_filled:
            files.fill(network, target)
        head_class = AtOnce if kind.at_once else ByPath
        head = head_class(kind.name, network, target, captures)
        if not 0 < head.depth <= _MAX_DEPTH:
            raise files.refused(f"it guesses {head.depth} tokens ahead, not 1 to {_MAX_DEPTH}")
        states = torch.zeros(2, len(head.layers) * target.width)
        head.read(states, torch.zeros(2, dtype=torch.int64), 0)
        head.first(0)
    except ModelError:
        raise
    except Exception as error:  # configurations and model families fail in many ways
        message = f"it does not run as its config.json says ({first_line(error)})"
        raise files.refused(message) from error
    head.reset()
    return head
