"""LongRoPE: all tokens of a sequence have the factors that `generate` gives them.

`generate` of Phi-3 has short factors up to a border. Behind it, it computes its cache again with
long ones.
"""

from functools import cache

import pytest
import torch
import transformers

from ngtcli.decoding import kv_cache, memory_limits, prefixes
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.tree import DraftTree
from ngtcli.models.pretrained import context_limit
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import VOCABULARY, FakeBackend
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    TINY_CONFIG,
    Scripted,
    decode,
    drafts_of,
    generate,
    make_drafter,
    spread_logits,
)

BORDER = 200
CONTEXT = 800
CHUNK = 64
PROMPT = [(7 * n * n + 3 * n) % (VOCABULARY - 4) + 4 for n in range(500)]
LENGTHS = (150, 185, BORDER - 1, BORDER, BORDER + 1, 330)  # 30 tokens later only one is short


@cache
def long_rope() -> TargetModel:
    config = transformers.Phi3Config(
        **{
            **TINY_CONFIG,
            "max_position_embeddings": CONTEXT,
            "original_max_position_embeddings": BORDER,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": BORDER,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [3.0, 4.0, 5.0, 6.0],
            },
        }
    )
    torch.manual_seed(3)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    spread_logits(hf)
    hf.generation_config.eos_token_id = None
    model = target_model(hf, Tokenizer(FakeBackend()), "phi3")
    model.context = CONTEXT  # that of the tokenizer is shorter
    model.end_ids = frozenset()
    return model


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> TargetModel:
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", CHUNK)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", CHUNK)
    return long_rope()


@cache
def truth(length: int) -> list[int]:
    return generate(long_rope().hf, PROMPT[:length], 30)


def test_the_factors_decide_the_answer(model: TargetModel) -> None:
    """Else the tests below could not fail."""
    assert model.verifies_trees
    assert context_limit(model.config, None).tokens == CONTEXT
    logits = []
    for capacity in (BORDER, BORDER + 1):
        model.start(capacity)
        model.prefill(PROMPT[:99])
        logits.append(model.forward(PROMPT[99], DraftTree())[0].clone())
    assert (logits[0] - logits[1]).abs().max() > 0.1


@pytest.mark.parametrize("length", LENGTHS)
def test_answers_are_those_of_generate_across_the_border(model: TargetModel, length: int) -> None:
    prompt = PROMPT[:length]
    run = decode(model, make_drafter("none"), prompt, max_tokens=30)
    assert run.output == truth(length)
    propose = drafts_of({tuple(prompt): truth(length)}, wrong=1)
    run = decode(model, Scripted(propose), prompt, max_tokens=30, num_draft=8)
    assert run.output == truth(length)
    assert run.statistics.mean_acceptance_length > 2
    exact = Numerics(PassRows.fixed(8))
    context = Context(prompt, vocabulary=model.vocabulary)
    run = Run(model, Scripted(propose), context, GREEDY, Limits(30, 7), numerics=exact).finish()
    assert run.output == truth(length)


def test_prefixes_of_other_factors_are_not_found(model: TargetModel) -> None:
    policy = CachePolicy(reads_disk=True, min_disk_s=0.0, max_disk_bytes=10**9)
    model.drop_cache()
    model.keep_prefixes(memory=True)
    cached = []
    for length in (330, 150, 330, 150, 185):
        run = decode(
            model, make_drafter("none"), PROMPT[:length], cache_policy=policy, max_tokens=30
        )
        assert run.output == truth(length)
        cached.append(run.statistics.cached_tokens // CHUNK)
    # What of the last prompt is short lies in memory; the rest of its answer is read again.
    assert cached[:4] == [0, 0, 5, 2]
