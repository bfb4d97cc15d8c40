"""The tensors of a quantised model, as they come: into a file of the cache, or into memory.

The file is mapped at the end, and a model is filled from it at the first start as at later ones.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.errors import reason_of
from ngtcli.system.array_stream import ArrayWriter, Stored, map_arrays

Tensors = dict[str, Tensor]
Notify = Callable[[str], object]


class Weights:
    """Takes the tensors of a model by their names.

    With a `folder` they go to a file there. Where that fails, `tell` gets the reason, and they all
    are in memory from then on.
    """

    def __init__(self, folder: Path | None = None, tell: Notify = lambda _: None) -> None:
        self._tensors: Tensors = {}
        self._tell, self._file = tell, None
        if folder is not None:
            self._try(lambda: setattr(self, "_file", ArrayWriter(folder)))

    def add(self, name: str, tensor: Tensor) -> None:
        """Take a tensor; it is not changed, and not needed any more where it went to the file."""
        if (file := self._file) is not None:
            kind, data = str(tensor.dtype).removeprefix("torch."), _bytes(tensor)
            self._try(lambda: file.add(name, kind, tensor.shape, [data]))
        if self._file is None:
            self._tensors[name] = tensor

    def finish(self, path: Path | None, about: dict[str, Any]) -> Tensors:
        """All tensors. The file is `path` from now on; where that is None, it is not kept."""
        if (file := self._file) is not None:
            if path is None:
                self._give_up()
            else:
                self._try(lambda: file.finish(path, about))
        if self._file is None or path is None:
            return self._tensors
        return tensors_of(map_arrays(path, {})[0])

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        if self._file is not None:
            self._file.discard()

    def _try(self, work: Callable[[], object]) -> None:
        """Do `work` with the file; without a file from then on where it fails."""
        try:
            work()
        except OSError as error:
            self._tell(f"quantised weights are not kept: {reason_of(error)}")
            self._give_up()

    def _give_up(self) -> None:
        """Have in memory what was written."""
        if (file := self._file) is not None:
            self._tensors = {name: one.clone() for name, one in tensors_of(file.take()).items()}
            file.discard()
            self._file = None


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def tensors_of(arrays: dict[str, Stored]) -> Tensors:
    """The arrays of a file as tensors in its memory."""
    return {name: _tensor(one) for name, one in arrays.items()}


def _tensor(stored: Stored) -> Tensor:
    dtype = getattr(torch, stored.kind)
    if not len(stored.data):
        return torch.empty(stored.shape, dtype=dtype)
    return torch.frombuffer(stored.data, dtype=dtype).view(stored.shape)
