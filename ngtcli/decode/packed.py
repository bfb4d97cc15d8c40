"""Linear layers on packed weights: a CPU multiplies few rows quicker by a weight in blocks.

oneDNN, which comes with torch, packs a weight (out, in) into blocks of 64 outputs, each of which
lies in the order in which its kernel reads it. One layout serves any number of rows, reading the
prompt included, so the packed weight takes the place of the other one. It is memory of this
process, also where the other one was a part of a file that several processes share.
"""

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float16 on few CPUs: tried
# Rows of the least product. Measured (one thread, 2,048 × 8,192, float32, over one row unpacked):
# one packed row costs 1.1 to 1.5, two 1.2 to 1.7, four 0.8 to 1.2, for fewer have a slower kernel.
_LEAST_ROWS = 4
_BLOCK = 64  # outputs of a block of oneDNN's layout; checked for each weight whose rows are read
_CHECKED = 64  # blocks compared at a time: a few megabytes


class PackedLinear(nn.Module):
    """What `linear` computes, on a packed copy of its weight. `packed` is opaque to most of torch.

    Raises RuntimeError for a dtype that oneDNN does not support on this CPU.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with torch.no_grad():
            packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """The weight (out_features, in_features), unpacked into a new tensor."""
        return self.packed.detach().to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        rows = inputs
        if (count := inputs.shape[:-1].numel()) < _LEAST_ROWS:
            rows = inputs.reshape(count, self.in_features)
            if count == 1:
                rows = rows.expand(_LEAST_ROWS, -1)  # quicker than rows of zeros
            elif count:
                rows = nn.functional.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.packed, self.bias, "none", [], ""
        )
        return out if rows is inputs else out[:count].view(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class PackedEmbedding(nn.Module):
    """An embedding that reads its rows from the packed weight of the layer it is tied to."""

    def __init__(self, head: PackedLinear, blocks: Tensor) -> None:
        super().__init__()
        self.packed = head.packed  # owns the memory that `_blocks` reads
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self._blocks = blocks

    @property
    def weight(self) -> Tensor:
        """The weight (num_embeddings, embedding_dim), unpacked into a new tensor."""
        return self.packed.detach().to_dense()

    def forward(self, ids: Tensor) -> Tensor:
        """(…) to (…, embedding_dim)."""
        return self._blocks[ids // _BLOCK, :, ids % _BLOCK].flatten(-2)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a linear layer stands: `parent`.`name`; and so the embedding tied to it, if any."""

    parent: nn.Module
    name: str
    tied: tuple[nn.Module, str] | None

    @property
    def layer(self) -> Any:
        """The layer that stands there."""
        return getattr(self.parent, self.name)


def packable(hf: nn.Module) -> list[Place]:
    """Where linear layers stand that can be packed, in the model's order.

    Left out: other classes, whose weights may be of another form; layers with hooks; weights that
    are shared, but for one shared by an embedding and one linear layer, which go together.
    """
    users: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent in hf.modules():
        for name, child in parent.named_children():
            for parameter in child.parameters(recurse=False):
                users[id(parameter)].append((parent, name))
    return [
        Place(parent, name, _embedding(others))
        for parent in hf.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and _is_plain(child)
        for others in [[u for u in users[id(child.weight)] if u != (parent, name)]]
        if not others or _embedding(others)
    ]


def _is_plain(layer: Any) -> bool:
    """Whether a layer has a dense weight on the CPU, of a dtype known here, and no hooks."""
    weight = layer._parameters.get("weight")
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype in DTYPES
        and weight.numel() > 0
        and not (layer._forward_hooks or layer._forward_pre_hooks)
    )


def _embedding(users: list[tuple[nn.Module, str]]) -> tuple[nn.Module, str] | None:
    """The only one of `users` (parent and name), if it is an embedding of the usual kind."""
    if len(users) != 1:
        return None
    child = getattr(*users[0])
    usual = type(child) is nn.Embedding and child.max_norm is None and _is_plain(child)
    return users[0] if usual else None


def pack(places: Sequence[Place]) -> Iterator[int]:
    """Replace the layers that stand there, one at a time; yields the bytes packed so far.

    Each weight is freed when its layer is replaced, so that the two copies of one layer are the
    most that lie in memory at once.
    """
    done = 0
    for place in places:
        weight, packed = place.layer.weight, PackedLinear(place.layer)
        if place.tied is not None:
            blocks = _blocks(packed, weight)
            if blocks is None:  # another layout; a second copy of so large a weight costs too much
                continue
            setattr(*place.tied, PackedEmbedding(packed, blocks))
        setattr(place.parent, place.name, packed)
        done += weight.nbytes
        del weight
        yield done


def is_packed(hf: nn.Module) -> bool:
    """Whether some layers of a model are packed."""
    return any(isinstance(module, PackedLinear) for module in hf.modules())


def _blocks(layer: PackedLinear, weight: Tensor) -> Tensor | None:
    """The memory of a packed weight as (blocks, in ÷ v, 64, v), v inputs side by side.

    None where oneDNN has laid it out otherwise, as comparing all of it with `weight` tells.
    """
    packed = layer.packed.detach()
    size, start = torch.ops.mkldnn._nbytes(packed), torch.ops.mkldnn.data_ptr(packed)
    flat = torch.frombuffer((ctypes.c_char * size).from_address(start), dtype=weight.dtype)
    count = -(-layer.out_features // _BLOCK)
    side_by_side = 4 // weight.itemsize  # what fills 32 bits
    if flat.numel() != count * _BLOCK * layer.in_features or layer.in_features % side_by_side:
        return None
    blocks = flat.view(count, layer.in_features // side_by_side, _BLOCK, side_by_side)
    for at in range(0, count, _CHECKED):
        rows = weight.detach()[at * _BLOCK : (at + _CHECKED) * _BLOCK]
        found = blocks[at : at + _CHECKED].permute(0, 2, 1, 3).reshape(-1, layer.in_features)
        if not torch.equal(found[: len(rows)], rows):
            return None
    return blocks
