"""Running out of memory in a prefill or while a draft is verified; the failures are injected."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ngtcli.decoding import memory_needs
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.memory_limits import prefill_prompt
from ngtcli.decoding.memory_needs import memory_words
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.out_of_memory import is_out_of_memory
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import ContextOverflowError
from ngtcli.heads.head import Head
from ngtcli.heads.reading import HeadRows
from ngtcli.models.weights.checkpoints import empty_model
from ngtcli.models.weights.convert import quantized_bytes
from ngtcli.models.weights.linear import MappedEmbedding
from ngtcli.models.weights.load_quantized import load_quantized
from tests.support.int8_layers import INT8
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    decode,
    make_drafter,
    make_hf,
    make_target,
    plain,
    prompts,
)

pytestmark = pytest.mark.cpu

LONG = 2500
PROMPT = (prompts(1, seed=21)[0] * 200)[:LONG]
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("could not create a primitive"),
    RuntimeError("std::bad_alloc"),
]


def starved(model: TargetModel, error: Exception, too_large: Callable[[int, int], bool]) -> None:
    """Let each forward pass of `model` fail in its last layer where `too_large(rows, length)`."""
    layer = model.hf.model.layers[-1].self_attn
    inner = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)  # the rows of this layer are written, too
        if too_large(kwargs["hidden_states"].shape[1], model.length):
            raise error
        return out

    layer.forward = forward


def long_model() -> TargetModel:
    model = make_target("llama", max_position_embeddings=4 * LONG)
    model.context = 4 * LONG  # more than the tokenizer's
    return model


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_a_chunk_of_too_many_rows_is_read_in_halves(error: Exception) -> None:
    halves = [0, 0, 0, *range(256, LONG - 1, 256)]
    assert positions_read(error, lambda rows, length: rows > 300) == halves


def test_chunks_read_before_memory_ended_are_kept() -> None:
    """The memory of a chunk grows with the rows times the length, as that of attention does."""
    positions = positions_read(ERRORS[0], lambda rows, length: rows * (rows + length) > 1_130_000)
    assert positions == [0, 1024, 1024, 1536, 2048]


def positions_read(error: Exception, too_large: Callable[[int, int], bool]) -> list[int]:
    """Decode a long prompt with little memory; return the positions at which chunks began."""
    expected = plain(long_model(), PROMPT, max_tokens=8)
    model = long_model()
    starved(model, error, too_large)
    positions: list[int] = []

    def record(position: int, total: int) -> None:
        positions.append(position)

    context = Context(PROMPT, outside=(tuple(PROMPT),))
    run = Run(model, make_drafter("none"), context, GREEDY, Limits(8), progress=record).finish()
    assert run.output == expected
    return positions


class HungryHead(Head):
    """A head without memory for the rows of a long chunk.

    `read_rows` holds each position that it has read and the token that follows there.
    """

    reads_all = True
    layers = (-1,)

    def __init__(self) -> None:
        self.read_rows: list[tuple[int, int]] = []

    def reset(self) -> None:
        self.read_rows = []

    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        assert len(states) == len(following)
        if len(states) > 1000:
            raise ERRORS[0]
        self.read_rows += enumerate(following.tolist(), start)


def test_heads_without_memory_for_a_chunk_stay_in_step() -> None:
    model = long_model()
    head = HungryHead()
    heads = HeadRows([head])
    prefill_prompt(model, PROMPT[:-1], LONG + 8, lambda _: None, reader=heads)
    assert heads.follow(PROMPT)
    assert head.read_rows[-1] == (LONG - 2, PROMPT[-1])
    first_position = head.read_rows[0][0]
    assert head.read_rows == list(enumerate(PROMPT[1:]))[first_position:]


def test_a_draft_that_does_not_fit_is_halved_and_later_ones_are_no_larger() -> None:
    model = make_target()
    prompt = prompts(1, seed=22)[0]
    expected_output = plain(model, prompt)
    sizes: list[int] = []

    def propose(ids: Sequence[int], budget: int) -> DraftTree:
        sizes.append(budget)
        rest = expected_output[len(ids) - len(prompt) :][:budget]
        return DraftTree(tuple(rest), tuple(range(-1, len(rest) - 1)))

    starved(model, ERRORS[2], lambda rows, length: length > 0 and rows > 8)
    run = decode(model, Scripted(propose), prompt, num_draft=16)
    assert run.output == expected_output
    assert sizes[0] == 16
    assert set(sizes[1:]) == {4}
    assert run.statistics.mean_acceptance_length > 3


@pytest.mark.parametrize(
    ("failures", "expected"),
    [(1, [16, 8, 8]), (3, [16, 8, 4, 2, 2]), (100, [16, 8, 4, 2, 1])],
)
def test_where_memory_ends_while_drafting_drafts_are_halved_down_to_none(
    failures: int, expected: list[int]
) -> None:
    model = make_target()
    prompt = prompts(1, seed=22)[0]
    expected_output = plain(model, prompt)
    budgets = list[int]()

    def propose(ids: Sequence[int], budget: int) -> DraftTree:
        budgets.append(budget)
        if len(budgets) <= failures:
            raise ERRORS[0]
        return DraftTree(tuple(expected_output[len(ids) - len(prompt) :][:1]), (-1,))

    run = decode(model, Scripted(propose), prompt, num_draft=16)
    assert run.output == expected_output
    assert budgets[: len(expected)] == expected
    if failures == 100:  # drafting is given up
        assert len(budgets) == len(expected)


def test_a_drafter_without_memory_to_begin_ends_the_sequence_with_an_error() -> None:
    class Large(Scripted):
        def begin(self, context: Context) -> None:
            raise ERRORS[0]

    with pytest.raises(ContextOverflowError, match="^out of memory after 20 tokens"):
        decode(make_target(), Large(lambda ids, budget: DraftTree()), [5] * 20)


def test_without_memory_for_a_single_row_the_error_says_how_long_the_sequence_is() -> None:
    model = make_target()
    prompt = [5] * 20
    starved(model, ERRORS[1], lambda rows, length: length > 25)
    with pytest.raises(ContextOverflowError, match="^out of memory after 27 tokens of") as caught:
        decode(model, Scripted(lambda ids, budget: DraftTree((7, 8), (-1, 0))), prompt)
    assert "--max-tokens" in caught.value.hint


def test_the_error_for_a_prompt_that_does_not_fit_says_how_much_was_read() -> None:
    model = long_model()
    starved(model, ERRORS[2], lambda rows, length: rows + length > 2000)
    with pytest.raises(ContextOverflowError) as caught:
        plain(model, PROMPT)
    assert str(caught.value) == f"out of memory after 1984 of the prompt's {LONG} tokens"
    assert model.length == 0


def test_the_error_for_buffers_that_do_not_fit_names_the_cache() -> None:
    """One buffer may have so many positions; the model itself runs."""
    model = long_model()
    capacity = 4000
    make = torch.Tensor.new_zeros

    def new_zeros(self: torch.Tensor, shape: Sequence[int], **more: Any) -> torch.Tensor:
        if len(shape) == 4 and shape[2] > 1300:
            raise ERRORS[0]
        return make(self, shape, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", new_zeros)
        with pytest.raises(ContextOverflowError) as caught:
            prefill_prompt(model, PROMPT, capacity, lambda _: None)
    assert str(caught.value) == "out of memory: the KV cache for 4000 tokens does not fit"


def test_other_errors_are_left_alone() -> None:
    model = make_target()
    starved(model, RuntimeError("expected scalar type Half"), lambda rows, length: True)
    with pytest.raises(RuntimeError, match="scalar type"):
        plain(model, [5] * 20)


def test_the_error_of_torch_on_a_cpu_is_recognized() -> None:
    """The real message, for more bytes than any machine can address."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**57, dtype=torch.float32)
    assert is_out_of_memory(caught.value)


def test_a_checkpoint_that_does_not_fit_gets_a_line_with_what_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hf = make_hf("qwen2", tie_word_embeddings=False).to(torch.bfloat16)
    hf.save_pretrained(tmp_path)
    parameters = sum(p.numel() for p in hf.parameters())
    linear = sum(m.weight.numel() for m in hf.modules() if isinstance(m, torch.nn.Linear))
    embedding = hf.get_input_embeddings().weight.numel()
    # Linear layers in int8, the embedding as in the file, the rest in float32.
    int8_bytes = linear + 2 * embedding + 4 * (parameters - linear - embedding)

    quantized, _ = load_quantized(str(tmp_path), INT8)
    loaded_bytes = linear
    loaded_bytes += sum(p.nbytes for p in quantized.parameters() if not p.is_mkldnn)
    loaded_bytes += sum(
        m.weight.nbytes for m in quantized.modules() if isinstance(m, MappedEmbedding)
    )
    assert loaded_bytes == int8_bytes
    assert quantized_bytes(empty_model(hf.config), torch.float32) == int8_bytes

    def words(free: int, dtype: Any, bits: int = 0, device: str = "cpu") -> str:
        monkeypatch.setattr(memory_needs, "free_memory", lambda _: free)
        return memory_words(str(tmp_path), hf.config, device, dtype, bits)

    assert words(4 * parameters, torch.float32) == ""
    message = words(4 * parameters - 1, torch.float32)
    assert "in float32" in message
    assert "--quantize int8 takes" in message
    assert "--dtype bfloat16" in message
    assert "bfloat16" not in words(2 * parameters - 1, torch.float32)

    assert words(2 * parameters, "auto") == ""
    assert words(2 * parameters - 1, "auto") != ""
    assert "--quantize" not in words(2 * parameters - 1, "auto", device="cuda")

    assert ";" not in words(int8_bytes - 1, torch.float32)  # no dtype fits, so none is named
    assert words(int8_bytes, torch.float32, 8) == ""
    assert words(int8_bytes - 1, torch.float32, 8) != ""
