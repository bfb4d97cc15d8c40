"""The prefix cache: chunks that were prefilled for a prompt are reused for later prompts.

It caches complete chunks of the prefill, from the start of a prompt. So keys and values are, bit
for bit, those that another prefill would compute; entries of other forward passes are never cached.
The key of a chunk is a hash of the model, the attention kernel, the owner and all token ids up to
its end; its token ids are compared as well. The chunks of the last prompt are in the KV cache.
Those of earlier prompts are in memory, as far as there is room, and on disk, in one array file per
chunk. Chunks that are missing or damaged are prefilled again. If learned heads read the prompt, the
hidden states that they need are cached, too; heads cannot use a chunk without them.

Layers with a sliding window have no chunks. A prompt continues after a chunk whose window was
saved: those of the last two chunks of each prompt, and of others as far apart as memory allows
(`KVCache.saves_window_after`). The rest is prefilled again.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.kv_cache import CHUNK, CachePolicy, Chunk, ChunkStates, KVCache, KVSlot
from ngtcli.decoding.support import SUPPORTED, Support
from ngtcli.models.weights.tensor_store import Tensors, to_array, to_tensors
from ngtcli.models.weights.trials import SPREAD, model_fingerprint, module_devices
from ngtcli.system.arrays import ArrayFile, ArrayWriter
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.system.machine import free_memory
from ngtcli.system.progress import sized
from ngtcli.system.trials import device_and_threads, versions_and_cpu
from ngtcli.words import reason_of

WORTH_S = 2.0  # seconds of reading from which on `keep_documents` auto writes a prompt (guess)
# The share of the free memory, including that of cached chunks, that chunks may take (guess). Most
# is left for the KV cache of the sequences that are being decoded.
_SHARE = 0.125
_UNKNOWN = 1 << 30  # bytes that are cached where the free memory is not known (guess)
_FORMAT = 5
PREFIXES = ArrayFile("prefixes", ".safetensors", f"ngt rows {_FORMAT}", 1 << 33)
_HEADER = 1 << 17  # bytes of a file's header: 500 layers, and the ids of a chunk
_LENGTH_DEPENDENT = "dynamic"  # rotary frequencies that stay those of the longest sequence so far


_Cached = tuple[Chunk, ChunkStates]


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """The part of a prompt that may be cached, and how.

    Attributes:
        token_ids: The token ids of the prompt.
        cache_policy: Its rights in the prefix cache; None: the cache is not used.
        layers: The layers whose hidden states are needed for each token.
        kernel: A name of everything that keys and values depend on besides the model.
    """

    token_ids: Sequence[int] = ()
    cache_policy: CachePolicy | None = None
    layers: Sequence[int] = ()
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """The cached chunks of a prompt.

    Attributes:
        root: See `KVSlot.root`.
        in_place: The number of chunks that are already in the slot.
        following: The chunks after these, in order.
        volatile: The number of chunks of `following` up to the last one that is in another slot:
            they may be overwritten when buffers change.
        from_disk: The number of tokens of chunks that were read from disk.
        window: The keys and values that sliding layers need after the last chunk; None if there are
            no sliding layers.
    """

    root: str = ""
    in_place: int = 0
    following: Sequence[_Cached] = ()
    volatile: int = 0
    from_disk: int = 0
    window: ChunkStates | None = None


class Prefixes:
    """The prefix cache of one model.

    Args:
        model: Stands for the model and all that its keys and values depend on.
        device: Of the model.
        memory: Whether prompts may follow: then chunks are cached in memory, too.
    """

    def __init__(self, model: str, device: torch.device, memory: bool = True) -> None:
        self._model = model
        self._device = device
        self._in_memory = memory
        self._held: OrderedDict[str, _Cached] = OrderedDict()  # by key; used last are the last
        self._bytes = 0
        self._not_stored: Support | None = None  # see `take_not_stored`

    def find(
        self, cache: KVCache, slot: KVSlot, prompt: PromptPrefix, capacity: int
    ) -> FoundPrefix:
        """Find the chunks that a prompt begins with: in its slot, in others, in memory, on disk.

        Args:
            cache: Has the slots.
            slot: The prompt's.
            prompt: What may be found of it.
            capacity: The KV positions that it is to have.
        """
        cache_policy = prompt.cache_policy
        if cache_policy is None:
            return FoundPrefix()
        layers = prompt.layers
        root = self._root(cache_policy.owner, prompt.kernel)
        in_place = 0
        restorable: list[_Cached] = []
        in_slots: list[int] = []  # indices into `restorable`
        from_disk: list[int] = []  # as well
        chunks = list(_chunks(root, prompt.token_ids[:capacity]))
        for number, chunk in enumerate(chunks):
            is_there = number == in_place and number < len(slot.chunks)
            if is_there and slot.chunks[number].is_for(chunk, layers):
                in_place += 1
                continue

            other_slot = cache.find(number, chunk, layers, slot)
            cached = self._held.get(chunk.key)
            if other_slot is not None:
                cached = other_slot.chunks[number], cache.chunk(other_slot, number)
            elif cached is None or not cached[0].is_for(chunk, layers):
                path = _path(chunk.key, layers)
                cached = self._read(path, chunk) if cache_policy.reads_disk else None
                if cached is not None:
                    from_disk.append(len(restorable))
            if cached is None or not cached[0].is_for(chunk, layers):
                break
            if other_slot is not None:
                in_slots.append(len(restorable))
            restorable.append(cached)

        window: ChunkStates | None = None
        if cache.has_windows:
            count, window = self._last_window(
                cache, slot, chunks[: in_place + len(restorable)], cache_policy.reads_disk
            )
            in_place = min(in_place, count)
            restorable = restorable[: count - in_place]
        # In reverse order, as prompts share their first chunks: these are to be evicted last.
        for chunk, _ in reversed(restorable):
            if chunk.key in self._held:
                self._held.move_to_end(chunk.key)
        return FoundPrefix(
            root,
            in_place,
            restorable,
            volatile=max((index + 1 for index in in_slots if index < len(restorable)), default=0),
            from_disk=CHUNK * sum(index < len(restorable) for index in from_disk),
            window=window,
        )

    def _last_window(
        self, cache: KVCache, slot: KVSlot, chunks: Sequence[Chunk], reads_disk: bool
    ) -> tuple[int, ChunkStates | None]:
        """Return after how many of the chunks a prompt can continue, and the window there."""
        for number in reversed(range(len(chunks))):
            chunk = chunks[number]
            for kv_slot in (slot, *cache.slots):
                if number in kv_slot.windows and kv_slot.chunks[number].is_for(chunk):
                    return number + 1, kv_slot.windows[number]
            cached = self._held.get(_window_key(chunk))
            if cached is None and reads_disk:
                cached = self._read(_window_path(chunk), chunk)
            if cached is not None and cached[0].is_for(chunk):
                return number + 1, cached[1]
        return 0, None

    def add(
        self,
        cache: KVCache,
        slot: KVSlot,
        ids: Sequence[int],
        seconds: float,
        states: Mapping[int, Tensor],
    ) -> None:
        """Note a chunk that was just prefilled at the end of a slot.

        Args:
            cache: Has the slot.
            slot: Of the prompt.
            ids: The token ids of the chunk.
            seconds: That its prefill took.
            states: Its hidden states by layer.
        """
        is_whole = len(ids) == CHUNK and slot.length == (len(slot.chunks) + 1) * CHUNK
        if is_whole and slot.cache_policy is not None:
            before = slot.chunks[-1].key if slot.chunks else slot.root
            slot.chunks.append(_chunk(before, ids, seconds, states))
            if cache.has_windows:
                self._add_window(cache, slot)

    def _add_window(self, cache: KVCache, slot: KVSlot) -> None:
        """Save the window at the end of a slot, and drop one that is not needed any more."""
        number = len(slot.chunks) - 1
        slot.windows[number] = _copy(cache.window(slot))
        if not cache.saves_window_after(number - 2):
            slot.windows.pop(number - 2, None)

    def store(self, cache: KVCache, slot: KVSlot | None = None) -> int:
        """Write the chunks of a slot, or of all slots, to disk, where their policy wants that.

        A disk that is full or closed to the user ends it; `take_not_stored` then says so.

        Returns:
            The bytes that were written.
        """
        if slot is None:
            return sum(self.store(cache, kv_slot) for kv_slot in cache.slots)
        cache_policy = slot.cache_policy
        chunks = slot.chunks
        if cache_policy is None or not chunks:
            return 0
        size = len(chunks) * cache.chunk_bytes + sum(map(_bytes_of_states, chunks))
        size += sum(map(_bytes_of_kv, slot.windows.values()))
        if size > cache_policy.max_disk_bytes:
            limit = sized(cache_policy.max_disk_bytes)
            why = f"it takes {sized(size)}, and the cache may have {limit}"
            self._not_stored = Support.no(why)
            slot.refused = True
            return 0
        if sum(chunk.seconds for chunk in chunks) < cache_policy.min_disk_s:
            return 0
        written = 0
        try:
            # The last first: the bound removes what was used longest ago, and the first are needed.
            for number in reversed(range(len(chunks))):
                chunk = chunks[number]
                window = slot.windows.get(number)
                path = _window_path(chunk)
                if window is not None and not path.exists():
                    without_states = replace(chunk, states={})
                    written += _write(path, without_states, self._model, window)
                path = _path(chunk.key, chunk.states)
                if not path.exists():
                    written += _write(path, chunk, self._model, cache.chunk(slot, number))
        except OSError as error:
            self._not_stored = Support.no(reason_of(error))
            slot.refused = True
        return written

    def take_not_stored(self) -> Support | None:
        """Return why chunks were not written to disk, though they were to be; each reason once.

        None if all were written.
        """
        refused = self._not_stored
        self._not_stored = None
        return refused

    def drop(self) -> None:
        """Free the memory of all cached chunks."""
        self._held.clear()
        self._bytes = 0

    def _root(self, owner: str, kernel: str) -> str:
        """Return the key that the first chunk of a prompt follows, see `KVSlot.root`."""
        model_and_kernel = _hash(self._model.encode(), kernel.encode())
        return _hash(model_and_kernel.encode(), owner.encode("utf-8", "surrogatepass"))

    def keep(self, cache: KVCache, slot: KVSlot, first: int = 0) -> None:
        """Cache the chunks of a slot from the `first` on, which are about to go."""
        if len(slot.chunks) <= first:
            return
        if not slot.refused:
            self.store(cache, slot)
        if not self._in_memory:
            return
        for number in reversed(range(first, len(slot.chunks))):
            chunk = slot.chunks[number]
            if number in slot.windows:
                self._hold(_window_key(chunk), replace(chunk, states={}), slot.windows[number])
            cached = self._held.pop(chunk.key, None)
            if cached is not None and cached[0].states.keys() >= chunk.states.keys():
                self._held[chunk.key] = cached
                continue
            if cached is not None:
                self._bytes -= _bytes(cached)
            if self._make_room(cache.chunk_bytes + _bytes_of_states(chunk)):
                self._hold_new(chunk.key, chunk, _copy(cache.chunk(slot, number)))

    def _hold(self, key: str, chunk: Chunk, states: ChunkStates) -> None:
        """Cache a window, which was used last, unless there is no room."""
        if key in self._held:
            self._held.move_to_end(key)
        elif self._make_room(_bytes_of_kv(states)):
            self._hold_new(key, chunk, states)

    def _hold_new(self, key: str, chunk: Chunk, states: ChunkStates) -> None:
        self._held[key] = chunk, states
        self._bytes += _bytes(self._held[key])

    def _make_room(self, size: int) -> bool:
        """Evict the least recently used chunks until `size` bytes fit; return whether they do."""
        free = free_memory(self._device.type)
        max_bytes = _UNKNOWN if free is None else int(_SHARE * (free + self._bytes))
        while self._held and self._bytes + size > max_bytes:
            self._bytes -= _bytes(self._held.popitem(last=False)[1])
        return size <= max_bytes

    def _read(self, path: Path, chunk: Chunk) -> _Cached | None:
        """Read a chunk, or the window at its end, from disk; None if there is no such file.

        A file that is not as it was written is removed, so that it is written again.
        """
        expected = {"model": self._model, "before": chunk.before, "ids": _words(chunk.ids)}
        try:
            arrays, about = PREFIXES.map(path, expected)
            tensors = {name: tensor.to(self._device) for name, tensor in to_tensors(arrays).items()}
            keys = _by_layer(tensors, "k")
            values = _by_layer(tensors, "v")
            kv_states = {layer: (keys[layer], values[layer]) for layer in keys}
            seconds = float(about["seconds"])
            return replace(chunk, seconds=seconds, states=_by_layer(tensors, "s")), kv_states
        except FileNotFoundError:
            pass
        except (DamagedFileError, LookupError, ValueError):
            with suppress(OSError):
                path.unlink()
        return None


def fingerprint(hf: Any, weights: str, *parts: object) -> str:
    """Make a name for all that keys and values depend on: weights, configuration, device, …

    Args:
        hf: The model.
        weights: Identifies the files of its weights.
        parts: Whatever else matters to the caller.
    """
    kinds = sorted({type(module).__name__ for module in hf.modules()})
    of_model = *model_fingerprint(hf), *kinds, weights, *parts
    return key_of(_FORMAT, *device_and_threads(hf.device), *versions_and_cpu(), *of_model)


def prefix_caching(hf: Any) -> Support:
    """Say whether prefixes can be cached of a model that verifies draft trees."""
    if module_devices(hf):
        return Support.no(SPREAD)
    if _LENGTH_DEPENDENT in rope_types(hf.config.get_text_config()):
        return Support.no("its rows depend on texts before")
    return SUPPORTED


def rope_types(config: Any) -> set[str]:
    """List the types of rotary frequencies of a model."""
    rope = getattr(config, "rope_parameters", None) or {}
    by_kind_of_layer = [parameters for parameters in rope.values() if type(parameters) is dict]
    return {parameters.get("rope_type", "") for parameters in (rope, *by_kind_of_layer)}


def _path(key: str, layers: Iterable[int]) -> Path:
    """Return the file of a chunk that is cached with the hidden states of these layers."""
    with_states = sorted(layers)
    return PREFIXES.path(key_of(key, *with_states) if with_states else key)


def _window_key(chunk: Chunk) -> str:
    """The key of the window at the end of a chunk."""
    return key_of(chunk.key, "window")


def _window_path(chunk: Chunk) -> Path:
    return PREFIXES.path(_window_key(chunk))


def _chunks(root: str, ids: Sequence[int]) -> Iterator[Chunk]:
    """Yield the whole chunks that token ids begin with."""
    before = root
    for start in range(0, len(ids) - CHUNK + 1, CHUNK):
        chunk = _chunk(before, ids[start : start + CHUNK], 0.0)
        yield chunk
        before = chunk.key


def _chunk(
    before: str, ids: Sequence[int], seconds: float, states: Mapping[int, Tensor] | None = None
) -> Chunk:
    numbers = array("q", ids).tobytes()
    return Chunk(before, _hash(before.encode(), numbers), numbers, seconds, states or {})


def _hash(first: bytes, second: bytes) -> str:
    """Hash two texts; the first is hashed by itself, so that its end is part of the result."""
    return blake2b(blake2b(first).digest() + second, digest_size=16).hexdigest()


def _words(ids: bytes) -> str:
    return " ".join(map(str, array("q", ids)))


def _bytes(cached: _Cached) -> int:
    chunk, states = cached
    return _bytes_of_kv(states) + _bytes_of_states(chunk)


def _bytes_of_kv(states: ChunkStates) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in states.values())


def _copy(states: ChunkStates) -> ChunkStates:
    return {layer: (keys.clone(), values.clone()) for layer, (keys, values) in states.items()}


def _bytes_of_states(chunk: Chunk) -> int:
    return sum(states.nbytes for states in chunk.states.values())


def _write(path: Path, chunk: Chunk, model: str, states: ChunkStates) -> int:
    """Write a chunk; return the bytes of its file. Raises OSError."""
    tensors = {f"s {layer}": hidden for layer, hidden in chunk.states.items()}
    for layer, (keys, values) in states.items():
        tensors[f"k {layer}"] = keys
        tensors[f"v {layer}"] = values
    about = {"model": model, "before": chunk.before, "ids": _words(chunk.ids)}
    about |= {"seconds": f"{chunk.seconds:.6f}", "format": PREFIXES.format}
    with closing(ArrayWriter(path.parent, _HEADER)) as writer:
        for name, tensor in tensors.items():
            writer.add(name, to_array(tensor.cpu()))
        writer.finish(path, about)
    return path.stat().st_size


def _by_layer(tensors: Tensors, kind: str) -> dict[int, Tensor]:
    """Keys ("k"), values ("v") or hidden states ("s") of a file, by layer."""
    return {int(name[2:]): tensor for name, tensor in tensors.items() if name[:2] == f"{kind} "}
