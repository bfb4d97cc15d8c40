"""Drafted decoding equals plain decoding and `transformers` generate, in float32."""

import random
from functools import cache
from itertools import cycle

import pytest

from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.registry import method_names
from ngtcli.drafting.tree import DraftTree, chain
from ngtcli.drafting.tries.corpus import build
from tests.support.helpers import CONTEXT, END, VOCABULARY, examples
from tests.support.runs import Run
from tests.support.tiny_models import (
    FAMILIES,
    GREEDY,
    KnownHeads,
    Scripted,
    decode,
    generate,
    make_drafter,
    make_hf,
    make_target,
    plain,
    prompts,
    supply,
)

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("family", FAMILIES)
def test_drafted_plain_and_generate_agree(family: str) -> None:
    hf = make_hf(family)
    model = make_target(family)
    assert model.takes_drafts
    accepted = 0
    for prompt in prompts(examples(3)):
        expected = generate(hf, prompt, 40)
        assert plain(model, prompt) == expected
        # The future itself as the document: long drafts are accepted, forks and all.
        for num_draft in (1, 8, 64):
            drafter = make_drafter("trie", DraftSettings(learn_output=True))
            future = (*prompt, *expected, *reversed(expected), *expected[::2])
            context = Context(prompt, outside=(future, tuple(prompt)))
            run = Run(model, drafter, context, GREEDY, Limits(40, num_draft)).finish()
            assert run.output == expected
            accepted += run.statistics.accepted_tokens
    assert accepted > 100


def test_drafts_of_wrong_tokens_of_end_tokens_and_of_zeros_change_nothing() -> None:
    """The paper's code pads with 0 and accepts the padding; a drafted 0 must be earned."""
    model = make_target()
    rng = random.Random(3)
    for prompt in [*prompts(3, seed=4), [0], [0, 0, 0, 0], [5, 0, 0, 7]]:
        truth = plain(model, prompt)
        for propose in (
            lambda ids, budget: chain([rng.randrange(VOCABULARY) for _ in range(9)]),
            lambda ids, budget: DraftTree((END, 0, END, 0), (-1, -1, 1, 0)),
            lambda ids, budget: chain([0] * 6),
        ):
            assert decode(model, Scripted(propose), prompt).output == truth


def test_an_accepted_end_token_cuts_the_block() -> None:
    hf = make_hf("llama")
    runs_with_accepted_drafts = 0
    for seed in range(12):
        model = make_target("llama")
        prompt = prompts(1, seed=seed)[0]
        free = plain(model, prompt)
        end = free[7]
        model.end_ids = frozenset({end})
        hf.generation_config.eos_token_id = end
        expected = generate(hf, prompt, 40)
        drafter = Scripted(
            lambda ids, b, free=free, p=prompt: chain(free[len(ids) - len(p) :][:20])
        )
        run = decode(model, drafter, prompt)
        assert run.output == expected
        assert run.output == free[: free.index(end) + 1]
        assert run.finish_reason == "stop"
        runs_with_accepted_drafts += run.statistics.accepted_tokens > 0
    assert runs_with_accepted_drafts > 6


def test_several_end_ids_all_count() -> None:
    model = make_target()
    prompt = prompts(1)[0]
    free = plain(model, prompt)
    model.end_ids = frozenset({free[9], free[4], VOCABULARY - 1})
    first = min(free.index(free[9]), free.index(free[4]))
    assert plain(model, prompt) == free[: first + 1]


@pytest.mark.parametrize("spare", [1, 2, 3, 5])
def test_a_prompt_just_short_of_the_context(spare: int) -> None:
    hf = make_hf("llama")
    model = make_target()
    prompt = (prompts(1, seed=5)[0] * 40)[: CONTEXT - spare]
    expected = generate(hf, prompt, spare)
    greedy = Scripted(lambda ids, b: chain(expected[len(ids) - len(prompt) :] + [1] * 9))
    for drafter in (greedy, make_drafter("trie", DraftSettings())):
        run = decode(model, drafter, prompt)
        assert run.output == expected
        assert run.finish_reason == ("context" if len(expected) == spare else "stop")


def test_no_draft_is_longer_than_what_may_still_be_emitted() -> None:
    model = make_target()
    prompt = prompts(1)[0]
    expected = plain(model, prompt)
    drafter = Scripted(lambda ids, b: chain(expected[len(ids) - len(prompt) :]))
    run = decode(model, drafter, prompt, max_tokens=6)
    assert run.output == expected[:6]
    assert len(expected) > 9
    assert run.statistics.drafted_tokens == 5
    assert run.statistics.accepted_tokens == 5


def test_rope_that_changes_with_length_is_not_followed_past_its_first_length() -> None:
    parameters = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
    }
    model = make_target("llama", rope_parameters=parameters)
    assert model.context == 64


@pytest.mark.parametrize(
    "sampling",
    [
        Settings.of(temperature=0.8, seed=1),
        Settings.of(temperature=1.3, top_p=0.9, seed=2),
        Settings.of(temperature=1.0, top_k=5, seed=3, repetition_penalty=1.3),
        Settings.of(temperature=2.0, min_p=0.05, seed=4, presence_penalty=1.0),
        Settings.of(repetition_penalty=1.2, frequency_penalty=0.7),
    ],
)
def test_sampling_gives_the_same_text_with_and_without_drafts(sampling: Settings) -> None:
    model = make_target()
    accepted = 0
    for prompt in prompts(examples(5), seed=9):
        truth = plain(model, prompt, sampling)
        context = Context(prompt, outside=((*truth, *truth[3:]), tuple(prompt)))
        run = Run(model, make_drafter("trie"), context, sampling, Limits(40, 24)).finish()
        assert run.output == truth
        accepted += run.statistics.accepted_tokens
    assert accepted > 20


@cache
def plain_answers() -> list[tuple[TargetModel, list[int], Settings, list[int]]]:
    """What each method is held against: of two models, greedy and sampled, three prompts each.

    The last prompt leaves little room in the context.
    """
    samplings = (GREEDY, Settings.of(temperature=0.8, top_p=0.95, seed=5))
    return [
        (model, prompt, sampling, plain(model, prompt, sampling))
        for model in (make_target("llama"), make_target("gemma2-sliding"))
        for sampling in samplings
        for prompt in [*prompts(2, seed=13), [5] * 150]
    ]


@pytest.mark.parametrize("method", method_names())
def test_every_method_gives_the_tokens_of_plain_decoding(method: str) -> None:
    """One drafter for all prompts, greedy and sampled: what it learned before must not matter."""
    cases = plain_answers()
    supply(method, [[*prompt, *truth] for _, prompt, _, truth in cases])
    assistant = AssistantModel(make_target("llama"), GREEDY)
    heads = KnownHeads([[*prompt, *truth] for _, prompt, _, truth in cases], ())
    own = {"assistant": assistant, "masks": (9, 9), "heads": heads}
    drafter = make_drafter(method, DraftSettings(learn_output=True, **own))
    accepted = 0
    sizes = cycle((16, 1, 80, 8, 16))
    for (model, prompt, sampling, truth), most in zip([*cases, *cases[::2]], sizes, strict=False):
        trie = build([truth[5:30]], 13)
        context = Context(prompt, trie, (tuple(prompt),), (truth[5:30],), "", VOCABULARY)
        run = Run(model, drafter, context, sampling, Limits(40, most)).finish()
        assert run.output == truth
        accepted += run.statistics.accepted_tokens
    assert accepted > 20 or method in ("none", "space")  # guesses of a model not tuned for it
