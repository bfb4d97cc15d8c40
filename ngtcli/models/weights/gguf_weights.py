"""The weights of a GGUF file under the names that `transformers` has for them.

Like a slice of a safetensors file, each weight is read, and dequantized some rows at a time, when
it is asked for. llama.cpp changes some weights when it writes them (the order of rows, a norm plus
one). The processors of `transformers` undo that; where they compute nothing they work on the bits
of bfloat16.
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

# Numbers that are dequantized at once (measured: the fastest of 2^18, 2^20, 2^22 and 2^24).
_CHUNK_NUMBERS = 1 << 20
# Dtypes of weights that are not quantized, by ggml's number of the type (F32, F16).
_UNQUANTIZED_DTYPES = {0: torch.float32, 1: torch.float16}


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """One weight of a model.

    Attributes:
        header: The file's `GgufHeader`.
        parts: The `GgufTensor`s that the weight is made of: several for a layer of experts.
        process: Undoes llama.cpp's changes (`TensorProcessor.process`).
    """

    header: Any
    parts: tuple[Any, ...]
    process: Callable[..., Any]

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return sum(int(part.nbytes) for part in self.parts)

    def __getitem__(self, _: object) -> Tensor:
        """Read the whole weight, whatever part of it is asked for."""
        parsed: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for part in self.parts:
            processed = self.process(
                weights=self._read(part), name=part.name, parsed_parameters=parsed
            )
        # The processor joins the parts of experts itself, under the one name that it gives them.
        experts = next(iter(parsed["tensors"].values()), None)
        weight = torch.from_numpy(np.array(processed.weights)) if experts is None else experts
        return weight.view(torch.bfloat16) if weight.dtype == torch.int16 else weight

    def _read(self, part: Any) -> Any:
        """Read and dequantize a tensor of the file.

        Returns:
            A numpy array of the tensor's shape, float32 or float16, or the bits of bfloat16 as
            int16. It is not mapped from the file.
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
            for chunk in torch.split(numbers, max(1, _CHUNK_NUMBERS // width)):
                data = np.fromfile(file, np.uint8, len(chunk) * row_bytes)
                blocks = data.reshape(len(chunk), row_bytes)
                values = dequantize(blocks, GGMLQuantizationType(part.ggml_type))
                chunk.copy_(torch.from_numpy(values))
        if dtype == torch.bfloat16:
            numbers = numbers.view(torch.int16)
        return numbers.numpy().reshape(part.shape)


def gguf_weights(source: Source, empty: Any) -> dict[str, GgufWeight]:
    """List the weights of a GGUF file by their names in a model.

    A weight that the model has no name for keeps its name in the file.

    Args:
        source: The file.
        empty: The `transformers` model, which may be without values.

    Raises:
        ModelError: See `read_header`.
    """
    _, header = read_header(source.file, source.file)
    from transformers import modeling_gguf_pytorch_utils as library

    keep_gguf_names()
    processor_class = library.TENSOR_PROCESSORS.get(header.architecture, library.TensorProcessor)
    processor = processor_class(config=empty.config.to_dict())
    names = library.get_gguf_hf_weights_map(empty, processor)
    parts: dict[str, list[Any]] = {}
    for part in header.tensors:
        if part.name != FACTORS:  # these are in the configuration
            name = names.get(part.name) or names.get(part.name.removesuffix(".weight"))
            parts.setdefault(name or part.name, []).append(part)
    process = partial(processor.process, tensor_key_mapping=names)
    return {name: GgufWeight(header, tuple(tensors), process) for name, tensors in parts.items()}
