"""Tunes a model to fill mask tokens after its answers (SPACE, arXiv 2402.11809), from a recording.

    python -m tests.tools.record recording -d notes/
    python -m tests.tools.space_tuning MODEL recording OUT [--steps 400] [--depth 4] [--rate 1e-4]

The result is a model of its own, for `-m OUT --method space`: its answers do not stay those of the
model. It takes 16 bytes for each parameter.
"""

import argparse
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.model import TargetModel
from ngtcli.models.checkpoint import find
from tests.tools.heads.folder import Text
from tests.tools.heads.recipes import Batch, Guesses, unused_token
from tests.tools.heads.train import cut, of_step
from tests.tools.measuring.traces import read_traces

_GROUPS = 8  # of masks that are drawn of a text in a step; guess
_BESIDE = ("*token*", "vocab*", "merges.txt", "*.jinja", "generation_config.json", "*.model")


class Tuning:
    """A copy of the model in which masks follow some rows of the answers, in groups.

    A group sees the text up to its row; mask j stands j positions on, sees those before it, and is
    trained on the token j + 1 positions behind the row. The model's own next tokens are trained
    along, or its answers would fall apart (section 3.2).
    """

    def __init__(self, model: TargetModel, depth: int) -> None:
        self.depth, self.mask = depth, unused_token(model)
        self._folder = Path(find(model.name, ("config", "weights")))
        self.network: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)
        self.network.train()
        # The mask may be that token, and is trained.
        self.network.get_input_embeddings().padding_idx = None

    def scored(self, batch: Batch) -> Guesses:
        """The model's own next tokens, then what masks guess by depth."""
        texts, length = batch.ids.shape
        anchors = self._anchors(batch)
        masks = torch.full((texts, _GROUPS * self.depth), self.mask)
        positions = (anchors[..., None] + torch.arange(1, self.depth + 1)).flatten(1)
        rows = torch.arange(length).expand(texts, -1)
        states = self.network(
            torch.cat([batch.ids, masks], 1),
            position_ids=torch.cat([rows, positions], 1),
            attention_mask=self._sees(length, anchors),
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states[-1]
        score, which = self.network.get_output_embeddings(), torch.arange(texts)[:, None]
        yield score(batch.of_rows(states)), batch.targets(1)
        made = states[:, length:].view(texts, _GROUPS, self.depth, -1)
        for depth in range(self.depth):
            targets = batch.at(which, anchors + depth + 2)
            yield score(made[:, :, depth]).flatten(0, 1), targets.flatten()

    def _anchors(self, batch: Batch) -> Tensor:
        """The rows of each text after which masks stand, int64 (texts, groups)."""
        generator = torch.Generator().manual_seed(batch.seed)
        of = [batch.rows[batch.texts == text] for text in range(len(batch.ids))]
        return torch.stack(
            [rows[torch.randint(len(rows), (_GROUPS,), generator=generator)] for rows in of]
        )

    def _sees(self, length: int, anchors: Tensor) -> Tensor:
        """The mask (texts, 1, rows, rows): 0 where a row sees another, else the lowest number."""
        texts, masks = len(anchors), _GROUPS * self.depth
        sees = torch.zeros(texts, length + masks, length + masks, dtype=torch.bool)
        sees[:, :length, :length] = torch.ones(length, length).tril().bool()
        of = anchors.repeat_interleave(self.depth, 1)[..., None]
        sees[:, length:, :length] = torch.arange(length) <= of
        at = torch.arange(masks)
        together = at[:, None] // self.depth == at // self.depth
        sees[:, length:, length:] = together & (at[:, None] >= at)
        return torch.zeros(sees.shape).masked_fill_(~sees, torch.finfo(torch.float32).min)[:, None]

    def save(self, folder: Path) -> None:
        """Write the tuned model, with the tokenizer beside it; keys as the authors name them."""
        for name, value in (("mask_id", self.mask), ("mask_num", self.depth), ("mask_diff", False)):
            setattr(self.network.config, name, value)
        self.network.save_pretrained(folder)
        for file in (file for pattern in _BESIDE for file in self._folder.glob(pattern)):
            shutil.copyfile(file, folder / file.name)


def tune(
    model: TargetModel,
    texts: Sequence[Text],
    steps: int,
    depth: int = 4,
    rate: float = 1e-4,
    tokens: int = 2048,
    say: Callable[[str], None] = print,
) -> Tuning:
    """The model after so many steps, and at each the loss is said."""
    tuning, batches = Tuning(model, depth), cut(texts, tokens)
    optimizer = torch.optim.AdamW(tuning.network.parameters(), lr=rate, weight_decay=0.0)
    for step in range(steps):
        batch = Batch.padded(of_step(batches, step, 0), model.context, step, torch.device("cpu"))
        loss = torch.stack([cross_entropy(*found) for found in tuning.scored(batch)]).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        say(f"step {step + 1} of {steps}, loss {float(loss.detach()):.3f}")
    return tuning


def main(argv: Sequence[str] | None = None) -> None:
    """Tune, and write the model to OUT."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("recording", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-4)
    args = parser.parse_args(argv)
    traces = read_traces(args.recording).traces
    texts = [Text(trace.prompt_ids, trace.output_ids) for trace in traces]
    model = load_model(ModelSpec(args.model, "cpu"))
    tune(model, texts, args.steps, args.depth, args.rate).save(args.out)


if __name__ == "__main__":
    main()
