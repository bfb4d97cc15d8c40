"""Packed linear layers: what they compute, what is packed, what is left alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from ngtcli.decode.load import load_model
from ngtcli.decode.probe import target_model
from ngtcli.system.trials import results
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.weights import packed as room
from ngtcli.weights.packed import (
    PackedEmbedding,
    PackedLinear,
    Trial,
    find_layout,
    is_packed,
    packed_copy,
    remembered_trial,
    to_pack,
    try_packing,
)
from ngtcli.weights.places import packable
from tests.support.helpers import HARBOUR, FakeBackend, ngt
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


def packed_or_skip(layer: nn.Linear) -> PackedLinear:
    """The layer packed; what a CPU has no kernel for cannot be tested on it."""
    if (packed := packed_copy(layer)) is None:
        pytest.skip(f"no packed products in {layer.weight.dtype} here")
    return packed


if packed_copy(nn.Linear(8, 8)) is None:
    pytest.skip("torch has no packed products here", allow_module_level=True)


def pack_if_it_pays(hf: Any, **told: Any) -> bool:
    layers = to_pack(hf, **told)
    return layers is not None and layers.finish(hf)


def linear(inputs: int, outputs: int, bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def weight_bytes(hf: Any) -> int:
    return sum(p.numel() * p.element_size() for p in hf.parameters())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of the tests' models are not too small."""
    monkeypatch.setattr("ngtcli.weights.packed._SMALLEST", 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (1, 5), (2, 3), (0,), (1, 64)])
def test_a_packed_layer_computes_what_the_layer_did(shape: tuple[int, ...], bias: bool) -> None:
    for inputs, outputs in ((40, 97), (64, 128)):
        layer = linear(inputs, outputs, bias)
        rows = torch.randn(*shape, inputs)
        found, true = PackedLinear(layer)(rows), layer(rows)
        assert found.shape == true.shape
        torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weight_can_be_had_unpacked_and_counts_as_before(dtype: torch.dtype) -> None:
    layer = linear(40, 97, True, dtype)
    packed = packed_or_skip(layer)
    assert torch.equal(packed.weight, layer.weight)
    assert weight_bytes(packed) == weight_bytes(layer)


SIZES = [(97, 40), (64, 64), (130, 33), (8, 8), (1, 1), (1000, 1), (3, 700), (6000, 72)]


def in_blocks(block: int, side_by_side: int, padded: int) -> Callable[[Tensor], Tensor]:
    """A layout as oneDNN has them: (blocks, in ÷ v, block, v), v inputs side by side."""

    def lay_out(weight: Tensor) -> Tensor:
        outputs, inputs = weight.shape
        wide = torch.zeros(-(-outputs // block) * block, -(-inputs // padded) * padded)
        wide = wide.to(weight.dtype)
        wide[:outputs, :inputs] = weight
        blocks = wide.view(len(wide) // block, block, -1, side_by_side)
        return blocks.transpose(1, 2).flatten()

    return lay_out


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{f"{b} {v} {p}": in_blocks(b, v, p) for b in (32, 64) for v in (1, 2, 4) for p in (4, 32)},
    "48 of 4": in_blocks(48, 4, 16),
    "as it is": lambda weight: weight.flatten(),
    "turned": lambda weight: weight.t().flatten(),
}


@pytest.fixture
def other_layout(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Tensor], Tensor]], None]:
    """Makes weights lie in another order than oneDNN's of this machine; no product takes them."""

    def use(lay_out: Callable[[Tensor], Tensor]) -> None:
        monkeypatch.setattr(room, "_packed_weight", lay_out)
        monkeypatch.setattr(room, "elements", lambda packed: packed.detach())

    return use


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layouts_of_other_machines_are_found(
    dtype: torch.dtype, name: str, other_layout: Any
) -> None:
    other_layout(LAYOUTS[name])
    for outputs, inputs in SIZES:
        layer = PackedLinear(linear(inputs, outputs, False, dtype))
        weight = linear(inputs, outputs, False, dtype).weight
        layout = find_layout(layer, weight)
        assert layout is not None
        embedding = PackedEmbedding(layer, layout)
        ids = torch.randint(outputs, (2, 5))
        assert torch.equal(embedding(ids), weight[ids])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_of_many_outputs_is_that_of_few_where_blocks_go_on(
    name: str, other_layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_layout(LAYOUTS[name])
    marked, of_few = [], room._marked_layout
    monkeypatch.setattr(
        room, "_marked_layout", lambda count, *more: (marked.append(count), of_few(count, *more))[1]
    )
    given = linear(70, 1003, False, torch.float32)
    layout = find_layout(layer := PackedLinear(given), given.weight)
    assert layout is not None
    assert torch.equal(layout.rows(layer.packed.detach(), torch.arange(1003)), given.weight)
    assert marked == ([427, 1003] if name == "turned" else [427])


def test_weights_beside_packed_ones_hold_no_mapped_file(tmp_path: Path) -> None:
    make_hf("llama").save_pretrained(tmp_path)
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    before = {name: one.clone() for name, one in hf.named_parameters()}

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    room._let_go_of_file(hf, 0)  # more are not packed than are: nothing is copied
    assert is_mapped()
    room._let_go_of_file(hf, 1 << 40)
    assert not is_mapped()
    assert all(torch.equal(one, before[name]) for name, one in hf.named_parameters())


def swizzled(weight: Tensor) -> Tensor:
    """Each row is rotated by its own number: no sum of two parts tells a place."""
    return torch.stack([row.roll(place) for place, row in enumerate(weight)]).flatten()


def twice(weight: Tensor) -> Tensor:
    return torch.cat([weight.flatten(), weight.flatten()])


@pytest.mark.parametrize("lay_out", [swizzled, twice])
def test_a_layout_that_cannot_be_told_leaves_the_tied_layer_as_it_is(
    lay_out: Callable[[Tensor], Tensor], other_layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_hf("llama", tie_word_embeddings=True)
    other_layout(lay_out)
    monkeypatch.setattr(room, "packed_copy", PackedLinear)
    pack_layers(packable(hf))
    assert is_packed(hf)
    assert type(hf.get_output_embeddings()) is nn.Linear
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight


def test_what_a_cpu_has_no_kernel_for_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Tensor:
        raise RuntimeError("fp16 path needs the cpu support avx512_fp16")

    hf = make_hf("llama").to(torch.float16)
    monkeypatch.setattr(room, "_packed_weight", refused)
    assert pack_layers(packable(hf)) == 0 and not is_packed(hf)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2-sliding"])  # Qwen2 has biases
def test_all_linear_layers_are_packed_and_drafts_verified_as_generate_decodes_without(
    family: str,
) -> None:
    hf = make_hf(family, tie_word_embeddings=False)
    truth, parameters = {tuple(p): generate(hf, p, 24) for p in prompts(4)}, weight_bytes(hf)
    assert 0 < pack_layers(packable(hf)) < parameters
    assert not any(type(module) is nn.Linear for module in hf.modules())
    assert weight_bytes(hf) == parameters
    model, drafter = target_model(hf, Tokenizer(FakeBackend()), "packed"), drafts_of(truth, wrong=3)
    for prompt, expected in truth.items():
        assert generate(hf, list(prompt), 24) == expected
        assert decode(model, Scripted(drafter), list(prompt), max_tokens=24).output == expected


@pytest.mark.parametrize("hidden", [32, 40, 72])
@pytest.mark.parametrize("vocabulary", [97, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tied_embedding_gives_the_same_rows_and_is_in_memory_once(
    dtype: torch.dtype, vocabulary: int, hidden: int
) -> None:
    hf = make_hf("llama", tie_word_embeddings=True, vocab_size=vocabulary, hidden_size=hidden)
    hf = hf.to(dtype)
    ids, parameters = torch.arange(vocabulary)[None], weight_bytes(hf)
    rows = hf.get_input_embeddings()(ids)
    pack_layers(packable(hf))
    assert torch.equal(hf.get_input_embeddings()(ids), rows)
    assert torch.equal(hf.get_input_embeddings()(ids[0, 7]), rows[0, 7])
    assert weight_bytes(hf) == parameters  # counted once
    head, embedding = hf.get_output_embeddings(), hf.get_input_embeddings()
    assert isinstance(head, PackedLinear) == isinstance(embedding, PackedEmbedding)


def test_an_unknown_embedding_keeps_the_weight_that_it_shares() -> None:
    """Gemma's embedding is a class of its own, which scales what it reads."""
    hf = make_hf("gemma3-sliding", tie_word_embeddings=True)
    pack_layers(packable(hf))
    assert type(hf.get_output_embeddings()) is nn.Linear
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight
    assert is_packed(hf)


def test_other_classes_hooks_and_shared_weights_are_left_alone() -> None:
    class Other(nn.Linear):
        pass

    shared, hooked = nn.Linear(8, 8), nn.Linear(8, 8)
    twin = nn.Linear(8, 8)
    twin.weight = shared.weight
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(Other(8, 8), shared, twin, hooked, nn.Linear(8, 8).double())
    assert packable(model) == []
    assert [p.name for p in packable(nn.Sequential(*model, nn.Linear(8, 8)))] == ["5"]


def test_a_trial_is_stored_and_impossible_seconds_are_refused() -> None:
    trial = Trial(True, (0.5, 1.0, 2.0), (0.5, 0.5, 1.0))
    stored = remembered_trial(make_hf("llama"))
    assert stored.load() is None
    stored.save(trial)
    assert stored.load() == trial
    with pytest.raises(ValueError):
        replace(trial, packed=(0.0, 1.0, 1.0))


@pytest.mark.parametrize(
    "agrees, packed, with_drafts, without",
    [
        (True, (1.0, 0.5, 0.5), True, True),
        (True, (1.2, 0.5, 0.5), True, False),  # plain decoding must not pay
        (True, (1.4, 0.5, 0.5), False, False),
        (True, (0.5, 1.0, 1.0), False, False),
        (False, (0.5, 0.5, 0.5), False, False),
    ],
)
def test_weights_are_packed_where_it_pays(
    agrees: bool, packed: tuple[float, float, float], with_drafts: bool, without: bool
) -> None:
    trial = Trial(agrees, (1.0, 1.0, 1.0), packed)
    assert (trial.pays(drafts=True), trial.pays(drafts=False)) == (with_drafts, without)


@pytest.mark.usefixtures("small")
def test_a_model_is_tried_once_and_packed_as_the_trial_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Trial(True, (1.0, 1.0, 1.0), (1.2, 0.5, 0.5))
    tried: list[int] = []
    monkeypatch.setattr(
        "ngtcli.weights.packed.try_packing", lambda places, _: tried.append(len(places)) or [good]
    )
    for drafts in (False, True, True):
        warned, told = list[str](), list[str]()
        hf = make_hf("llama")
        packs = pack_if_it_pays(hf, drafts=drafts, warn=warned.append, progress=told.append)
        assert packs == is_packed(hf) == drafts and warned == []
        choices = [line for line in told if "--no-packed" in line]
        assert choices == drafts * [
            "They check a draft of 7 tokens 2.0 times as fast, but one token without a draft takes"
            " 1.2 times as long: where few drafts are accepted, --no-packed is faster."
        ]
    assert len(tried) == 1
    assert not pack_if_it_pays(make_hf("llama"), wanted=False)


@pytest.mark.usefixtures("small")
def test_only_what_is_packed_is_counted_and_nothing_is_said_of_a_choice_without_a_drawback(
    monkeypatch: pytest.MonkeyPatch, other_layout: Any
) -> None:
    free = Trial(True, (1.0, 1.0, 1.0), (1.0, 0.5, 0.5))
    monkeypatch.setattr("ngtcli.weights.packed.try_packing", lambda *_: [free])
    other_layout(swizzled)
    monkeypatch.setattr(room, "packed_copy", PackedLinear)
    hf, told = make_hf("llama", tie_word_embeddings=True, vocab_size=50_000), list[str]()
    left = hf.get_output_embeddings().weight
    assert pack_if_it_pays(hf, progress=told.append)
    packed = sum(p.numel() * p.element_size() for p in hf.parameters() if p.ndim == 1)
    assert left.nbytes > 6e6 and packed < 1e6
    assert [line.split(" in ")[0] for line in told[-2:]] == [
        "Packing weights …",
        "Packed 0 MB of weights",
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("small")
def test_a_model_of_any_dtype_is_tried_and_gives_the_tokens_that_it_gave(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where packed products are there they agree, or nothing is packed."""
    monkeypatch.setattr(Trial, "pays", lambda trial, drafts: trial.agrees)
    hf = make_hf("llama", tie_word_embeddings=True).to(dtype)
    ids = torch.tensor([prompts(1)[0]])
    with torch.no_grad():
        before = hf(ids).logits.float()
        pack_if_it_pays(hf)
        after = hf(ids).logits.float()
    step = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(after, before, rtol=step, atol=step * float(before.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_trial_compares_in_any_dtype_that_a_cpu_has_products_for(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 on a CPU that has them, which most have not."""
    places = packable(make_hf("llama").to(dtype))
    for scale, agrees in ((1.0, True), (1.1, False)):

        def other(layer: nn.Linear, scale: float = scale) -> Any:
            copy = nn.Linear(layer.in_features, layer.out_features, bias=False).to(layer.weight)
            copy.weight = nn.Parameter(layer.weight.detach() * scale, requires_grad=False)
            return copy

        monkeypatch.setattr("ngtcli.weights.packed.packed_copy", other)
        assert [one.agrees for one in try_packing(places, dtype)] == [agrees]


def test_small_layers_are_left_alone() -> None:
    hf = make_hf("llama")
    assert not pack_if_it_pays(hf) and not is_packed(hf)
    assert not results("packed", Trial)


@pytest.mark.loads
def test_a_trial_of_a_real_model_agrees() -> None:
    model = load_model("builtin", device="cpu")
    trial = remembered_trial(model.hf).load()
    assert trial is not None and trial.agrees
    assert is_packed(model.hf) == trial.pays(drafts=True)
    assert results("packed", Trial) == [trial]


@pytest.mark.usefixtures("small")
def test_half_precision_that_is_slow_with_several_rows_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Trial(True, (1.0, 9.0, 30.0), (1.0, 7.0, 20.0))
    monkeypatch.setattr("ngtcli.weights.packed.try_packing", lambda *_: [slow])
    for dtype, wanted, times in ((torch.bfloat16, True, "7"), (torch.bfloat16, False, "9")):
        said: list[str] = []
        pack_if_it_pays(make_hf("llama").to(dtype), wanted=wanted, warn=said.append)
        assert said == [
            f"bfloat16 is slow on this CPU: checking a draft of 7 tokens takes {times} times as"
            " long as one token, so drafts hardly pay; --dtype float32 does better"
        ]
    said = []
    pack_if_it_pays(make_hf("llama"), warn=said.append)
    assert said == []


@pytest.mark.loads
def test_the_answer_is_the_same_packed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.kept._trials", {})
    words = f"summarize {HARBOUR} --max-tokens 24 --method prompt-lookup --device cpu -v".split()
    packed, unpacked = ngt(*words), ngt(*words, "--no-packed")
    assert packed.stdout == unpacked.stdout and packed.stdout
    assert b"packed weights" in packed.stderr and b"acked" not in unpacked.stderr
