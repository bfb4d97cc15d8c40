"""How a model is run, as probing found it; stored for each configuration in the cache folder."""

from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ngtcli import __version__
from ngtcli.system.storage import home, key_of, read_json, write_json

TREES = "trees"  # drafts are verified, in a cache that can be rolled back
STEPS = "steps"  # one token a pass; the model has a state of its own
REREAD = "reread"  # one token a pass; the model has no state and reads everything again
_FORMAT = 2
_MOST_BYTES = 4096


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


def way_path(hf: Any) -> Path:
    """The file of a way; its name is a hash of all that the result of probing depends on."""
    versions = [__version__, *(version(name) for name in ("transformers", "torch"))]
    config = hf.config.to_json_string(use_diff=False)
    attention = getattr(hf.config, "_attn_implementation", None)
    state = (_FORMAT, *versions, hf.dtype, hf.device.type, attention, type(hf).__name__, config)
    return home("cache") / "ways" / f"{key_of(*state)}.json"


def load_way(path: Path) -> Way | None:
    """The stored way; None where there is none, or where its file holds no valid one."""
    try:
        stored = read_json(path, _MOST_BYTES)
    except Exception:  # probing anew replaces a file that is wrong in any way
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
    """Store `way`. Ignores a cache folder that cannot be written to."""
    with suppress(OSError):
        write_json(path, asdict(way))
