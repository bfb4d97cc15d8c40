"""What a run does when memory ends: shorter chunks of the prompt, smaller drafts, then an error.

The chunk of a prompt that failed is read again in halves. Where one row or a short chunk is still
too much, an error says what would fit: ContextOverflowError if the model runs with a shorter text.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ngtcli.decode.kv_cache import Keeping
from ngtcli.decode.model import PREFILL_CHUNK, TargetModel
from ngtcli.draft.drafter import PassRows
from ngtcli.draft.guesses import StateReader
from ngtcli.errors import ContextOverflowError, ModelError, NgtError
from ngtcli.model_files.quantized import identity
from ngtcli.model_files.scheme import scheme_of
from ngtcli.model_files.stand_in import source_of
from ngtcli.system.machine import free_memory
from ngtcli.weights.checkpoints import empty_model
from ngtcli.weights.convert import quantized_bytes

# Times as large as in its files a model is at most: float32 of 8 bits; of 2 bits in a GGUF file.
_WIDENED, _WIDENED_GGUF = 4, 16
SHORTEST = 64  # tokens of a chunk; guess: below it a chunk takes little less memory
_HINT = "Give shorter texts or fewer --max-tokens, or try --dtype bfloat16 or a smaller model."
_SIGNS = ("out of memory", "can't allocate memory")  # of CUDA and MPS; of torch on a CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has ended, the device's or the machine's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def read_prompt(
    model: TargetModel,
    ids: Sequence[int],
    capacity: int,
    progress: Callable[[int], object],
    *,
    rows: PassRows | None = None,
    keeping: Keeping | None = None,
    reader: StateReader | None = None,
    beside: int = 0,
) -> None:
    """Start the model with room for `capacity` tokens and read `ids`, in chunks that fit.

    `rows` are those of later passes, if they are exact; `keeping`, `reader` and `beside` are as for
    `TargetModel.start`. `progress` is called before each chunk with the number of ids read. Raises
    ContextOverflowError or ModelError where memory ends.
    """

    def read_rest() -> None:
        done = model.length  # what was read before a failure stays
        model.prefill(ids[done:], chunk, lambda at: progress(done + at))

    chunk = PREFILL_CHUNK
    if not fits(model, lambda: model.start(capacity, rows, ids, keeping, reader, beside)):
        model.start(capacity, rows, reader=reader, beside=beside)
    while not fits(model, read_rest):
        if chunk <= SHORTEST:
            raise too_long(len(ids)) if beside else _does_not_fit(model, ids, capacity)
        chunk = max(SHORTEST, min(chunk, len(ids)) // 2)
        if model.reader is not None:  # what it has of the rows is not known, and takes memory
            model.reader.reset(model.length)
        if model.tree_reason:  # its state after a pass that failed is not known
            model.start(capacity, rows, reader=reader)


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
    gc.collect()  # what the frames of the error held, where they hold each other
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return False


def memory_words(path: str, config: Any, device: str, dtype: Any, bits: int) -> str:
    """That the weights of a checkpoint do not fit in free memory, and what would fit; or "".

    "auto" is the checkpoint's own dtype. `bits`: those of weights that are quantised, otherwise 0.
    """
    free = free_memory(device)
    if free is None:
        return ""
    files = identity(path)["files"]
    times = _WIDENED_GGUF if source_of(path) else _WIDENED
    if times * sum(size for _, size, _ in files) <= free:  # most models: no closer look
        return ""
    empty = empty_model(config)
    own = empty.dtype if dtype == "auto" else dtype
    count, whole = sum(p.numel() for p in empty.parameters()), quantized_bytes(empty, own)
    needed = whole if bits else count * own.itemsize
    if bits and bits == scheme_of(path).bits:  # they are in the files
        needed = sum(size for _, size, _ in files)
    if needed <= free:
        return ""
    others = [("--quantize int8", whole)] if device == "cpu" and not bits else []
    if own == torch.float32 and not bits:
        others.append(("--dtype bfloat16", 2 * count))
    fits = [f"{flag} takes {size / 1e9:.1f} GB" for flag, size in others if size <= free]
    how = f"{bits}-bit integers" if bits else str(own).removeprefix("torch.")
    line = f"its weights take {needed / 1e9:.1f} GB in {how}, and {free / 1e9:.1f} GB are free"
    return "; ".join([line, *fits])


def too_long(tokens: int) -> NgtError:
    """The error for a text of so many tokens, whose next pass over one row does not fit."""
    return ContextOverflowError(f"out of memory after {tokens} tokens of prompt and answer", _HINT)


def _does_not_fit(model: TargetModel, ids: Sequence[int], capacity: int) -> NgtError:
    """What would fit: what was read, or what can be begun with less room. Empties the cache."""
    if done := model.length:
        model.use(model.way)
        return ContextOverflowError(
            f"out of memory after {done} of the prompt's {len(ids) + 1} tokens", _HINT
        )
    room = capacity
    while room > SHORTEST:
        room //= 2
        model.use(model.way)  # buffers of another size
        model.start(room)
        if fits(model, lambda: model.prefill(ids[:SHORTEST], SHORTEST)):
            model.use(model.way)
            return ContextOverflowError(
                f"out of memory: room for {capacity} tokens does not fit, for {room} it does", _HINT
            )
    model.use(model.way)
    return ModelError(
        f"{model.name}: out of memory at its first {min(len(ids), SHORTEST)} tokens",
        "Try --dtype bfloat16, or name a smaller model.",
    )
