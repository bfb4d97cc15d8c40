"""What is checked on a GPU, or one that pretends: `check` runs one of these in a process of its own.

The truth is what the CPU gives.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.draft.drafter import DraftSettings
from ngtcli.draft.steps import Limits
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend
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

FAMILIES = ["llama", "qwen2", "qwen3", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"]
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
    for family in FAMILIES:
        (model, said), cpu, texts = on(device, family), make_target(family), prompts(2, seed=5)
        for sampling in (GREEDY, SAMPLED, PENALISED):
            assert answers(model, texts, sampling) == [plain(cpu, t, sampling) for t in texts]
        truth = {tuple(texts[0]): plain(cpu, texts[0])}
        drafted = decode(model, Scripted(drafts_of(truth, wrong=3)), texts[0], num_draft=20)
        assert drafted.output == truth[tuple(texts[0])] and drafted.statistics.accepted_tokens > 9
        assert said == [] and (device == "mps" or model.passes.captured)


def texts_together_have_the_cpus_tokens(device: str) -> None:
    texts = prompts(6, seed=2)
    for family in ("llama", "gemma2-sliding"):
        model, said = on(device, family)
        cpu = make_target(family)
        truth = [plain(cpu, text, max_tokens=20) for text in texts]
        for _ in range(2):
            assert outputs(together(model, texts, own("trie"), 4)) == truth
            assert answers(model, texts[:1], GREEDY)[0][:20] == truth[0]
        assert said == []


def nearly_all_passes_of_growing_prompts_are_replayed(device: str) -> None:
    """And nothing is captured anew when a prompt is longer, but a next power of two of places."""
    (model, said), cpu = (
        on(device, max_position_embeddings=4000),
        make_target(max_position_embeddings=4000),
    )
    model.end_ids = cpu.end_ids = frozenset()
    body = prompts(1, seed=9)[0]
    texts = [(body * 99)[: 100 + 60 * n] for n in range(8)]
    limits = Limits(max_tokens=60, num_draft=12)
    for model_, wanted in ((model, None), (cpu, None)):
        model_.context = 4000
    found = [decode(model, make_drafter("auto"), t, max_tokens=60, num_draft=12) for t in texts]
    assert [run.output for run in found] == [plain(cpu, t, max_tokens=60) for t in texts]
    passes = sum(run.statistics.steps for run in found)
    print(passes, pretended.total("replayed"), model.passes.captured, file=sys.stderr)
    assert pretended.total("replayed") >= 0.9 * passes and said == [] and limits


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


def check(name: str, device: str) -> None:
    """Run one of the above on a device that pretends."""
    pretended.install()
    globals()[name](device)
    if pretended.CUDAGraph.modes:  # others' threads may use the device while one captures
        assert pretended.CUDAGraph.modes == {"thread_local"}
