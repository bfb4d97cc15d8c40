"""The tensors of a quantised model, as they come: into a file of the cache, or into memory.

What went to the file is mapped at the end. So a model is filled from the file at the first start as
at later ones, and it is in memory once.
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ngtcli.errors import reason_of
from ngtcli.model_files.dtypes import name_of
from ngtcli.system.array_stream import BEGIN, PADDING, ArrayWriter
from ngtcli.system.arrays import TYPES, Shapes

Tensors = dict[str, Tensor]
Notify = Callable[[str], object]


class Weights:
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
            kind = name_of(tensor.dtype)
            data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
            self._try(lambda: file.add(name, kind, tensor.shape, data))
        if self._file is None:
            self._tensors[name] = tensor

    def finish(self, path: Path | None = None, about: dict[str, Any] | None = None) -> Tensors:
        """All tensors; the file, if there is one, is `path` then, or is not kept."""
        if (file := self._file) is not None and path is not None:
            self._try(lambda: file.finish(path, about or {}))
        return self._tensors if self._file is None else tensors_of(*self._file.mapped())

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        if self._file is not None:
            self._file.discard()

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
                self._tensors = {n: one.clone() for n, one in tensors_of(*file.mapped()).items()}
                file.discard()
                self._file = None


def tensors_of(whole: Any, shapes: Shapes) -> Tensors:
    """The arrays of a mapped file as tensors in its memory."""
    tensors, at = Tensors(), BEGIN
    for name, (kind, shape) in shapes.items():
        dtype, count = getattr(torch, TYPES[kind]), math.prod(shape)
        if not count:
            tensors[name] = torch.empty(shape, dtype=dtype)
        elif not name.endswith(PADDING):
            flat = torch.frombuffer(whole, dtype=dtype, count=count, offset=at)
            tensors[name] = flat.view(shape)
        at += count * dtype.itemsize
    return tensors
