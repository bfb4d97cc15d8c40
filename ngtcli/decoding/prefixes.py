"""Rows of the last prompts, kept for prompts that begin alike: what was read is not read again.

Kept are whole chunks of the prefill from a prompt's start on, so the rows are those that reading
them again would compute, bit for bit. Rows of other passes are never kept. A chunk's key is a hash
of the model, the attention kernel, the owner, and all ids up to its end; its ids are compared
besides. The rows of the last prompt lie in the model's cache; those of prompts before it in memory,
as far as there is room, and on disk, one array file a chunk. What is missing or damaged is read
again. Where learned heads read the text, the hidden states that they want are kept beside the rows;
a chunk that lacks them is of no use to heads.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.kv_cache import CHUNK, Chunk, Keeping, Region, RollbackCache, Rows
from ngtcli.decoding.support import SUPPORTED, Support
from ngtcli.drafting.steps import Reused
from ngtcli.errors import reason_of
from ngtcli.models.weights.tensor_store import Tensors, array_of, tensors_of
from ngtcli.models.weights.trials import SPREAD, places_of, what_matters
from ngtcli.system.arrays import ArrayFile, ArrayWriter
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.system.machine import free_memory
from ngtcli.system.progress import sized
from ngtcli.system.trials import device_and_threads, versions_and_cpu

WORTH_S = 2.0  # seconds of reading from which on `keep_documents` auto writes a prompt; guess
# Of the memory that is free, and of that which the kept rows take, so much is for them. Guess: most
# is for the caches of texts that are being answered.
_SHARE = 0.125
_UNKNOWN = 1 << 30  # bytes that are kept where the free memory is not known; guess
_FORMAT = 4
PREFIXES = ArrayFile("prefixes", ".safetensors", f"ngt rows {_FORMAT}", 1 << 33)
_HEADER = 1 << 17  # bytes of a file's header: 500 layers, and the ids of a chunk
_LENGTH_DEPENDENT = "dynamic"  # rotary frequencies that stay those of the longest text so far


_Held = tuple[Chunk, Rows]


class Prefixes:
    """The kept rows of one model. `memory`: prompts may follow, so rows stay in memory, too."""

    def __init__(self, model: str, device: torch.device, memory: bool = True) -> None:
        self._model, self._device, self._memory = model, device, memory
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by key; used last are the last
        self._bytes = 0
        self._not_stored = ""  # see `take_not_stored`

    def start(
        self,
        cache: RollbackCache,
        region: Region,
        ids: Sequence[int],
        keeping: Keeping | None,
        layers: Sequence[int] = (),
        kernel: str = "",
    ) -> Callable[[], Reused]:
        """Empty a region but for the chunks that `ids` begin with; what it has besides is kept.

        The chunks were read by `kernel`, which names all that their bits depend on beside the
        model, and have the hidden states of `layers`. Those that lie in other regions are put there
        at once: their rows may be overwritten when buffers change. What is returned puts the others
        there, once there is room. Raises MemoryError and the like.
        """
        clock, kept, found, on_disk = perf_counter(), 0, list[_Held](), 0
        moved = 0  # the first of `found`, up to the last that lies in another region
        root = self._root(keeping.owner, kernel) if keeping else ""
        for at, wanted in enumerate(_chunks(root, ids) if keeping else ()):
            if at == kept and at < len(region.chunks) and region.chunks[at].is_for(wanted, layers):
                kept += 1
                continue
            other = cache.find(at, wanted, layers, region)
            held = self._held.get(wanted.key)
            if other is not None:
                held = other.chunks[at], cache.chunk(other, at)
            elif (held is None or not held[0].is_for(wanted, layers)) and keeping and keeping.reads:
                held = self._read(wanted, layers)
                on_disk += held is not None
            if held is None or not held[0].is_for(wanted, layers):
                break
            found.append(held)
            moved = len(found) if other is not None else moved
        for chunk, _ in reversed(found):  # the first are needed by all: they are used last
            if chunk.key in self._held:
                self._held.move_to_end(chunk.key)
        self.keep(cache, region, kept)
        cache.reset(region, kept)
        region.keeping, region.root = keeping, root
        for held in found[:moved]:
            cache.restore(region, *held)

        def restored() -> Reused:
            for held in found[moved : max(moved, cache.places // CHUNK - kept)]:
                cache.restore(region, *held)
            took = sum((chunk.seconds for chunk in region.chunks), 0.0)
            seconds = perf_counter() - clock if region.chunks else 0.0
            return Reused(len(region.chunks) * CHUNK, on_disk * CHUNK, seconds, took)

        return restored

    def read(
        self, region: Region, ids: Sequence[int], seconds: float, states: Mapping[int, Tensor]
    ) -> None:
        """The last pass was a prefill's over `ids`, took so long, and gave these hidden states."""
        whole = len(ids) == CHUNK and region.length == (len(region.chunks) + 1) * CHUNK
        if whole and region.keeping is not None:
            before = region.chunks[-1].key if region.chunks else region.root
            region.chunks.append(_chunk(before, ids, seconds, states))

    def store(self, cache: RollbackCache, region: Region | None = None) -> int:
        """Write the chunks of a region, or of all, to disk, where they are to be; the bytes.

        A disk that is full or closed to the user ends it; `take_not_stored` then says so.
        """
        if region is None:
            return sum(self.store(cache, one) for one in cache.regions)
        keeping, chunks = region.keeping, region.chunks
        size = cache.bytes_of(len(chunks) * CHUNK) + sum(map(_bytes_of_states, chunks))
        if keeping is None or not chunks:
            return 0
        if size > keeping.most:
            self._not_stored = (
                f"it takes {sized(size)}, and the cache may have {sized(keeping.most)}"
            )
            region.refused = True
            return 0
        if sum(chunk.seconds for chunk in chunks) < keeping.least_s:
            return 0
        written = 0
        try:
            # The last first: the bound removes what was used longest ago, and the first are needed.
            for at in reversed(range(len(chunks))):
                if not (path := _path(chunks[at].key, chunks[at].states)).exists():
                    written += _write(path, chunks[at], self._model, cache.chunk(region, at))
        except OSError as error:
            self._not_stored, region.refused = reason_of(error), True
        return written

    def take_not_stored(self) -> str:
        """Why chunks were not written to disk, though they were to be; each reason is given once.

        "" where none is left out.
        """
        why, self._not_stored = self._not_stored, ""
        return why

    def drop(self) -> None:
        """Free the memory of all that is kept in it."""
        self._held.clear()
        self._bytes = 0

    def _root(self, owner: str, kernel: str) -> str:
        """What the first chunk of a prompt is the successor of, in its key."""
        own = _hash(self._model.encode(), kernel.encode())
        return _hash(own.encode(), owner.encode("utf-8", "surrogatepass"))

    def keep(self, cache: RollbackCache, region: Region, first: int = 0) -> None:
        """Keep the chunks of a region from the `first` on, which are about to go."""
        if len(region.chunks) <= first:
            return
        if not region.refused:
            self.store(cache, region)
        for at in reversed(range(first, len(region.chunks))) if self._memory else ():
            chunk = region.chunks[at]
            held = self._held.pop(chunk.key, None)
            if held is not None and held[0].states.keys() >= chunk.states.keys():
                self._held[chunk.key] = held
                continue
            self._bytes -= _bytes(held) if held else 0
            if self._make_room(cache.bytes_of(CHUNK) + _bytes_of_states(chunk)):
                rows = {n: (k.clone(), v.clone()) for n, (k, v) in cache.chunk(region, at).items()}
                self._held[chunk.key] = chunk, rows
                self._bytes += _bytes(self._held[chunk.key])

    def _make_room(self, size: int) -> bool:
        """Let rows go that were used longest ago until so many bytes fit; False if none do."""
        free = free_memory(self._device.type)
        most = _UNKNOWN if free is None else int(_SHARE * (free + self._bytes))
        while self._held and self._bytes + size > most:
            self._bytes -= _bytes(self._held.popitem(last=False)[1])
        return size <= most

    def _read(self, wanted: Chunk, layers: Sequence[int]) -> _Held | None:
        """A chunk on disk; None where there is none.

        A file that is not as it was written is removed, so that it is written again.
        """
        path = _path(wanted.key, layers)
        known = {"model": self._model, "before": wanted.before, "ids": _words(wanted.ids)}
        try:
            arrays, about = PREFIXES.map(path, known)
            found = {name: one.to(self._device) for name, one in tensors_of(arrays).items()}
            keys, values = _by_layer(found, "k"), _by_layer(found, "v")
            rows = {n: (one, values[n]) for n, one in keys.items()}
            states, seconds = _by_layer(found, "s"), float(about["seconds"])
            return replace(wanted, seconds=seconds, states=states), rows
        except FileNotFoundError:
            pass
        except (DamagedFileError, LookupError, ValueError):
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


def prefix_caching(hf: Any) -> Support:
    """Whether prefixes can be cached of a model that verifies draft trees."""
    if places_of(hf):
        return Support.no(SPREAD)
    if _LENGTH_DEPENDENT in rope_types(hf.config.get_text_config()):
        return Support.no("its rows depend on texts before")
    return SUPPORTED


def rope_types(config: Any) -> set[str]:
    """The types of rotary frequencies of a model."""
    rope = getattr(config, "rope_parameters", None) or {}
    every = [rope, *(one for one in rope.values() if type(one) is dict)]
    return {one.get("rope_type", "") for one in every}


def _path(key: str, layers: Iterable[int]) -> Path:
    """The file of a chunk that is kept with the states of these layers."""
    named = sorted(layers)
    return PREFIXES.path(key_of(key, *named) if named else key)


def _chunks(root: str, ids: Sequence[int]) -> Iterator[Chunk]:
    """The whole chunks that `ids` begin with."""
    before = root
    for at in range(0, len(ids) - CHUNK + 1, CHUNK):
        chunk = _chunk(before, ids[at : at + CHUNK], 0.0)
        yield chunk
        before = chunk.key


def _chunk(
    before: str, ids: Sequence[int], seconds: float, states: Mapping[int, Tensor] | None = None
) -> Chunk:
    numbers = array("q", ids).tobytes()
    return Chunk(before, _hash(before.encode(), numbers), numbers, seconds, states or {})


def _hash(first: bytes, second: bytes) -> str:
    """Of two texts, the first of which is of a length that is known or is hashed by itself."""
    return blake2b(blake2b(first).digest() + second, digest_size=16).hexdigest()


def _words(ids: bytes) -> str:
    return " ".join(map(str, array("q", ids)))


def _bytes(held: _Held) -> int:
    chunk, rows = held
    return sum(one.nbytes for both in rows.values() for one in both) + _bytes_of_states(chunk)


def _bytes_of_states(chunk: Chunk) -> int:
    return sum(one.nbytes for one in chunk.states.values())


def _write(path: Path, chunk: Chunk, model: str, rows: Rows) -> int:
    """Write a chunk; the bytes of its file. Raises OSError."""
    named = {f"s {layer}": one for layer, one in chunk.states.items()}
    for n, (keys, values) in rows.items():
        named |= {f"k {n}": keys, f"v {n}": values}
    about = {"model": model, "before": chunk.before, "ids": _words(chunk.ids)}
    about |= {"seconds": f"{chunk.seconds:.6f}", "format": PREFIXES.format}
    with closing(ArrayWriter(path.parent, _HEADER)) as writer:
        for name, one in named.items():
            writer.add(name, array_of(one.cpu()))
        writer.finish(path, about)
    return path.stat().st_size


def _by_layer(tensors: Tensors, kind: str) -> dict[int, Tensor]:
    """Keys ("k"), values ("v") or hidden states ("s") of a file, by layer."""
    return {int(name[2:]): one for name, one in tensors.items() if name[:2] == f"{kind} "}
