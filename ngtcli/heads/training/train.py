"""The training of a head: steps, checkpoints, the curve on what was held out, and time said ahead.

The order of texts, what is drawn at random, and the learning rate are functions of a step's number,
so that a run which was killed and goes on from its checkpoint ends with the same weights.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ngtcli.decode.model import TargetModel
from ngtcli.errors import UsageError, counted
from ngtcli.heads.training.answers import Answered
from ngtcli.heads.training.batches import Batch, Order, cut, padded
from ngtcli.heads.training.folder import CHECKPOINT, Trained, TrainingFolder
from ngtcli.heads.training.kinds import Plan, kind_of
from ngtcli.system import process
from ngtcli.system.progress import progress_bar, time_left

__all__ = ["Plan", "Trainer"]
Notify = Callable[[str], None]
_TIMED = 6  # steps by whose time the number of steps is chosen, the first left out; guess
_WARM = 20  # steps over which the rate rises; guess
_DECAY = 0.6  # last share of the steps, over which it falls to 0; guess
_LATER = 0.8  # weight of a depth's loss relative to the one before; that of Medusa's authors
_CLIP = 1.0  # norm of the gradient at most; guess
_SAVE_S = 60.0  # between checkpoints; guess
_VALIDATIONS = 10  # in a run; guess
_HELD = 8  # batches of held-out texts at most; guess
_SHOWN_S = 0.5  # between status lines; guess


class Trainer:
    """A training run over answered texts, in a folder; it goes on from a checkpoint there.

    `status` is told what passes, `say` what stays. Raises UsageError where the folder was begun
    with another plan, or there are too few texts.
    """

    def __init__(
        self,
        target: TargetModel,
        texts: Sequence[Answered],
        folder: TrainingFolder,
        plan: Plan,
        status: Notify = lambda _: None,
        say: Notify = lambda _: None,
    ) -> None:
        self._folder, self._plan, self._status, self._say = folder, plan, status, say
        self._device, self._longest = target.device, target.context
        own = [text for text in texts if text.answer]
        self._train = [text for text in own if not text.held]
        held = cut([text for text in own if text.held], plan.batch)
        self._held = held[:: max(1, len(held) // _HELD)][:_HELD]
        if not (self._train and self._held):
            raise UsageError("too few answers to train on and to validate", "Give more documents.")
        folder.begin(plan.as_json())
        for parameter in target.hf.parameters():
            parameter.requires_grad_(False)
        self._kind = kind_of(folder.kind, target, self._train, plan)
        own_rate = plan.rate or self._kind.rate
        self._parameters = [p for p in self._kind.network.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=own_rate, weight_decay=0.0)
        self._rate, self._step, self._seconds = own_rate, 0, 0.0
        self._resume()

    # --- checkpoints ---

    def _resume(self) -> None:
        path = self._folder.path / CHECKPOINT
        if not path.exists():
            return
        try:
            state = load_file(path, str(self._device))
        except SafetensorError:
            raise UsageError(f"{path}: it is damaged", "Delete it: training begins anew.") from None
        for i, parameter in enumerate(self._parameters):
            parameter.data.copy_(state[f"parameter.{i}"])
            names = ("exp_avg", "exp_avg_sq", "step")
            own = {name: state[f"{name}.{i}"] for name in names if f"{name}.{i}" in state}
            if own:
                self._optimizer.state[parameter] = own | {"step": own["step"].cpu()}
        self._step, self._seconds = int(state["steps"]), float(state["seconds"])
        self._say(f"Going on from step {self._step}.")

    def _save(self) -> None:
        """Write the checkpoint: parameters, the optimizer's state, and how far it is."""
        state: dict[str, Tensor] = {
            "steps": torch.tensor(self._step),
            "seconds": torch.tensor(self._seconds, dtype=torch.float64),
        }
        for i, parameter in enumerate(self._parameters):
            state[f"parameter.{i}"] = parameter.detach().contiguous()
            for name, value in self._optimizer.state[parameter].items():
                state[f"{name}.{i}"] = value.clone()
        self._folder.write(lambda path: save_file(state, path / CHECKPOINT))

    # --- steps ---

    def run(self) -> Trained:
        """Train to the end, then write the head. A KeyboardInterrupt leaves a checkpoint."""
        order = Order(self._train, self._plan.batch, self._plan.seed)
        saved, shown = monotonic(), 0.0
        try:
            while self._step < (total := self._total()):
                began = monotonic()
                loss = self._take(self._batch(order.at(self._step), self._step), total)
                self._seconds += monotonic() - began
                if self._step < total and not self._step % max(_TIMED + 2, total // _VALIDATIONS):
                    self._note(loss)
                if monotonic() - saved > _SAVE_S:
                    self._save()
                    saved = monotonic()
                if monotonic() - shown > _SHOWN_S:
                    self._show(loss, total)
                    shown = monotonic()
        except KeyboardInterrupt:
            if self._step:
                self._save()
            raise
        self._save()
        line = self._note(None)
        self._folder.write(self._kind.save)
        held = sum(map(len, self._held))
        own = str(self._folder.path), self._folder.kind, self._step, round(self._seconds, 1)
        return Trained(*own, len(self._train), held, **line)

    def _total(self) -> int:
        """How many steps there are: as asked for, or as the first ones say that fit."""
        if self._plan.steps is not None:
            return self._plan.steps
        if (known := self._folder.about.get("steps")) is not None:
            return int(known)
        if self._step < _TIMED:
            if self._step == 1:
                self._seconds = 0.0  # the first takes longer
            return _TIMED + 1
        each = self._seconds / (self._step - 1)
        total = max(self._step + 1, round(self._plan.minutes * 60 / each))
        self._folder.note(steps=total)
        words = f"{counted(total, 'step')} of {each:.2g} s, {time_left(total * each)} in all"
        self._say(f"Training {self._folder.kind}: {words}.")
        return total

    def _batch(self, texts: Sequence[Answered], step: int) -> Batch:
        return padded(texts, self._longest, self._plan.seed * 1_000_003 + step, self._device)

    def _take(self, batch: Batch, total: int) -> float:
        """One step; the loss before it."""
        half = torch.autocast(self._device.type, torch.bfloat16, self._device.type == "cuda")
        with half:  # tried on a CPU, where it is off
            loss = _weighted([scored.loss() for scored in self._kind.scored(batch)])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        warm = min(1.0, (self._step + 1) / _WARM)
        left = (1 - self._step / total) / _DECAY
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * warm * min(1.0, left)
        with process.unbroken():  # else a part of the parameters would be those of the step
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._step += 1
        return float(loss.detach())

    # --- what is told ---

    def _note(self, loss: float | None) -> dict[str, Any]:
        """Validate, and add a line to the curve."""
        line = self.validate()
        own = {"step": self._step, "seconds": round(self._seconds, 1)}
        self._folder.log({**own, **({} if loss is None else {"loss": round(loss, 4)}), **line})
        depths = " ".join(f"{share:.0%}" for share in line["accepted"])
        words = f"held-out loss {line['held_loss']:.3f}, accepted by depth {depths}"
        self._say(f"Step {self._step}: {words}, {line['tokens_per_step']:.2f} tokens a step")
        return line

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """The loss on held-out answers, and the share of rows accepted down to each depth."""
        losses: list[float] = []
        right: list[Tensor] = []
        for seed, texts in enumerate(self._held):
            found = list(self._kind.scored(self._batch(texts, seed)))
            losses.append(float(_weighted([scored.loss() for scored in found])))
            guesses = torch.stack([scored.right() for scored in found if scored.is_guess])
            right.append(guesses.cumprod(0))
        rows = torch.cat(right, 1).float().mean(1).tolist()
        return {
            "held_loss": round(sum(losses) / len(losses), 4),
            "accepted": tuple(round(share, 4) for share in rows),
            "tokens_per_step": round(1 + sum(rows), 3),
        }

    def _show(self, loss: float, total: int) -> None:
        bar = f"Training {progress_bar(self._step, total)} step {self._step} of {total}"
        left = self._seconds / max(self._step, 1) * (total - self._step)
        self._status(f"{bar}, loss {loss:.3f}, {time_left(left)} left")


def _weighted(losses: Sequence[Tensor]) -> Tensor:
    """The losses of depths in one, the deeper the lighter."""
    weights = [_LATER**depth for depth in range(len(losses))]
    total = sum(w * loss for w, loss in zip(weights, losses, strict=True))
    return torch.as_tensor(total) / sum(weights)
