"""The weights of a GGUF file under the names that `transformers` has for them.

Like a slice of a safetensors file, each weight is read on access, and dequantized some rows at a
time. llama.cpp changes some weights when it writes them (the order of rows, a norm plus one). The
processors of `transformers` undo that; those that only move numbers get the bits of bfloat16.
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
from ngtcli.models.hf import cache_gguf_names
from ngtcli.models.stand_in import Source

# Elements that are dequantized at once (measured: the fastest of 2^18, 2^20, 2^22 and 2^24).
_CHUNK_ELEMENTS = 1 << 20
# Dtypes of weights that are not quantized, by ggml's number of the type (F32, F16).
_UNQUANTIZED_DTYPES = {0: torch.float32, 1: torch.float16}


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """One weight of a model.

    Attributes:
        header: The header of the file.
        parts: The tensors in the file that make up the weight: several for a layer of experts.
        process: Undoes llama.cpp's changes (`TensorProcessor.process`).
    """

    header: Any
    parts: tuple[Any, ...]
    process: Callable[..., Any]

    @property
    def size(self) -> int:
        """The size in the file, in bytes."""
        return sum(int(part.nbytes) for part in self.parts)

    def __getitem__(self, _: object) -> Tensor:
        """Read the complete weight, whatever the index."""
        parsed: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for part in self.parts:
            processed = self.process(
                weights=self._read(part), name=part.name, parsed_parameters=parsed
            )
        # The processor stacks the weights of experts in `parsed`, under a name of its choice.
        experts = next(iter(parsed["tensors"].values()), None)
        weight = torch.from_numpy(np.array(processed.weights)) if experts is None else experts
        return weight.view(torch.bfloat16) if weight.dtype == torch.int16 else weight

    def _read(self, part: Any) -> Any:
        """Read and dequantize a tensor of the file.

        Returns:
            A numpy array of the tensor's shape in memory, not mapped: float32 or float16, or the
            bits of bfloat16 as int16.
        """
        from gguf import GGMLQuantizationType, dequantize

        rows = prod(part.shape[:-1])
        width = part.shape[-1]
        row_bytes = part.nbytes // rows
        quantized_dtype = torch.float32 if rows == 1 else torch.bfloat16
        dtype = _UNQUANTIZED_DTYPES.get(part.ggml_type, quantized_dtype)
        numbers = torch.empty(rows, width, dtype=dtype)
        with open(self.header.path, "rb") as file:
            file.seek(self.header.data_start + part.offset)
            for chunk in torch.split(numbers, max(1, _CHUNK_ELEMENTS // width)):
                data = np.fromfile(file, np.uint8, len(chunk) * row_bytes)
                blocks = data.reshape(len(chunk), row_bytes)
                values = dequantize(blocks, GGMLQuantizationType(part.ggml_type))
                chunk.copy_(torch.from_numpy(values))
        if dtype == torch.bfloat16:
            numbers = numbers.view(torch.int16)
        return numbers.numpy().reshape(part.shape)


def gguf_weights(source: Source, empty: Any) -> dict[str, GgufWeight]:
    """List the weights of a GGUF file by their names in a model.

    A weight that the model has no name for is listed by its name in the file.

    Args:
        source: The file.
        empty: The `transformers` model, which may be without values.

    Raises:
        ModelError: The header cannot be read (see `read_header`).
    """
    _, header = read_header(source.file, source.file)
    from transformers import modeling_gguf_pytorch_utils as library

    cache_gguf_names()
    processor_class = library.TENSOR_PROCESSORS.get(header.architecture, library.TensorProcessor)
    processor = processor_class(config=empty.config.to_dict())
    names = library.get_gguf_hf_weights_map(empty, processor)
    parts: dict[str, list[Any]] = {}
    for part in header.tensors:
        if part.name != FACTORS:  # The configuration has the factors.
            name = names.get(part.name) or names.get(part.name.removesuffix(".weight"))
            parts.setdefault(name or part.name, []).append(part)
    process = partial(processor.process, tensor_key_mapping=names)
    return {name: GgufWeight(header, tuple(tensors), process) for name, tensors in parts.items()}
