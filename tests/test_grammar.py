"""Decoding under a grammar: the tokens of a naive loop that masks all scores at every token."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from ngtcli.config import Settings
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.decoder import Member
from ngtcli.decode.load import Wanted, load_model
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import target_model
from ngtcli.decode.sampling import draw, keys_of, warp
from ngtcli.draft.ahead import allowed
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, PassRows
from ngtcli.draft.origins import GRAMMAR
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import method_names
from ngtcli.draft.steps import Limits
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, UsageError
from ngtcli.grammar.matcher import Grammar
from ngtcli.prompt.thinking import ANSWER, THOUGHT, Thinking
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support import families, thinking_models
from tests.support.helpers import FakeBackend, examples
from tests.support.rounding import Guessing, RoundingModel, capacity
from tests.support.rounding import run as rounded_run
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
from tests.support.together import joint, outputs, own, together
from tests.support.tokenizers_of_kinds import KINDS
from tests.test_batch_decoding import Memory

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
        for _ in range(rng.randint(0, min(budget, 12))):
            parent = rng.choice([*places, max(places)])
            there = places[parent]
            token = right[there] if there < len(right) and rng.random() < 0.8 else -1
            token = token if token >= 0 else rng.randrange(vocabulary)
            if (parent, token) not in zip(parents, tokens, strict=True):
                places[len(tokens)] = (
                    there + 1 if token == (right[there : there + 1] or [-1])[0] else 10**6
                )
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
        assert {t.origin for t in tokens} >= (
            {GRAMMAR} if grammar == PERSON and drafter is not plain else set()
        )
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


FORMS = [
    PERSON,
    LLMatcher.grammar_from_regex("[a-z ]{3,20}(so|no)"),
    "",
    by_schema(a=schema_of({"b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}})),
]


def several(model: TargetModel) -> tuple[list[list[int]], Any, list[list[int]]]:
    """Eight prompts, the limits of each, and the answers of their runs alone."""
    texts = [prompt_of(model, "The harbour. " * (i + 1)) for i in range(8)]
    grammars = [bound(model, text) if text else None for text in FORMS]
    limits = [Limits(6 * i + 8, 8, grammar=grammars[i % 4]) for i in range(8)]
    truth = [
        answer(model, make_drafter("none"), text, own.grammar, SAMPLED, own.max_tokens)[0].output
        for text, own in zip(texts, limits, strict=True)
    ]
    return texts, limits.__getitem__, truth


@pytest.mark.parametrize("short", [None, "rows", "texts"])
@pytest.mark.parametrize("family", ["llama", "gemma3-sliding"])
def test_texts_together_have_the_tokens_of_their_runs_alone(
    family: str, short: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory ends: then drafts are cut, or texts set aside and read again."""
    model = cached_tiny(family)
    texts, limits, truth = several(model)
    memory = Memory(monkeypatch, **{short: 12 if short == "rows" else 3}) if short else None
    for drafts in (own("trie"), own("lookahead"), joint(Pool(1000)), own()):
        assert outputs(together(model, texts, drafts, 8, SAMPLED, limits)) == truth
    assert memory is None or memory.refused


@pytest.mark.parametrize("first", [1, 2])
def test_a_text_is_shared_and_goes_on_alone_with_the_state_of_its_grammar(first: int) -> None:
    model = cached_tiny("llama")
    texts, limits, truth = several(model)
    context = Context(texts[6], outside=(texts[6],), vocabulary=model.vocabulary)
    one = Run(model, make_drafter("auto"), context, SAMPLED, limits(6))
    over = one.decoder.add(one.member)
    for _ in range(first):
        over += one.decoder.step()
    one.decoder.share(own("trie", 8), 3)
    known = Continuation(model, Context(texts[0]), SAMPLED, limits(0))
    over += one.decoder.add(Member(0, known, Context(texts[0])))
    for _ in range(first):
        over += one.decoder.step()
    assert one.member not in over
    one.member.drafter.leave()
    one.decoder.close()
    again = Run(model, make_drafter("auto"), context, SAMPLED, limits(6), text=one.member.text)
    assert again.finish().output == truth[6]


@pytest.mark.parametrize("name", ["bloom", "mamba2", "lfm2"])
def test_models_that_take_chains_alone_obey_too(name: str) -> None:
    hf = families.build(families.family(name))
    model = target_model(hf, byte_tokenizer(), name)
    model.end_ids = frozenset({byte_tokenizer().backend.eos_token_id})
    assert model.takes_chains
    check(model, PERSON, GREEDY, [make_drafter("auto"), make_drafter("trie")])


SIGNS = '{}":,ab01ĠxĊ'  # as tokens of bytes are written


def rounding_model(seed: int) -> Any:
    """One whose 12 tokens are characters, the last of which ends a text."""
    vocabulary = {sign: at for at, sign in enumerate(SIGNS)}
    backend = HfTokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    model = RoundingModel(seed, 90)
    model.tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    model.end_ids = frozenset({11})
    return model


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 12), st.sampled_from(SAMPLINGS), st.integers(1, 40),
    st.sampled_from(['{"ab":("a"|"b1")(,"x":[01]{2,9})?}', "(ab|ba|x)+ 01", ".*"]),
    st.sampled_from(["", "a", '"x'])
)  # fmt: skip
def test_exact_passes_have_the_tokens_of_plain_ones(
    seed: int, rows: int, sampling: Settings, most: int, pattern: str, stop: str
) -> None:
    """The drafter is told each token once, and what is not emitted is taken back."""
    model = rounding_model(seed)
    grammar = Grammar(
        LLMatcher.grammar_from_regex(pattern.replace('{"', '\\{"').replace("}'", "\\}")),
        model.tokenizer,
        12,
        model.end_ids,
    )
    limits = Limits(most, 99, (stop,) if stop else (), grammar=grammar, probabilities=True)
    with patch(
        "ngtcli.decode.exact.rows_alike", lambda at, rows: capacity(at, rows) - at - rows + 1
    ):
        truth, text = rounded_run(model, make_drafter("none"), [1, 2], sampling, limits, rows)
        drafter = Guessing(truth.output, seed)
        found, found_text = rounded_run(model, drafter, [1, 2], sampling, limits, rows)
    assert (found.output, found_text) == (truth.output, text)
    assert found.finish_reason == truth.finish_reason
    assert drafter.told == [1, 2, *found.output]
    matcher = grammar.start()
    assert matcher.take(found.output) == len(found.output)


@pytest.mark.parametrize("most", [0, 3, 99])
@pytest.mark.parametrize("opens", [False, True])
def test_a_thought_is_free_and_the_grammar_begins_behind_it(most: int, opens: bool) -> None:
    model = cached_tiny("llama", 1)
    prompt, grammar = prompt_of(model), bound(model, FORMS[1])
    free = answer(model, make_drafter("none"), prompt, None, SAMPLED)[0].output
    mark, closing = free[9], (5, 6, free[9], 7)
    thinking = Thinking(
        {mark: ANSWER, free[0]: THOUGHT}, {}, closing, ANSWER if opens else THOUGHT, False, most
    )
    thought = free[:10] if most >= 10 else [*free[: max(most, opens)], *closing]
    right = [*thought, *naive(model, [*prompt, *thought], FORMS[1], SAMPLED, TOKENS)]
    for drafter in (
        make_drafter("none"), make_drafter("auto"), make_drafter("trie"),
        guesses(right, prompt, most, model.vocabulary),
    ):  # fmt: skip
        run, tokens = answer(model, drafter, prompt, grammar, SAMPLED, thinking=thinking)
        assert run.output == right
        assert {t.thought is None for t in tokens[len(thought) :]} == {True}


def test_a_text_without_end_ids_ends_where_nothing_may_follow() -> None:
    model = tiny("llama")
    model.end_ids = frozenset()
    ids = check(model, PERSON, GREEDY, [make_drafter("auto")], 60)
    assert json.loads(model.tokenizer.decode(ids))["kind"]
    run, _ = answer(model, make_drafter("auto"), prompt_of(model), bound(model, PERSON), most=60)
    assert run.finish_reason == "stop"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"{s.temperature}")
def test_probabilities_are_those_of_the_masked_scores_whatever_drafted(sampling: Settings) -> None:
    model, prompt = cached_tiny("llama"), prompt_of(cached_tiny("llama"))
    own_, found = bound(model, PERSON), []
    for method in ("none", "auto", "trie"):
        run, tokens = answer(
            model, make_drafter(method), prompt, own_, sampling, probabilities=True
        )
        found.append([token.probability for token in tokens])
    assert np.allclose(found[1], found[0], atol=1e-5) and np.allclose(found[2], found[0], atol=1e-5)
    matcher, at = own_.start(), 0
    for token, probability in zip(run.output, found[0], strict=True):
        with torch.no_grad():
            scores = model.hf(torch.tensor([[*prompt, *run.output[:at]]])).logits[0, -1].double()
        penalize(scores, sampling, prompt, run.output[:at])
        scores[~torch.from_numpy(matcher.mask())] = -torch.inf
        assert probability == pytest.approx(float(scores.softmax(-1)[token]), abs=1e-4)
        matcher.push(token)
        at += 1
    assert answer(model, make_drafter("none"), prompt, own_)[1][0].probability is None


def test_scores_that_are_not_numbers_stay_an_error() -> None:
    model = tiny("llama", 3)
    model.hf.get_output_embeddings().weight.data[9] = float("nan")  # the grammar never allows it
    for sampling in (GREEDY, SAMPLED):
        with pytest.raises(ModelError, match="not numbers"):
            answer(model, make_drafter("auto"), prompt_of(model), bound(model, PERSON), sampling)


# --- the matcher ---


@settings(max_examples=examples(100), deadline=None)
@given(SCHEMAS, st.integers(0, 2**32))
def test_a_matcher_copied_and_rolled_back_is_a_new_one(schema: dict[str, Any], seed: int) -> None:
    rng, model = random.Random(seed), cached_tiny("llama")
    grammar = bound(model, LLMatcher.grammar_from_json_schema(schema, overrides=STRICT))
    matcher, said = grammar.start(), list[int]()
    for _ in range(30):
        mask = matcher.mask()
        assert all(matcher.allows(t) == mask[t] for t in rng.sample(range(len(mask)), 20))
        assert all(mask[end] == matcher.accepts for end in model.end_ids)
        fresh = grammar.start()
        assert fresh.take(said) == len(said) and (fresh.mask() == mask).all()
        forced, most = matcher.forced(99), rng.randint(0, 4)
        assert matcher.copy().take(forced) == len(forced) and matcher.forced(most) == forced[:most]
        assert not forced or mask.sum() == 1
        if not mask.any():
            break
        said.append(int(rng.choice(np.flatnonzero(mask))))
        assert matcher.take([said[-1], -1]) == 1
        back = rng.randint(0, len(said)) if rng.random() < 0.3 else 0
        matcher.rollback(back)
        del said[len(said) - back :]
    with pytest.raises(ValueError, match="than were taken"):
        matcher.rollback(len(said) + 1)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 9), st.integers(0, 3))
def test_of_a_draft_is_left_what_a_grammar_takes(
    seed: int, nodes: int, depth: int, probes: int
) -> None:
    rng, model = random.Random(seed), cached_tiny("llama")
    matcher = bound(model, FORMS[1]).start()
    words = [model.tokenizer.encode(word)[0] for word in ("s", "n", "o", " ", "a", "X")]
    tree = DraftTree()
    for node in range(nodes):
        parent, token = rng.randint(ROOT, node - 1), rng.choice(words)
        if (parent, token) not in zip(tree.parents, tree.tokens, strict=True):
            tree = DraftTree(
                (*tree.tokens, token), (*tree.parents, parent if parent < len(tree) else ROOT)
            )
    try:
        check_tree(tree)
    except ValueError:
        return
    hung = [rng.randint(ROOT, len(tree) - 1) for _ in range(probes)]
    tree = DraftTree((*tree.tokens, *[1] * probes), (*tree.parents, *hung), probes)
    found = allowed(tree.cut(depth, 99, 99), matcher, depth, 14)
    check_tree(found)
    assert len(found) <= max(14, len(tree)) and max([0, *found.depths()[: found.drafts]]) <= depth
    wanted = {
        path for path in paths_of(tree.cut(depth, 99, 99)) if matcher.copy().take(path) == len(path)
    }
    extra = paths_of(found) - wanted
    assert wanted <= paths_of(found) and all(matcher.copy().take(p) == len(p) for p in extra)


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each draft."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens[: tree.drafts], tree.parents, strict=False):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return set(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_writes_json(kind: str) -> None:
    """Of tokens that may follow, whichever: the text is valid; or a line says why it cannot be."""
    tokenizer, rng = Tokenizer(KINDS[kind]()), random.Random(4)
    size, schema = len(tokenizer.backend), schema_of({"a b": {"enum": ["xyz", 12, None]}})
    text = LLMatcher.grammar_from_json_schema(schema, overrides=STRICT)
    try:
        matcher = Grammar(text, tokenizer, size, [tokenizer.backend.eos_token_id or 0]).start()
        said = list[int]()
        while not matcher.ended:
            said.append(int(rng.choice(np.flatnonzero(matcher.mask()))))
            matcher.push(said[-1])
    except ModelError as error:
        assert "schema" in str(error) and error.hint
        return
    Draft202012Validator(schema).validate(json.loads(tokenizer.decode(said)))


def test_what_cannot_be_a_grammar_is_said_in_a_line() -> None:
    with pytest.raises(UsageError, match="the grammar is not usable: "):
        bound(cached_tiny("llama"), LLMatcher.grammar_from_lark("start: %"))
    slow = Tokenizer(FakeBackend())
    with pytest.raises(ModelError, match="has no fast form"):
        Grammar(PERSON, slow, 97, [3])
    few = rounding_model(0)
    with pytest.raises(ModelError, match="cannot go on by its schema"):
        Grammar(LLMatcher.grammar_from_regex("Q"), few.tokenizer, 12, [11]).start().mask()
