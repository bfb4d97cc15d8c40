"""Decoding under a grammar: the tokens of a naive loop that masks all scores at every token."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from ngtcli.config import Settings
from ngtcli.decode.load import Wanted, load_model
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.decode.sampling import draw, keys_of, warp
from ngtcli.draft.ahead import Ahead, allowed
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, PassRows
from ngtcli.draft.origins import GRAMMAR
from ngtcli.draft.registry import method_names
from ngtcli.draft.steps import Limits
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, UsageError
from ngtcli.grammar.matcher import Grammar, Matcher
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support import thinking_models
from tests.support.helpers import examples
from tests.support.tiny_models import (
    GREEDY,
    LEARNED,
    KnownHeads,
    Scripted,
    check_tree,
    make_drafter,
    make_hf,
    supply,
)
from tests.support.together import joint, outputs, own

SAMPLED = Settings(temperature=1.2, top_p=0.95, seed=5)
PENALIZED = Settings(temperature=0.9, top_k=40, seed=2, repetition_penalty=1.3)
REPEATING = Settings(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)
SAMPLINGS = [GREEDY, SAMPLED, PENALIZED, REPEATING]
TOKENS = 40
STRICT = {"whitespace_flexible": False}


# --- models and grammars ---


@cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(thinking_models.tokenizer(thinking_models.QWEN))


def tiny(family: str = "llama", seed: int = 0, **changes: Any) -> TargetModel:
    """A random model over bytes and some words, whose end token comes up."""
    tokenizer = byte_tokenizer()
    end, size = tokenizer.backend.eos_token_id, len(tokenizer.backend)
    hf = make_hf(family, seed, vocab_size=size, eos_token_id=end, **changes)
    return target_model(hf, tokenizer, family)


cached_tiny = cache(tiny)


@cache
def builtin() -> TargetModel:
    return load_model(Wanted("builtin", "cpu", "float32"))


def bound(model: TargetModel, text: str) -> Grammar:
    return Grammar(text, model.tokenizer, model.vocabulary, model.end_ids)


def by_schema(**properties: Any) -> str:
    return LLMatcher.grammar_from_json_schema(schema_of(properties), overrides=STRICT)


def schema_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": [*properties],
        "additionalProperties": False,
    }  # fmt: skip


PERSON = by_schema(
    name={"type": "string", "maxLength": 12}, age={"type": "integer", "minimum": 0, "maximum": 99},
    kind={"enum": ["ferry", "harbour", "fish"]},
)  # fmt: skip

_VALUES = st.recursive(
    st.sampled_from(
        [
            {"type": "string", "maxLength": 6}, {"type": "integer"}, {"type": "boolean"},
            {"type": "number"}, {"enum": ["so", "so so", "nine"]}, {"type": ["string", "null"]},
            {"type": "string", "pattern": "^[a-c]{2,4}$"}, {"const": 7},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda i: {"type": "array", "items": i, "maxItems": 2}, inner),
        st.builds(schema_of, st.dictionaries(st.sampled_from("ab"), inner, min_size=1)),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=3,
)  # fmt: skip
SCHEMAS = st.builds(
    schema_of,
    st.dictionaries(st.sampled_from(["name", "the year", 'q"', "größe"]), _VALUES, min_size=1),
)
REGEXES = st.lists(
    st.sampled_from(["[a-z]+", "The ferry ", "(so|no)", "[0-9]{1,3}", "x?", " *", "é", "."]),
    min_size=1, max_size=4,
).map("".join)  # fmt: skip


# --- the oracle ---


def naive(
    model: TargetModel, prompt: Sequence[int], grammar: str, sampling: Settings, most: int
) -> list[int]:
    """One pass over the whole text a token, all scores masked by a matcher that reads it anew."""
    backend, size = model.tokenizer.backend, model.vocabulary
    words = LLTokenizer(
        backend.backend_tokenizer.to_str(), n_vocab=max(size, len(backend)),
        eos_token=sorted(model.end_ids) or None,
    )  # fmt: skip
    said: list[int] = []
    while len(said) < most:
        matcher = LLMatcher(words, grammar)
        assert matcher.consume_tokens(said)
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        mask = np.pad(mask, (0, size))[:size].astype(bool)
        mask[list(set(words.eos_tokens) | model.end_ids)] = False
        mask[list(model.end_ids)] = matcher.is_accepting()
        ids = torch.tensor([[*prompt, *said]])
        with torch.no_grad():
            scores = model.hf(ids).logits[0, -1].float()
        penalize(scores, sampling, prompt, said)
        scores[~torch.from_numpy(mask)] = -torch.inf
        if sampling.temperature:
            keys = [torch.from_numpy(k) for k in keys_of(sampling.seed, [len(prompt) + len(said)])]
            said.append(int(draw(warp(scores[None], sampling), *keys)[0]))
        else:
            said.append(int(scores.argmax()))
        if said[-1] in model.end_ids:
            break
        matcher.consume_token(said[-1])
        if not model.end_ids and matcher.is_stopped():
            break
    return said


def penalize(scores: Any, s: Settings, prompt: Sequence[int], said: Sequence[int]) -> None:
    for token in {*prompt, *said} if s.repetition_penalty != 1.0 else ():
        times = s.repetition_penalty if scores[token] < 0 else 1 / s.repetition_penalty
        scores[token] *= times
    for token in set(said):
        scores[token] -= s.presence_penalty + s.frequency_penalty * said.count(token)


def answer(
    model: TargetModel, drafter: Drafter, prompt: Sequence[int], grammar: Grammar | None,
    sampling: Settings = GREEDY, most: int = TOKENS, rows: PassRows | None = None, **limits: Any,
) -> tuple[Run, list[Any]]:  # fmt: skip
    context = Context(
        prompt, outside=(tuple(prompt),), references=(tuple(prompt),), rows=rows,
        vocabulary=model.vocabulary,
    )  # fmt: skip
    run = Run(model, drafter, context, sampling, Limits(most, grammar=grammar, **limits))
    return run, [token for step in run for token in step.tokens]


def guesses(right: Sequence[int], prompt: Sequence[int], seed: int, vocabulary: int) -> Drafter:
    """Forked trees in which the right text often goes on."""

    def propose(ids: Sequence[int], budget: int) -> DraftTree:
        rng, at = random.Random(seed + len(ids)), len(ids) - len(prompt)
        tokens, parents, places = list[int](), list[int](), {ROOT: at}
        for node in range(rng.randint(0, min(budget, 12))):
            parent = rng.choice([*places, max(places)])
            there = places[parent]
            token = right[there] if there < len(right) and rng.random() < 0.8 else -1
            token = token if token >= 0 else rng.randrange(vocabulary)
            if (parent, token) not in zip(parents, tokens, strict=True):
                places[len(tokens)] = there + 1 if token == (right[there : there + 1] or [-1])[0] else 10**6
                tokens.append(token)
                parents.append(parent)
        return DraftTree(tuple(tokens), tuple(parents))

    return Scripted(propose)


def prompt_of(model: TargetModel, text: str = "The ferry leaves at nine. Who? ") -> list[int]:
    return model.tokenizer.encode(text)


def check(
    model: TargetModel, grammar: str, sampling: Settings, drafters: Sequence[Drafter] = (),
    most: int = TOKENS, seed: int = 0,
) -> list[int]:  # fmt: skip
    """Plain and drafted, it is what the naive loop gives; that."""
    prompt, own = prompt_of(model), bound(model, grammar)
    right = naive(model, prompt, grammar, sampling, most)
    plain = make_drafter("none")
    for drafter in (plain, *drafters, guesses(right, prompt, seed, model.vocabulary)):
        run, tokens = answer(model, drafter, prompt, own, sampling, most)
        assert run.output == right, type(drafter)
        if drafter is plain:
            assert not run.statistics.drafted_tokens and run.statistics.steps == len(right)
        else:
            assert run.statistics.steps <= len(right)
        assert {t.origin for t in tokens} >= ({GRAMMAR} if grammar == PERSON and drafter is not plain else set())
    return right


# --- the tests ---


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"{s.temperature}")
@pytest.mark.parametrize("family", ["llama", "gemma2-sliding"])
def test_tokens_are_those_of_the_naive_loop(family: str, sampling: Settings) -> None:
    model = cached_tiny(family)
    check(model, PERSON, sampling, [make_drafter("trie"), make_drafter("auto")])


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, st.sampled_from(SAMPLINGS), st.integers(0, 999), st.booleans())
def test_answers_are_valid_and_those_of_the_naive_loop(
    schema: dict[str, Any], sampling: Settings, seed: int, is_tiny: bool
) -> None:
    model = cached_tiny("llama") if is_tiny else builtin()
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=STRICT)
    ids = check(model, grammar, sampling, [make_drafter("auto")], seed=seed)
    if ids[-1] in model.end_ids:
        Draft202012Validator(schema).validate(json.loads(model.tokenizer.decode(ids[:-1])))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REGEXES, st.sampled_from(SAMPLINGS), st.integers(0, 999))
def test_answers_by_a_pattern_are_those_of_the_naive_loop(
    pattern: str, sampling: Settings, seed: int
) -> None:
    grammar = LLMatcher.grammar_from_regex(pattern)
    check(cached_tiny("qwen3"), grammar, sampling, [make_drafter("recycling")], 24, seed)


@pytest.mark.parametrize("method", [m for m in method_names() if m not in ("none", "draft-model")])
def test_every_method_gives_the_tokens_of_the_naive_loop(method: str) -> None:
    model, pattern = cached_tiny("llama"), '\\{"ferry": "[a-z ]{9,12}", "nine": [0-9]{2,4}\\}'
    prompt, grammar = prompt_of(model), LLMatcher.grammar_from_regex(pattern)
    right = naive(model, prompt, grammar, SAMPLED, TOKENS)
    supply(method, [right])
    heads = KnownHeads([[*prompt, *right]], [method]) if method in LEARNED else None
    masks = (model.vocabulary - 1,) * 2 if method == "space" else ()
    drafter = make_drafter(method, DraftSettings(learn_output=True, heads=heads, masks=masks))
    for _ in range(2):  # what it has learned at first, it drafts now
        run, tokens = answer(model, drafter, prompt, bound(model, grammar), SAMPLED)
        assert run.output == right
        assert run.statistics.steps < len(right) and GRAMMAR in {t.origin for t in tokens}
