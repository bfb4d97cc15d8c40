"""Where layers stand in a model whose weights get another form, and which of them have it.

A model may be without values: then its weights are taken one by one as they come (checkpoints.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float16 on few CPUs: tried


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

    @property
    def weight(self) -> Any:
        """Its weight as it is stored."""
        return self.layer.weight


Test = Callable[[Any], bool]


def is_linear(layer: Any) -> bool:
    """Whether a module is `nn.Linear` itself."""
    return type(layer) is nn.Linear


def is_embedding(layer: Any) -> bool:
    """Whether a module is `nn.Embedding` itself, which leaves its weight as it is."""
    return type(layer) is nn.Embedding and layer.max_norm is None


def packable(
    hf: nn.Module, device: str = "cpu", linear: Test = is_linear, embedding: Test = is_embedding
) -> list[Place]:
    """Where linear layers stand that can be packed, in the model's order; weights on a `device`.

    Left out: other classes, whose weights may be of another form; layers with hooks; weights that
    are shared, but for one shared by an embedding and one linear layer, which go together.
    """
    layers = [(p, name, layer) for p in hf.modules() for name, layer in p.named_children()]
    users: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent, name, layer in layers:
        for parameter in layer.parameters(recurse=False):
            users[id(parameter)].append((parent, name))
    found = []
    for parent, name, layer in layers:
        if linear(layer) and is_plain(layer, device):
            others = [user for user in users[id(layer.weight)] if user != (parent, name)]
            if not others:
                found.append(Place(parent, name, None))
            elif len(others) == 1:
                other = getattr(*others[0])
                if embedding(other) and is_plain(other, device):
                    found.append(Place(parent, name, others[0]))
    return found


def is_plain(layer: Any, device: str, *names: str) -> bool:
    """Whether a layer's weights are dense, on the device, of a dtype known here; and no hooks."""
    weights = [layer._parameters.get(name) for name in names or ("weight",)]
    return not (layer._forward_hooks or layer._forward_pre_hooks) and all(
        type(weight) is nn.Parameter
        and weight.device.type == device
        and weight.dtype in DTYPES
        and weight.numel() > 0
        for weight in weights
    )


def tie(hf: Any) -> None:
    """Let weights be one that the model ties; it is not done while it loads."""
    for target, source in hf.all_tied_weights_keys.items():
        parent, _, own = target.rpartition(".")
        setattr(hf.get_submodule(parent), own, hf.get_parameter(source))


AnyPlace = TypeVar("AnyPlace", bound=Place)
NOTHING: Mapping[str, Any] = MappingProxyType({})


def named(hf: Any, places: Iterable[AnyPlace]) -> Iterator[tuple[str, str, AnyPlace]]:
    """Places with the name of their weight, and that of the embedding tied to it or the same."""
    names = {id(module): name for name, module in hf.named_modules()}
    for place in places:
        own = f"{names[id(place.layer)]}.weight"
        tied = None if place.tied is None else getattr(*place.tied)
        yield own, own if tied is None else f"{names[id(tied)]}.weight", place


@dataclass(slots=True)
class Taken(Generic[AnyPlace]):
    """Weights of a model that are taken as they come: their places, and those that came, by name.

    A weight of two layers stands under both names.
    """

    places: dict[str, AnyPlace] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def find(self, hf: Any, stored: Mapping[str, Any] = NOTHING) -> None:
        """Find their places in a model; `stored` holds what will come, by name, if it is known."""
        raise NotImplementedError

    def takes(self, place: AnyPlace, weight: Any) -> bool:
        """Whether a weight is taken there: it has its shape."""
        return bool(weight.shape == place.weight.shape)

    def put(self, name: str, weight: Any) -> None:
        """Take a weight, which the model does not hold in that form from then on."""
        raise NotImplementedError

    def add(self, hf: Any, place: AnyPlace, *names: str) -> None:
        """Add the place of a weight of these names, which the model does not tie any more."""
        for name in names:
            self.places[name] = place
            hf.all_tied_weights_keys.pop(name, None)

    def names(self, name: str) -> list[str]:
        """The names of the weight of this name, of which it is kept under the first."""
        return [own for own, place in self.places.items() if place is self.places[name]]
