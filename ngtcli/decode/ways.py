"""How a model is run, as probing found it; stored for each configuration in the cache folder."""

from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.system.remembered import Remembered, read_fields

TREES = "trees"  # drafts are verified, in a cache that can be rolled back
STEPS = "steps"  # one token a pass; the model has a state of its own
REREAD = "reread"  # one token a pass; the model has no state and reads everything again


@dataclass(frozen=True, slots=True)
class Way:
    """`reason`: why drafts are not verified, "" if they are.

    `window`: the tree mask applies the configuration's window (kind TREES). For the other kinds:
    `positions`: the model takes position ids; `cache`: it takes a new cache at the first pass;
    `chunks`: it may read a prompt in several passes.
    """

    kind: str = TREES
    reason: str = ""
    window: bool = True
    positions: bool = True
    cache: bool = False
    chunks: bool = True


def remembered_way(hf: Any) -> Remembered[Way]:
    """Where the way of a model is kept."""
    config = hf.config.to_json_string(use_diff=False)
    attention = getattr(hf.config, "_attn_implementation", None)
    parts = (hf.dtype, attention, type(hf).__name__, config)
    return Remembered("ways", hf.device, parts, _read, asdict, threads=False)


def _read(stored: Any) -> Way:
    way = read_fields(Way, stored)
    drafts = way.kind == TREES and not way.reason
    plain = way.kind in (STEPS, REREAD) and 0 < len(way.reason) < 200 and way.reason.isprintable()
    if not (drafts or plain):
        raise ValueError("no way to run a model")
    return way
