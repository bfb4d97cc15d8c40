"""Rows of the last prompts, kept for prompts that begin alike: what was read is not read again.

Kept are whole chunks of the prefill from a prompt's start on, so the rows are those that reading
them again would compute, bit for bit. Rows of other passes are never kept. A chunk's key is a hash
of the model, the owner, and all ids up to its end; its ids are compared besides. The rows of the
last prompt lie in the model's cache; those of prompts before it in memory, as far as there is room,
and on disk, one array file a chunk. What is missing or damaged is read again. Where learned heads
read the text, the hidden states that they want are kept beside the rows; a chunk that lacks them is
of no use to heads.
"""

import json
import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.kv_cache import CHUNK, Keeping, Link, RollbackCache
from ngtcli.draft.steps import Reused
from ngtcli.system.arrays import Array, ArrayFile
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.system.machine import free_memory
from ngtcli.system.trials import device_and_threads, versions_and_cpu
from ngtcli.weights.trials import SPREAD, places_of, what_matters

WORTH_S = 2.0  # seconds of reading from which on `keep_documents` auto writes a prompt; guess
# Of the memory that is free, and of that which the kept rows take, so much is for them. Guess: most
# is for the caches of texts that are being answered.
_SHARE = 0.125
_UNKNOWN = 1 << 30  # bytes that are kept where the free memory is not known; guess
_FORMAT = 2
PREFIXES = ArrayFile(
    "what was read is", "prefixes", ".safetensors", f"ngt rows {_FORMAT}", 1 << 33,
    {"rows": Array("uint8")},
)  # fmt: skip
_WRONG = (ValueError, TypeError, AttributeError, RuntimeError)  # where shapes or dtypes are none
_LENGTH_DEPENDENT = "dynamic"  # rotary frequencies that stay those of the longest text so far


_Rows = dict[int, tuple[Tensor, Tensor]]  # keys and values of a chunk, by layer
_Held = tuple[Link, _Rows]


class Prefixes:
    """The kept rows of one model. `memory`: prompts may follow, so rows stay in memory, too."""

    def __init__(self, model: str, device: torch.device, memory: bool = True) -> None:
        self._model, self._device, self._memory = model, device, memory
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by key; used last are the last
        self._bytes = 0

    def start(
        self,
        old: RollbackCache,
        new: RollbackCache,
        ids: Sequence[int],
        keeping: Keeping | None,
        layers: Sequence[int] = (),
    ) -> Reused:
        """Empty `new` but for the chunks that `ids` begin with; it may be `old`, with their rows.

        The chunks have the hidden states of `layers`. What `old` has besides is kept before it
        goes. Raises MemoryError and the like.
        """
        clock, kept, found, on_disk = perf_counter(), list[Link](), list[_Held](), 0
        for wanted in self._links(ids, keeping.owner) if keeping else ():
            at = len(kept) + len(found)
            if at == len(kept) < len(old.chain) and old.chain[at].is_for(wanted, layers):
                kept.append(old.chain[at])
                continue
            held = self._held.get(wanted.key)
            if (held is None or not held[0].is_for(wanted, layers)) and keeping and keeping.reads:
                held = self._read(wanted, layers)
                on_disk += held is not None
            fits = (at + 1) * CHUNK <= new.capacity
            if held is None or not (fits and held[0].is_for(wanted, layers)):
                break
            found.append(held)
        for link, _ in reversed(found):  # the first are needed by all: they are used last
            if link.key in self._held:
                self._held.move_to_end(link.key)
        self._keep(old, len(kept))
        if new is not old:
            new.copy_from(old, 0, 0, len(kept) * CHUNK)
        new.reset(kept)
        new.keeping = keeping
        for one in found:
            new.restore(*one)
        took = sum((link.seconds for link in new.chain), 0.0)
        seconds = perf_counter() - clock if new.chain else 0.0
        return Reused(len(new.chain) * CHUNK, on_disk * CHUNK, seconds, took)

    def read(
        self,
        cache: RollbackCache,
        ids: Sequence[int],
        seconds: float,
        states: Mapping[int, Tensor],
    ) -> None:
        """The last pass was a prefill's over `ids`, took so long, and gave these hidden states."""
        whole = len(ids) == CHUNK and cache.length == (len(cache.chain) + 1) * CHUNK
        if whole and cache.keeping is not None:
            before = cache.chain[-1].key if cache.chain else self._root(cache.keeping.owner)
            cache.chain.append(_link(before, ids, seconds, states))

    def store(self, cache: RollbackCache) -> int:
        """Write the chunks in a cache to disk, where they are to be; returns the bytes written.

        A disk that is full or closed to the user ends it.
        """
        keeping, links = cache.keeping, cache.chain
        size = cache.bytes_of(len(links) * CHUNK) + sum(map(_bytes_of_states, links))
        if keeping is None or not links or size > keeping.most:
            return 0
        if sum(link.seconds for link in links) < keeping.least_s:
            return 0
        written = 0
        with suppress(OSError):
            # The last first: the bound removes what was used longest ago, and the first are needed.
            for at in reversed(range(len(links))):
                if not (path := _path(links[at].key, links[at].states)).exists():
                    written += _write(path, links[at], self._model, cache.chunk(at))
        return written

    def drop(self) -> None:
        """Free the memory of all that is kept in it."""
        self._held.clear()
        self._bytes = 0

    def _root(self, owner: str) -> str:
        return _hash(self._model.encode(), owner.encode("utf-8", "surrogatepass"))

    def _links(self, ids: Sequence[int], owner: str) -> Iterator[Link]:
        """The whole chunks that `ids` begin with."""
        before = self._root(owner)
        for at in range(0, len(ids) - CHUNK + 1, CHUNK):
            yield (link := _link(before, ids[at : at + CHUNK], 0.0))
            before = link.key

    def _keep(self, cache: RollbackCache, first: int) -> None:
        """Keep the chunks of a cache from the `first` on, which are about to go."""
        if len(cache.chain) <= first:
            return
        self.store(cache)
        for at in reversed(range(first, len(cache.chain))) if self._memory else ():
            link = cache.chain[at]
            held = self._held.pop(link.key, None)
            if held is not None and held[0].states.keys() >= link.states.keys():
                self._held[link.key] = held
                continue
            self._bytes -= _bytes(held) if held else 0
            if self._make_room(cache.bytes_of(CHUNK) + _bytes_of_states(link)):
                rows = {n: (k.clone(), v.clone()) for n, (k, v) in cache.chunk(at).items()}
                self._held[link.key] = link, rows
                self._bytes += _bytes(self._held[link.key])

    def _make_room(self, size: int) -> bool:
        """Let rows go that were used longest ago until so many bytes fit; False if none do."""
        free = free_memory(self._device.type)
        most = _UNKNOWN if free is None else int(_SHARE * (free + self._bytes))
        while self._held and self._bytes + size > most:
            self._bytes -= _bytes(self._held.popitem(last=False)[1])
        return size <= most

    def _read(self, wanted: Link, layers: Sequence[int]) -> _Held | None:
        """A chunk on disk; None where there is none.

        A file that is not as it was written is removed, so that it is written again.
        """
        path = _path(wanted.key, layers)
        known = {"model": self._model, "before": wanted.before, "ids": _words(wanted.ids)}
        try:
            arrays, about = PREFIXES.map(path, known)
            rows, states = _unpacked(arrays["rows"], json.loads(about["layers"]), self._device)
            return replace(wanted, seconds=float(about["seconds"]), states=states), rows
        except FileNotFoundError:
            pass
        except (DamagedFileError, LookupError, *_WRONG):
            with suppress(OSError):
                path.unlink()
        return None


def fingerprint(hf: Any, weights: str, *parts: object) -> str:
    """A name for all that rows depend on: weights, configuration, kinds of layers, device, threads.

    `weights` tells the files of the weights; `parts` are what the caller adds.
    """
    kinds = sorted({type(module).__name__ for module in hf.modules()})
    own = *what_matters(hf), *kinds, weights, *parts
    return key_of(_FORMAT, *device_and_threads(hf.device), *versions_and_cpu(), *own)


def why_not(hf: Any) -> str:
    """Why no rows of a model that verifies draft trees are kept; "" if they are."""
    if places_of(hf):
        return SPREAD
    rope = getattr(hf.config.get_text_config(), "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {v.get("rope_type") for v in rope.values() if type(v) is dict}
    return "its rows depend on texts before" if _LENGTH_DEPENDENT in kinds else ""


def _path(key: str, layers: Iterable[int]) -> Path:
    """The file of a chunk that is kept with the states of these layers."""
    named = sorted(layers)
    return PREFIXES.path(key_of(key, *named) if named else key)


def _link(
    before: str, ids: Sequence[int], seconds: float, states: Mapping[int, Tensor] | None = None
) -> Link:
    numbers = array("q", ids).tobytes()
    return Link(before, _hash(before.encode(), numbers), numbers, seconds, states or {})


def _hash(first: bytes, second: bytes) -> str:
    """Of two texts, the first of which is of a length that is known or is hashed by itself."""
    return blake2b(blake2b(first).digest() + second, digest_size=16).hexdigest()


def _words(ids: bytes) -> str:
    return " ".join(map(str, array("q", ids)))


def _bytes(held: _Held) -> int:
    link, rows = held
    return sum(one.nbytes for both in rows.values() for one in both) + _bytes_of_states(link)


def _bytes_of_states(link: Link) -> int:
    return sum(one.nbytes for one in link.states.values())


def _write(path: Path, link: Link, model: str, rows: _Rows) -> int:
    """Write a chunk; the bytes of its file. Raises OSError."""
    named: list[tuple[int | str, Tensor]] = [(n, one) for n, both in rows.items() for one in both]
    named += [(f"states {layer}", one) for layer, one in link.states.items()]
    parts = [one.contiguous().cpu().view(torch.uint8).flatten() for _, one in named]
    layers = [[n, str(one.dtype).removeprefix("torch."), list(one.shape)] for n, one in named]
    about = {"model": model, "before": link.before, "ids": _words(link.ids)}
    about |= {"seconds": f"{link.seconds:.6f}", "layers": json.dumps(layers)}
    PREFIXES.write(path, {"rows": torch.cat(parts).numpy()}, about)
    return path.stat().st_size


def _unpacked(
    stored: Any, layers: list[Any], device: torch.device
) -> tuple[_Rows, dict[int, Tensor]]:
    """Rows and hidden states of a mapped file, by layer.

    Raises ValueError and the like for what `_write` has not written.
    """
    whole = torch.from_numpy(stored)
    found: dict[int | str, list[Tensor]] = {}
    at = 0
    for layer, dtype, shape in layers:
        kind = getattr(torch, dtype)
        end = at + math.prod(shape) * kind.itemsize
        found.setdefault(layer, []).append(whole[at:end].view(kind).view(shape).to(device))
        at = end
    if at != len(whole):
        raise ValueError("other rows")
    states = {int(n.removeprefix("states ")): one[0] for n, one in found.items() if type(n) is str}
    return {n: (both[0], both[1]) for n, both in found.items() if type(n) is int}, states
