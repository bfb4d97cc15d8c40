"""Do a pass's operations give a row the same bits whatever the number of rows? Each by itself.

A model's passes show too few numbers to tell, and two kinds of operations differ seldom. A linear
layer may add up in another order: that shows in one number of ten thousand, once it is rounded to
half precision, so each layer is given as many random rows as it takes. And torch computes silu and
its like on whole vectors, but what is left at the end of a tensor, or of a thread's part of it, one
number at a time by another formula (ATen/native/cpu/Loops.h). The two differ in few numbers or in
none, so these are found first: of half precision among all there are. A tensor full of such a
number shows by which formula each place is computed, however many threads share it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers.activations import ACT2CLS

from ngtcli.decode.scores import rounds

_NUMBERS = 1 << 17  # compared of each layer and size; guess: ten times what shows a difference
_SINGLE = 8  # rows computed in passes of the smallest size, of each draw; guess


def layers_are_alike(hf: Any, sizes: Sequence[int]) -> bool:
    """Whether all do in passes of these sizes, rising; of layers of one kind and size one.

    A layer is what has no weight of several dimensions but `weight`, (out, in): those that choose
    experts, too. False where there are others, as those of experts; a bias is only added.
    """
    kinds: dict[tuple[Any, ...], tuple[Any, tuple[int, int]]] = {}
    for module in hf.modules():
        if hasattr(module, "in_features") and hasattr(module, "out_features"):
            size = module.out_features, module.in_features
        elif hasattr(module, "num_embeddings"):
            continue
        else:
            own = {n: p.shape for n, p in module.named_parameters(recurse=False) if p.ndim > 1}
            shapes = [shape for name, shape in own.items() if not name.endswith("bias")]
            if not shapes:
                continue
            if shapes != [own.get("weight")] or len(shapes[0]) != 2:
                return False
            size = shapes[0]
        kinds.setdefault((type(module), *size), (module, size))
    dtype = getattr(hf, "dtype", None) or next(hf.parameters()).dtype
    return all(is_alike(layer, size, dtype, sizes) for layer, size in kinds.values())


@torch.inference_mode()
def is_alike(layer: Any, size: tuple[int, int], dtype: torch.dtype, sizes: Sequence[int]) -> bool:
    """Whether a layer of a size, (out, in), does for rows of this dtype, in all that it gives."""

    def given(rows: Tensor) -> list[Tensor]:
        found = layer(rows if hasattr(layer, "in_features") else rows[0])  # as models give them
        found = found if isinstance(found, tuple) else (found,)
        return [one.reshape(rows.shape[1], -1) for one in found]

    source, (outputs, inputs) = torch.Generator().manual_seed(0), size
    most, least = max(_SINGLE, sizes[-1]), min(sizes[0], _SINGLE)
    for _ in range(-(-_NUMBERS // (_SINGLE * outputs))):
        rows = torch.randn((1, most, inputs), generator=source).to(dtype)
        parts = [given(rows[:, at : at + least]) for at in range(0, _SINGLE - least + 1, least)]
        true = [torch.cat(part) for part in zip(*parts, strict=True)]
        for count in sizes:
            for found, own in zip(given(rows[:, :count]), true, strict=True):
                if not torch.equal(found[: len(own)], own[:count]):
                    return False
    return True


Function = Callable[..., Tensor]  # of tensors of one size, and gives one
_TRIED = 1 << 16  # numbers: all of half precision, and as many random ones of other dtypes
_LIKELY = 64  # of the numbers that seem to differ, tried; guess
_FEW = 7  # numbers: fewer than fill vectors


class Formula:
    """By which formula a function's numbers are computed.

    `shown` are numbers, one for each tensor of a dtype that the function takes, for which the two
    formulas differ; None where the trial finds none. `true` is what whole vectors give.
    """

    def __init__(self, function: Function, dtypes: Sequence[torch.dtype]) -> None:
        self._function = function
        self.shown: list[Tensor] | None = None
        source = torch.Generator().manual_seed(0)
        given = [_numbers(dtype, source) for dtype in dtypes]
        vectors = function(*(one.clone() for one in given))
        # Numbers that do not lie side by side are computed one at a time.
        single = function(*(torch.stack((one, one), 1)[:, 0] for one in given))
        differ = (vectors != single) & ~(vectors.isnan() & single.isnan())
        for at in differ.nonzero()[:_LIKELY, 0].tolist():
            self.shown, self.true = [one[at] for one in given], vectors[at]
            if not self.is_one([((_FEW,), (1,))] * len(given)):
                return
        self.shown = None

    def is_one(self, forms: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
        """Whether all places of tensors of these forms, size and strides, get that of vectors."""
        if self.shown is None:
            return True
        full = [
            number.repeat(1 + sum((n - 1) * step for n, step in zip(*form, strict=True)))
            for number, form in zip(self.shown, forms, strict=True)
        ]
        out = self._function(*(f.as_strided(*form) for f, form in zip(full, forms, strict=True)))
        return bool((out == self.true).all())


def _numbers(dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """All finite numbers of a half precision, of others random ones of any magnitude; shuffled."""
    if dtype.itemsize == 2:
        every = torch.arange(-_TRIED // 2, _TRIED // 2).to(torch.int16).view(dtype)
        every = every[torch.randperm(len(every), generator=source)]
        return torch.where(every.isfinite(), every, torch.zeros((), dtype=dtype))
    magnitudes = 10 ** (8 * torch.rand(_TRIED, generator=source) - 4)
    return (torch.randn(_TRIED, generator=source) * magnitudes).to(dtype)


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`alike`: the pointwise functions computed within it give all their numbers one formula."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alike = True
        self._formulas: dict[tuple[Any, ...], Formula] = {}
        self._seen = set[tuple[Any, ...]]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to be left out of that, torch loads its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.alike and torch.Tag.pointwise in func.tags:
            # A tensor of one number is sent along as it is.
            many = [at for at, one in enumerate(args) if isinstance(one, Tensor) and one.ndim]
            whole = [result, *(args[at] for at in many)]
            floats = all(isinstance(one, Tensor) and one.is_floating_point() for one in whole)
            if floats and many and result.numel():
                self.alike = self._is_alike(func, args, kwargs, many)
        return result

    def _is_alike(self, func: Any, args: Any, kwargs: Any, many: list[int]) -> bool:
        dtypes = tuple(args[at].dtype for at in many)
        forms = tuple((tuple(args[at].shape), args[at].stride()) for at in many)
        others = str(kwargs), *(str(one) for at, one in enumerate(args) if at not in many)
        kind = func, dtypes, others
        if (*kind, forms) in self._seen:
            return True
        self._seen.add((*kind, forms))

        def function(*some: Tensor) -> Tensor:
            given = list(args)
            for at, one in zip(many, some, strict=True):
                given[at] = one
            return func(*given, **kwargs)  # type: ignore[no-any-return]

        if kind not in self._formulas:
            self._formulas[kind] = Formula(function, dtypes)
        return self._formulas[kind].is_one(forms)


_STEP = 64  # numbers: two of the largest vectors of half precision, which a loop takes at once


class WholeVectors(nn.Module):
    """An activation function of any tensor, computed so that no thread gets a part of a vector.

    It is called twice where that is needed: with the most numbers that are shared in whole vectors,
    and with those that are left, few enough for one thread.
    """

    def __init__(self, function: nn.Module, formula: Formula) -> None:
        super().__init__()
        self.function, self._formula = function, formula
        self._shared: dict[tuple[int, int], int] = {}  # by how many numbers and threads

    def forward(self, given: Tensor) -> Tensor:
        """As the function."""
        count, key = given.numel(), (given.numel(), torch.get_num_threads())
        if key not in self._shared:
            with _disable_current_modes():
                self._shared[key] = self._find_shared(*key)
        if (shared := self._shared[key]) == count:
            return self.function(given)  # type: ignore[no-any-return]
        flat = given.reshape(-1)
        parts = self.function(flat[:shared]), self.function(flat[shared:])
        return torch.cat(parts).view(given.shape)

    def _find_shared(self, count: int, threads: int) -> int:
        for shared in range(count, max(0, count - _STEP * threads), -_STEP):
            if self._formula.is_one([((shared,), (1,))]):
                return shared
        return count


@torch.inference_mode()
def use_whole_vectors(hf: Any) -> None:
    """Prepare the activation functions of a model that rounds, for several threads of a CPU.

    Those whose formulas do not differ stay as they are.
    """
    if hf.device.type != "cpu" or torch.get_num_threads() == 1 or not rounds(hf):
        return
    known = tuple(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values())
    made: dict[tuple[Any, ...], nn.Module] = {}
    for parent in list(hf.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, known) or any(True for _ in child.parameters()):
                continue
            values = {key: value for key, value in vars(child).items() if key[0] != "_"}
            kind = type(child), str(values)
            if kind not in made:
                formula = Formula(child, [hf.dtype])
                made[kind] = child if formula.shown is None else WholeVectors(child, formula)
            setattr(parent, name, made[kind])
