"""The weights of a GGUF file under the names that `transformers` has for them.

Each is dequantised when it is asked for, as slices of safetensors are read, some rows at a time.
What llama.cpp changed when it wrote a weight (the order of rows, a norm plus one) is undone by the
processors of `transformers`, on the bits of bfloat16 where nothing is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.models.gguf import FACTORS, read_header
from ngtcli.models.hf import keep_gguf_names
from ngtcli.models.stand_in import Source

_AT_ONCE = 1 << 20  # numbers that are dequantised at once: quickest of 2^18, 2^20, 2^22, 2^24
_OWN_DTYPES = {0: torch.float32, 1: torch.float16}  # by ggml's number of a kind; else bfloat16


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """One weight: the tensors of a file that it is made of, and what undoes llama.cpp's order."""

    header: Any
    parts: tuple[Any, ...]
    process: Callable[..., Any]

    @property
    def size(self) -> int:
        """The bytes that it has in the file."""
        return sum(int(part.nbytes) for part in self.parts)

    def __getitem__(self, _: object) -> Tensor:
        """All of it, whatever is asked for."""
        told: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for part in self.parts:
            made = self.process(weights=self._numbers(part), name=part.name, parsed_parameters=told)
        joined = next(iter(told["tensors"].values()), None)  # experts
        whole = torch.from_numpy(np.array(made.weights)) if joined is None else joined
        return whole.view(torch.bfloat16) if whole.dtype == torch.int16 else whole

    def _numbers(self, part: Any) -> Any:
        """Those of a tensor, read, not mapped: floats, or the bits of bfloat16 as int16."""
        from gguf import GGMLQuantizationType, dequantize

        rows, width = prod(part.shape[:-1]), part.shape[-1]
        own = _OWN_DTYPES.get(part.ggml_type, torch.float32 if rows == 1 else torch.bfloat16)
        made, size = torch.empty(rows, width, dtype=own), part.nbytes // rows
        with open(self.header.path, "rb") as file:
            file.seek(self.header.data_start + part.offset)
            for some in torch.split(made, max(1, _AT_ONCE // width)):
                data = np.fromfile(file, np.uint8, len(some) * size).reshape(len(some), size)
                values = dequantize(data, GGMLQuantizationType(part.ggml_type))
                some.copy_(torch.from_numpy(values))
        bits = made.view(torch.int16) if own == torch.bfloat16 else made
        return bits.numpy().reshape(part.shape)


def gguf_weights(source: Source, empty: Any) -> dict[str, GgufWeight]:
    """The weights of a file by their names in a model, which needs no values.

    Those for which it has no name stand under the file's. Raises as `read_header`.
    """
    _, header = read_header(source.file, source.file)
    from transformers import modeling_gguf_pytorch_utils as library

    keep_gguf_names()
    kind = library.TENSOR_PROCESSORS.get(header.architecture, library.TensorProcessor)
    processor = kind(config=empty.config.to_dict())
    names = library.get_gguf_hf_weights_map(empty, processor)
    parts: dict[str, list[Any]] = {}
    for part in header.tensors:
        if part.name != FACTORS:  # they went to the configuration
            name = names.get(part.name) or names.get(part.name.removesuffix(".weight"))
            parts.setdefault(name or part.name, []).append(part)
    process = partial(processor.process, tensor_key_mapping=names)
    return {name: GgufWeight(header, tuple(some), process) for name, some in parts.items()}
