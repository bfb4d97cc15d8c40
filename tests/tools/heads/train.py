"""The training of a head: steps, checkpoints, validation, and an estimate of the time it takes.

The order of the samples, all random numbers and the learning rate depend only on the number of the
step, so a run that was killed and continues from its checkpoint ends with the same weights. The
answers are the model's own greedy ones, and the loss is the cross entropy with their tokens: the
probability that a head gives a token is then the probability that the model accepts it.
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
from tests.tools.heads.folder import CHECKPOINT, Plan, Sample, TrainingFolder, TrainingReport
from tests.tools.heads.recipes import IGNORED, RECIPES, Batch, Subject

Notify = Callable[[str], None]

_TIMED_STEPS = 6  # steps measured to choose the number of steps; the first is left out; guess
_WARMUP_STEPS = 20  # steps over which the learning rate rises; guess
_DECAY_SHARE = 0.6  # share of the steps, at the end, over which the learning rate falls; guess
_DEPTH_WEIGHT = 0.8  # weight of a depth's loss relative to the depth before; Medusa's authors' own
_MAX_GRADIENT_NORM = 1.0  # guess
_CHECKPOINT_INTERVAL_S = 60.0  # guess
_VALIDATIONS = 10  # in a run; guess
_MAX_VALIDATION_BATCHES = 8  # guess
_STATUS_INTERVAL_S = 0.5  # guess


def check_trainable(model: TargetModel, plan: Plan) -> None:
    """Raise UsageError if gradients must pass through the model's quantized layers."""
    reads_only_states = plan.kind in ("medusa", "hydra") and plan.own_scores
    if reads_only_states:
        return

    is_stored_quantized = bool(getattr(model.hf.config, "quantization_config", None))
    if is_stored_quantized or quantized_bits(model.hf):
        raise UsageError(
            f"{plan.kind} is trained by the model's own weights, and {model.name} has integers",
            hint="Name the model as it was before it was quantized.",
        )


class Trainer:
    """A training run on answered prompts, in a folder; it continues from a checkpoint there.

    `status` receives the status lines that replace each other, `say` the lines that stay.

    Raises UsageError if there are too few samples, or if the folder's training was begun with other
    samples or another model.
    """

    def __init__(
        self,
        model: TargetModel,
        samples: Sequence[Sample],
        folder: TrainingFolder,
        status: Notify = lambda _: None,
        say: Notify = lambda _: None,
    ) -> None:
        plan = folder.plan
        training_samples = [sample for sample in samples if not sample.held_out]
        validation_samples = [sample for sample in samples if sample.held_out]
        training_batches = split_into_batches(training_samples, plan.batch)
        validation_batches = split_into_batches(validation_samples, plan.batch)
        if not training_batches or not validation_batches:
            raise UsageError(
                "too few answers to train on and to validate", hint="Give more documents."
            )

        check_trainable(model, plan)
        folder.begin(model.name, samples)

        self.model = model
        self._folder = folder
        self._status = status
        self._say = say
        self._training_batches = training_batches
        self._validation_batches = _spread(validation_batches, _MAX_VALIDATION_BATCHES)

        self._recipe = RECIPES[plan.kind]
        self._plan = replace(
            plan,
            depth=plan.depth or self._recipe.depth,
            rate=plan.rate or self._recipe.rate,
        )
        target = Target(model.hf.requires_grad_(False), model.device, torch.float32)
        self.subject = Subject(model, target, self._plan)
        torch.manual_seed(plan.seed)
        self.network = self._recipe.make(self.subject, training_samples).to(model.device)

        self.step = 0
        self._seconds = 0.0
        self._parameters = list(self.network.parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, self._plan.rate, weight_decay=0.0)
        # AdamW makes its state in the first step. Made here, a checkpoint always has the same form.
        for parameter in self._parameters:
            self._optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self._resume()

    def _state(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name: parameters and the optimizer's state."""
        state: dict[str, Tensor] = {}
        for number, parameter in enumerate(self._parameters):
            state[f"parameter.{number}"] = parameter.detach()
            for name, tensor in self._optimizer.state[parameter].items():
                state[f"{name}.{number}"] = tensor
        return state

    def _resume(self) -> None:
        """Read the checkpoint of an interrupted run, if there is one."""
        line = self._folder.written(CHECKPOINT)
        if line is None:
            return

        state = self._state()
        stored = load_file(self._folder.path / CHECKPOINT, str(self.model.device))
        for name, tensor in stored.items():
            state[name].copy_(tensor)
        self.step = line.step
        self._seconds = line.seconds
        self._say(f"Going on from step {self.step}.")

    def _save(self) -> None:
        state = {name: tensor.contiguous() for name, tensor in self._state().items()}
        self._folder.write(CHECKPOINT, save(state), step=self.step, seconds=self._seconds)

    def run(self) -> TrainingReport:
        """Train to the end, then write the head. A KeyboardInterrupt leaves a checkpoint."""
        try:
            self._run_steps()
        except KeyboardInterrupt:
            if self.step:
                self._save()
            raise
        self._save()

        validation = self._validate_and_note()
        self._write_head()
        return TrainingReport(
            folder=str(self._folder.path),
            kind=self._plan.kind,
            steps=self.step,
            seconds=round(self._seconds, 1),
            texts=sum(map(len, self._training_batches)),
            held_out=sum(map(len, self._validation_batches)),
            **validation,
        )

    def _run_steps(self) -> None:
        saved_at = monotonic()
        shown_at = 0.0
        while True:
            total = self._total_steps()
            if self.step >= total:
                return

            started = monotonic()
            samples = batch_of_step(self._training_batches, self.step, self._plan.seed)
            loss = self._train_step(self.batch(samples, self.step), total)
            self._seconds += monotonic() - started

            validation_interval = max(_TIMED_STEPS + 2, total // _VALIDATIONS)
            if self.step < total and self.step % validation_interval == 0:
                self._validate_and_note(loss=round(loss, 4))
            if monotonic() - saved_at > _CHECKPOINT_INTERVAL_S:
                self._save()
                saved_at = monotonic()
            if monotonic() - shown_at > _STATUS_INTERVAL_S:
                self._show(loss, total)
                shown_at = monotonic()

    def _write_head(self) -> None:
        """Write the files of the trained head into the folder."""
        tensors: dict[str, Tensor] = self.network.state_dict()
        ids = self.network.ids
        if ids is not None:
            # A reduced vocabulary: the offset of each entry's token id, and which tokens are in it.
            vocabulary = torch.arange(self.model.vocabulary, device=ids.device)
            tensors["d2t"] = ids - vocabulary[: len(ids)]
            tensors["t2d"] = torch.isin(vocabulary, ids)
        for name, data in head_files(tensors, self._recipe.config(self.subject)).items():
            self._folder.write(name, data)

    def _total_steps(self) -> int:
        """The number of steps: as asked for, or as many as fit by the time of the first ones."""
        if self._folder.steps is not None:
            return self._folder.steps

        if self.step < _TIMED_STEPS:
            if self.step == 1:
                self._seconds = 0.0  # The first step takes longer, so it does not count.
            return _TIMED_STEPS + 1

        seconds_per_step = self._seconds / (self.step - 1)
        total = max(self.step + 1, round(self._plan.minutes * 60 / seconds_per_step))
        self._folder.note(steps=total)
        duration = time_left(total * seconds_per_step)
        self._say(
            f"Training {self._plan.kind}: {counted(total, 'step')} of {seconds_per_step:.2g} s,"
            f" {duration} in all."
        )
        return total

    def batch(self, samples: Sequence[Sample], step: int) -> Batch:
        """Pad samples to the batch of a step, whose number seeds all that is drawn at random."""
        seed = self._plan.seed * 1_000_003 + step
        return Batch.padded(samples, self.model.context, seed, self.model.device)

    @torch.no_grad()
    def states(self, batch: Batch) -> Tensor:
        """The hidden states that the network reads, float32 (sequences, length, layers * size).

        Padding stands behind all real tokens, and attention is causal, so no mask is needed.
        """
        hf = self.model.hf
        last_layer = self.model.config.num_hidden_layers
        layers = [last_layer if layer == -1 else layer for layer in self.network.target_layers]
        options = {"logits_to_keep": 1} if "logits_to_keep" in forward_parameters(hf) else {}
        output = hf(batch.ids, use_cache=False, output_hidden_states=sorted(set(layers)), **options)
        return torch.cat([output.hidden_states[layer] for layer in layers], -1).float()

    def predict(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The network's logits (n, vocabulary) and the true tokens (n,), by depth.

        If the head has a vocabulary of its own, the targets are indices into it.
        """
        predictions = list(
            self._recipe.predict(self.network, self.states(batch), batch, self._plan.depth)
        )
        ids = self.network.ids
        if ids is None:
            return predictions

        reduced = []
        for logits, targets in predictions:
            indices = torch.searchsorted(ids, targets.clamp(0, int(ids[-1])))
            is_in_vocabulary = ids[indices] == targets
            reduced.append((logits, torch.where(is_in_vocabulary, indices, IGNORED)))
        return reduced

    def _train_step(self, batch: Batch, total: int) -> float:
        """Take a step; return the loss before it."""
        device = batch.ids.device.type
        # Half precision is faster on a GPU only.
        with torch.autocast(device, torch.bfloat16, device == "cuda"):
            loss = _mean_loss(self.predict(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, _MAX_GRADIENT_NORM)

        warmup = min(1.0, (self.step + 1) / _WARMUP_STEPS)
        decay = min(1.0, (1 - self.step / total) / _DECAY_SHARE)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate * warmup * decay

        # An interrupt in between would leave some of the parameters a step ahead of the others.
        with process.unbroken():
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self.step += 1
        return float(loss.detach())

    def _validate_and_note(self, **loss: float) -> dict[str, Any]:
        """Validate, add the result to the journal, and return it."""
        result = self.validate()
        self._folder.note(step=self.step, seconds=round(self._seconds, 1), **loss, **result)

        depths = " ".join(f"{share:.0%}" for share in result["accepted"])
        self._say(
            f"Step {self.step}: held-out loss {result['held_loss']:.3f},"
            f" accepted by depth {depths}, {result['tokens_per_step']:.2f} tokens a step"
        )
        return result

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """The loss on held-out answers, and the share of positions accepted down to each depth."""
        losses: list[float] = []
        accepted_down_to: list[Tensor] = []  # (depths, positions) each
        for seed, samples in enumerate(self._validation_batches):
            predictions = self.predict(self.batch(samples, seed))
            losses.append(float(_mean_loss(predictions)))
            is_right = [logits.argmax(-1) == targets for logits, targets in predictions]
            accepted_down_to.append(torch.stack(is_right).cumprod(0))

        shares = torch.cat(accepted_down_to, 1).float().mean(1).tolist()
        return {
            "held_loss": round(sum(losses) / len(losses), 4),
            "accepted": tuple(round(share, 4) for share in shares),
            "tokens_per_step": round(1 + sum(shares), 3),
        }

    def _show(self, loss: float, total: int) -> None:
        bar = progress_bar(self.step, total)
        seconds_left = self._seconds / max(self.step, 1) * (total - self.step)
        self._status(
            f"Training {bar} step {self.step} of {total},"
            f" loss {loss:.3f}, {time_left(seconds_left)} left"
        )


def _mean_loss(predictions: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean cross entropy of all depths, in nats; each depth weighs less than the one before."""
    weights = []
    losses = []
    for depth, (logits, targets) in enumerate(predictions):
        weights.append(_DEPTH_WEIGHT**depth)
        if bool((targets != IGNORED).any()):
            losses.append(weights[-1] * cross_entropy(logits, targets, ignore_index=IGNORED))
        else:
            losses.append(logits.sum() * 0.0)  # cross_entropy would give NaN
    return torch.stack(losses).sum() / sum(weights)


def _spread(batches: Sequence[list[Sample]], limit: int) -> list[list[Sample]]:
    """At most `limit` of the batches, evenly spread, so that short and long ones are among them."""
    interval = max(1, len(batches) // limit)
    return list(batches[::interval][:limit])


def split_into_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Batches of samples of similar length, with at most `max_tokens` including padding.

    A sample that is longer than that is a batch by itself.
    """
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=len):
        if not batches or (len(batches[-1]) + 1) * len(sample) > max_tokens:
            batches.append([])
        batches[-1].append(sample)
    return batches


def batch_of_step(batches: Sequence[list[Sample]], step: int, seed: int) -> list[Sample]:
    """The batch of a step: each comes once in an epoch, and each epoch has an order of its own.

    >>> "".join(batch_of_step(["a", "b", "c"], step, seed=0) for step in range(6))
    'bcaacb'
    """
    epoch, index = divmod(step, len(batches))
    return Random(f"{seed} {epoch}").sample(batches, len(batches))[index]


def head_files(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a trained head, by name: config.json, and the weights in bfloat16.

    Args:
        tensors: The network's `state_dict`.
        config: The contents of config.json; each kind's own module says what it must contain.
    """
    stored = {}
    for name, tensor in tensors.items():
        half = tensor.bfloat16() if tensor.is_floating_point() else tensor
        stored[name] = half.detach().cpu().contiguous()
    config_text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False)
    return {
        WEIGHTS: save(stored, {"format": "pt"}),
        "config.json": f"{config_text}\n".encode(),
    }
