"""Who takes part in a live measurement: our loop with a method, and `transformers`' generate."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ngtcli.decode.reference import plain_generation
from ngtcli.draft.drafter import Drafter
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.session import AnswerOptions, Session

BASELINE = "none"
AGAINST: dict[str, dict[str, int]] = {
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: its ids, the passes of the model it took, and what drafting did, where known.

    `undrafted` counts the steps without a draft; `histogram` steps by accepted drafts.
    """

    ids: list[int]
    steps: int
    prefill_s: float | None = None
    decode_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    undrafted: int | None = None
    histogram: Counter[int] | None = None
    split_s: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Contestant:
    """`ready` does off the clock what a long-running program has done once; `decode` is timed."""

    name: str
    num_draft: int | None
    ready: Callable[[], None]
    decode: Callable[[Prompt], Generation]
    decode_split: Callable[[Prompt], Generation] | None = None

    @property
    def key(self) -> str:
        """Names one contestant of a race."""
        return self.name if self.num_draft is None else f"{self.name} at {self.num_draft}"


def ours(session: Session, method: str, num_draft: int) -> Contestant:
    """Our loop with drafts of `method`, the documents' trie taken from the cache.

    The drafter and its pool are the contestant's own: shared with another one, it would draft from
    what that one has just answered.
    """
    spec = method if method == BASELINE else _with_num_draft(method, num_draft)
    own: list[Drafter] = []

    def ready() -> None:
        own[:] = [session.new_drafter(spec)]

    def decode(prompt: Prompt, split: bool = False) -> Generation:
        options = AnswerOptions(spec, split_times=split, drafter=own[0])
        run = session.answer(prompt, options).run
        undrafted = drafted = 0
        for _ in run:
            undrafted += run.statistics.drafted_tokens == drafted
            drafted = run.statistics.drafted_tokens
        s = run.statistics
        return Generation(
            run.output, s.steps, s.prefill_s, s.decode_s, s.drafted_tokens, s.accepted_tokens,
            undrafted, s.acceptance_histogram, dict(s.split_s),
        )  # fmt: skip

    return Contestant(
        method,
        None if method == BASELINE else session.parse_method(spec).settings.num_draft,
        ready,
        decode,
        lambda prompt: decode(prompt, split=True),
    )


def _with_num_draft(method: str, num_draft: int) -> str:
    return method if ":num_draft=" in method else f"{method}:num_draft={num_draft}"


def generate(session: Session, name: str) -> Contestant:
    """`transformers`' greedy generate on the same weights; `name` is one of AGAINST."""
    model = session.model
    options = AGAINST[name]

    def decode(prompt: Prompt) -> Generation:
        ids = torch.tensor([prompt.ids], device=model.device)
        passes: list[None] = []
        hook = model.hf.register_forward_pre_hook(lambda *_: passes.append(None))
        try:
            # Plain greedy search, whatever the checkpoint suggests: as ours.
            with torch.inference_mode(), plain_generation(model.hf):
                out = model.hf.generate(ids, **_greedily(session, prompt, ids), **options)
        except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
            raise NgtError(str(error).strip().split("\n")[0]) from error
        finally:
            hook.remove()
        return Generation(out[0, len(prompt.ids) :].tolist(), len(passes))

    return Contestant(name, None, lambda: None, decode)


def _greedily(session: Session, prompt: Prompt, ids: Any) -> dict[str, Any]:
    model = session.model
    return {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": min(session.settings.max_tokens, model.context - len(prompt.ids)),
        "eos_token_id": sorted(model.end_ids),
        "pad_token_id": min(model.end_ids, default=0),
    }
