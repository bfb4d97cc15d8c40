"""The files of a learned head: finding them, reading their tensors, and checking that they fit.

Nothing in a file is run: torch pickles are read by torch's own reader, with weights only.
"""

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ngtcli.errors import ModelError
from ngtcli.heads.places import HINT, find_head
from ngtcli.models import hub
from ngtcli.models.checkpoint import read_object, some

WEIGHTS = "model.safetensors"
DAMAGED = "Download the head again, or name another one."
# File names of published heads, looked for before those that `transformers` knows.
_PUBLISHED = [
    f"{kind}_lm_head.{end}" for kind in ("medusa", "hydra") for end in ("safetensors", "pt")
]


@dataclass(frozen=True, slots=True)
class Target:
    """The target model of a head.

    Attributes:
        hf: The `transformers` model.
        device: The device on which heads compute.
        dtype: The dtype in which heads compute.
    """

    hf: Any
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> Any:
        """Return the configuration of its text part, a `PreTrainedConfig`."""
        return self.hf.config.get_text_config()

    @property
    def width(self) -> int:
        """Return the size of a hidden state."""
        return int(self.config.hidden_size)

    @property
    def layers(self) -> int:
        """Return the number of its layers."""
        return int(self.config.num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens that have a logit."""
        return int(self.config.vocab_size)

    def embed(self, ids: Tensor, scaled: bool = True) -> Tensor:
        """Return the model's embeddings (…, width) of token ids (…).

        With `scaled` they are as the model's first layer gets them, else as the table has them:
        some models multiply them.
        """
        table = self.hf.get_input_embeddings()
        embedded: Tensor = table(ids.to(self.hf.device))
        scale = getattr(table, "embed_scale", None)
        if not scaled and scale is not None:
            embedded = embedded / scale
        return embedded.to(self.device, self.dtype)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits (…, vocab_size) of the model's LM head for states (…, width)."""
        lm_head = self.hf.get_output_embeddings()
        logits: Tensor = lm_head(states.to(self.hf.device, self.hf.dtype))
        return logits.to(self.device, self.dtype)


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """The files of one head.

    Its methods check them, and raise ModelError with the head's name.

    Attributes:
        name: The name that the user gave.
        folder: Where the files are.
        config: config.json; {} if there is none.
        tensors: The tensors by their names in the files, mapped into memory.
        stored: The names in the files of the tensors that are used, by their names in the network.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    stored: dict[str, str] = field(default_factory=dict)

    def refused(self, problem: str, hint: str = HINT) -> ModelError:
        """Make the error for a head that cannot be used."""
        return ModelError(f"{self.name}: {problem}", hint=hint)

    def number(self, key: str, default: int, maximum: int) -> int:
        """Return a number of config.json from 0 to `maximum`, or `default` if it has none."""
        value = self.config.get(key, default)
        if type(value) is not int or not 0 <= value <= maximum:
            raise self.refused(f"its config.json says {key}: {value!r}, not 0 to {maximum}"[:300])
        return value

    def shape(self, name: str, dimensions: int = 2) -> tuple[int, ...]:
        """Return the shape of a tensor that the network needs.

        Args:
            name: The tensor's name in the network.
            dimensions: How many dimensions it must have.
        """
        name = self.stored.get(name, name)
        if name not in self.tensors:
            raise self.refused(f"its file has no {name}", DAMAGED)
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions:
            raise self.refused(
                f"{name} has shape {_shape_text(shape)}, not {dimensions} dimensions", DAMAGED
            )
        return shape

    def sizes(self, pattern: str) -> tuple[int, int]:
        """Count the heads and blocks that names are numbered by.

        Args:
            pattern: Matches the beginning of a name and captures two numbers: head and block.
        """
        heads: set[str] = set()
        blocks: set[str] = set()
        for name in self.stored:
            match = re.match(pattern, name)
            if match:
                heads.add(match[1])
                blocks.add(match[2])
        return len(heads), len(blocks)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the object in config.json. Raises ModelError if there is none."""
        if not self.config:
            raise self.refused("it has no config.json that can be read", DAMAGED)
        return self.config

    def check(self, target: Target, width: int, vocab_size: int) -> None:
        """Raise ModelError unless the head is for hidden states and a vocabulary of these sizes."""
        if width != target.width:
            raise self.refused(
                f"the head reads hidden states of {width} numbers, the model's have {target.width}"
            )
        if vocab_size != target.vocab_size:
            raise self.refused(
                f"the head's vocabulary has {vocab_size} tokens, the model's has"
                f" {target.vocab_size}"
            )

    def read(self, name: str) -> Tensor:
        """Read a tensor. Raises ModelError unless it has finite floating-point numbers."""
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise self.refused(f"{name} has numbers of type {dtype}", DAMAGED)
        if not bool(tensor.isfinite().all()):
            raise self.refused(f"{name} has NaN or infinite values", DAMAGED)
        return tensor

    def fill(self, network: nn.Module, target: Target) -> None:
        """Load the stored values into a network, which may be on the device "meta"."""
        stored = self.stored
        parameters = network.state_dict()
        missing = sorted(parameters.keys() - stored.keys())
        if missing:
            raise self.refused(f"its file has no {some(missing)}", DAMAGED)
        unused = sorted(stored[name] for name in stored.keys() - parameters.keys())
        if unused:
            raise self.refused(f"a head of this kind has no {some(unused)}", DAMAGED)
        for name, parameter in parameters.items():
            shape = self.tensors[stored[name]].shape
            if shape != parameter.shape:
                raise self.refused(
                    f"{stored[name]} has shape {_shape_text(shape)}, not"
                    f" {_shape_text(parameter.shape)}",
                    DAMAGED,
                )
        state = {}
        for name in parameters:
            state[name] = self.read(stored[name]).to(target.device, target.dtype)
        network.load_state_dict(state, assign=True)
        network.requires_grad_(False).eval()


def open_head(name: str) -> HeadFiles:
    """Open the files of a head.

    Args:
        name: A folder, or ID[@REVISION] on the hub, from which the head is downloaded if needed.

    Raises:
        ModelError: There is no such head, or its files cannot be read.
        UsageError: The name is empty.
    """
    folder = Path(find_head(name))
    files = _weight_files(folder)
    is_local = os.path.isdir(os.path.expanduser(name))
    is_complete = bool(files) and all((folder / file).exists() for file in files)
    if not is_local and not is_complete:
        folder = Path(hub.download(name, True, _PUBLISHED))
        files = _weight_files(folder)
    if not files:
        raise ModelError(f"{name}: no weights of a head ({WEIGHTS})", hint=HINT)
    try:
        tensors = dict[str, Tensor]()
        for file in files:
            tensors |= _open_tensors(folder / file)
        if not tensors:
            raise ValueError("no named tensors")
    except Exception as error:  # the readers of files raise errors of many types
        why = first_line(error)
        if "Weights only" in str(error):
            why = "a pickle that could run code"
        raise ModelError(f"{name}: {files[0]} cannot be read ({why})", hint=DAMAGED) from error
    return HeadFiles(name, folder, read_object(folder / "config.json"), tensors)


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message, or the error's type if it is empty."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _weight_files(folder: Path) -> list[str]:
    """Name the files in a folder that have a head's weights; [] if it has none or is not there."""
    names = os.listdir(folder) if folder.is_dir() else []
    return hub.weight_files(folder, names, _PUBLISHED)


def _open_tensors(path: Path) -> dict[str, Tensor]:
    """Map the tensors of a file into memory. Raises whatever its reader raises."""
    if path.suffix == ".safetensors":
        return load_file(path)
    # torch's old format, a bare pickle and no zip archive, cannot be mapped.
    is_archive = zipfile.is_zipfile(path)
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    if not isinstance(content, dict):
        return {}
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def _shape_text(shape: Sequence[int]) -> str:
    """Write a shape such as 2×3, and () for a single number."""
    return "×".join(map(str, shape)) or "()"
