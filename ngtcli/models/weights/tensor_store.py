"""The tensors of a quantised model, as they come: into a file of the cache, or into memory.

What went to the file is mapped at the end. So a model is filled from the file at the first start as
at later ones, and it is in memory once.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.models.quantized import QUANTIZED, name_of
from ngtcli.system.arrays import Arrays, ArrayWriter

Tensors = dict[str, Tensor]


class TensorStore:
    """Takes the tensors of a model by their names: with a writer into its file.

    Methods raise OSError where the file does not take them.
    """

    def __init__(self, writer: ArrayWriter | None = None) -> None:
        self._tensors, self._writer = Tensors(), writer

    def add(self, name: str, tensor: Tensor) -> None:
        """Take a tensor; it is not changed, and not needed any more where it went to the file."""
        if self._writer is None:
            self._tensors[name] = tensor
        else:
            self._writer.add(name, array_of(tensor))

    def finish(self, path: Path | None = None, about: dict[str, Any] | None = None) -> Tensors:
        """All tensors; the file, if there is one, is `path` then, or is not kept.

        `about` is its metadata, values of JSON.
        """
        if self._writer is None:
            return self._tensors
        if path is not None:
            told = {name: json.dumps(value) for name, value in (about or {}).items()}
            self._writer.finish(path, {**told, "format": QUANTIZED.format})
        return tensors_of(self._writer.mapped())


def array_of(tensor: Tensor) -> Any:
    """The numpy array in the memory of a tensor. Raises OSError where no file holds its dtype."""
    tensor = tensor.detach().contiguous()
    try:
        return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except TypeError:
        raise OSError(f"numbers of the type {name_of(tensor.dtype)}") from None


def tensors_of(arrays: Arrays) -> Tensors:
    """The arrays of a mapped file as tensors in its memory."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {n: t.view(torch.bfloat16) if t.dtype == torch.uint16 else t for n, t in tensors.items()}
