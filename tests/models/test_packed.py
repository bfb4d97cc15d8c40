"""Linear layers on floats in blocks: what they compute, what is packed, what is left alone."""

import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.probe import target_model
from ngtcli.heads.files import Target
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights import convert
from ngtcli.models.weights.convert import Conversion, convertible
from ngtcli.models.weights.formats import WeightFormat, prepacks
from ngtcli.models.weights.linear import (
    MappedEmbedding,
    PackedLinear,
    packed_weights,
    prepack_floats,
)
from ngtcli.models.weights.target_modules import target_modules
from ngtcli.system.cpu import instruction_sets
from ngtcli.system.reporting import reporting_to
from tests.support.helpers import HARBOUR, FakeBackend, ngt
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import (
    Scripted,
    decode,
    drafts_of,
    generate,
    make_hf,
    pack_layers,
    prompts,
)

pytestmark = pytest.mark.numeric

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
if sys.platform == "linux" and "avx2" in instruction_sets():
    assert prepacks(torch.float32)  # else all that follows were skipped
if prepack_floats(torch.ones(8, 8)) is None:
    pytest.skip("torch has no packed products here", allow_module_level=True)


def linear(inputs: int, outputs: int, bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def packed_or_skip(layer: nn.Linear) -> PackedLinear:
    """The layer packed; what a CPU has no kernel for cannot be tested on it."""
    if (blocks := prepack_floats(layer.weight.detach())) is None:
        pytest.skip(f"no packed products in {layer.weight.dtype} here")
    return PackedLinear(blocks, layer.bias)


def weight_bytes(hf: Any) -> int:
    return sum(p.numel() * p.element_size() for p in hf.parameters())


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 130),
    bias=st.booleans(),
    shape=st.lists(st.integers(0, 5), max_size=3),
    seed=st.integers(0, 9),
)
def test_a_packed_layer_computes_what_the_layer_did(
    inputs: int, outputs: int, bias: bool, shape: list[int], seed: int
) -> None:
    layer = linear(inputs, outputs, bias)
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(*shape, inputs, generator=source)
    result = packed_or_skip(layer)(rows)
    expected = layer(rows)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_weight_can_be_read_and_counts_the_same_bytes(dtype: torch.dtype) -> None:
    layer = linear(40, 97, True, dtype)
    packed = packed_or_skip(layer)
    assert torch.equal(packed.weight, layer.weight)
    assert weight_bytes(packed) == weight_bytes(layer)


def test_weights_without_a_kernel_stay_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "prepack_floats", lambda weight: None)
    hf = make_hf("llama", tie_word_embeddings=True)
    assert pack_layers(hf) == 0
    assert not any(packed_weights(hf))
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2-sliding"])  # Qwen2 has biases
def test_a_packed_model_gives_the_tokens_of_generate_with_and_without_drafts(
    family: str,
) -> None:
    hf = make_hf(family, tie_word_embeddings=False)
    truth = {tuple(p): generate(hf, p, 24) for p in prompts(4)}
    parameters = weight_bytes(hf)
    packed_bytes = pack_layers(hf)
    assert packed_bytes > 0
    assert packed_bytes < parameters
    assert not any(type(module) is nn.Linear for module in hf.modules())
    assert weight_bytes(hf) == parameters
    model = target_model(hf, Tokenizer(FakeBackend()), "packed")
    drafter = drafts_of(truth, wrong=3)
    for prompt, expected in truth.items():
        assert generate(hf, list(prompt), 24) == expected
        assert decode(model, Scripted(drafter), list(prompt), max_tokens=24).output == expected


@pytest.mark.parametrize("family", ["llama", "gemma3-sliding"])  # Gemma's scales what it reads
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tied_embedding_gives_the_rows_that_it_gave(dtype: torch.dtype, family: str) -> None:
    """In float32 of a checkpoint in bfloat16 its weight is had in bfloat16."""
    hf = make_hf(family, tie_word_embeddings=True).to(dtype)
    for parameter in hf.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(dtype)
    if prepack_floats(torch.ones(8, 8, dtype=dtype)) is None:
        pytest.skip(f"no packed products in {dtype} here")
    ids = torch.arange(hf.config.vocab_size)[None]
    rows = hf.get_input_embeddings()(ids)
    target = Target(hf, torch.device("cpu"), torch.float32)
    plain = target.embed(ids, scaled=False)
    pack_layers(hf)
    assert torch.equal(target.embed(ids, scaled=False), plain)
    embedding = hf.get_input_embeddings()
    assert isinstance(embedding, MappedEmbedding)
    assert embedding.weight.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    assert torch.equal(embedding(ids), rows)
    assert torch.equal(embedding(ids[0, 7]), rows[0, 7])
    assert isinstance(hf.get_output_embeddings(), PackedLinear)


def test_other_classes_hooks_and_shared_weights_are_left_alone() -> None:
    class Other(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(rows)

    class Same(nn.Linear):
        pass

    shared = nn.Linear(8, 8)
    hooked = nn.Linear(8, 8)
    twin = nn.Linear(8, 8)
    twin.weight = shared.weight
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        Other(8, 8), nn.Conv1d(4, 4, 1), shared, twin, hooked, nn.Linear(8, 8).double()
    )
    assert target_modules(model) == []
    assert [p.name for p in target_modules(nn.Sequential(*model, Same(8, 8)))] == ["6"]


def test_small_layers_are_left_alone_and_none_is_packed_where_that_is_not_wanted() -> None:
    hf = make_hf("llama")
    reported = RecordingReporter()
    conversion = Conversion(WeightFormat(torch.float32, packed=True))
    reported.of(lambda: conversion.pack_rest(hf))
    assert not any(packed_weights(hf))
    assert not reported.statuses
    half = make_hf("llama").to(torch.bfloat16)
    assert convertible(half, WeightFormat(torch.bfloat16)) == []


@pytest.mark.loads
def test_floats_are_not_packed_for_single_rows() -> None:
    """Without drafts most passes have one row, which takes less time unpacked."""
    reported = RecordingReporter()
    for drafts in (True, False):
        with reporting_to(reported):
            model = load_model(ModelSpec("builtin", "cpu", drafts=drafts))
        assert any(packed_weights(model.hf)) == drafts
    assert [line.split(" in ")[0] for line in reported.statuses] == ["Packed 8 MB of weights"]


@pytest.mark.loads
def test_the_answer_is_the_same_packed_or_not() -> None:
    words = f"summarize {HARBOUR} --max-tokens 24 --method prompt-lookup --device cpu -v".split()
    packed = ngt(*words)
    unpacked = ngt(*words, "--set", "packed=no")
    assert packed.stdout == unpacked.stdout
    assert packed.stdout
    assert b"Packed 8 MB" in packed.stderr
    assert b"acked" not in unpacked.stderr
