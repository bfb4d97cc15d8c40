"""Tunes a model to fill mask tokens after its answers (SPACE, arXiv 2402.11809), from a recording.

    python -m tests.tools.record recording -d notes/
    python -m tests.tools.space_tuning MODEL recording OUT [--steps 400] [--depth 4] [--rate 1e-4]

The result is a new model, for `-m OUT --method space`: its answers differ from those of the old
one. Tuning takes 16 bytes of memory for each parameter.
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
from tests.tools.heads.folder import Sample
from tests.tools.heads.recipes import Batch, Predictions, unused_token
from tests.tools.heads.train import batch_of_step, split_into_batches
from tests.tools.measuring.traces import read_traces

_GROUPS = 8  # groups of masks for each sample in a step; guess
_COPIED_FILES = (
    "*token*",
    "vocab*",
    "merges.txt",
    "*.jinja",
    "generation_config.json",
    "*.model",
)


class Tuning:
    """A copy of the model that learns to fill groups of masks, each behind a position of an answer.

    A group of masks attends to the sample up to its position, its anchor. Mask j stands j positions
    behind the anchor, attends to the masks before it, and is trained on the token j + 1 positions
    behind the anchor. The model's own next tokens are trained along, or its answers would fall
    apart (section 3.2).
    """

    def __init__(self, model: TargetModel, depth: int) -> None:
        self.depth = depth
        self.mask = unused_token(model)
        self._folder = Path(find(model.name, ("config", "weights")))
        self.network: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)
        self.network.train()
        # The mask may be the padding token; its embedding must be trained, too.
        self.network.get_input_embeddings().padding_idx = None

    def predict(self, batch: Batch) -> Predictions:
        """Yield logits and true tokens: of the model itself first, then of the masks by depth."""
        samples, length = batch.ids.shape
        anchors = self._anchors(batch)
        masks = torch.full((samples, _GROUPS * self.depth), self.mask)
        positions = torch.arange(length).expand(samples, -1)
        mask_positions = (anchors[..., None] + torch.arange(1, self.depth + 1)).flatten(1)
        states = self.network(
            torch.cat([batch.ids, masks], 1),
            position_ids=torch.cat([positions, mask_positions], 1),
            attention_mask=self._attention_mask(length, anchors),
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states[-1]

        logits_of = self.network.get_output_embeddings()
        yield logits_of(batch.select(states)), batch.targets(1)

        indices = torch.arange(samples)[:, None]
        mask_states = states[:, length:].view(samples, _GROUPS, self.depth, -1)
        for depth in range(self.depth):
            targets = batch.tokens_at(indices, anchors + depth + 2)
            yield logits_of(mask_states[:, :, depth]).flatten(0, 1), targets.flatten()

    def _anchors(self, batch: Batch) -> Tensor:
        """Draw the positions of each sample that masks follow, int64 (samples, groups)."""
        generator = torch.Generator().manual_seed(batch.seed)
        anchors = []
        for sample in range(len(batch.ids)):
            positions = batch.positions[batch.samples == sample]
            drawn = torch.randint(len(positions), (_GROUPS,), generator=generator)
            anchors.append(positions[drawn])
        return torch.stack(anchors)

    def _attention_mask(self, length: int, anchors: Tensor) -> Tensor:
        """The additive mask (samples, 1, queries, keys): 0 for visible keys, else the minimum.

        The first `length` queries and keys are the sample's own, the others those of the masks.
        """
        samples = len(anchors)
        masks = _GROUPS * self.depth
        is_visible = torch.zeros(samples, length + masks, length + masks, dtype=torch.bool)
        is_visible[:, :length, :length] = torch.ones(length, length).tril().bool()

        anchor_of_mask = anchors.repeat_interleave(self.depth, 1)[..., None]
        is_visible[:, length:, :length] = torch.arange(length) <= anchor_of_mask

        number = torch.arange(masks)
        is_same_group = number[:, None] // self.depth == number // self.depth
        is_visible[:, length:, length:] = is_same_group & (number[:, None] >= number)

        lowest = torch.finfo(torch.float32).min
        return torch.zeros(is_visible.shape).masked_fill_(~is_visible, lowest)[:, None]

    def save(self, folder: Path) -> None:
        """Write the tuned model with its tokenizer; config.json has the keys of SPACE's authors."""
        config = self.network.config
        config.mask_id = self.mask
        config.mask_num = self.depth
        config.mask_diff = False
        self.network.save_pretrained(folder)
        for pattern in _COPIED_FILES:
            for file in self._folder.glob(pattern):
                shutil.copyfile(file, folder / file.name)


def tune(
    model: TargetModel,
    samples: Sequence[Sample],
    steps: int,
    depth: int = 4,
    rate: float = 1e-4,
    tokens: int = 2048,
    say: Callable[[str], None] = print,
) -> Tuning:
    """Tune the model for `steps` steps of `tokens` tokens; report the loss of each to `say`."""
    tuning = Tuning(model, depth)
    batches = split_into_batches(samples, tokens)
    optimizer = torch.optim.AdamW(tuning.network.parameters(), lr=rate, weight_decay=0.0)
    for step in range(steps):
        samples_of_step = batch_of_step(batches, step, seed=0)
        batch = Batch.padded(samples_of_step, model.context, step, torch.device("cpu"))
        losses = [cross_entropy(logits, targets) for logits, targets in tuning.predict(batch)]
        loss = torch.stack(losses).mean()
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
    samples = [Sample(trace.prompt_ids, trace.output_ids) for trace in traces]
    model = load_model(ModelSpec(args.model, "cpu"))
    tuning = tune(model, samples, args.steps, args.depth, args.rate)
    tuning.save(args.out)


if __name__ == "__main__":
    main()
