"""Collect the tensors of a quantized model in a file of the cache, or in memory.

The file is mapped into memory once it is complete. So the first run uses the same tensors as later
ones, and the model is in memory only once.
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
    """Tensors by name. Its methods raise OSError if the file cannot be written.

    Args:
        writer: Writes the tensors to a file. None: they stay in memory.
    """

    def __init__(self, writer: ArrayWriter | None = None) -> None:
        self._tensors: Tensors = {}
        self._writer = writer

    def add(self, name: str, tensor: Tensor) -> None:
        """Add a tensor without changing it. With a writer it may be released afterwards."""
        if self._writer is None:
            self._tensors[name] = tensor
        else:
            self._writer.add(name, to_array(tensor))

    def finish(self, path: Path | None = None, about: dict[str, Any] | None = None) -> Tensors:
        """Return all tensors by name.

        Args:
            path: The final path of the file, if there is one. None: it is deleted.
            about: The metadata of the file, as values of JSON.
        """
        if self._writer is None:
            return self._tensors
        if path is not None:
            metadata = {name: json.dumps(value) for name, value in (about or {}).items()}
            self._writer.finish(path, {**metadata, "format": QUANTIZED.format})
        return to_tensors(self._writer.mapped())


def to_array(tensor: Tensor) -> Any:
    """Return a numpy array that shares a tensor's memory; bfloat16 becomes uint16.

    Raises:
        OSError: numpy lacks the dtype, so that no file can hold the tensor.
    """
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    try:
        return tensor.numpy()
    except TypeError:
        raise OSError(f"a file cannot hold numbers of type {name_of(tensor.dtype)}") from None


def to_tensors(arrays: Arrays) -> Tensors:
    """Return tensors that share the memory of mapped arrays; uint16 becomes bfloat16."""
    tensors: Tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
    return tensors
