"""What a run does when memory ends: shorter chunks of the prompt, smaller drafts, then an error.

The chunk of a prompt that failed is read again in halves. Where one row or a short chunk is still
too much, an error says what does not fit.
"""

import gc
from collections.abc import Callable, Sequence

import torch

from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.model import PREFILL_CHUNK, TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.drafting.guesses import StateReader
from ngtcli.errors import ContextOverflowError, NgtError

SHORTEST = 64  # tokens of a chunk; guess: below it a chunk takes little less memory
_HINT = "Give shorter texts or fewer --max-tokens, or try --dtype bfloat16 or a smaller model."


def read_prompt(
    model: TargetModel,
    ids: Sequence[int],
    capacity: int,
    progress: Callable[[int], object],
    *,
    numerics: Numerics = NOT_EXACT,
    cache_policy: CachePolicy | None = None,
    reader: StateReader | None = None,
    beside: int = 0,
) -> None:
    """Start the model with room for `capacity` tokens and read `ids`, in chunks that fit.

    `numerics`, `cache_policy`, `reader` and `beside` are as for `TargetModel.start`. `progress` is
    called before each chunk with the number of ids read. Raises ContextOverflowError where memory
    ends.
    """

    def read_rest() -> None:
        done = model.length  # what was read before a failure stays
        model.prefill(ids[done:], chunk, lambda at: progress(done + at))

    chunk = PREFILL_CHUNK
    if not fits(model, lambda: model.start(capacity, numerics, ids, cache_policy, reader, beside)):
        model.start(capacity, numerics, reader=reader, beside=beside)
    while not fits(model, read_rest):
        if chunk <= SHORTEST:
            raise too_long(len(ids)) if beside else _does_not_fit(model, ids, capacity)
        chunk = max(SHORTEST, min(chunk, len(ids)) // 2)
        if model.reader is not None:  # what it has of the rows is not known, and takes memory
            model.reader.reset(model.length)
        if not model.verifies_trees:  # its state after a pass that failed is not known
            model.start(capacity, numerics, reader=reader)


def fits(model: TargetModel, work: Callable[[], object]) -> bool:
    """Do `work`; False where memory ended, which then is free again."""
    try:
        work()
        return True
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if model.prefixes is not None:
        model.prefixes.drop()
    model.passes.forget()
    gc.collect()  # what the frames of the error held, where they hold each other
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return False


def too_long(tokens: int) -> NgtError:
    """The error for a text of so many tokens, whose next pass over one row does not fit."""
    return ContextOverflowError(
        f"out of memory after {tokens} tokens of prompt and answer", hint=_HINT
    )


def _does_not_fit(model: TargetModel, ids: Sequence[int], capacity: int) -> NgtError:
    """What was read, or how much room is lacking. Empties the cache."""
    done = model.length
    model.use(model.mode)  # without buffers
    if done:
        what = f"out of memory after {done} of the prompt's {len(ids) + 1} tokens"
    else:
        what = f"out of memory: room for {capacity} tokens does not fit"
    return ContextOverflowError(what, hint=_HINT)
