"""The tensors of a quantised model, as they come: into a file of the cache, or into memory.

What went to the file is mapped at the end. So a model is filled from the file at the first start as
at later ones, and it is in memory once.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.errors import reason_of
from ngtcli.model_files.quantized import QUANTIZED, name_of
from ngtcli.system.arrays import Arrays, ArrayWriter

Tensors = dict[str, Tensor]
Notify = Callable[[str], object]


class TensorStore:
    """Takes the tensors of a model by their names.

    With a `folder` they go to a file there, if `room` bytes are free. Where that fails, `tell` gets
    the reason, and they all are in memory from then on.
    """

    def __init__(
        self, folder: Path | None = None, room: int = 0, tell: Notify = lambda _: None
    ) -> None:
        self._tensors: Tensors = {}
        self._tell = tell
        self._file: ArrayWriter | None = None
        if folder is not None:
            self._try(lambda: self._open(folder, room))

    def add(self, name: str, tensor: Tensor) -> None:
        """Take a tensor; it is not changed, and not needed any more where it went to the file."""
        if (file := self._file) is not None:
            self._try(lambda: file.add(name, _array_of(tensor)))
        if self._file is None:
            self._tensors[name] = tensor

    def finish(self, path: Path | None = None, about: dict[str, Any] | None = None) -> Tensors:
        """All tensors; the file, if there is one, is `path` then, or is not kept.

        `about` is its metadata, values of JSON.
        """
        if (file := self._file) is not None and path is not None:
            told = {name: json.dumps(value) for name, value in (about or {}).items()}
            self._try(lambda: file.finish(path, {**told, "format": QUANTIZED.format}))
        return self._tensors if self._file is None else tensors_of(self._file.mapped())

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        if self._file is not None:
            self._file.close()

    def _open(self, folder: Path, room: int) -> None:
        self._file = ArrayWriter(folder)
        if (free := shutil.disk_usage(folder).free) < room:
            raise OSError(f"{free / 1e9:.1f} GB are free, and {room / 1e9:.1f} are wanted")

    def _try(self, work: Callable[[], object]) -> None:
        """Do `work` with the file; where that fails, have all in memory."""
        try:
            work()
        except OSError as error:
            self._tell(f"quantised weights are not kept: {reason_of(error)}")
            if (file := self._file) is not None:
                self._tensors = {n: one.clone() for n, one in tensors_of(file.mapped()).items()}
                file.close()
                self._file = None


def _array_of(tensor: Tensor) -> Any:
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
