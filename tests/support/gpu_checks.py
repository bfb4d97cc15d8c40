"""What is checked on a GPU that pretends: `check` runs one of these, in a process of its own.

The truth is what the CPU gives.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decode.exactness import ExactRows
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.steps import Limits
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support.helpers import VOCABULARY, FakeBackend
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    decode,
    drafts_of,
    make_drafter,
    make_hf,
    make_target,
    plain,
    prompts,
)
from tests.support.together import outputs, own, together
from tests.tools import pretended

SAMPLED = Settings(temperature=0.9, seed=3)
PENALISED = Settings(repetition_penalty=1.3, frequency_penalty=0.2)


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
    for family in ("llama", "gemma2-sliding", "gemma3-sliding"):
        (model, said), cpu, texts = on(device, family), make_target(family), prompts(3, seed=5)
        model.end_ids = cpu.end_ids = frozenset()
        for text, sampling in zip(texts, (GREEDY, SAMPLED, PENALISED), strict=True):
            truth = {tuple(text): plain(cpu, text, sampling)}
            assert answers(model, [text], sampling) == list(truth.values())
            known = Scripted(drafts_of(truth, wrong=3))
            drafted = decode(model, known, text, sampling, num_draft=20)
            assert drafted.output == truth[tuple(text)]
            assert drafted.statistics.accepted_tokens > 20
        assert said == [] and (device == "mps" or model.passes.captured)


def texts_together_have_the_cpus_tokens(device: str) -> None:
    texts = prompts(6, seed=2)
    (model, said), cpu = on(device, "gemma2-sliding"), make_target("gemma2-sliding")
    truth = [plain(cpu, text, max_tokens=20) for text in texts]
    for _ in range(2):
        assert outputs(together(model, texts, own("trie"), 4)) == truth
        assert answers(model, texts[:1], GREEDY)[0][:20] == truth[0]
    assert said == []


def nearly_all_passes_of_growing_prompts_are_replayed(device: str) -> None:
    """And nothing is captured anew when a prompt is longer, but a next power of two of places."""
    long = {"max_position_embeddings": 4000}
    (model, said), cpu, rng = on(device, **long), make_target(**long), random.Random(2)
    model.end_ids = cpu.end_ids = frozenset()
    model.context = cpu.context = 4000
    words = [rng.randrange(VOCABULARY) for _ in range(1000)]
    for n in range(8):
        text = words[: 250 + 60 * n]
        truth = plain(cpu, text, max_tokens=60)
        known = Scripted(drafts_of({tuple(text): truth[:30]}, wrong=1))  # then one token a pass
        assert decode(model, known, text, max_tokens=60, num_draft=4 + n).output == truth
    replayed, steps = pretended.total("replayed"), pretended.total("step")
    print(replayed, steps)
    assert replayed >= 0.9 * steps and model.passes.captured <= 6 and said == []


def a_step_has_one_copy_each_way(device: str) -> None:
    """Greedy `auto` of one text; to draw takes a second copy to the device."""
    model, _ = on(device)
    texts = prompts(3, seed=4)
    answers(model, texts, GREEDY)
    for sampling, most in ((GREEDY, 1), (SAMPLED, 2), (PENALISED, 3)):
        found = pretended.steps()
        answers(model, texts, sampling)
        for kind, limit in (("in", most), ("out", 1), ("wait", 0)):
            if device == "mps" and sampling is SAMPLED:
                continue  # which has no float64 to draw with
            numbers = [sum(n for (k, _), n in one.items() if k == kind) for one in found]
            assert len(numbers) > 5 and max(numbers) <= limit, (sampling, kind, max(numbers))


def memory_that_ends_in_a_capture_ends_no_capturing(device: str) -> None:
    model, said = on(device)
    texts, cpu = prompts(4, seed=4), make_target()
    truth = [plain(cpu, text) for text in texts]
    capture, left = model.passes._capture, [1]

    def scarce(run: Any, example: torch.Tensor) -> Any:
        live = torch.ops.pretended.live()
        torch.ops.pretended.limit(live + 20_000 if left else 1 << 62)
        try:
            return capture(run, example)  # type: ignore[misc]
        finally:
            left.clear()
            torch.ops.pretended.limit(1 << 62)

    model.passes._capture = scarce
    assert answers(model, texts, GREEDY) == truth and len(said) == 1 and "memory" in said[0]
    assert answers(model, texts, GREEDY) == truth and model.passes.captured and len(said) == 1


def a_model_that_looks_at_the_device_is_not_captured(device: str) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    (model, said), cpu = on(device, rope_parameters=rope), make_target(rope_parameters=rope)
    texts = prompts(2, seed=4)
    assert answers(model, texts, GREEDY) == [plain(cpu, text) for text in texts]
    assert len(said) == 1 and "waits for what the GPU computes" in said[0]
    assert pretended.Stream.now is None and pretended.total("captured") == 0


def exact_passes_have_the_tokens_of_plain_ones(device: str) -> None:
    """In bfloat16, drafted or not."""
    hf = make_hf("llama").to(torch.bfloat16).to(device)
    model = target_model(hf, Tokenizer(FakeBackend()), "llama")
    model.passes.switch_on(model.device, print)
    rows = ExactRows(model, lambda: None, lambda _: None).choose("on", 12, 120)
    for text in prompts(2, seed=5):
        context = Context(text, outside=(tuple(text),), vocabulary=VOCABULARY, rows=rows)
        found = [
            Run(model, make_drafter(method), context, GREEDY, Limits(30, num_draft)).finish().output
            for method, num_draft in (("none", 0), ("auto", 12))
        ]
        assert found[0] == found[1]


def check(name: str, device: str) -> None:
    """Run one of the above on a device that pretends."""
    pretended.install()
    pretended.steps()
    globals()[name](device)
    if pretended.CUDAGraph.modes:  # others' threads may use the device while one captures
        assert pretended.CUDAGraph.modes == {"thread_local"}
