"""How a model is run, as probing finds it, kept for each configuration in the cache folder."""

from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ngtcli import __version__
from ngtcli.storage import home, key_of, read_json, write_json

TREES = "trees"  # drafts are checked, in a cache that rolls back
STEPS = "steps"  # one token a pass, the model keeps its own state
REREAD = "reread"  # one token a pass, everything is read again: the model keeps nothing
_FORMAT = 1
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """`reason`: why drafts are not checked, "" if they are.

    `window`: the configuration's window is one of the tree mask (kind TREES). `positions`: the
    model is told positions; `cache`: it is given its cache at the first pass; `chunks`: a prompt
    may be read in several passes (the other kinds).
    """

    kind: str = TREES
    reason: str = ""
    window: bool = True
    positions: bool = True
    cache: bool = False
    chunks: bool = True


def way_path(hf: Any) -> Path:
    """The file of a configuration's way: its name says all that a probe's outcome depends on."""
    versions = [__version__, *(version(name) for name in ("transformers", "torch"))]
    config = hf.config.to_json_string(use_diff=False)
    attention = getattr(hf.config, "_attn_implementation", None)
    state = (_FORMAT, *versions, hf.dtype, hf.device.type, attention, type(hf).__name__, config)
    return home("cache") / "ways" / f"{key_of(*state)}.json"


def load_way(path: Path) -> Way | None:
    """The kept way; None where there is none, or none that can be believed."""
    try:
        stored = read_json(path, _MOST_BYTES)
    except Exception:  # whatever is wrong with it, probing anew mends it
        return None
    if set(stored) != {f.name for f in fields(Way)}:
        return None
    if any(type(stored[f.name]) is not type(f.default) for f in fields(Way)):
        return None
    way = Way(**stored)
    drafts = way.kind == TREES and not way.reason
    plain = way.kind in (STEPS, REREAD) and 0 < len(way.reason) < 200 and way.reason.isprintable()
    return way if drafts or plain else None


def save_way(path: Path, way: Way) -> None:
    """Keep `way`; a cache that cannot be written is done without."""
    with suppress(OSError):
        write_json(path, asdict(way))
