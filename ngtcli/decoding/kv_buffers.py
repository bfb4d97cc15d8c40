"""The buffers of the KV cache: the keys and values of some layers, all of one capacity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

Move = tuple[int, int, int]  # from which position, to which one, and how many


class BufferedLayer(Protocol):
    """A layer whose keys and values are in buffers, (1, heads, capacity, head_dim) each.

    Attributes:
        keys: Its part of a buffer; None before there is one.
        values: As `keys`.
        is_initialized: Whether there are buffers.
    """

    keys: Any
    values: Any
    is_initialized: bool


class KVBuffers:
    """Keys and values of some layers.

    Attributes:
        layers: Those whose keys and values are here.
        capacity: The positions of each buffer.
        tensors: (layers' keys or values, heads, capacity, head_dim) each; one has all that are
            alike. They are made by the first forward pass, which shows their shapes.
    """

    def __init__(self, layers: Sequence[BufferedLayer], capacity: int) -> None:
        self.layers = layers
        self.capacity = capacity
        self.tensors: list[Tensor] = []
        # Keys and values of each layer that a forward pass has shown, without positions.
        self._shapes: dict[BufferedLayer, tuple[Tensor, Tensor]] = {}

    def bytes_of(self, positions: int) -> int:
        """The bytes of so many positions of all layers; 0 before the first forward pass."""
        bytes_each = 0
        for keys_and_values in self._shapes.values():
            for states in keys_and_values:
                bytes_each += states.shape[1] * states.shape[3] * states.itemsize
        return positions * bytes_each

    def make(self, layer: BufferedLayer, *states: Tensor) -> None:
        """Give a layer buffers for keys and values like these, and all layers that are known."""
        is_new = layer not in self._shapes
        self._shapes[layer] = _without_positions(states[0]), _without_positions(states[1])
        layers = [layer] if is_new else list(self._shapes)
        self._fill(layers, *self._allocated(layers, self.capacity))

    def _allocated(
        self, layers: Sequence[BufferedLayer], capacity: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Allocate buffers of zeros; of these each layer has a part for keys, one for values.

        Returns:
            The buffers, and the parts of the layers, keys and values in turns.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        shapes = [states for layer in layers for states in self._shapes[layer]]
        for number, states in enumerate(shapes):
            alike.setdefault((states.shape, states.dtype, states.device), []).append(number)
        buffers: list[Tensor] = []
        parts: dict[int, Tensor] = {}
        for numbers in alike.values():
            like = shapes[numbers[0]]
            _, heads, _, width = like.shape
            buffers.append(like.new_zeros((len(numbers), heads, capacity, width)))
            parts.update(zip(numbers, buffers[-1].chunk(len(numbers)), strict=True))
        return buffers, [parts[number] for number in range(len(shapes))]

    def _fill(
        self, layers: Sequence[BufferedLayer], buffers: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> None:
        self.tensors += buffers
        for layer, keys, values in zip(layers, parts[::2], parts[1::2], strict=True):
            layer.keys = keys
            layer.values = values
            layer.is_initialized = True

    def drop(self) -> None:
        """Have no buffers: the next forward pass makes them."""
        self.tensors = []
        for layer in self.layers:
            layer.keys = None
            layer.values = None
            layer.is_initialized = False

    def copied(self, capacity: int, moves: Sequence[Move]) -> "NewBuffers":
        """Allocate buffers of another capacity, with what `moves` names.

        Raises MemoryError and the like.
        """
        layers = list(self._shapes)
        tensors, parts = self._allocated(layers, capacity)
        for number, layer in enumerate(layers):
            for new, old in zip(parts[2 * number :], (layer.keys, layer.values), strict=False):
                for source, to, count in moves:
                    if not count:
                        continue
                    new[:, :, to : to + count] = old[:, :, source : source + count]
        return NewBuffers(capacity, layers, tensors, parts)

    def use(self, new: "NewBuffers") -> None:
        """Use the buffers that `copied` has allocated."""
        self.drop()
        self.capacity = new.capacity
        self._fill(new.layers, new.tensors, new.parts)

    def move(self, source: int, to: int, count: int) -> None:
        """Copy so many positions to another place, all read before any is written."""
        if count <= 0 or source == to:
            return
        is_disjoint = abs(source - to) >= count
        for buffer in self.tensors:
            states = buffer[:, :, source : source + count]
            buffer[:, :, to : to + count] = states if is_disjoint else states.clone()

    def clear(self, first: int, end: int) -> None:
        """Write zeros to these positions: a NaN must not outlive its sequence."""
        for buffer in self.tensors:
            buffer[:, :, first:end] = 0


@dataclass(frozen=True, slots=True)
class NewBuffers:
    """Buffers that are not in use yet.

    Attributes:
        capacity: Of each.
        layers: Those that they are for.
        tensors: The buffers.
        parts: Of these, each layer's keys and values, in turns.
    """

    capacity: int
    layers: Sequence[BufferedLayer]
    tensors: Sequence[Tensor]
    parts: Sequence[Tensor]


def _without_positions(states: Tensor) -> Tensor:
    """The heads, width, dtype and device of keys or values: (1, heads, 0, head_dim)."""
    return states.new_empty((*states.shape[:2], 0, states.shape[3]))
