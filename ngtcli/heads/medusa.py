"""Medusa-1 (Cai et al., 2024, section 2.1.1): heads that each guess one place further ahead.

Head h reads what leaves the model's last norm at a row, and guesses the token h + 2 after that row:
the model itself gives the next one. A guess does not know the tokens between. Tensors:
`{h}.{k}.linear.weight|bias`, residual blocks [H, H], and `{h}.{blocks}.weight` [V, H]. Where no
head has the last one, all guess by the target's own, from which published training starts. Of
config.json nothing is read: published ones say 2 heads where the file has 5.
"""

import re
from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor, nn

from ngtcli.heads.files import HeadFiles, Target
from ngtcli.heads.layers import ResidualBlock
from ngtcli.heads.rows import HeadPass, Sight

_NAME = re.compile(r"(?:medusa_heads?\.)?\d{1,4}\.\d{1,4}\.(?:linear\.)?(?:weight|bias)")


class Medusa(nn.ModuleList):
    """The heads of a target, which have last layers of their own or score by the target's."""

    ids: Tensor | None = None

    def __init__(
        self, target: Target, depth: int, blocks: int = 1, own_scores: bool = True
    ) -> None:
        super().__init__()
        self.reads: tuple[int, ...] = (-1,)
        self.sights: tuple[Sight, ...] = ()
        self.target, self.depth, self.blocks = target, depth, blocks
        for _ in range(depth):
            layers: list[nn.Module] = [ResidualBlock(target.width) for _ in range(blocks)]
            if own_scores:
                layers.append(nn.Linear(target.width, target.vocabulary, bias=False))
            self.append(nn.Sequential(*layers))

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        return given.last_of(states)

    def guess(self, last: Tensor, root: Tensor, block: Callable[[int], HeadPass]) -> Tensor:
        return self.scores(last)[:, 0]

    def scores(self, states: Tensor) -> Tensor:
        """Scores (depth, n, vocabulary) after rows of states (n, width)."""
        found = []
        for head in self:
            made = states
            for block in islice(head.children(), self.blocks):
                made = block(made)
            last = next(islice(head.children(), self.blocks, None), self.target.score)
            found.append(last(made))
        return torch.stack(found)


def marks(files: HeadFiles) -> bool:
    """Whether a residual block of Medusa's is there, by itself or beside a whole model's tensors.

    In a file with others the names begin with `medusa_head`.
    """
    own = [name for name in files.shapes if _NAME.fullmatch(name)]
    alone = len(own) == len(files.shapes) or all(name.startswith("medusa_") for name in own)
    return alone and any(".linear." in name for name in own)


def network(files: HeadFiles, target: Target) -> Medusa:
    """The network of these files. Raises ModelError for those of another target."""
    heads = sorted({int(name.split(".")[0]) for name in files.stored})
    first = [name for name in files.stored if name.startswith(f"{heads[0]}.")]
    blocks = len({name.split(".")[1] for name in first if "linear." in name})
    last = [name for name in files.stored if re.fullmatch(r"\d+\.\d+\.weight", name)]
    width = target.width
    if "0.0.linear.weight" in files.stored:
        width = files.shape("0.0.linear.weight")[1]
    for tokens in (files.shape(name)[0] for name in last):
        files.check(target, width, tokens)
    files.check(target, width, target.vocabulary)
    return Medusa(target, len(heads), blocks, bool(last))
