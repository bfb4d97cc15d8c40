"""Contestants that run a model: our loop with a method, and `transformers`' generate."""

from functools import partial
from typing import Any

import torch

from ngtcli.decode.probe import plain_generation
from ngtcli.errors import NgtError
from ngtcli.measure.records import Answering, Contestant, Generation
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import AnswerOptions, AnswerRun
from ngtcli.session.local import LocalSession

BASELINE = "none"
AGAINST: dict[str, dict[str, int]] = {
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}


def ours(session: LocalSession, method: str, num_draft: int) -> Contestant[Prompt]:
    """Our loop with drafts of `method`, the documents' trie taken from the cache.

    The drafter and its pool are the contestant's own: shared with another one, it would draft from
    what that one has just answered.
    """
    spec = method if method == BASELINE else _with_num_draft(method, num_draft)

    def begin(split: bool = False) -> Answering[Prompt]:
        options = AnswerOptions(
            spec, split_times=split, drafter=session.new_drafter(spec), to_the_end=True
        )
        return lambda prompt: answered(session, prompt, options)

    own = None if method == BASELINE else session.parse_method(spec).settings.num_draft
    return Contestant(method, own, begin, partial(begin, True))


def _with_num_draft(method: str, num_draft: int) -> str:
    return method if ":num_draft=" in method else f"{method}:num_draft={num_draft}"


def answered(session: LocalSession, prompt: Prompt, options: AnswerOptions) -> Generation:
    """The session's whole answer to `prompt`."""
    return decoded(session.answer(prompt, options).run)


def decoded(run: AnswerRun) -> Generation:
    """All steps of a run, and what they came to."""
    s, drafted, undrafted = run.statistics, 0, 0
    for _ in run:
        undrafted += s.drafted_tokens == drafted
        drafted = s.drafted_tokens
    return Generation(
        run.output,
        s.steps,
        prefill_s=s.prefill_s,
        decode_s=s.decode_s,
        drafted=s.drafted_tokens,
        accepted=s.accepted_tokens,
        undrafted=undrafted,
        histogram=s.acceptance_histogram,
        split_s=dict(s.split_s),
    )


def generate(session: LocalSession, name: str) -> Contestant[Prompt]:
    """`transformers`' greedy generate on the same weights; `name` is one of AGAINST."""
    model = session.model
    options = AGAINST[name]

    def answer(prompt: Prompt) -> Generation:
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

    return Contestant(name, None, lambda: answer)


def _greedily(session: LocalSession, prompt: Prompt, ids: Any) -> dict[str, Any]:
    model = session.model
    return {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": min(session.settings.max_tokens, model.context - len(prompt.ids)),
        "eos_token_id": sorted(model.end_ids),
        "pad_token_id": min(model.end_ids, default=0),
    }
