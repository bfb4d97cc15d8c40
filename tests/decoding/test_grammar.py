"""Decoding under a grammar: the tokens of a naive loop that masks all scores at every token."""

import gc
import json
import random
import weakref
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
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.decoder import Decoder
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.grammar.matcher import Grammar
from ngtcli.decoding.guide import prune
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.decoding.reasoning import Part, Thinking
from ngtcli.decoding.sampling import draw, keys_of, warp
from ngtcli.drafting.drafter import Context, Drafter, DraftSettings
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import method_names
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, UsageError
from ngtcli.models.tokenizer import Tokenizer
from tests.decoding.test_batch_decoding import Memory
from tests.support import families, thinking_models
from tests.support.helpers import FakeBackend, examples
from tests.support.rounding import Guessing, RoundingModel, rows_in_place
from tests.support.rounding import run as rounded_run
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    LEARNED,
    KnownHeads,
    Scripted,
    a_tree,
    check_tree,
    drafts_of,
    make_drafter,
    make_hf,
    make_target,
    paths,
    supply,
)  # fmt: skip
from tests.support.together import joint, outputs, own, sequence_of, together
from tests.support.tokenizers_of_kinds import KINDS

pytestmark = pytest.mark.search
SAMPLED = Settings.of(temperature=1.2, top_p=0.95, seed=5)
SAMPLINGS = [
    GREEDY, SAMPLED, Settings.of(temperature=0.9, top_k=40, seed=2, repetition_penalty=1.3),
    Settings.of(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
]  # fmt: skip
TOKENS = 40
STRICT = {"whitespace_flexible": False}
any_sampling = pytest.mark.parametrize(
    "sampling", SAMPLINGS, ids=lambda s: f"{s.answer.temperature}"
)


# --- models and grammars ---


@cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(thinking_models.tokenizer(thinking_models.QWEN))


def tiny(family: str = "llama", seed: int = 0, device: str = "cpu") -> TargetModel:
    """A random model over bytes and some words."""
    tokenizer = byte_tokenizer()
    words = {"vocab_size": len(tokenizer.backend), "eos_token_id": tokenizer.backend.eos_token_id}
    return target_model(make_hf(family, seed, **words).to(device), tokenizer, family)


cached_tiny = cache(tiny)


@cache
def builtin() -> TargetModel:
    return load_model(ModelSpec("builtin", "cpu", "float32"))


def bound(model: TargetModel, text: str) -> Grammar:
    return Grammar(text, model.tokenizer, model.vocabulary, model.end_ids)


def by_regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


def by_schema(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=STRICT)


def of(properties: dict[str, Any]) -> dict[str, Any]:
    required = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


_SHORT = {"type": "string", "maxLength": 12}
PERSON = by_schema(
    of({"name": _SHORT, "age": {"minimum": 0, "maximum": 99, "type": "integer"},
        "kind": {"enum": ["ferry", "harbour", "fish"]}})
)  # fmt: skip
LIST = by_schema(of({"a": of({"b": {"type": "array", "items": _SHORT, "maxItems": 4}})}))
WORDS = by_regex("[a-z ]{3,20}(so|no)")
_VALUES = st.recursive(
    st.sampled_from([
        _SHORT, {"type": "integer"}, {"type": "boolean"}, {"type": "number"}, {"const": 7},
        {"enum": ["so", "so so", "nine"]}, {"type": ["string", "null"]},
        {"type": "string", "pattern": "^[a-c]{2,4}$"},
    ]),
    lambda inner: st.one_of(
        st.builds(lambda i: {"type": "array", "items": i, "maxItems": 2}, inner),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(of),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ), max_leaves=3,
)  # fmt: skip
_NAMES = st.sampled_from(["name", "the year", 'q"', "größe"])
SCHEMAS = st.dictionaries(_NAMES, _VALUES, min_size=1).map(of)
_PIECES = ["[a-z]+", "The ferry ", "(so|no)", "[0-9]{1,3}", "x?", " *", "é", "."]
REGEXES = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=4).map("".join)


# --- the oracle ---


def naive(
    model: TargetModel, prompt: Sequence[int], grammar: str, sampling: Settings, most: int = TOKENS
) -> list[int]:
    """One pass over the whole text a token, all scores masked by a matcher that reads it anew."""
    said = list[int]()
    while len(said) < most:
        scores = raw_scores(model, [*prompt, *said])[-1]
        if (token := chosen(model, prompt, said, grammar, sampling, scores)) is None:
            break
        said.append(token)
    return said


def is_naive(
    model: TargetModel, prompt: Sequence[int], grammar: str, sampling: Settings, most: int,
    answer: Sequence[int],
) -> bool:  # fmt: skip
    """Whether `naive` gives this answer, by the scores of one pass over all of it."""
    scores = raw_scores(model, [*prompt, *answer])[len(prompt) - 1 :]
    right = [
        chosen(model, prompt, answer[:at], grammar, sampling, row) for at, row in enumerate(scores)
    ]
    return right[: len(answer)] == answer and (len(answer) == most or right[-1] is None)


@cache
def words_of(model: TargetModel) -> LLTokenizer:
    backend, ends = model.tokenizer.backend, list(model.end_ids)
    text, room = backend.backend_tokenizer.to_str(), max(model.vocabulary, len(backend))
    return LLTokenizer(text, n_vocab=room, eos_token=ends or None)


def chosen(
    model: TargetModel, prompt: Sequence[int], said: Sequence[int], grammar: str, s: Settings,
    scores: torch.Tensor,
) -> int | None:  # fmt: skip
    """The token behind what was said, of all scores masked by a new matcher; None at the end."""
    words, ends = words_of(model), list(model.end_ids)
    matcher = LLMatcher(words, grammar)
    if {*said[-1:]} & {*ends}:
        return None
    assert matcher.consume_tokens([*said])
    if not ends and matcher.is_stopped():
        return None
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    mask = np.unpackbits(bits, count=model.vocabulary, bitorder="little").astype(bool)
    mask[[*words.eos_tokens, *ends]] = False
    mask[ends] = matcher.is_accepting()
    scores = penalized(scores, prompt, said, s).masked_fill(~torch.tensor(mask), -torch.inf)
    if not s.answer.temperature:
        return int(scores.argmax())
    keys = [torch.from_numpy(k) for k in keys_of(s.answer.seed, [len(prompt) + len(said)])]
    return int(draw(warp(scores[None], s), *keys)[0])


def raw_scores(model: TargetModel, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(torch.tensor([[*ids]])).logits[0].float()


def penalized(
    scores: torch.Tensor, prompt: Sequence[int], said: Sequence[int], s: Settings
) -> torch.Tensor:
    scores = scores.clone()
    for token in {*prompt, *said} if s.answer.repetition_penalty != 1.0 else ():
        scores[token] *= (
            s.answer.repetition_penalty if scores[token] < 0 else 1 / s.answer.repetition_penalty
        )
    for token in set(said):
        scores[token] -= s.answer.presence_penalty + s.answer.frequency_penalty * said.count(token)
    return scores


def answer(
    model: TargetModel, drafter: Drafter, prompt: Sequence[int], grammar: Grammar | None,
    sampling: Settings = GREEDY, most: int = TOKENS, **limits: Any,
) -> tuple[Run, list[Any]]:  # fmt: skip
    own, size = tuple(prompt), model.vocabulary
    context = Context(prompt, outside=(own,), references=(own,), vocabulary=size)
    run = Run(model, drafter, context, sampling, Limits(most, grammar=grammar, **limits))
    return run, [token for step in run for token in step.tokens]


def prompt_of(model: TargetModel) -> list[int]:
    return model.tokenizer.encode("The ferry leaves at nine. Who? ")


def check(
    model: TargetModel, grammar: str, sampling: Settings, methods: Sequence[str],
    most: int = TOKENS, prompt: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """Plain and drafted, the answer is what the naive loop gives; that."""
    prompt, limit = prompt or prompt_of(model), bound(model, grammar)
    run, _ = answer(model, make_drafter("none"), prompt, limit, sampling, most)
    right = run.output
    assert is_naive(model, prompt, grammar, sampling, most, right)
    assert run.statistics.steps == len(right) and not run.statistics.drafted_tokens
    known = Scripted(drafts_of({tuple(prompt): right}, 0 if model.takes_chains else 2))
    for drafter in (*map(make_drafter, methods), known):
        run, tokens = answer(model, drafter, prompt, limit, sampling, most)
        assert run.output == right and run.statistics.steps <= len(right)
        assert grammar != PERSON or GRAMMAR in {token.origin for token in tokens}
    return right


# --- decoding ---


@any_sampling
@pytest.mark.parametrize("family", ["llama", "gemma2-sliding"])
def test_tokens_are_those_of_the_naive_loop(family: str, sampling: Settings) -> None:
    check(cached_tiny(family), PERSON, sampling, ["trie", "auto"])


unhurried = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(unhurried, max_examples=examples(6))
@given(
    st.lists(SCHEMAS, min_size=8, max_size=8), st.sampled_from(SAMPLINGS), st.booleans(),
    st.integers(2, 8),
)  # fmt: skip
def test_answers_are_valid_and_those_of_the_naive_loop(
    schemas: list[dict[str, Any]], sampling: Settings, is_tiny: bool, size: int
) -> None:
    """Alone, plain and drafted, and together, so many at once."""
    model, found = cached_tiny("llama") if is_tiny else builtin(), list[list[int]]()
    prompts = [prompt_of(model)[: 3 + at] for at in range(len(schemas))]
    for schema, prompt in zip(schemas, prompts, strict=True):
        found.append(ids := check(model, by_schema(schema), sampling, ["auto"], prompt=prompt))
        if ids[-1] in model.end_ids:
            Draft202012Validator(schema).validate(json.loads(model.tokenizer.decode(ids[:-1])))
    limits = [Limits(TOKENS, grammar=bound(model, by_schema(schema))) for schema in schemas]
    both = together(model, prompts, joint(Pool(1000)), size, sampling, limits.__getitem__)
    assert outputs(both) == found


@settings(unhurried, max_examples=examples(24))
@given(REGEXES, st.sampled_from(SAMPLINGS))
def test_answers_by_a_pattern_are_those_of_the_naive_loop(pattern: str, sampling: Settings) -> None:
    check(cached_tiny("qwen3"), by_regex(pattern), sampling, ["recycling"], 24)


@pytest.mark.parametrize("method", [m for m in method_names() if m != "none"])
def test_every_method_gives_the_tokens_of_the_naive_loop(method: str) -> None:
    model, grammar = cached_tiny("llama"), by_regex('\\{"ferry": "[a-z ]{9,12}", "of": [0-9]{4}\\}')
    prompt = prompt_of(model)
    right = naive(model, prompt, grammar, SAMPLED)
    supply(method, [right])
    heads = KnownHeads([[*prompt, *right]], [method]) if method in LEARNED else None
    masks = (model.vocabulary - 1,) * 2 if method == "space" else ()
    own = {"heads": heads, "masks": masks, "assistant": AssistantModel(make_target(), SAMPLED)}
    drafter = make_drafter(method, DraftSettings(learn_output=True, **own))
    for _ in range(2):  # what it has learned at first, it drafts now
        run, tokens = answer(model, drafter, prompt, bound(model, grammar), SAMPLED)
        assert run.output == right
        assert run.statistics.steps < len(right) and GRAMMAR in {t.origin for t in tokens}


def several(model: TargetModel) -> tuple[list[list[int]], Any, list[list[int]]]:
    """Eight prompts, the limits of each, and the answers of their runs alone."""
    texts = [model.tokenizer.encode("The harbour. " * (i + 1)) for i in range(8)]
    grammars = [*[bound(model, text) for text in (PERSON, WORDS, LIST)], None]
    limits = [Limits(6 * i + 8, 8, grammar=grammars[i % 4]) for i in range(8)]
    none = make_drafter("none")
    truth = [
        answer(model, none, text, own.grammar, SAMPLED, own.max_tokens)[0].output
        for text, own in zip(texts, limits, strict=True)
    ]
    return texts, limits.__getitem__, truth


@pytest.mark.parametrize(
    ("family", "short"),
    [("gemma3-sliding", {}), ("llama", {"rows": 12}), ("gemma3-sliding", {"texts": 3})],
)
def test_texts_together_have_the_tokens_of_their_runs_alone(
    family: str, short: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory ends: then drafts are cut, or texts set aside and read again."""
    texts, limits, truth = several(model := cached_tiny(family))
    memory = Memory(monkeypatch, **short)
    for drafts in (own("trie"), own("lookahead"), joint(Pool(1000)), own()):
        assert outputs(together(model, texts, drafts, 8, SAMPLED, limits)) == truth
    assert bool(memory.refused) == bool(short)


@pytest.mark.parametrize("first", [0, 1])
def test_a_text_is_shared_and_goes_on_alone_with_the_state_of_its_grammar(first: int) -> None:
    texts, limits, truth = several(model := cached_tiny("llama"))
    one = sequence_of(model, texts[6], limits(6), SAMPLED, drafter=make_drafter("auto"))
    other = sequence_of(model, texts[0], limits(0), SAMPLED)
    decoder = Decoder(model)
    ended = decoder.add(one)
    for _ in range(first):
        ended += decoder.step()
    decoder.regroup(own("trie", 8), 3)
    ended += decoder.add(other)
    for _ in range(first):
        ended += decoder.step()
    assert one not in ended
    decoder.regroup()
    while not decoder.is_done:
        decoder.step()
    assert one.token_ids == truth[6] and other.token_ids == truth[0]


@pytest.mark.parametrize("name", ["bloom", "mamba2", "lfm2"])
def test_models_that_take_chains_alone_obey_too(name: str) -> None:
    model = target_model(families.build(families.family(name)), byte_tokenizer(), name)
    model.end_ids = frozenset({byte_tokenizer().backend.eos_token_id})
    assert model.takes_chains
    check(model, PERSON, GREEDY, ["auto", "trie"])


def rounding_model(seed: int) -> Any:
    """One whose 12 tokens are characters, the last of which ends a text."""
    backend = HfTokenizer(models.BPE({sign: at for at, sign in enumerate('{}":,ab01ĠxĊ')}, []))
    backend.decoder = decoders.ByteLevel()
    model = RoundingModel(seed, 90)
    model.tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    model.vocabulary, model.end_ids = 12, frozenset({11})
    return model


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 12), st.sampled_from(SAMPLINGS), st.integers(1, 40),
    st.sampled_from(['\\{"ab":("a"|"b1")(,"x":[01]{2,9})?\\}', "(ab|ba|x)+ 01", ".*"]),
    st.sampled_from([(), ("a",), ('"x',)]),
)  # fmt: skip
def test_exact_passes_have_the_tokens_of_plain_ones(
    seed: int, rows: int, sampling: Settings, most: int, pattern: str, stop: tuple[str, ...]
) -> None:
    """The drafter is told each token once, and what is not emitted is taken back."""
    grammar = bound(model := rounding_model(seed), by_regex(pattern))
    limits = Limits(most, 99, stop, grammar=grammar, probabilities=True)

    with patch.object(PassRows, "rows_in_place", rows_in_place):
        truth = rounded_run(model, make_drafter("none"), [1, 2], sampling, limits, rows)
        drafter = Guessing(truth[0].output, seed)
        found = rounded_run(model, drafter, [1, 2], sampling, limits, rows)
    assert (found[0].output, found[1]) == (truth[0].output, truth[1])
    assert found[0].finish_reason == truth[0].finish_reason
    assert drafter.told == [1, 2, *found[0].output]
    assert taken(grammar, found[0].output) == len(found[0].output)


def test_exact_answers_in_bfloat16_are_those_of_plain_decoding() -> None:
    model = tiny()
    model = target_model(model.hf.to(torch.bfloat16), model.tokenizer, "bfloat16")
    prompt, grammar = prompt_of(model), bound(model, PERSON)
    exact = Exactness(model, lambda _: None).numerics("on", 32, 300)
    context = Context(prompt, outside=(prompt,), vocabulary=model.vocabulary)
    limits = Limits(TOKENS, grammar=grammar)
    truth, *others = (
        Run(model, make_drafter(m), context, SAMPLED, limits, numerics=exact).finish()
        for m in ("none", "auto", "trie")
    )
    assert all(run.output == truth.output and run.exact for run in others)
    assert others[0].statistics.steps < truth.statistics.steps / 2


@pytest.mark.parametrize("most", [0, 3, 99])
@pytest.mark.parametrize("opens", [False, True])
def test_a_thought_is_free_and_the_grammar_begins_behind_it(most: int, opens: bool) -> None:
    model = cached_tiny("llama", 1)
    prompt, grammar = prompt_of(model), bound(model, WORDS)
    free = answer(model, make_drafter("none"), prompt, None, SAMPLED)[0].output
    marks, closing = {free[9]: Part.ANSWER, free[0]: Part.REASONING}, (5, 6, free[9], 7)
    thinking = Thinking(marks, {}, closing, Part.ANSWER if opens else Part.REASONING, False, most)
    thought = free[:10] if most >= 10 else [*free[: max(most, opens)], *closing]
    right = [*thought, *naive(model, [*prompt, *thought], WORDS, SAMPLED)]
    known = Scripted(drafts_of({tuple(prompt): right}, 2))
    for drafter in (*map(make_drafter, ("none", "auto", "trie")), known):
        run, tokens = answer(model, drafter, prompt, grammar, SAMPLED, thinking=thinking)
        assert run.output == right
        assert {t.thought is None for t in tokens[len(thought) :]} == {True}


def test_a_text_without_end_ids_ends_where_nothing_may_follow() -> None:
    model = tiny("llama")
    model.end_ids = frozenset()
    ids = check(model, PERSON, GREEDY, ["auto"], 60)
    assert json.loads(model.tokenizer.decode(ids))["kind"]
    run, _ = answer(model, make_drafter("auto"), prompt_of(model), bound(model, PERSON), most=60)
    assert run.finish_reason == "stop"


@any_sampling
def test_probabilities_are_those_of_the_masked_scores_whatever_drafted(sampling: Settings) -> None:
    model, found = cached_tiny("llama"), []
    prompt, grammar = prompt_of(model), bound(model, PERSON)
    for method in ("none", "auto", "trie"):
        drafter = make_drafter(method)
        run, tokens = answer(model, drafter, prompt, grammar, sampling, probabilities=True)
        found.append([token.probability for token in tokens])
    assert np.allclose(found[1:], found[:1], atol=1e-5)
    matcher = grammar.start()
    for at, (token, probability) in enumerate(zip(run.output, found[0], strict=True)):
        raw = raw_scores(model, [*prompt, *run.output[:at]])[-1]
        scores = penalized(raw, prompt, run.output[:at], sampling).double()
        scores[~torch.from_numpy(matcher.mask())] = -torch.inf
        assert probability == pytest.approx(float(scores.softmax(-1)[token]), abs=1e-4)
        matcher.follow(token)
    assert answer(model, make_drafter("none"), prompt, grammar)[1][0].probability is None


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_scores_that_are_not_numbers_stay_an_error(sampling: Settings) -> None:
    model = tiny("llama", 3)
    model.hf.get_output_embeddings().weight.data[9] = float("nan")  # the grammar never allows it
    with pytest.raises(ModelError, match="not numbers"):
        answer(model, make_drafter("auto"), prompt_of(model), bound(model, PERSON), sampling)


# --- the matcher ---


def taken(grammar: Grammar, tokens: Sequence[int]) -> int:
    """How many tokens a new matcher allows."""
    matcher = grammar.start()
    for count, token in enumerate(tokens):
        if not matcher.allows(token) or not matcher.follow(token):
            return count
    return len(tokens)


@settings(max_examples=examples(100), deadline=None)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_is_forced_is_all_that_is_allowed(schema: dict[str, Any], seed: int) -> None:
    rng, model = random.Random(seed), cached_tiny("llama")
    grammar = bound(model, by_schema(schema))
    matcher, said = grammar.start(), list[int]()
    while len(said) < 30 and (mask := matcher.mask()).any():
        forced = matcher.copy().force(99)
        assert all(matcher.allows(t) == mask[t] for t in rng.sample(range(len(mask)), 20))
        assert all(mask[end] == matcher.accepts for end in model.end_ids)
        assert taken(grammar, [*said, *forced]) == len(said + forced)
        assert not forced or mask.sum() == 1 and matcher.copy().force(2) == forced[:2]
        said.append(int(rng.choice(np.flatnonzero(mask))))
        matcher = matcher.copy()
        assert matcher.follow(said[-1]) and matcher.taken == len(said)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 9), st.integers(0, 3))
def test_of_a_draft_is_left_what_a_grammar_takes(
    seed: int, nodes: int, depth: int, probes: int
) -> None:
    model, shape = cached_tiny("llama"), a_tree(nodes, seed)
    words = [model.tokenizer.encode(word)[0] for word in ("s", "n", "o", " ", "a", "X")]
    tokens = [words[(token + i) % 6] for i, token in enumerate(shape.tokens)]
    edges = [*zip(shape.parents, tokens, strict=True)]
    if len(set(edges)) < len(edges):
        return
    hung = [random.Random(seed).randrange(ROOT, nodes) for _ in range(probes)]
    whole = DraftTree((*tokens, *[1] * probes), (*shape.parents, *hung), probes)
    tree, grammar = whole.cut(depth, 99, 99), bound(model, WORDS)
    found = prune(tree, grammar.start(), depth, 14)
    check_tree(found)
    assert len(found) <= max(14, len(tree)) and max([0, *found.depths()[: found.drafts]]) <= depth
    drafts, left = (paths(t.take(range(t.drafts))) for t in (tree, found))
    assert all(taken(grammar, path) == len(path) for path in left)
    assert left >= {path for path in drafts if taken(grammar, path) == len(path)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_writes_json(kind: str) -> None:
    """Of tokens that may follow, whichever: the text is valid; or a line says why it cannot be."""
    tokenizer, rng, said = Tokenizer(KINDS[kind]()), random.Random(4), list[int]()
    size, schema = len(tokenizer.backend), of({"a b": {"enum": ["xyz", 12, None]}})
    try:
        end = tokenizer.backend.eos_token_id or 0
        matcher = Grammar(by_schema(schema), tokenizer, size, [end]).start()
        while not matcher.ended:
            said.append(int(rng.choice(np.flatnonzero(matcher.mask()))))
            matcher.follow(said[-1])
    except ModelError as error:
        assert "schema" in str(error) and error.hint
        return
    Draft202012Validator(schema).validate(json.loads(tokenizer.decode(said)))


def test_what_cannot_be_a_grammar_is_said_in_a_line() -> None:
    with pytest.raises(UsageError, match="the grammar is not usable: "):
        bound(cached_tiny("llama"), LLMatcher.grammar_from_lark("start: %"))
    with pytest.raises(ModelError, match="has no fast form"):
        Grammar(PERSON, Tokenizer(FakeBackend()), 97, [3])
    with pytest.raises(ModelError, match="cannot go on by its schema"):
        bound(rounding_model(0), by_regex("Q")).start().mask()
    kept = weakref.ref((model := rounding_model(0)).tokenizer)
    bound(model, by_regex("a"))
    del model
    gc.collect()
    assert kept() is None
