"""Loads a learned head of any kind from its folder or from the hub."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ngtcli.errors import ModelError
from ngtcli.heads import dflash, eagle, eagle3, hydra, medusa, mtp
from ngtcli.heads.files import HeadFiles, Notify, Target, open_head
from ngtcli.heads.head import Head
from ngtcli.heads.places import HINT, OWN


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of head: whether files are of it, and what makes a head of them.

    `build` raises ModelError for files that do not fill a head, or one that is not for the target.
    """

    name: str
    recognise: Callable[[HeadFiles], bool]
    build: Callable[[HeadFiles, Target], Head]


_DEEPEST = 64  # tokens; guess: published heads guess 16 at most
# The first that recognises the files makes the head.
KINDS = (
    Kind("medusa", medusa.recognise, medusa.build),
    Kind("hydra", hydra.recognise, hydra.build),
    Kind("eagle3", eagle3.recognise, eagle3.build),
    Kind("eagle", eagle.recognise, eagle.build),
    Kind("dflash", dflash.recognise, dflash.build),
    Kind("mtp", mtp.recognise, mtp.build),
)


def load_head(
    name: str,
    hf: Any,
    device: torch.device,
    dtype: torch.dtype,
    progress: Notify = lambda _: None,
) -> Head:
    """The head in a folder, or under ID[@REVISION] of the hub, for the `transformers` model `hf`.

    "mtp" are the model's own MTP layers, as is the folder that it comes from. It computes in
    `dtype` on `device`; it may be downloaded. Raises ModelError for files that cannot be read, of
    no known kind, not complete, or of a head for another model.
    """
    if name == OWN:
        return mtp.own_head(Target(hf, device, dtype), Path(hf.config.name_or_path), name)
    files = open_head(name, progress)
    for kind in KINDS:
        if kind.recognise(files):
            return _built(kind, files, Target(hf, device, dtype))
    known = ", ".join(kind.name for kind in KINDS)
    what = f"no known kind of head has a tensor {min(files.shapes)[:100]}"
    raise files.refused(what, f"{HINT} Known kinds: {known}.")


def _built(kind: Kind, files: HeadFiles, target: Target) -> Head:
    """The head, which has made a guess. Raises ModelError where it cannot."""
    try:
        head = kind.build(files, target)
        if not 0 < head.depth <= _DEEPEST:
            raise files.refused(f"it guesses {head.depth} tokens ahead, not 1 to {_DEEPEST}")
        states = torch.zeros(2, len(head.layers) * target.width)
        head.read(states, torch.zeros(2, dtype=torch.int64), 0)
        head.first(0)
    except ModelError:
        raise
    except Exception as error:  # configurations fail in many ways
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise files.refused(f"it does not run as its config.json says ({why})") from error
    head.reset()
    return head
