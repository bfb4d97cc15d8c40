"""The training of a head: steps, checkpoints, the curve on what was held out, and time said ahead.

The order of texts, what is drawn at random, and the learning rate are functions of a step's number,
so that a run which was killed and continues from its checkpoint ends with the same weights. The
answers are the model's own greedy ones, so the loss is cross entropy with their tokens: the
probability of a guess is then that of being accepted.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from time import monotonic
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.functional import cross_entropy

from ngtcli.decoding.model import TargetModel
from ngtcli.errors import UsageError
from ngtcli.heads.files import WEIGHTS, Target
from ngtcli.models.hf import forward_parameters
from ngtcli.models.weights.linear import quantized_bits
from ngtcli.system import process
from ngtcli.system.progress import progress_bar, time_left
from ngtcli.words import counted
from tests.tools.heads.folder import CHECKPOINT, Plan, Text, Trained, TrainingFolder
from tests.tools.heads.recipes import NONE, RECIPES, Batch, Subject

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


def check_trainable(model: TargetModel, plan: Plan) -> None:
    """Raise UsageError where a head is trained by layers that no gradient passes through."""
    alone = plan.kind in ("medusa", "hydra") and plan.own_scores  # it reads states and nothing else
    stored = getattr(model.hf.config, "quantization_config", None)
    if (stored or quantized_bits(model.hf)) and not alone:
        what = f"{plan.kind} is trained by the model's own weights, and {model.name} has integers"
        raise UsageError(what, hint="Name the model as it was before it was quantized.")


class Trainer:
    """A training run over answered texts, in a folder; it continues from a checkpoint there.

    `status` is told what passes, `say` what stays. Raises UsageError where there are too few texts,
    and where the folder's training was begun on others or with another model.
    """

    def __init__(
        self,
        model: TargetModel,
        texts: Sequence[Text],
        folder: TrainingFolder,
        status: Notify = lambda _: None,
        say: Notify = lambda _: None,
    ) -> None:
        plan, self._recipe = folder.plan, RECIPES[folder.plan.kind]
        self._folder, self._status, self._say = folder, status, say
        train = [text for text in texts if not text.held]
        held = cut([text for text in texts if text.held], plan.batch)
        self._train, self._held = (
            cut(train, plan.batch),
            held[:: max(1, len(held) // _HELD)][:_HELD],
        )
        if not (self._train and self._held):
            raise UsageError(
                "too few answers to train on and to validate", hint="Give more documents."
            )
        check_trainable(model, plan)
        folder.begin(model.name, texts)
        plan = replace(plan, depth=plan.depth or self._recipe.depth)
        self._plan = replace(plan, rate=plan.rate or self._recipe.rate)
        target = Target(model.hf.requires_grad_(False), model.device, torch.float32)
        self.subject, self.model = Subject(model, target, self._plan), model
        torch.manual_seed(plan.seed)
        self.network = self._recipe.make(self.subject, train).to(model.device)
        self._parameters, self.step, self._seconds = [*self.network.parameters()], 0, 0.0
        self._optimizer = torch.optim.AdamW(self._parameters, self._plan.rate, weight_decay=0.0)
        for one in self._parameters:  # as it begins by itself: then a checkpoint has one form
            zeros = {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[one] = {"step": torch.zeros(()), **zeros}
        self._resume()

    def _state(self) -> dict[str, Tensor]:
        """What training changes, by name."""
        own = [
            {"parameter": one.detach(), **self._optimizer.state[one]} for one in self._parameters
        ]
        return {f"{name}.{i}": one for i, each in enumerate(own) for name, one in each.items()}

    def _resume(self) -> None:
        if (line := self._folder.written(CHECKPOINT)) is None:
            return
        state, path = self._state(), self._folder.path / CHECKPOINT
        for name, stored in load_file(path, str(self.model.device)).items():
            state[name].copy_(stored)
        self.step, self._seconds = line.step, line.seconds
        self._say(f"Going on from step {self.step}.")

    def _save(self) -> None:
        data = save({name: one.contiguous() for name, one in self._state().items()})
        self._folder.write(CHECKPOINT, data, step=self.step, seconds=self._seconds)

    def run(self) -> Trained:
        """Train to the end, then write the head. A KeyboardInterrupt leaves a checkpoint."""
        saved, shown = monotonic(), 0.0
        try:
            while self.step < (total := self._total()):
                began, texts = monotonic(), of_step(self._train, self.step, self._plan.seed)
                loss = self._take(self.batch(texts, self.step), total)
                self._seconds += monotonic() - began
                if self.step < total and not self.step % max(_TIMED + 2, total // _VALIDATIONS):
                    self._note(loss=round(loss, 4))
                if monotonic() - saved > _SAVE_S:
                    self._save()
                    saved = monotonic()
                if monotonic() - shown > _SHOWN_S:
                    self._show(loss, total)
                    shown = monotonic()
        except KeyboardInterrupt:
            if self.step:
                self._save()
            raise
        self._save()
        line = self._note()
        tensors: dict[str, Tensor] = self.network.state_dict()
        if (ids := self.network.ids) is not None:  # how far each is from its place, and which
            whole = torch.arange(self.model.vocabulary, device=ids.device)
            tensors |= {"d2t": ids - whole[: len(ids)], "t2d": torch.isin(whole, ids)}
        for name, data in head_files(tensors, self._recipe.config(self.subject)).items():
            self._folder.write(name, data)
        return Trained(
            folder=str(self._folder.path),
            kind=self._plan.kind,
            steps=self.step,
            seconds=round(self._seconds, 1),
            texts=sum(map(len, self._train)),
            held_out=sum(map(len, self._held)),
            **line,
        )

    def _total(self) -> int:
        """How many steps there are: as asked for, or as the first ones say that fit."""
        if self._folder.steps is not None:
            return self._folder.steps
        if self.step < _TIMED:
            if self.step == 1:
                self._seconds = 0.0  # the first takes longer
            return _TIMED + 1
        each = self._seconds / (self.step - 1)
        total = max(self.step + 1, round(self._plan.minutes * 60 / each))
        self._folder.note(steps=total)
        words = f"{counted(total, 'step')} of {each:.2g} s, {time_left(total * each)} in all"
        self._say(f"Training {self._plan.kind}: {words}.")
        return total

    def batch(self, texts: Sequence[Text], step: int) -> Batch:
        """The batch of a step."""
        seed = self._plan.seed * 1_000_003 + step
        return Batch.padded(texts, self.model.context, seed, self.model.device)

    @torch.no_grad()
    def states(self, batch: Batch) -> Tensor:
        """The hidden states that the network reads, float32 (texts, length, layers * hidden size).

        Padding follows all that counts, and a row sees none after it: no mask is needed.
        """
        hf, last = self.model.hf, self.model.config.num_hidden_layers
        wanted = [last if layer == -1 else layer for layer in self.network.reads]
        more = {"logits_to_keep": 1} if "logits_to_keep" in forward_parameters(hf) else {}
        found = hf(batch.ids, use_cache=False, output_hidden_states=sorted(set(wanted)), **more)
        return torch.cat([found.hidden_states[layer] for layer in wanted], -1).float()

    def scored(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """What is guessed after a batch's rows, by depth: scores (n, vocabulary), and targets (n,).

        Of a vocabulary of the head's own, targets are places in it.
        """
        states, depth = self.states(batch), self._plan.depth
        found = [*self._recipe.scored(self.network, states, batch, depth)]
        if (ids := self.network.ids) is None:
            return found
        at = [torch.searchsorted(ids, wanted.clamp(0, int(ids[-1]))) for _, wanted in found]
        return [
            (scores, torch.where(ids[places] == wanted, places, NONE))
            for (scores, wanted), places in zip(found, at, strict=True)
        ]

    def _take(self, batch: Batch, total: int) -> float:
        """One step; the loss before it."""
        device = batch.ids.device.type
        # Half precision on a GPU alone.
        with torch.autocast(device, torch.bfloat16, device == "cuda"):
            loss = _loss(self.scored(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        warm, left = min(1.0, (self.step + 1) / _WARM), (1 - self.step / total) / _DECAY
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate * warm * min(1.0, left)
        with process.unbroken():  # else a part of the parameters would be those of the step
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self.step += 1
        return float(loss.detach())

    def _note(self, **loss: float) -> dict[str, Any]:
        """Validate, and add a line to the curve."""
        line = self.validate()
        self._folder.note(step=self.step, seconds=round(self._seconds, 1), **loss, **line)
        depths = " ".join(f"{share:.0%}" for share in line["accepted"])
        words = f"held-out loss {line['held_loss']:.3f}, accepted by depth {depths}"
        self._say(f"Step {self.step}: {words}, {line['tokens_per_step']:.2f} tokens a step")
        return line

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """The loss on held-out answers, and the share of rows accepted down to each depth."""
        losses, right = list[float](), list[Tensor]()
        for seed, texts in enumerate(self._held):
            found = self.scored(self.batch(texts, seed))
            losses.append(float(_loss(found)))
            are_right = [scores.argmax(-1) == wanted for scores, wanted in found]
            right.append(torch.stack(are_right).cumprod(0))
        rows = torch.cat(right, 1).float().mean(1).tolist()
        return {
            "held_loss": round(sum(losses) / len(losses), 4),
            "accepted": tuple(round(share, 4) for share in rows),
            "tokens_per_step": round(1 + sum(rows), 3),
        }

    def _show(self, loss: float, total: int) -> None:
        bar = f"Training {progress_bar(self.step, total)} step {self.step} of {total}"
        left = self._seconds / max(self.step, 1) * (total - self.step)
        self._status(f"{bar}, loss {loss:.3f}, {time_left(left)} left")


def _loss(found: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean cross entropy, in nats, of depths in one, the deeper the lighter."""
    weights = [_LATER**depth for depth in range(len(found))]
    losses = [
        weight * cross_entropy(scores, wanted, ignore_index=NONE)
        if bool((wanted != NONE).any())
        else scores.sum() * 0.0
        for weight, (scores, wanted) in zip(weights, found, strict=True)
    ]
    return torch.stack(losses).sum() / sum(weights)


def cut(texts: Sequence[Text], tokens: int) -> list[list[Text]]:
    """Texts in batches of so many tokens, padding counted in, or a single one; alike in length."""
    out: list[list[Text]] = []
    for text in sorted(texts, key=len):
        if not out or (len(out[-1]) + 1) * len(text) > tokens:
            out.append([])
        out[-1].append(text)
    return out


def of_step(batches: Sequence[list[Text]], step: int, seed: int) -> list[Text]:
    """The batch of a step: each once an epoch, in an order of its own.

    >>> "".join(of_step(["a", "b", "c"], step, seed=0) for step in range(6))
    'bcaacb'
    """
    epoch, place = divmod(step, len(batches))
    return Random(f"{seed} {epoch}").sample(batches, len(batches))[place]


def head_files(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a trained head, by name: config.json, and weights in bfloat16.

    The tensors have the names of the network's `state_dict`. What config.json has to say of each
    kind is in the file of the kind.
    """
    kept = {
        name: (one.bfloat16() if one.is_floating_point() else one).detach().cpu().contiguous()
        for name, one in tensors.items()
    }
    text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False)
    return {WEIGHTS: save(kept, {"format": "pt"}), "config.json": f"{text}\n".encode()}
