"""Captured passes: the same bits as eager ones; eager where a model cannot be captured."""

import contextlib
import gc
import itertools
import json
import random
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4MLP
from transformers.models.llama.modeling_llama import LlamaMLP

from ngtcli.decoding import captured
from ngtcli.decoding.captured import Shape
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kernels import FusedGateUpMLP, use_few_kernels
from ngtcli.decoding.kv_cache import KVLayer
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.support import SUPPORTED
from ngtcli.drafting.drafter import Outcome
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.tree import chain
from ngtcli.system.reporting import reporting_to
from tests.support.batches import decode_batch, outputs, separate_drafters, separate_drafts
from tests.support.helpers import HARBOUR, VOCABULARY, ngt
from tests.support.recording_reporter import CallsOf
from tests.support.tiny_models import (
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_hf,
    make_target,
    plain,
    prompts,
)
from tests.tools.heads.recipes import copy_layer

pytestmark = pytest.mark.numeric


class FixedBuffers(TorchDispatchMode):
    """Stands in for a CUDA graph: a replay runs the same operations on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self._done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._done.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._done:
            again = func(*args, **kwargs)
            if isinstance(result, torch.Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        GIVEN.append(pool)
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)


GIVEN: list[Any] = []  # the pools that captures were given


class NoStream:
    def __init__(self, *_: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace CUDA graphs by operations on fixed memory; return the memory pools that they get."""
    GIVEN.clear()
    numbers = itertools.count()
    for name, stand_in in {
        "Stream": NoStream,
        "current_stream": NoStream,
        "CUDAGraph": FixedBuffers,
        "stream": lambda _: contextlib.nullcontext(),
        "empty_cache": lambda: None,
        "graph_pool_handle": lambda: next(numbers),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(captured, "USES", 0)
    return GIVEN


def with_capture(model: TargetModel, warnings: list[str] | None = None) -> TargetModel:
    warn = warnings.append if warnings is not None else pytest.fail
    with reporting_to(CallsOf(warn=warn)):
        model.passes.switch_on(torch.device("cuda"))
    return model


def passes(model: TargetModel, count: int = 24) -> list[torch.Tensor]:
    """The logits of forward passes over random trees, of which random rows are kept."""
    rng = random.Random(3)
    logits = []
    model.start(150)
    model.prefill([rng.randrange(VOCABULARY) for _ in range(30)])
    for i in range(count):
        tree = a_tree(rng.choice([0, 3, 7, 10]), seed=i)
        logits.append(model.forward(rng.randrange(VOCABULARY), tree).clone())
        model.keep([0, 2, 3][: rng.randrange(4)] if len(tree) > 3 else [])
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral-sliding", "gemma2-sliding"])
def test_captured_passes_give_the_bits_of_eager_ones(
    family: str, dtype: torch.dtype, pools: list[Any]
) -> None:
    eager, model = (
        target_model(make_hf(family).to(dtype), make_target().tokenizer, family) for _ in range(2)
    )
    logits = passes(with_capture(model))
    assert model.passes.capturing == SUPPORTED
    assert model.passes.captured >= 3
    assert all(map(torch.equal, logits, passes(eager)))
    assert eager.passes.captured == 0
    assert all(map(torch.equal, passes(model), logits))  # a second sequence in the same buffers
    assert len(pools) >= 3
    assert set(pools) == {0}


@pytest.mark.parametrize(
    "decides",
    [
        lambda packed, length: int(packed.numpy()[0]),  # by a token, unseen by a recorder
        lambda packed, length: length,
    ],
)
def test_a_capture_that_gives_other_logits_is_switched_off_with_one_warning(decides: Any) -> None:
    """Decisions of a model in Python show, as captures are tried with another token and length."""
    warnings: list[str] = []
    model = with_capture(make_target(), warnings)
    eager = make_target()
    for either in (model, eager):
        run_eagerly = either.passes._run_eagerly
        either.passes._run_eagerly = lambda packed, shape, length, run=run_eagerly: (
            run(packed, shape, length)[0] + decides(packed, length),
        )
    assert all(map(torch.equal, passes(model), passes(eager)))
    assert len(warnings) == 1
    assert "logits differed" in warnings[0]
    assert model.passes.captured == 0
    assert "logits differed" in model.passes.capturing.why


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of keys that sliding layers get, where a plan lists their positions."""
    counts: list[int] = []
    write = KVLayer.write

    def write_and_count(layer: KVLayer, plan: PassPlan, *states: torch.Tensor) -> Any:
        if isinstance(plan.sliding, torch.Tensor):
            counts.append(len(plan.sliding))
        return write(layer, plan, *states)

    monkeypatch.setattr(KVLayer, "write", write_and_count)
    return counts


@pytest.mark.parametrize("family", ["mistral-sliding", "gemma3-sliding"])
def test_captured_passes_of_sliding_layers_attend_to_their_window_alone(
    family: str, gathered: list[int]
) -> None:
    """A graph is replayed at any length, so the window must come from its inputs."""
    model = with_capture(make_target(family, max_position_embeddings=900))
    model.context = 900
    token_ids = random.Random(3).choices(range(4, VOCABULARY), k=300)
    model.start(800)
    model.prefill(token_ids)
    for step in range(40):
        logits = model.forward(4, a_tree(7, seed=step))
        with torch.inference_mode():
            expected = model.hf(torch.tensor([[*token_ids, 4]])).logits[0, -1]
        assert torch.allclose(logits[0], expected, atol=2e-3, rtol=1e-3)
        model.keep(())
        token_ids.append(4)
    assert model.passes.captured >= 1
    assert set(gathered) == {11 + 8}


@pytest.mark.parametrize("family", ["mistral-sliding", "gemma3-sliding"])
def test_captured_passes_of_a_batch_attend_to_their_windows_alone(
    family: str, gathered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.decoding.model.STAYING_DEVICES", {"cpu"})
    model = make_target(family, max_position_embeddings=900)
    model.context = 900
    model.end_ids = frozenset()
    model.hf.generation_config.eos_token_id = None
    token_ids = random.Random(4).choices(range(4, VOCABULARY), k=300)
    prompt_ids = [token_ids[:length] for length in (5, 90, 200, 300)]
    expected = {tuple(text): generate(model.hf, text, 24) for text in prompt_ids}
    with_capture(model)
    drafting = separate_drafters(lambda: Scripted(drafts_of(expected, wrong=1)), 24)
    sequences = decode_batch(model, prompt_ids, drafting, 4, limits=lambda _: Limits(24, 24))
    assert outputs(sequences) == [expected[tuple(text)] for text in prompt_ids]
    assert model.passes.captured >= 1
    assert gathered


@pytest.mark.usefixtures("buffers_move")
def test_captures_are_dropped_when_the_buffers_move() -> None:
    model = with_capture(make_target(max_position_embeddings=900))
    model.context = 900
    model.start(8)
    model.prefill([1, 2, 3])
    model.forward(4, chain([5, 6, 7]))
    assert model.passes.captured == 1
    model.prefill([8] * 400)
    assert model.passes.captured == 0
    tree = a_tree(3)
    first = model.forward(4, tree)
    again = model.forward(4, tree)
    assert model.passes.captured == 1
    with torch.inference_mode():
        eager, *_ = model._tree_pass(model.lay_out([(4, tree)]).packed, Shape(4, 512), model.length)
    assert first.equal(again)
    assert first.equal(eager)


def test_a_sequence_that_is_left_alone_is_captured_again() -> None:
    """It stays in its slot, or moves to the first one, and keeps its own tokens."""
    model = make_target("qwen3")
    prompt_ids = prompts(2, seed=12)
    model.end_ids = frozenset()
    alone = [plain(model, text, max_tokens=50) for text in prompt_ids]
    with_capture(model)
    for longer in (0, 1):
        model.drop_cache()
        max_tokens = [50 if i == longer else 5 for i in range(2)]
        limits = [Limits(max_tokens=n) for n in max_tokens]
        sequences = decode_batch(model, prompt_ids, separate_drafts(), 2, limits=limits.__getitem__)
        assert outputs(sequences) == [text[:n] for text, n in zip(alone, max_tokens, strict=True)]
        assert model.passes.seconds > 0
        model.passes.seconds = 0.0


def test_no_more_shapes_are_held_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "_MAX_SHAPES", 3)
    model = with_capture(make_target())
    model.start(150)
    model.prefill([1, 2, 3])
    for nodes in (0, 1, 3, 7, 11, 0):
        model.forward(4, a_tree(nodes))
        assert model.passes.captured <= 3


def test_the_step_that_captures_teaches_no_cost() -> None:
    spent: list[int] = []

    class Watching(Scripted):
        def learn(self, log: TokenLog, outcome: Outcome) -> None:
            if outcome.seconds is not None:
                spent.append(outcome.rows)

    run = decode(with_capture(make_target()), Watching(lambda ids, b: chain([1, 2])), [5, 6, 7])
    shapes = run.model.passes.captured
    assert shapes >= 1
    assert len(spent) == run.statistics.steps - shapes


@pytest.mark.parametrize("memory", [False, True])
def test_a_capture_that_fails_leaves_eager_passes_and_their_rows(
    memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape for which memory did not suffice is tried again later."""
    warnings: list[str] = []
    model = with_capture(make_target(), warnings)
    eager = make_target()
    capture = model.passes._capture
    failures = [1]
    monkeypatch.setattr(captured, "LATER", 5)

    def fail(run: Any, example: torch.Tensor) -> Any:
        if not failures:
            return capture(run, example)
        run(example)  # other tokens' rows are in the cache now
        failures.pop()
        raise torch.OutOfMemoryError("none") if memory else RuntimeError("no capture here\nat all")

    model.passes._capture = fail
    assert all(map(torch.equal, passes(model), passes(eager)))
    assert model.passes.capturing.why == ("" if memory else "no capture here")
    assert len(warnings) == 1
    assert (model.passes.captured > 0) == memory
    assert model.passes.captures == memory


def test_shapes_are_captured_after_some_passes_in_one_pool_until_none_is_left(
    monkeypatch: pytest.MonkeyPatch, pools: list[Any]
) -> None:
    monkeypatch.setattr(captured, "USES", 2)
    model = with_capture(make_target())
    model.start(100)
    model.prefill([1, 2, 3])
    for tree in (a_tree(0), a_tree(3)):
        for was_unusually_slow in (True, True, True, False, False):
            held = model.forward(4, tree)
            assert model.passes.was_unusually_slow == was_unusually_slow
    assert model.passes.captured == 2
    assert pools == [0, 0]
    model.passes.forget()  # `held` lives on in the pool
    gc.collect()
    for _ in range(3):
        assert model.forward(4, a_tree(3)).equal(held)
    assert pools == [0, 0, 1]


def test_an_answer_tells_how_its_passes_were_run() -> None:
    command = ["summarize", HARBOUR, "--max-tokens", "24", "--method", "trie", "-v"]
    run, off = (
        json.loads(done.stdout)
        for done in (ngt(*command, "--json"), ngt(*command, "--json", "--set", "capture=no"))
    )
    assert run["text"] == off["text"]
    assert run["passes"] == {"captured": 0, "seconds": 0.0, "reason": ""}
    assert off["passes"] == {"captured": 0, "seconds": 0.0, "reason": "switched off"}
    assert b"passes are not captured: switched off" in ngt(*command, "--set", "capture=no").stderr


def with_few_kernels(hf: Any) -> Any:
    """A model whose parts a GPU would compute by fewer kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(hf), "device", torch.device("cuda"), raising=False)
        use_few_kernels(hf)
    return hf


def test_mlps_with_limits_other_widths_or_shared_weights_are_not_fused() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    llama = transformers.LlamaConfig(**sizes)
    limited = transformers.DeepseekV4Config(**sizes)
    standard = LlamaMLP(llama)
    wide = LlamaMLP(llama)
    twins = [LlamaMLP(llama), LlamaMLP(llama)]
    wide.up_proj = nn.Linear(8, 24)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(twins[0], name).weight = getattr(twins[1], name).weight
    parts = nn.ModuleList([standard, wide, *twins, DeepseekV4MLP(limited)]).requires_grad_(False)
    is_fused = [isinstance(part, FusedGateUpMLP) for part in with_few_kernels(parts)]
    assert is_fused == [True, False, False, False, False]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_head_begins_as_layers_that_few_kernels_compute(family: str) -> None:
    model = make_target(family)
    expected = dict(make_hf(family).get_decoder().layers[1].named_parameters())
    with_few_kernels(model.hf)
    assert "self_attn.qkv_proj.weight" in dict(model.hf.get_decoder().layers[1].named_parameters())
    layer = make_hf(family, seed=1).get_decoder().layers[0]
    copy_layer(layer, model, 1)
    assert all(torch.equal(weight, expected[name]) for name, weight in layer.named_parameters())


def test_exact_passes_replay_no_graph_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has the kernels of its capture, whose bits an exact forward pass must not have."""
    monkeypatch.setattr("ngtcli.decoding.model.STAYING_DEVICES", {"cpu"})
    model = with_capture(make_target("mistral-sliding", max_position_embeddings=900))
    model.context = 900
    captured = []
    for numerics in (NOT_EXACT, Numerics(PassRows.fixed(8)), NOT_EXACT):
        model.start(800, numerics)
        model.prefill([7] * 490)
        model.forward(4, a_tree(7))
        captured.append(model.passes.captured)
    assert captured == [1, 2, 2]
