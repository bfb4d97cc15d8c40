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
from ngtcli.decoding.load import LoadReporter, ModelSpec, load_model, prepared
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.scores import as_guesses, likeliest, same_scores
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.models.tokenizer import Tokenizer
from tests.support import families
from tests.support.helpers import VOCABULARY, FakeBackend
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
from tests.support.together import outputs, own, together
from tests.tools import pretended
from tests.tools.measuring import precision

SAMPLED = Settings(temperature=0.9, seed=3)
PENALISED = Settings(repetition_penalty=1.3, frequency_penalty=0.2)
on_cpu = _disable_current_modes()  # what it decorates is not watched, which takes longer


def on(device: str, family: str = "llama", **changes: Any) -> tuple[TargetModel, list[str]]:
    """A tiny model on a device, its passes captured there, and what is said of them."""
    hf, said = make_hf(family, **changes).to(device), list[str]()
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.passes.switch_on(model.device, said.append)
    return model, said


def answers(model: TargetModel, texts: Sequence[Sequence[int]], sampling: Settings) -> list[Any]:
    drafter = make_drafter("auto", DraftSettings(num_draft=12))
    return [decode(model, drafter, text, sampling, num_draft=12).output for text in texts]


def tokens_are_the_cpus(device: str) -> None:
    for family in ("llama", "gemma3-sliding"):
        (model, said), cpu, texts = on(device, family), make_target(family), prompts(3, seed=5)
        model.end_ids = cpu.end_ids = frozenset()
        for text, sampling in zip(texts, (GREEDY, SAMPLED, PENALISED), strict=True):
            truth = {tuple(text): on_cpu(plain)(cpu, text, sampling, max_tokens=25)}
            known = Scripted(drafts_of(truth, wrong=3))
            drafted = decode(model, known, text, sampling, num_draft=7, max_tokens=25)
            assert drafted.output == truth[tuple(text)]
            assert drafted.statistics.accepted_tokens > 9
        assert said == [] and (device == "mps" or model.passes.captured)


def answers_by_a_grammar_are_the_cpus(device: str) -> None:
    from tests.decoding import test_grammar as by

    model, cpu = by.tiny(device=device), by.tiny()
    prompt, grammar = by.prompt_of(cpu), by.bound(cpu, by.PERSON)
    methods = ("auto", "recycling", "none", "auto")
    for sampling, method in zip(by.SAMPLINGS, methods, strict=True):
        run, _ = on_cpu(by.answer)(cpu, make_drafter("none"), prompt, grammar, sampling)
        truth = run.output
        run, _ = by.answer(model, make_drafter(method), prompt, grammar, sampling)
        assert run.output == truth


def texts_together_have_the_cpus_tokens(device: str) -> None:
    texts = prompts(5, seed=2)
    (model, said), cpu = on(device, "gemma2-sliding"), make_target("gemma2-sliding")
    truth = [on_cpu(plain)(cpu, text, max_tokens=20) for text in texts]
    for _ in range(2):
        assert outputs(together(model, texts, own("trie", 7), 3)) == truth
        assert plain(model, texts[0], max_tokens=20) == truth[0]
    several = [shape for shape in model.passes._captured if shape.sequences > 1]
    assert said == [] and bool(several) == (device == "cuda")


def nearly_all_passes_of_growing_prompts_are_replayed(device: str) -> None:
    """And nothing is captured anew when a prompt is longer, but a next power of two of places."""
    long = {"max_position_embeddings": 4000}
    (model, said), cpu, rng = on(device, **long), make_target(**long), random.Random(2)
    model.end_ids = cpu.end_ids = frozenset()
    model.context = cpu.context = 4000
    steps, words = 0, [rng.randrange(VOCABULARY) for _ in range(1000)]
    for n in range(8):
        text = words[: 250 + 30 * n]
        truth = on_cpu(plain)(cpu, text, max_tokens=60)
        known = Scripted(drafts_of({tuple(text): truth[:30]}, wrong=1))  # then one token a pass
        run = decode(model, known, text, max_tokens=60, num_draft=4 + n)
        assert run.output == truth
        steps += run.statistics.steps
    replayed = pretended.total("replayed")
    assert replayed >= 0.9 * steps and model.passes.captured <= 6 and said == []


def a_step_has_one_copy_each_way(device: str) -> None:
    """Greedy `auto` of one text; to draw takes a second copy to the device."""
    model, _ = on(device)
    texts = prompts(2, seed=4)
    answers(model, texts, GREEDY)
    for sampling, most in ((GREEDY, 1), (SAMPLED, 2), (PENALISED, 3)):
        found = pretended.steps()
        answers(model, texts, sampling)
        for kind, limit in (("in", most), ("out", 1), ("wait", 0)):
            if device == "mps" and sampling is SAMPLED:
                continue  # which has no float64 to draw with
            numbers = [sum(n for (k, _), n in one.items() if k == kind) for one in found]
            assert len(numbers) > 5 and max(numbers) <= limit, (sampling, kind, max(numbers))


def what_waits_for_the_device_begins_no_capture(device: str) -> None:
    """A capture that must fail would leave torch's allocator as it is within one."""
    scores = torch.rand(3, 4, device=device)
    at, one = torch.ones(1, dtype=torch.int64, device=device), torch.ones(1, device=device)
    looks = (lambda: bool(scores.sum() > 0), lambda: scores[scores[:, 0] > 0], scores.nonzero)
    for look in (*looks, scores.cpu):
        with captured._NoCopies():  # type: ignore[no-untyped-call]
            scores[0].exp().index_copy_(0, at, one)
            with pytest.raises(RuntimeError, match="waits for what the GPU computes"):
                look()


def scores_are_compared_as_on_the_cpu(device: str) -> None:
    rows, ids = torch.randn(3, 400), torch.tensor([5, 6, 7])
    for other in (rows, rows + 1.0):
        found = same_scores(list(rows.to(device)), list(other.to(device)), True)
        assert found == torch.equal(rows, other)
    mine, true = (as_guesses(*likeliest(one)) for one in (rows.to(device), rows))
    assert mine.tokens.tolist() == true.tokens.tolist()
    assert mine.probabilities.tolist() == true.probabilities.tolist()
    losses, passage = list[float](), precision.Passage((4, 5, 6, 7), 1)
    for on_ in ("cpu", device):
        parts = [(rows.log_softmax(-1).to(on_), ids.to(on_))]
        with patch.object(precision, "distributions", lambda *_, parts=parts: iter(parts)):
            losses.append(precision.score(make_target(), [passage], "float32").loss)
    assert losses[0] == losses[1] > 0


def exact_passes_have_the_tokens_of_plain_ones(device: str) -> None:
    """In bfloat16, drafted or not."""
    hf = make_hf("llama").to(torch.bfloat16).to(device)
    model = target_model(hf, Tokenizer(FakeBackend()), "llama")
    model.passes.switch_on(model.device, print)
    exact = Exactness(model, lambda _: None).numerics("on", 12, 120)
    for text in prompts(2, seed=5):
        context = Context(text, outside=(tuple(text),), vocabulary=VOCABULARY)
        found = [
            Run(model, make_drafter(method), context, GREEDY, Limits(30, num_draft), numerics=exact)
            .finish()
            .output
            for method, num_draft in (("none", 0), ("auto", 12))
        ]
        assert found[0] == found[1]


def what_is_read_apart_is_what_one_mask_gives(device: str) -> None:
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for rows, reach, heads, groups in ((8, 0, 2, 3), (16, 5, 1, 4), (8, 333, 2, 1)):
            torch.manual_seed(reach)
            draw = partial(torch.randn, dtype=dtype)
            query = draw(1, heads * groups, rows, 16)
            key, value = (draw(1, heads, 400, 16) for _ in range(2))
            slots, at = torch.arange(reach, reach + rows), torch.arange(400)
            seen = (at < reach).expand(rows, 400).clone()
            seen[:, reach : reach + rows] = torch.rand(rows, rows).tril() + torch.eye(rows) > 0.5
            mask = torch.zeros(()).masked_fill(~seen, torch.finfo(dtype).min).to(dtype)[None, None]
            truth = attention.grouped(query, key, value, mask, 0.3).transpose(1, 2)
            own = mask[..., reach : reach + rows].contiguous()
            here = [one.to(device) for one in (slots, torch.tensor(reach), own, query, key, value)]
            prefix = split_attention.PrefixAndTree(*here[:3])
            found = prefix.compute(*here[3:], 0.3).cpu()
            torch.testing.assert_close(found, truth, atol=near, rtol=near)
            causal = at[: reach + rows] <= slots[:, None]
            until = [one[:, :, : reach + rows] for one in (key, value)]
            truth = attention.grouped(query, *until, causal[None, None], None).transpose(1, 2)
            chunk = [one.to(device) for one in (query, *until)]
            found = split_attention.PrefillChunk().compute(*chunk, None).cpu()
            torch.testing.assert_close(found, truth, atol=near, rtol=near)


def long_prompts_are_read_apart(device: str) -> None:
    """In half precision their scores are those under one mask but for rounding, captured too."""
    long = {"max_position_embeddings": 4000}
    hf, text = make_hf("llama", **long).to(torch.bfloat16), [(7 * i) % 90 for i in range(2200)]
    models = [
        target_model(one, Tokenizer(FakeBackend()), "llama")
        for one in (deepcopy(hf).to(device), hf)
    ]
    assert models[0].runner.can_split and not models[1].runner.can_split
    models[0].passes.switch_on(models[0].device, print)
    found = []
    for model in models:
        model.context = 4000
        model.start(2300)
        model.prefill(text)
        scores = []
        for at in range(5):
            scores.append(model.forward(5, a_tree(7, seed=at)).float().cpu())
            model.keep([0])
        found.append(torch.cat(scores))
    assert models[0].passes.captured and same_scores(list(found[0]), found[1], exact=False)


def layers_take_few_kernels(device: str) -> None:
    """In passes over a tree whose scores are those of the CPU, which has the model's own layers."""
    families = {"llama": 21, "mistral-sliding": 21, "qwen2": 21, "qwen3": 23, "gemma3-sliding": 43}
    for family, most in families.items():
        for dtype in (torch.float32, torch.bfloat16):
            launches = []
            for layers in (1, 2):
                hf = make_hf(family, num_hidden_layers=layers).to(dtype)
                with torch.no_grad():  # of norms and biases
                    for weight in (one for one in hf.parameters() if one.ndim == 1):
                        weight.add_(torch.rand_like(weight))
                here, scores = deepcopy(hf).to(device), list[torch.Tensor]()
                for one in (hf, here):
                    model = prepared(one, Tokenizer(FakeBackend()), family)
                    model.start(60)
                    model.prefill([*range(2, 32)])
                    pretended.counts.clear()
                    scores.append(model.forward(5, a_tree(7)).cpu())
                launches.append(pretended.total("launch"))
                assert same_scores(list(scores[1]), scores[0], exact=dtype == torch.float32)
            assert launches[1] - launches[0] <= most, (family, launches)


def models_with_a_state_give_the_cpus_tokens(device: str) -> None:
    """A cache that is cropped, one that is restored, and one of several kinds of layers."""
    for name in ("lfm2", "mamba2", "qwen3_next"):
        hf, text = families.build(families.family(name)), families.prompts()[1]
        truth = on_cpu(generate)(hf, text, 14)
        model = families.target(hf.to(device), name)
        run = decode(model, families.chained(truth, len(text)), text, max_tokens=14)
        assert run.output == truth and run.statistics.accepted_tokens > 3


def layers_on_two_devices_give_the_cpus_tokens(device: str) -> None:
    """The second half of them on "mps", as accelerate would put them on a second GPU."""

    def placed(hf: Any, *_: object) -> dict[str, str]:
        count, first = len(hf.model.layers), f"{device}:0"
        parts = [f"model.{name}" for name, _ in hf.model.named_children() if name != "layers"]
        layers = {f"model.layers.{i}": first if 2 * i < count else "mps" for i in range(count)}
        return dict.fromkeys([*parts, "lm_head"], first) | layers

    wanted, said = ModelSpec("builtin", device, "float32", device_map="auto"), list[str]()
    with patch("transformers.modeling_utils._get_device_map", placed):
        model = load_model(wanted, LoadReporter(said.append))
    assert {one.device.type for one in model.hf.parameters()} == {device, "mps"}
    cpu, text = (
        load_model(ModelSpec("builtin", "cpu", "float32", packed=False)),
        [5, 6, 7, 8, 9] * 6,
    )
    drafted = decode(model, make_drafter("trie", DraftSettings(lp=2)), text, max_tokens=24)
    assert drafted.output == on_cpu(plain)(cpu, text, max_tokens=24)
    assert drafted.statistics.accepted_tokens > 9 and said[0].endswith("on mps")


def check(name: str, device: str) -> None:
    """Run one of the above on a device that pretends."""
    pretended.install()
    pretended.steps()
    globals()[name](device)
    if pretended.CUDAGraph.modes:  # others' threads may use the device while one captures
        assert pretended.CUDAGraph.modes == {"thread_local"}
