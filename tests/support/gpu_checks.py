"""What is checked on a GPU that pretends: `check` runs one of these, in a process of its own.

The truth is what the CPU gives.
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ngtcli.config import Settings
from ngtcli.decoding import attention, captured, split_attention
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.load import ModelSpec, load_model, prepared
from ngtcli.decoding.logits import as_guesses, likeliest, same_logits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.reporting import reporting_to
from tests.support import families
from tests.support.batches import decode_batch, outputs, separate_drafts
from tests.support.helpers import VOCABULARY, FakeBackend
from tests.support.recording_reporter import RecordingReporter
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_drafter,
    make_hf,
    make_target,
    plain,
    prompts,
)
from tests.tools import pretended
from tests.tools.measuring import precision

SAMPLED = Settings.of(temperature=0.9, seed=3)
PENALISED = Settings.of(repetition_penalty=1.3, frequency_penalty=0.2)
on_cpu = _disable_current_modes()  # what it decorates is not watched, which takes longer


def on(device: str, family: str = "llama", **changes: Any) -> tuple[TargetModel, list[str]]:
    """A tiny model on a device, its forward passes captured there, and the warnings about them."""
    hf = make_hf(family, **changes).to(device)
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    reported = RecordingReporter()
    with reporting_to(reported):
        model.passes.switch_on(model.device)
    return model, reported.warnings


def answers(model: TargetModel, texts: Sequence[Sequence[int]], sampling: Settings) -> list[Any]:
    drafter = make_drafter("auto", DraftSettings(num_draft=12))
    return [decode(model, drafter, text, sampling, num_draft=12).output for text in texts]


def tokens_are_the_cpus(device: str) -> None:
    for family in ("llama", "gemma3-sliding"):
        model, warnings = on(device, family)
        cpu = make_target(family)
        model.end_ids = cpu.end_ids = frozenset()
        texts = prompts(3, seed=5)
        for text, sampling in zip(texts, (GREEDY, SAMPLED, PENALISED), strict=True):
            truth = {tuple(text): on_cpu(plain)(cpu, text, sampling, max_tokens=25)}
            drafter = Scripted(drafts_of(truth, wrong=3))
            run = decode(model, drafter, text, sampling, num_draft=7, max_tokens=25)
            assert run.output == truth[tuple(text)]
            assert run.statistics.accepted_tokens > 9
        assert warnings == []
        assert device == "mps" or model.passes.captured


def answers_by_a_grammar_are_the_cpus(device: str) -> None:
    from tests.decoding import test_grammar

    model = test_grammar.tiny(device=device)
    cpu = test_grammar.tiny()
    prompt = test_grammar.prompt_of(cpu)
    grammar = test_grammar.grammar_for(cpu, test_grammar.PERSON)
    answer = test_grammar.answer
    methods = ("auto", "recycling", "none", "auto")
    for sampling, method in zip(test_grammar.SAMPLINGS, methods, strict=True):
        expected, _ = on_cpu(answer)(cpu, make_drafter("none"), prompt, grammar, sampling)
        run, _ = answer(model, make_drafter(method), prompt, grammar, sampling)
        assert run.output == expected.output


def texts_together_have_the_cpus_tokens(device: str) -> None:
    texts = prompts(5, seed=2)
    model, warnings = on(device, "gemma2-sliding")
    cpu = make_target("gemma2-sliding")
    truth = [on_cpu(plain)(cpu, text, max_tokens=20) for text in texts]
    for _ in range(2):
        assert outputs(decode_batch(model, texts, separate_drafts("trie", 7), 3)) == truth
        assert plain(model, texts[0], max_tokens=20) == truth[0]
    batched = [shape for shape in model.passes._captured if shape.sequences > 1]
    assert warnings == []
    assert bool(batched) == (device == "cuda")


def nearly_all_passes_of_growing_prompts_are_replayed(device: str) -> None:
    """A longer prompt is captured anew only where it needs the next power of two of capacity."""
    long = {"max_position_embeddings": 4000}
    model, warnings = on(device, **long)
    cpu = make_target(**long)
    model.end_ids = cpu.end_ids = frozenset()
    model.context = cpu.context = 4000
    rng = random.Random(2)
    token_ids = [rng.randrange(VOCABULARY) for _ in range(1000)]
    steps = 0
    for n in range(8):
        prompt = token_ids[: 250 + 30 * n]
        truth = on_cpu(plain)(cpu, prompt, max_tokens=60)
        # Behind what it knows there is one token for each forward pass.
        drafter = Scripted(drafts_of({tuple(prompt): truth[:30]}, wrong=1))
        run = decode(model, drafter, prompt, max_tokens=60, num_draft=4 + n)
        assert run.output == truth
        steps += run.statistics.steps
    assert pretended.total("replayed") >= 0.9 * steps
    assert model.passes.captured <= 6
    assert warnings == []


def a_step_has_one_copy_each_way(device: str) -> None:
    """Greedy `auto` of one text; to draw takes a second copy to the device."""
    model, _ = on(device)
    texts = prompts(2, seed=4)
    answers(model, texts, GREEDY)
    for sampling, max_copies_in in ((GREEDY, 1), (SAMPLED, 2), (PENALISED, 3)):
        step_counts = pretended.steps()
        answers(model, texts, sampling)
        if device == "mps" and sampling is SAMPLED:
            continue  # it has no float64 to draw with
        for kind, limit in (("in", max_copies_in), ("out", 1), ("wait", 0)):
            numbers = pretended.numbers_of(kind, step_counts)
            assert len(numbers) > 5
            assert max(numbers) <= limit, (sampling, kind, max(numbers))


def what_waits_for_the_device_begins_no_capture(device: str) -> None:
    """A capture that must fail would leave torch's allocator as it is within one."""
    logits = torch.rand(3, 4, device=device)
    index = torch.ones(1, dtype=torch.int64, device=device)
    value = torch.ones(1, device=device)
    waits = (
        lambda: bool(logits.sum() > 0),
        lambda: logits[logits[:, 0] > 0],
        logits.nonzero,
        logits.cpu,
    )
    for wait in waits:
        with captured._NoCopies():  # type: ignore[no-untyped-call]
            logits[0].exp().index_copy_(0, index, value)
            with pytest.raises(RuntimeError, match="waits for results of the GPU"):
                wait()


def scores_are_compared_as_on_the_cpu(device: str) -> None:
    logits = torch.randn(3, 400)
    on_device = logits.to(device)
    for other in (logits, logits + 1.0):
        are_same = same_logits(list(on_device), list(other.to(device)), True)
        assert are_same == torch.equal(logits, other)

    guesses = as_guesses(*likeliest(on_device))
    expected = as_guesses(*likeliest(logits))
    assert guesses.tokens.tolist() == expected.tokens.tolist()
    assert guesses.probabilities.tolist() == expected.probabilities.tolist()

    losses: list[float] = []
    passage = precision.Passage((4, 5, 6, 7), 1)
    token_ids = torch.tensor([5, 6, 7])
    for place in ("cpu", device):
        parts = [(logits.log_softmax(-1).to(place), token_ids.to(place))]
        with patch.object(precision, "distributions", lambda *_, parts=parts: iter(parts)):
            losses.append(precision.score(make_target(), [passage], "float32").loss)
    assert losses[0] == losses[1] > 0


def exact_passes_have_the_tokens_of_plain_ones(device: str) -> None:
    """In bfloat16, drafted or not."""
    hf = make_hf("llama").to(torch.bfloat16).to(device)
    model = target_model(hf, Tokenizer(FakeBackend()), "llama")
    model.passes.switch_on(model.device)
    exact = Exactness(model).numerics("on", 12, 120)
    for text in prompts(2, seed=5):
        context = Context(text, outside=(tuple(text),), vocabulary=VOCABULARY)
        plain_run, drafted_run = (
            Run(model, make_drafter(method), context, GREEDY, Limits(30, num_draft), numerics=exact)
            for method, num_draft in (("none", 0), ("auto", 12))
        )
        assert plain_run.finish().output == drafted_run.finish().output


def what_is_read_apart_is_what_one_mask_gives(device: str) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for queries, prefix, heads, groups in ((8, 0, 2, 3), (16, 5, 1, 4), (8, 333, 2, 1)):
            torch.manual_seed(prefix)
            draw = partial(torch.randn, dtype=dtype)
            query = draw(1, heads * groups, queries, 16)
            key = draw(1, heads, 400, 16)
            value = draw(1, heads, 400, 16)
            positions = torch.arange(400)
            end = prefix + queries
            write_at = positions[prefix:end]

            seen = (positions < prefix).expand(queries, 400).clone()
            tree = torch.rand(queries, queries).tril() + torch.eye(queries) > 0.5
            seen[:, prefix:end] = tree
            mask = torch.zeros(()).masked_fill(~seen, torch.finfo(dtype).min).to(dtype)[None, None]
            truth = attention.grouped(query, key, value, mask, 0.3).transpose(1, 2)
            by_tree = split_attention.PrefixAndTree(
                write_at.to(device),
                torch.tensor(prefix).to(device),
                mask[..., prefix:end].contiguous().to(device),
            )
            states = [tensor.to(device) for tensor in (query, key, value)]
            out = by_tree.compute(*states, 0.3).cpu()
            torch.testing.assert_close(out, truth, atol=tolerance, rtol=tolerance)

            causal = (positions[:end] <= write_at[:, None])[None, None]
            chunk = (query, key[:, :, :end], value[:, :, :end])
            truth = attention.grouped(*chunk, causal, None).transpose(1, 2)
            states = [tensor.to(device) for tensor in chunk]
            out = split_attention.PrefillChunk().compute(*states, None).cpu()
            torch.testing.assert_close(out, truth, atol=tolerance, rtol=tolerance)


def long_prompts_are_read_apart(device: str) -> None:
    """In half precision their scores are those under one mask except for rounding, captured too."""
    long = {"max_position_embeddings": 4000}
    hf = make_hf("llama", **long).to(torch.bfloat16)
    prompt = [(7 * i) % 90 for i in range(2200)]
    here = target_model(deepcopy(hf).to(device), Tokenizer(FakeBackend()), "llama")
    cpu = target_model(hf, Tokenizer(FakeBackend()), "llama")
    assert here.runner.can_split
    assert not cpu.runner.can_split
    here.passes.switch_on(here.device)

    def logits_of(model: TargetModel) -> torch.Tensor:
        model.context = 4000
        model.start(2300)
        model.prefill(prompt)
        logits = []
        for seed in range(5):
            logits.append(model.forward(5, a_tree(7, seed=seed)).float().cpu())
            model.keep([0])
        return torch.cat(logits)

    assert same_logits(list(logits_of(here)), logits_of(cpu), exact=False)
    assert here.passes.captured


def layers_take_few_kernels(device: str) -> None:
    """In passes over a tree whose logits are those of the CPU, which has the model's own layers."""

    def logits_of(hf: Any, family: str) -> torch.Tensor:
        model = prepared(hf, Tokenizer(FakeBackend()), family)
        model.start(60)
        model.prefill([*range(2, 32)])
        pretended.counts.clear()
        return model.forward(5, a_tree(7)).cpu()

    max_launches = {
        "llama": 21,
        "mistral-sliding": 21,
        "qwen2": 21,
        "qwen3": 23,
        "gemma3-sliding": 43,
    }  # of one layer
    for family, limit in max_launches.items():
        for dtype in (torch.float32, torch.bfloat16):
            launches = []
            for layers in (1, 2):
                hf = make_hf(family, num_hidden_layers=layers).to(dtype)
                with torch.no_grad():
                    for parameter in hf.parameters():
                        if parameter.ndim == 1:  # of norms and biases
                            parameter.add_(torch.rand_like(parameter))
                on_device = deepcopy(hf).to(device)
                truth = logits_of(hf, family)
                logits = logits_of(on_device, family)
                launches.append(pretended.total("launch"))
                assert same_logits(list(logits), truth, exact=dtype == torch.float32)
            assert launches[1] - launches[0] <= limit, (family, launches)


def models_with_a_state_give_the_cpus_tokens(device: str) -> None:
    """A cache that is cropped, one that is restored, and one of several kinds of layers."""
    for name in ("lfm2", "mamba2", "qwen3_next"):
        hf = families.build(families.family(name))
        prompt = families.prompts()[1]
        truth = on_cpu(generate)(hf, prompt, 14)
        model = families.target(hf.to(device), name)
        run = decode(model, families.chained(truth, len(prompt)), prompt, max_tokens=14)
        assert run.output == truth
        assert run.statistics.accepted_tokens > 3


def layers_on_two_devices_give_the_cpus_tokens(device: str) -> None:
    """The second half of them on "mps", as accelerate would put them on a second GPU."""

    def placed(hf: Any, *_: object) -> dict[str, str]:
        count = len(hf.model.layers)
        first = f"{device}:0"
        parts = [f"model.{name}" for name, _ in hf.model.named_children() if name != "layers"]
        layers = {f"model.layers.{i}": first if 2 * i < count else "mps" for i in range(count)}
        return dict.fromkeys([*parts, "lm_head"], first) | layers

    spec = ModelSpec("builtin", device, "float32", device_map="auto")
    reported = RecordingReporter()
    with patch("transformers.modeling_utils._get_device_map", placed):
        model = reported.of(lambda: load_model(spec))
    assert {parameter.device.type for parameter in model.hf.parameters()} == {device, "mps"}
    cpu = load_model(ModelSpec("builtin", "cpu", "float32", packed=False))
    prompt = [5, 6, 7, 8, 9] * 6
    run = decode(model, make_drafter("trie", DraftSettings(lp=2)), prompt, max_tokens=24)
    assert run.output == on_cpu(plain)(cpu, prompt, max_tokens=24)
    assert run.statistics.accepted_tokens > 9
    assert reported.warnings[0].endswith("on mps")


def check(name: str, device: str) -> None:
    """Run one of the above on a device that pretends."""
    pretended.install()
    pretended.steps()
    globals()[name](device)
    if pretended.CUDAGraph.modes:  # others' threads may use the device while one captures
        assert pretended.CUDAGraph.modes == {"thread_local"}
