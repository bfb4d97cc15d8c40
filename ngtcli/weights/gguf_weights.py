"""The weights of a GGUF file under the names that `transformers` has for them.

Each is dequantised when it is asked for, as slices of safetensors are read, some rows at a time.
What llama.cpp changed when it wrote a weight (the order of rows, a norm plus one) is undone by the
processors of `transformers`, on the bits of bfloat16 where nothing is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.errors import ModelError
from ngtcli.model_files.gguf import Source
from ngtcli.model_files.packages import require

_AT_ONCE = 1 << 22  # numbers that are dequantised at once, 16 MB in float32; guess
_PLAIN = ("F32", "F16")  # kinds that are read as they are


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """One weight: the tensors of the file that it is made of, and what undoes llama.cpp's order."""

    parts: tuple[Any, ...]
    processor: Any
    names: Mapping[str, str]

    def get_dtype(self) -> str:
        """The dtype that it is read in, as safetensors name them."""
        kind = self.parts[0].tensor_type.name
        return str(kind) if kind in _PLAIN else "BF16"

    def __getitem__(self, _: object) -> Tensor:
        """All of it, whatever is asked for."""
        told: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for part in self.parts:
            made = self.processor.process(
                weights=_numbers(part),
                name=part.name,
                tensor_key_mapping=self.names,
                parsed_parameters=told,
            )
        joined = next(iter(told["tensors"].values()), None)  # experts
        whole = torch.from_numpy(np.array(made.weights)) if joined is None else joined
        return whole.view(torch.bfloat16) if whole.dtype == torch.int16 else whole


def _numbers(part: Any) -> Any:
    """The numbers of a tensor: float32, float16, or the bits of bfloat16 as int16."""
    from gguf import dequantize

    kind, data = part.tensor_type, part.data
    if kind.name in _PLAIN:
        return np.array(data)
    if data.ndim == 1:  # a norm, with which is computed
        return dequantize(data, kind)
    rows, width = data.reshape(-1, data.shape[-1]), int(part.shape[0])
    made, step = torch.empty(len(rows), width, dtype=torch.bfloat16), max(1, _AT_ONCE // width)
    for at in range(0, len(rows), step):
        made[at : at + step] = torch.from_numpy(dequantize(rows[at : at + step], kind))
    return made.view(torch.int16).numpy().reshape(*data.shape[:-1], width)


def gguf_weights(source: Source, empty: Any) -> dict[str, GgufWeight]:
    """The weights of a file by their names in a model, which needs no values.

    Those for which it has no name stand under the file's. Raises ModelError for an architecture
    that the package gguf has under no name of `transformers`, and without that package.
    """
    require(f"{source.file}: reading a GGUF file", ["gguf"], "'ngtcli[gguf]'")
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    reader = GGUFReader(source.file)
    architecture = reader.get_field("general.architecture").contents()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=empty.config.to_dict())
    try:
        names = get_gguf_hf_weights_map(empty, processor)
    except NotImplementedError:
        what = f"{source.file}: its weights of the architecture {architecture} cannot be named"
        raise ModelError(what, "Upgrade the package: pip install -U gguf") from None
    parts: dict[str, list[Any]] = {}
    for tensor in reader.tensors:
        if tensor.name != "rope_freqs.weight":  # it went to the configuration
            own = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))
            parts.setdefault(own or tensor.name, []).append(tensor)
    return {own: GgufWeight(tuple(some), processor, names) for own, some in parts.items()}
