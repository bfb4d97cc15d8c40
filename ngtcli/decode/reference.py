"""Reference scores for probes: those of `transformers`' own generate on one arbitrary prompt."""

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ngtcli.errors import ModelError

NEW_TOKENS = 4  # enough for a path three deep, and a step whose cache holds two steps' rows
_HIDDEN = -1e6  # scores below it are masked: compared is only whether both are
# The root mean square of differences, over the spread of the scores. Derived: rounding gives 1e-6
# to 1e-5 in float32 and 0.01 to 0.03 in bfloat16; a wrong mask or position gives about 1.
_FLOAT32, _HALF = 3e-4, 0.15


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt, the tokens that followed it, and `scores` (NEW_TOKENS, vocabulary) before each.

    `exact`: the model runs in float32, so that scores differ by rounding in float32 only.
    """

    prompt: list[int]
    tokens: list[int]
    scores: Tensor
    exact: bool

    def agrees(self, rows: Sequence[Tensor], start: int = 0) -> bool:
        """Whether `rows`, each (vocabulary,), are the scores from token `start` on."""
        return same_scores(rows, self.scores[start : start + len(rows)], self.exact)


def same_scores(rows: Sequence[Tensor], truth: Sequence[Tensor] | Tensor, exact: bool) -> bool:
    """Whether rows agree but for rounding; unless `exact`, whether most of them do.

    In half precision a near tie, as between two experts, can change single rows.
    """
    errors = sorted(_difference(row, true) for row, true in zip(rows, truth, strict=True))
    if exact:
        return errors[-1] <= _FLOAT32
    return errors[len(errors) // 2] <= _HALF


def runs_exactly(hf: Any) -> bool:
    """Whether a model runs in float32; some give float32 scores after passes in less."""
    return hf.dtype in (torch.float32, torch.float64)


def _difference(row: Tensor, true: Tensor) -> float:
    """Root mean square of the difference, in standard deviations of the true scores."""
    row, true = row.double().cpu(), true.double().cpu()
    told = true > _HIDDEN
    if row.shape != true.shape or not torch.equal(told, row > _HIDDEN) or not told.any():
        return float("inf")
    spread = true[told].std(correction=0).clamp_min(1e-12)
    error = float((row[told] - true[told]).square().mean().sqrt() / spread)
    return error if error == error else float("inf")


def references(hf: Any, name: str, length: int, vocabulary: int) -> Iterator[Reference]:
    """The scores of `generate` after `length` arbitrary tokens, then of one pass without cache.

    One that the model fails to give is left out. Raises ModelError where it fails to give both,
    and for scores that are not numbers.
    """
    rng = random.Random(0)
    prompt = [rng.randrange(vocabulary) for _ in range(length)]
    spoken = [rng.randrange(vocabulary) for _ in range(NEW_TOKENS)]
    failed, had = Exception("no scores"), False
    for source in (_generated, _passed):
        try:
            tokens, scores = source(hf, prompt, spoken)
        except Exception as error:  # whatever a model's own code raises
            failed = error
            continue
        if not torch.isfinite(scores.amax(-1)).all():
            raise scores_are_not_numbers(name)
        had = True
        yield Reference(prompt, tokens, scores, runs_exactly(hf))
    if not had:
        lines = str(failed).strip().splitlines() or [type(failed).__name__]
        raise ModelError(
            f"{name}: cannot be run ({lines[0]})", "Give a model that generates text."
        ) from failed


def scores_are_not_numbers(name: str) -> ModelError:
    """The error for a model whose scores at some place are NaN or all infinite."""
    return ModelError(
        f"{name}: the model's scores are not numbers",
        "Try --dtype float32; if that is what it runs in, its weights are damaged.",
    )


def check_causal(hf: Any, name: str, prompt: Sequence[int]) -> None:
    """Raise ModelError where scores depend on tokens that come later: then it is no decoder.

    Passes a model that cannot be run without a cache.
    """
    try:
        long, short = _whole_pass(hf, prompt[:16]), _whole_pass(hf, prompt[:8])
    except Exception:
        return
    if not same_scores([long[7]], [short[7]], runs_exactly(hf)):
        raise ModelError(
            f"{name}: no decoder: its scores depend on the tokens that follow",
            "Give a causal language model; an encoder such as BERT does not generate text.",
        )


@contextmanager
def plain_generation(hf: Any) -> Iterator[None]:
    """A context in which `generate` is plain greedy search, whatever the checkpoint suggests."""
    own = hf.generation_config
    hf.generation_config = GenerationConfig()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.generation_config = own


def _generated(hf: Any, prompt: list[int], _: list[int]) -> tuple[list[int], Tensor]:
    ids = torch.tensor([prompt], device=hf.device)
    with plain_generation(hf):
        out = hf.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    tokens = out.sequences[0, len(prompt) :].tolist()
    scores = torch.stack([row[0] for row in out.logits])
    if len(tokens) != NEW_TOKENS:
        raise ValueError("generate stopped early")
    return tokens, scores


def _passed(hf: Any, prompt: list[int], spoken: list[int]) -> tuple[list[int], Tensor]:
    return spoken, _whole_pass(hf, [*prompt, *spoken])[len(prompt) - 1 : -1]


def _whole_pass(hf: Any, ids: Sequence[int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores: Tensor = hf(
            input_ids=torch.tensor([list(ids)], device=hf.device), use_cache=False
        ).logits[0]
    return scores
