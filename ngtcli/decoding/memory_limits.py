"""Continue when memory does not suffice: with shorter chunks of a prompt, or with an error.

The rest of a prompt is prefilled in chunks of half the length, repeatedly. If the shortest chunk
does not fit either, an error says what was too large.
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

MIN_CHUNK = 64  # tokens (guess: a shorter chunk takes little less memory)
_HINT = "Use shorter texts or fewer --max-tokens, or try --dtype bfloat16 or a smaller model."


def prefill_prompt(
    model: TargetModel,
    token_ids: Sequence[int],
    capacity: int,
    progress: Callable[[int], object],
    *,
    numerics: Numerics = NOT_EXACT,
    cache_policy: CachePolicy | None = None,
    reader: StateReader | None = None,
    slot: int = 0,
) -> None:
    """Start a sequence and prefill its prompt, in chunks that fit into memory.

    Args:
        model: The target model.
        token_ids: The prompt without its last token.
        capacity: The number of tokens that the slot has room for.
        progress: Called before each chunk with the number of prefilled tokens.
        numerics: See `TargetModel.start`.
        cache_policy: See `TargetModel.start`.
        reader: See `TargetModel.start`.
        slot: See `TargetModel.start`.

    Raises:
        ContextOverflowError: Memory does not suffice.
    """

    length = len(token_ids) + 1

    def start() -> None:
        model.start(capacity, numerics, token_ids, cache_policy, reader, slot, length)

    def prefill_rest() -> None:
        done = model.length  # Chunks that were prefilled before a failure stay.
        model.prefill(token_ids[done:], chunk, lambda count: progress(done + count))

    chunk = PREFILL_CHUNK
    if not ran_within_memory(model, start):
        # It may fit without the cached chunks of the prompt.
        model.start(capacity, numerics, reader=reader, slot=slot, length=length)
    while not ran_within_memory(model, prefill_rest):
        if chunk <= MIN_CHUNK:
            raise too_long(len(token_ids)) if slot else _does_not_fit(model, token_ids, capacity)
        chunk = max(MIN_CHUNK, min(chunk, len(token_ids)) // 2)
        if model.reader is not None:
            # It may have read a part of the hidden states only, and holds memory.
            model.reader.reset(model.length)
        if not model.verifies_trees:
            # A forward pass that failed may have changed the state of recurrent layers.
            model.start(capacity, numerics, reader=reader, length=length)


def ran_within_memory(model: TargetModel, work: Callable[[], object]) -> bool:
    """Call `work`; if memory runs out, free caches and graphs, and return False."""
    try:
        work()
        return True
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if model.prefixes is not None:
        model.prefixes.drop()
    model.passes.forget()
    gc.collect()  # Frames of the error may hold tensors in reference cycles.
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return False


def too_long(tokens: int) -> NgtError:
    """Return the error for a sequence of `tokens` tokens whose next forward pass does not fit."""
    return ContextOverflowError(
        f"out of memory after {tokens} tokens of prompt and answer", hint=_HINT
    )


def _does_not_fit(model: TargetModel, token_ids: Sequence[int], capacity: int) -> NgtError:
    """Return the error for a prompt that does not fit alone; empty the cache."""
    done = model.length
    model.drop_cache()
    if done:
        message = f"out of memory after {done} of the prompt's {len(token_ids) + 1} tokens"
    else:
        message = f"out of memory: the KV cache for {capacity} tokens does not fit"
    return ContextOverflowError(message, hint=_HINT)
