"""Medusa-1 (Cai et al., 2024, section 2.1.1): heads that each guess one place further ahead.

Head h reads what leaves the model's last norm at a row, and guesses the token h + 2 after that row:
the model itself gives the next one. A guess does not know the tokens between. Tensors:
`{h}.{k}.linear.weight|bias`, residual blocks [H, H], and `{h}.{blocks}.weight` [V, H]. Where no
head has the last one, all guess by the target's own, from which published training starts. Of
config.json nothing is read: published ones say 2 heads where the file has 5.
"""

import re
from itertools import islice

import torch
from torch import Tensor, nn

from ngtcli.draft.guesses import Guessed
from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.head import Head, guessed, nothing
from ngtcli.heads.parts import ResidualBlock

KIND = "medusa"
_NAME = re.compile(r"(?:medusa_heads?\.)?((\d{1,4})\.(\d{1,4})\.(?:linear\.)?(?:weight|bias))")


class Medusa(nn.ModuleList):
    """The heads of a target with hidden states of `width` numbers.

    Without a `vocabulary` they have no last layers of their own.
    """

    def __init__(self, width: int, vocabulary: int | None, depth: int, blocks: int = 1) -> None:
        super().__init__()
        self.blocks = blocks
        for _ in range(depth):
            layers: list[nn.Module] = [ResidualBlock(width) for _ in range(blocks)]
            if vocabulary is not None:
                layers.append(nn.Linear(width, vocabulary, bias=False))
            self.append(nn.Sequential(*layers))

    def forward(self, states: Tensor) -> Tensor:
        """What each head makes of hidden states (…, width), before its last layer.

        (depth, …, width): at row r of a text, the one of head h is for the token r + h + 2.
        """
        made = []
        for head in self:
            own = states
            for block in islice(head.children(), self.blocks):
                own = block(own)
            made.append(own)
        return torch.stack(made)

    def scores(self, made: Tensor, target: Target) -> Tensor:
        """The scores (depth, …, vocabulary) of what `forward` made."""
        last = [layer for head in self for layer in islice(head.children(), self.blocks, None)]
        if not last:
            return target.score(made)
        return torch.stack([layer(own) for layer, own in zip(last, made, strict=True)])


class MedusaHead(Head):
    """Reads the last row alone; its guesses are the same for all nodes of a depth."""

    kind = KIND

    def __init__(self, network: Medusa, target: Target) -> None:
        self.network, self._target = network, target
        self.depth = len(network)
        self._state: Tensor | None = None  # (1, width)

    def reset(self) -> None:
        """A new text begins."""
        self._state = None

    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """As Head.read."""
        self._state = states[-1:].to(self._target.device, self._target.dtype)

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        """As Guesser.first: one for each depth."""
        if self._state is None:
            return nothing(self.depth)
        made = self.network(self._state)
        return guessed(self.network.scores(made, self._target)[:, 0])


def recognise(files: HeadFiles) -> bool:
    """Whether a residual block of Medusa's is there, by itself or beside a whole model's tensors.

    In a file with others the names begin with `medusa_head`.
    """
    own = [name for name in files.shapes if _NAME.fullmatch(name)]
    alone = len(own) == len(files.shapes) or all(name.startswith("medusa_") for name in own)
    return alone and any(".linear." in name for name in own)


def build(files: HeadFiles, target: Target) -> MedusaHead:
    """The head of these files. Raises ModelError where they do not fill it or are not for it."""
    found = [one for one in map(_NAME.fullmatch, files.shapes) if one]
    stored = {one[1]: one[0] for one in found}
    heads = {int(one[2]) for one in found}
    blocks = {int(one[3]) for one in found if ".linear." in one[1] and int(one[2]) == min(heads)}
    last = [name for name in stored if ".linear." not in name and name.endswith(".weight")]
    for name in (name for name in stored if name.endswith("0.0.linear.weight")):
        files.check_width(files.shape(stored[name])[1], target)
    for name in last:
        files.check_vocabulary(files.shape(stored[name])[0], target)
    with torch.device("meta"):
        vocabulary = target.vocabulary if last else None
        network = Medusa(target.width, vocabulary, len(heads), len(blocks))
    files.fill(network, target, stored)
    return MedusaHead(network, target)
