"""Decoding under a grammar: the tokens of a naive loop that masks all logits at every token."""

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
from ngtcli.decoding.reasoning import StreamPart, Thinking
from ngtcli.decoding.sampling import draw, keys_of, warp
from ngtcli.drafting.drafter import Context, Drafter, DraftSettings
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import method_names
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError, UsageError
from ngtcli.models.tokenizer import Tokenizer
from tests.support import families, thinking_models
from tests.support.batches import (
    LimitedMemory,
    auto_drafts,
    decode_batch,
    outputs,
    separate_drafts,
    sequence_of,
)
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
)
from tests.support.tokenizer_kinds import KINDS

pytestmark = pytest.mark.search
SAMPLED = Settings.of(temperature=1.2, top_p=0.95, seed=5)
SAMPLINGS = [
    GREEDY,
    SAMPLED,
    Settings.of(temperature=0.9, top_k=40, seed=2, repetition_penalty=1.3),
    Settings.of(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
]
TOKENS = 40
STRICT = {"whitespace_flexible": False}
any_sampling = pytest.mark.parametrize(
    "sampling", SAMPLINGS, ids=lambda sampling: f"{sampling.answer.temperature}"
)


# --- models and grammars ---


@cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(thinking_models.tokenizer(thinking_models.QWEN))


def tiny(family: str = "llama", seed: int = 0, device: str = "cpu") -> TargetModel:
    """A random model over bytes and some words."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer.backend), "eos_token_id": tokenizer.backend.eos_token_id}
    return target_model(make_hf(family, seed, **sizes).to(device), tokenizer, family)


cached_tiny = cache(tiny)


@cache
def builtin() -> TargetModel:
    return load_model(ModelSpec("builtin", "cpu", "float32"))


def grammar_for(model: TargetModel, text: str) -> Grammar:
    return Grammar(text, model.tokenizer, model.vocabulary, model.end_ids)


def regex_grammar(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


def schema_grammar(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides=STRICT)


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_SHORT = {"type": "string", "maxLength": 12}
PERSON = schema_grammar(
    object_schema(
        {
            "name": _SHORT,
            "age": {"minimum": 0, "maximum": 99, "type": "integer"},
            "kind": {"enum": ["ferry", "harbour", "fish"]},
        }
    )
)
_LIST_OF_STRINGS = {"type": "array", "items": _SHORT, "maxItems": 4}
LIST = schema_grammar(object_schema({"a": object_schema({"b": _LIST_OF_STRINGS})}))
WORDS = regex_grammar("[a-z ]{3,20}(so|no)")
_VALUES = st.recursive(
    st.sampled_from(
        [
            _SHORT,
            {"type": "integer"},
            {"type": "boolean"},
            {"type": "number"},
            {"const": 7},
            {"enum": ["so", "so so", "nine"]},
            {"type": ["string", "null"]},
            {"type": "string", "pattern": "^[a-c]{2,4}$"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(object_schema),
        st.builds(lambda first, second: {"anyOf": [first, second]}, inner, inner),
    ),
    max_leaves=3,
)
_NAMES = st.sampled_from(["name", "the year", 'q"', "größe"])
SCHEMAS = st.dictionaries(_NAMES, _VALUES, min_size=1).map(object_schema)
_PIECES = ["[a-z]+", "The ferry ", "(so|no)", "[0-9]{1,3}", "x?", " *", "é", "."]
REGEXES = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=4).map("".join)


# --- the oracle ---


def naive_answer(
    model: TargetModel, prompt: Sequence[int], grammar: str, settings: Settings
) -> list[int]:
    """At most `TOKENS` tokens, each from a forward pass over the whole text and a new matcher."""
    output = list[int]()
    while len(output) < TOKENS:
        logits = raw_logits(model, [*prompt, *output])[-1]
        token = naive_token(model, prompt, output, grammar, settings, logits)
        if token is None:
            break
        output.append(token)
    return output


def is_naive_answer(
    model: TargetModel,
    prompt: Sequence[int],
    grammar: str,
    settings: Settings,
    max_tokens: int,
    answer: Sequence[int],
) -> bool:
    """Whether the naive loop gives this answer, by the logits of one forward pass over it."""
    logits = raw_logits(model, [*prompt, *answer])[len(prompt) - 1 :]
    expected = [
        naive_token(model, prompt, answer[:at], grammar, settings, row)
        for at, row in enumerate(logits)
    ]
    is_ended = len(answer) == max_tokens or expected[-1] is None
    return expected[: len(answer)] == answer and is_ended


@cache
def guidance_tokenizer(model: TargetModel) -> LLTokenizer:
    backend = model.tokenizer.backend
    vocab_size = max(model.vocabulary, len(backend))
    end_ids = list(model.end_ids) or None
    return LLTokenizer(backend.backend_tokenizer.to_str(), n_vocab=vocab_size, eos_token=end_ids)


def naive_token(
    model: TargetModel,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar: str,
    settings: Settings,
    logits: torch.Tensor,
) -> int | None:
    """The token after `output`, from logits masked by a new matcher; None at the end."""
    tokenizer = guidance_tokenizer(model)
    end_ids = list(model.end_ids)
    matcher = LLMatcher(tokenizer, grammar)
    if output and output[-1] in end_ids:
        return None
    assert matcher.consume_tokens([*output])
    if not end_ids and matcher.is_stopped():
        return None

    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    mask = np.unpackbits(bits, count=model.vocabulary, bitorder="little").astype(bool)
    mask[[*tokenizer.eos_tokens, *end_ids]] = False
    mask[end_ids] = matcher.is_accepting()

    allowed = penalized(logits, prompt, output, settings)
    allowed = allowed.masked_fill(~torch.tensor(mask), -torch.inf)
    if not settings.answer.temperature:
        return int(allowed.argmax())
    position = len(prompt) + len(output)
    keys = [torch.from_numpy(key) for key in keys_of(settings.answer.seed, [position])]
    return int(draw(warp(allowed[None], settings), *keys)[0])


def raw_logits(model: TargetModel, token_ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(torch.tensor([[*token_ids]])).logits[0].float()


def penalized(
    logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int], settings: Settings
) -> torch.Tensor:
    """A copy of the logits with the penalties of the settings."""
    logits = logits.clone()
    repetition = settings.answer.repetition_penalty
    if repetition != 1.0:
        for token in {*prompt, *output}:
            logits[token] *= repetition if logits[token] < 0 else 1 / repetition
    presence = settings.answer.presence_penalty
    frequency = settings.answer.frequency_penalty
    for token in set(output):
        logits[token] -= presence + frequency * output.count(token)
    return logits


def answer(
    model: TargetModel,
    drafter: Drafter,
    prompt: Sequence[int],
    grammar: Grammar | None,
    sampling: Settings = GREEDY,
    max_tokens: int = TOKENS,
    **limits: Any,
) -> tuple[Run, list[Any]]:
    """The run after its end, and its tokens."""
    text = tuple(prompt)
    context = Context(prompt, outside=(text,), references=(text,), vocabulary=model.vocabulary)
    run = Run(model, drafter, context, sampling, Limits(max_tokens, grammar=grammar, **limits))
    return run, [token for step in run for token in step.tokens]


def prompt_of(model: TargetModel) -> list[int]:
    return model.tokenizer.encode("The ferry leaves at nine. Who? ")


def check(
    model: TargetModel,
    grammar: str,
    sampling: Settings,
    methods: Sequence[str],
    max_tokens: int = TOKENS,
    prompt: Sequence[int] = (),
) -> list[int]:
    """Assert that the plain and the drafted answers are that of the naive loop; return it."""
    prompt = prompt or prompt_of(model)
    matched = grammar_for(model, grammar)
    run, _ = answer(model, make_drafter("none"), prompt, matched, sampling, max_tokens)
    expected = run.output
    assert is_naive_answer(model, prompt, grammar, sampling, max_tokens, expected)
    assert run.statistics.steps == len(expected)
    assert not run.statistics.drafted_tokens

    scripted = Scripted(drafts_of({tuple(prompt): expected}, 0 if model.takes_chains else 2))
    for drafter in (*map(make_drafter, methods), scripted):
        run, tokens = answer(model, drafter, prompt, matched, sampling, max_tokens)
        assert run.output == expected
        assert run.statistics.steps <= len(expected)
        if grammar == PERSON:
            assert GRAMMAR in {token.origin for token in tokens}
    return expected


# --- decoding ---


@any_sampling
@pytest.mark.parametrize("family", ["llama", "gemma2-sliding"])
def test_tokens_are_those_of_the_naive_loop(family: str, sampling: Settings) -> None:
    check(cached_tiny(family), PERSON, sampling, ["trie", "auto"])


unhurried = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(unhurried, max_examples=examples(6))
@given(
    st.lists(SCHEMAS, min_size=8, max_size=8),
    st.sampled_from(SAMPLINGS),
    st.booleans(),
    st.integers(2, 8),
)
def test_answers_are_valid_and_those_of_the_naive_loop(
    schemas: list[dict[str, Any]], sampling: Settings, is_tiny: bool, size: int
) -> None:
    """Single, plain and drafted, and in batches of `size`."""
    model = cached_tiny("llama") if is_tiny else builtin()
    prompts = [prompt_of(model)[: 3 + at] for at in range(len(schemas))]
    single_outputs = list[list[int]]()
    for schema, prompt in zip(schemas, prompts, strict=True):
        output = check(model, schema_grammar(schema), sampling, ["auto"], prompt=prompt)
        single_outputs.append(output)
        if output[-1] in model.end_ids:
            value = json.loads(model.tokenizer.decode(output[:-1]))
            Draft202012Validator(schema).validate(value)

    grammars = [grammar_for(model, schema_grammar(schema)) for schema in schemas]
    limits = [Limits(TOKENS, grammar=grammar) for grammar in grammars]
    batched = decode_batch(
        model, prompts, auto_drafts(Pool(1000)), size, sampling, limits.__getitem__
    )
    assert outputs(batched) == single_outputs


@settings(unhurried, max_examples=examples(24))
@given(REGEXES, st.sampled_from(SAMPLINGS))
def test_answers_by_a_pattern_are_those_of_the_naive_loop(pattern: str, sampling: Settings) -> None:
    check(cached_tiny("qwen3"), regex_grammar(pattern), sampling, ["recycling"], 24)


@pytest.mark.parametrize("method", [name for name in method_names() if name != "none"])
def test_every_method_gives_the_tokens_of_the_naive_loop(method: str) -> None:
    model = cached_tiny("llama")
    grammar = regex_grammar('\\{"ferry": "[a-z ]{9,12}", "of": [0-9]{4}\\}')
    prompt = prompt_of(model)
    expected = naive_answer(model, prompt, grammar, SAMPLED)

    supply(method, [expected])
    settings = DraftSettings(
        learn_output=True,
        heads=KnownHeads([[*prompt, *expected]], [method]) if method in LEARNED else None,
        masks=(model.vocabulary - 1,) * 2 if method == "space" else (),
        assistant=AssistantModel(make_target(), SAMPLED),
    )
    drafter = make_drafter(method, settings)
    for _ in range(2):  # the second answer is drafted from what the first one taught
        run, tokens = answer(model, drafter, prompt, grammar_for(model, grammar), SAMPLED)
        assert run.output == expected
        assert run.statistics.steps < len(expected)
        assert GRAMMAR in {token.origin for token in tokens}


def eight_sequences(model: TargetModel) -> tuple[list[list[int]], Any, list[list[int]]]:
    """Eight prompts, the limits of each, and their outputs when each is decoded alone."""
    prompts = [model.tokenizer.encode("The harbour. " * (i + 1)) for i in range(8)]
    grammars = [*[grammar_for(model, text) for text in (PERSON, WORDS, LIST)], None]
    limits = [Limits(6 * i + 8, 8, grammar=grammars[i % 4]) for i in range(8)]
    plain = make_drafter("none")
    single_outputs = [
        answer(model, plain, prompt, limit.grammar, SAMPLED, limit.max_tokens)[0].output
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    return prompts, limits.__getitem__, single_outputs


@pytest.mark.parametrize(
    ("family", "short"),
    [("gemma3-sliding", {}), ("llama", {"max_rows": 12}), ("gemma3-sliding", {"max_sequences": 3})],
)
def test_batched_sequences_have_the_tokens_of_single_ones(
    family: str, short: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where memory ends: then drafts are cut, or sequences preempted and prefilled again."""
    model = cached_tiny(family)
    prompts, limits, single_outputs = eight_sequences(model)
    memory = LimitedMemory(monkeypatch, **short)
    for drafting in (
        separate_drafts("trie"),
        separate_drafts("lookahead"),
        auto_drafts(Pool(1000)),
        separate_drafts(),
    ):
        batched = decode_batch(model, prompts, drafting, 8, SAMPLED, limits)
        assert outputs(batched) == single_outputs
    assert bool(memory.failures) == bool(short)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_sequence_keeps_the_state_of_its_grammar_into_a_batch_and_out_of_it(steps: int) -> None:
    model = cached_tiny("llama")
    prompts, limits, single_outputs = eight_sequences(model)
    long = sequence_of(model, prompts[6], limits(6), SAMPLED, drafter=make_drafter("auto"))
    short = sequence_of(model, prompts[0], limits(0), SAMPLED)

    decoder = Decoder(model)
    ended = decoder.add(long)
    for _ in range(steps):
        ended += decoder.step()
    decoder.regroup(separate_drafts("trie", 8), 3)
    ended += decoder.add(short)
    for _ in range(steps):
        ended += decoder.step()
    assert long not in ended
    decoder.regroup()
    while not decoder.is_done:
        decoder.step()
    assert long.token_ids == single_outputs[6]
    assert short.token_ids == single_outputs[0]


@pytest.mark.parametrize("name", ["bloom", "mamba2", "lfm2"])
def test_models_that_verify_only_chains_follow_a_grammar(name: str) -> None:
    model = target_model(families.build(families.family(name)), byte_tokenizer(), name)
    model.end_ids = frozenset({byte_tokenizer().backend.eos_token_id})
    assert model.takes_chains
    check(model, PERSON, GREEDY, ["auto", "trie"])


def rounding_model(seed: int) -> Any:
    """A model whose 12 tokens are characters, the last of which ends a text."""
    vocabulary = {sign: token_id for token_id, sign in enumerate('{}":,ab01ĠxĊ')}
    backend = HfTokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    model = RoundingModel(seed, 90)
    model.tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    model.vocabulary = 12
    model.end_ids = frozenset({11})
    return model


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from(SAMPLINGS),
    st.integers(1, 40),
    st.sampled_from(['\\{"ab":("a"|"b1")(,"x":[01]{2,9})?\\}', "(ab|ba|x)+ 01", ".*"]),
    st.sampled_from([(), ("a",), ('"x',)]),
)
def test_exact_passes_have_the_tokens_of_plain_ones(
    seed: int, rows: int, sampling: Settings, max_tokens: int, pattern: str, stop: tuple[str, ...]
) -> None:
    """The drafter learns each token once, and what is not emitted is taken back."""
    model = rounding_model(seed)
    grammar = grammar_for(model, regex_grammar(pattern))
    limits = Limits(max_tokens, 99, stop, grammar=grammar, probabilities=True)
    prompt = [1, 2]

    with patch.object(PassRows, "rows_in_place", rows_in_place):
        plain, plain_text = rounded_run(model, make_drafter("none"), prompt, sampling, limits, rows)
        drafter = Guessing(plain.output, seed)
        drafted, drafted_text = rounded_run(model, drafter, prompt, sampling, limits, rows)

    assert drafted.output == plain.output
    assert drafted_text == plain_text
    assert drafted.finish_reason == plain.finish_reason
    assert drafter.followed == [*prompt, *drafted.output]
    assert allowed_count(grammar, drafted.output) == len(drafted.output)


def test_exact_answers_in_bfloat16_are_those_of_plain_decoding() -> None:
    model = tiny()
    model = target_model(model.hf.to(torch.bfloat16), model.tokenizer, "bfloat16")
    prompt = prompt_of(model)
    exact = Exactness(model).numerics("on", 32, 300)
    context = Context(prompt, outside=(prompt,), vocabulary=model.vocabulary)
    limits = Limits(TOKENS, grammar=grammar_for(model, PERSON))
    plain, *drafted = (
        Run(model, make_drafter(method), context, SAMPLED, limits, numerics=exact).finish()
        for method in ("none", "auto", "trie")
    )
    for run in drafted:
        assert run.output == plain.output
        assert run.exact
    assert drafted[0].statistics.steps < plain.statistics.steps / 2


@pytest.mark.parametrize("max_tokens", [0, 3, 99])
@pytest.mark.parametrize("is_opened", [False, True], ids=["prompt opens", "answer opens"])
def test_reasoning_is_free_and_the_grammar_begins_behind_it(
    max_tokens: int, is_opened: bool
) -> None:
    """`is_opened`: the answer opens the reasoning by its first token, not the prompt."""
    model = cached_tiny("llama", 1)
    prompt = prompt_of(model)
    free = answer(model, make_drafter("none"), prompt, None, SAMPLED)[0].output
    closing = (5, 6, free[9], 7)
    thinking = Thinking(
        tokens={free[9]: StreamPart.ANSWER, free[0]: StreamPart.REASONING},
        texts={},
        closing=closing,
        part=StreamPart.ANSWER if is_opened else StreamPart.REASONING,
        is_closed=False,
        max_tokens=max_tokens,
    )

    if max_tokens >= 10:
        reasoning = free[:10]
    else:
        reasoning = [*free[: max(max_tokens, int(is_opened))], *closing]
    expected = [*reasoning, *naive_answer(model, [*prompt, *reasoning], WORDS, SAMPLED)]

    grammar = grammar_for(model, WORDS)
    scripted = Scripted(drafts_of({tuple(prompt): expected}, 2))
    for drafter in (*map(make_drafter, ("none", "auto", "trie")), scripted):
        run, tokens = answer(model, drafter, prompt, grammar, SAMPLED, thinking=thinking)
        assert run.output == expected
        assert {token.thought is None for token in tokens[len(reasoning) :]} == {True}


def test_an_answer_without_end_ids_ends_where_nothing_may_follow() -> None:
    model = tiny("llama")
    model.end_ids = frozenset()
    output = check(model, PERSON, GREEDY, ["auto"], 60)
    assert json.loads(model.tokenizer.decode(output))["kind"]
    grammar = grammar_for(model, PERSON)
    run, _ = answer(model, make_drafter("auto"), prompt_of(model), grammar, max_tokens=60)
    assert run.finish_reason == "stop"


@any_sampling
def test_probabilities_are_those_of_the_masked_logits_whatever_drafted(sampling: Settings) -> None:
    model = cached_tiny("llama")
    prompt = prompt_of(model)
    grammar = grammar_for(model, PERSON)
    probabilities = []
    for method in ("none", "auto", "trie"):
        drafter = make_drafter(method)
        run, tokens = answer(model, drafter, prompt, grammar, sampling, probabilities=True)
        probabilities.append([token.probability for token in tokens])
    assert np.allclose(probabilities[1:], probabilities[:1], atol=1e-5)

    matcher = grammar.start()
    for at, (token, probability) in enumerate(zip(run.output, probabilities[0], strict=True)):
        output = run.output[:at]
        logits = raw_logits(model, [*prompt, *output])[-1]
        logits = penalized(logits, prompt, output, sampling).double()
        logits[~torch.from_numpy(matcher.mask())] = -torch.inf
        assert probability == pytest.approx(float(logits.softmax(-1)[token]), abs=1e-4)
        matcher.follow(token)


def test_a_token_has_no_probability_unless_it_is_asked_for() -> None:
    model = cached_tiny("llama")
    grammar = grammar_for(model, PERSON)
    _, tokens = answer(model, make_drafter("none"), prompt_of(model), grammar)
    assert tokens[0].probability is None


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_logits_that_are_not_numbers_stay_an_error(sampling: Settings) -> None:
    model = tiny("llama", 3)
    model.hf.get_output_embeddings().weight.data[9] = float("nan")  # the grammar never allows it
    with pytest.raises(ModelError, match="not numbers"):
        answer(model, make_drafter("auto"), prompt_of(model), grammar_for(model, PERSON), sampling)


# --- the matcher ---


def allowed_count(grammar: Grammar, tokens: Sequence[int]) -> int:
    """The number of tokens that a new matcher allows."""
    matcher = grammar.start()
    for count, token in enumerate(tokens):
        if not matcher.allows(token) or not matcher.follow(token):
            return count
    return len(tokens)


@settings(max_examples=examples(100), deadline=None)
@given(SCHEMAS, st.integers(0, 2**32))
def test_forced_tokens_are_the_only_allowed_ones(schema: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    model = cached_tiny("llama")
    grammar = grammar_for(model, schema_grammar(schema))
    matcher = grammar.start()
    output = list[int]()
    mask = matcher.mask()
    while len(output) < 30 and mask.any():
        forced = matcher.copy().force(99)
        sampled = rng.sample(range(len(mask)), 20)
        assert all(matcher.allows(token) == mask[token] for token in sampled)
        assert all(mask[end] == matcher.accepts for end in model.end_ids)
        assert allowed_count(grammar, [*output, *forced]) == len(output) + len(forced)
        if forced:
            assert mask.sum() == 1
            assert matcher.copy().force(2) == forced[:2]

        token = int(rng.choice(np.flatnonzero(mask)))
        output.append(token)
        matcher = matcher.copy()
        assert matcher.follow(token)
        assert matcher.taken == len(output)
        mask = matcher.mask()


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 9), st.integers(0, 3))
def test_a_pruned_draft_holds_the_paths_that_a_grammar_allows(
    seed: int, nodes: int, depth: int, probes: int
) -> None:
    model = cached_tiny("llama")
    shape = a_tree(nodes, seed)
    letters = [model.tokenizer.encode(letter)[0] for letter in ("s", "n", "o", " ", "a", "X")]
    tokens = [letters[(token + i) % 6] for i, token in enumerate(shape.tokens)]
    edges = [*zip(shape.parents, tokens, strict=True)]
    if len(set(edges)) < len(edges):
        return

    probe_parents = [random.Random(seed).randrange(ROOT, nodes) for _ in range(probes)]
    whole = DraftTree((*tokens, *[1] * probes), (*shape.parents, *probe_parents), probes)
    tree = whole.cut(depth, 99, 99)
    grammar = grammar_for(model, WORDS)
    pruned = prune(tree, grammar.start(), depth, 14)
    check_tree(pruned)
    assert len(pruned) <= max(14, len(tree))
    assert max([0, *pruned.depths()[: pruned.drafts]]) <= depth

    drafted_paths = paths(tree.take(range(tree.drafts)))
    pruned_paths = paths(pruned.take(range(pruned.drafts)))
    assert all(allowed_count(grammar, path) == len(path) for path in pruned_paths)
    allowed_paths = {path for path in drafted_paths if allowed_count(grammar, path) == len(path)}
    assert pruned_paths >= allowed_paths


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_writes_json(kind: str) -> None:
    """Any allowed tokens give a valid text, or an error says why they cannot."""
    tokenizer = Tokenizer(KINDS[kind]())
    rng = random.Random(4)
    schema = object_schema({"a b": {"enum": ["xyz", 12, None]}})
    output = list[int]()
    try:
        end_id = tokenizer.backend.eos_token_id or 0
        vocab_size = len(tokenizer.backend)
        matcher = Grammar(schema_grammar(schema), tokenizer, vocab_size, [end_id]).start()
        while not matcher.ended:
            token = int(rng.choice(np.flatnonzero(matcher.mask())))
            output.append(token)
            matcher.follow(token)
    except ModelError as error:
        assert "structured output" in str(error)
        assert error.hint
        return
    Draft202012Validator(schema).validate(json.loads(tokenizer.decode(output)))


def test_a_grammar_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(UsageError, match="invalid grammar: "):
        grammar_for(cached_tiny("llama"), LLMatcher.grammar_from_lark("start: %"))
    with pytest.raises(ModelError, match="requires a fast tokenizer"):
        Grammar(PERSON, Tokenizer(FakeBackend()), 97, [3])
    with pytest.raises(ModelError, match="cannot continue under its schema"):
        grammar_for(rounding_model(0), regex_grammar("Q")).start().mask()


def test_a_grammar_does_not_keep_its_tokenizer_alive() -> None:
    model = rounding_model(0)
    tokenizer = weakref.ref(model.tokenizer)
    grammar_for(model, regex_grammar("a"))
    del model
    gc.collect()
    assert tokenizer() is None
