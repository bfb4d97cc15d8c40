"""The files of a learned head: where they are, their tensors, and what does not fit together.

Nothing in a file is run: torch pickles are read by torch's own reader, which knows tensors alone.
"""

import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
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

Notify = Callable[[str], None]
WEIGHTS = "model.safetensors"
DAMAGED = "Download the head again, or name another one."
# Names under which heads are published, before those that `transformers` knows.
_PUBLISHED = [
    f"{kind}_lm_head.{end}" for kind in ("medusa", "hydra") for end in ("safetensors", "pt")
]


@dataclass(frozen=True, slots=True)
class Target:
    """The `transformers` model that heads guess for; they compute in `dtype` on `device`."""

    hf: Any
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> Any:
        """The configuration of its text part."""
        return self.hf.config.get_text_config()

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return int(self.config.hidden_size)

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return int(self.config.num_hidden_layers)

    @property
    def vocabulary(self) -> int:
        """Tokens that have a score."""
        return int(self.config.vocab_size)

    def embed(self, ids: Tensor, scaled: bool = True) -> Tensor:
        """The model's own embeddings (…, width) of ids (…), as its first layer gets them.

        Unless `scaled`, they are those of the table; some models multiply them.
        """
        table = self.hf.get_input_embeddings()
        found: Tensor = table(ids.to(self.hf.device))
        if not scaled and (scale := getattr(table, "embed_scale", None)) is not None:
            found = found / scale
        return found.to(self.device, self.dtype)

    def score(self, states: Tensor) -> Tensor:
        """The model's own scores (…, vocabulary) of what leaves its last norm, (…, width)."""
        found: Tensor = self.hf.get_output_embeddings()(states.to(self.hf.device, self.hf.dtype))
        return found.to(self.device, self.dtype)


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """The files of one head: the `name` the user gave, the folder, config.json ({}: none).

    `tensors` are mapped. `stored` has the names of those that are used by the names that they have
    in the network. Building a head raises ModelError by the methods here.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    stored: dict[str, str] = field(default_factory=dict)

    def refused(self, what: str, hint: str = HINT) -> ModelError:
        """The error for a head that cannot be used."""
        return ModelError(f"{self.name}: {what}", hint=hint)

    def number(self, key: str, default: int, most: int) -> int:
        """A number of config.json from 0 to `most`; `default` where it is not there."""
        value = self.config.get(key, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.refused(f"its config.json says {key}: {value!r}, not 0 to {most}"[:300])
        return value

    def shape(self, name: str, dimensions: int = 2) -> tuple[int, ...]:
        """The shape of a network's tensor that has to be there and to have so many dimensions."""
        name = self.stored.get(name, name)
        if name not in self.tensors:
            raise self.refused(f"its file has no {name}", DAMAGED)
        if len(found := tuple(self.tensors[name].shape)) != dimensions:
            raise self.refused(f"{name} has shape {_by(found)}, not {dimensions} numbers", DAMAGED)
        return found

    def sizes(self, pattern: str) -> tuple[int, int]:
        """How many first and second numbers there are in the names that begin with a pattern."""
        found = [match.groups() for match in map(re.compile(pattern).match, self.stored) if match]
        heads, blocks = (len({pair[at] for pair in found}) for at in (0, 1))
        return heads, blocks

    @property
    def fields(self) -> Mapping[str, Any]:
        """Those of config.json, which has to be there."""
        if not self.config:
            raise self.refused("it has no config.json that can be read", DAMAGED)
        return self.config

    def check(self, target: Target, width: int, tokens: int) -> None:
        """Raise ModelError unless the head reads the target's states and guesses its tokens."""
        if width != target.width:
            told = f"hidden states of {width} numbers, the model's have {target.width}"
            raise self.refused(f"the head reads {told}")
        if tokens != target.vocabulary:
            told = f"{tokens} tokens, the model has {target.vocabulary}"
            raise self.refused(f"the head guesses among {told}")

    def read(self, name: str) -> Tensor:
        """A tensor of finite numbers, as it is in the file."""
        tensor = self.tensors[name]
        if not tensor.is_floating_point():
            raise self.refused(f"{name} has numbers of type {str(tensor.dtype)[6:]}", DAMAGED)
        if not bool(tensor.isfinite().all()):
            raise self.refused(f"{name} has numbers that are not finite", DAMAGED)
        return tensor

    def fill(self, network: nn.Module, target: Target) -> None:
        """Give a network, which may be on the device "meta", its values."""
        stored, own = self.stored, network.state_dict()
        if lacking := sorted(own.keys() - stored.keys()):
            raise self.refused(f"its file has no {some(lacking)}", DAMAGED)
        if unused := sorted(stored[name] for name in stored.keys() - own.keys()):
            raise self.refused(f"a head of this kind has no {some(unused)}", DAMAGED)
        for name, wanted in own.items():
            if (found := self.tensors[stored[name]].shape) != wanted.shape:
                shapes = f"{_by(found)}, and {_by(wanted.shape)} is needed"
                raise self.refused(f"{stored[name]} has shape {shapes}", DAMAGED)
        state = {name: self.read(stored[name]).to(target.device, target.dtype) for name in own}
        network.load_state_dict(state, assign=True)
        network.requires_grad_(False).eval()


def open_head(name: str, progress: Notify = lambda _: None) -> HeadFiles:
    """The files of the head in a folder, or under ID[@REVISION], which may be downloaded.

    Raises ModelError, and UsageError for an empty name.
    """
    folder = Path(find_head(name))
    files = _weights(folder)
    here = os.path.isdir(os.path.expanduser(name))
    if not here and not (files and all((folder / file).exists() for file in files)):
        folder = Path(hub.download(name, True, progress, _PUBLISHED))
        files = _weights(folder)
    if not files:
        raise ModelError(f"{name}: it has no weights of a head ({WEIGHTS})", hint=HINT)
    try:
        tensors = dict[str, Tensor]()
        for file in files:
            tensors |= _opened(folder / file)
        if not tensors:
            raise ValueError("no tensors by their names")
    except Exception as error:  # files fail in many ways
        why = "a pickle that could run code" if "Weights only" in str(error) else first_line(error)
        what = f"{name}: {files[0]} cannot be read ({why})"
        raise ModelError(what, hint=DAMAGED) from error
    return HeadFiles(name, folder, read_object(folder / "config.json"), tensors)


def first_line(error: Exception) -> str:
    """What an error of a library says, in one line."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _weights(folder: Path) -> list[str]:
    """The files of a folder that have a head's weights; [] for none, or no such folder."""
    names = os.listdir(folder) if folder.is_dir() else []
    return hub.weight_files(folder, names, _PUBLISHED)


def _opened(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped. Raises what its reader does."""
    if path.suffix == ".safetensors":
        return load_file(path)
    # The old form of a pickle, which is no archive, cannot be mapped.
    mapped = zipfile.is_zipfile(path)
    read = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    found = read.items() if isinstance(read, dict) else ()
    return {str(name): one for name, one in found if isinstance(one, Tensor)}


def _by(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "()"
