"""A batch of sequences: each gets the tokens that it gets when it is decoded alone."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.decoding import kv_cache, memory_limits, prefixes, probe, scheduler
from ngtcli.decoding.batched_attention import BatchKeys
from ngtcli.decoding.decoder import Decoder
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.logits import logits_are_not_numbers
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import find_batching
from ngtcli.decoding.scheduler import Scheduler
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.decoding.support import SUPPORTED
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from tests.support.batches import (
    LimitedMemory,
    auto_drafts,
    cached_target,
    decode_batch,
    outputs,
    separate_drafters,
    separate_drafts,
    sequence_of,
)
from tests.support.helpers import VOCABULARY
from tests.support.runs import Run
from tests.support.tiny_models import (
    FAMILIES,
    GREEDY,
    Scripted,
    drafts_of,
    make_drafter,
    make_target,
    plain,
    prompts,
)

pytestmark = pytest.mark.numeric

FAMILIES_WITH_WINDOWS = ["llama", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"]
SAMPLED = Settings.of(temperature=0.8, top_p=0.9, seed=7)
END_TOKEN = 3


def random_tree(token_ids: Sequence[int], max_nodes: int) -> DraftTree:
    """A forked tree of arbitrary tokens, some of which the model will choose."""
    rng = random.Random(len(token_ids))
    size = rng.randint(0, max_nodes)
    parents = [rng.randint(ROOT, node - 1) for node in range(size)]
    tokens: list[int] = []
    for node in range(size):
        siblings = {tokens[i] for i in range(node) if parents[i] == parents[node]}
        token = rng.randrange(VOCABULARY)
        while token in siblings:
            token = rng.randrange(VOCABULARY)
        tokens.append(token)
    return DraftTree(tuple(tokens), tuple(parents))


def random_drafters() -> Drafting:
    return separate_drafters(lambda: Scripted(random_tree), 16)


def staggered_limits(index: int) -> Limits:
    """Let each sequence end at a different step."""
    return Limits(max_tokens=4 * index + 1)


def decode_each_alone(
    model: TargetModel, prompt_ids: Sequence[Sequence[int]], max_tokens: int = 20
) -> list[list[int]]:
    """The tokens of each prompt when it is decoded greedily by itself, without drafts."""
    return [plain(model, prompt, max_tokens=max_tokens) for prompt in prompt_ids]


def outputs_by_prompt(
    prompt_ids: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]
) -> dict[tuple[int, ...], Sequence[int]]:
    return {tuple(prompt): output for prompt, output in zip(prompt_ids, expected, strict=True)}


@pytest.mark.parametrize("family", FAMILIES_WITH_WINDOWS)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1000), st.integers(2, 5), st.sampled_from([GREEDY, SAMPLED]))
def test_each_sequence_has_the_tokens_of_its_run_alone(
    family: str, seed: int, size: int, sampling: Settings
) -> None:
    model = cached_target(family)
    prompt_ids = prompts(5, seed=seed)
    expected = [
        plain(model, prompt, sampling, max_tokens=staggered_limits(i).max_tokens)
        for i, prompt in enumerate(prompt_ids)
    ]
    finish_reasons = ["stop" if output[-1] == END_TOKEN else "length" for output in expected]
    correct_drafts = drafts_of(outputs_by_prompt(prompt_ids, expected))

    for drafting in (
        separate_drafts(),
        random_drafters(),
        separate_drafters(lambda: Scripted(correct_drafts), 16),
        auto_drafts(Pool(1000)),
    ):
        sequences = decode_batch(model, prompt_ids, drafting, size, sampling, staggered_limits)
        assert outputs(sequences) == expected
        assert [sequence.finish_reason for sequence in sequences] == finish_reasons


def test_correct_drafts_are_accepted_in_a_batch() -> None:
    model = cached_target("qwen3")
    prompt_ids = prompts(5, seed=3)
    expected = decode_each_alone(model, prompt_ids)
    correct_drafts = drafts_of(outputs_by_prompt(prompt_ids, expected))

    drafting = separate_drafters(lambda: Scripted(correct_drafts), 24)
    sequences = decode_batch(model, prompt_ids, drafting, 3)

    assert outputs(sequences) == expected
    for sequence, output in zip(sequences, expected, strict=True):
        statistics = sequence.statistics
        assert statistics.new_tokens == len(output)
        assert statistics.steps == len(sequence.steps)
        if len(output) >= 4:
            assert statistics.steps <= len(output) // 2
        assert statistics.decode_s > 0
        assert sum(statistics.split_s.values()) > 0


@pytest.mark.parametrize(
    ("method", "max_nodes"),
    [
        ("trie", 12),
        ("prompt-lookup", 12),
        ("recycling", 12),
        ("lookahead", 32),  # its window is deeper than one sequence's share of the nodes
    ],
)
def test_each_sequence_of_a_batch_is_drafted_for_within_the_nodes_of_the_batch(
    method: str, max_nodes: int
) -> None:
    model = cached_target("llama")
    prompt_ids = [[*prompt, *prompt[:9]] for prompt in prompts(6, seed=5)]

    sequences = decode_batch(model, prompt_ids, separate_drafts(method, max_nodes), 3)

    assert outputs(sequences) == decode_each_alone(model, prompt_ids)
    steps = [step for sequence in sequences for step in sequence.steps]
    assert all(step.nodes <= max_nodes for step in steps)
    assert sum(sequence.statistics.drafted_tokens for sequence in sequences) > 0


def test_penalties_stop_strings_and_a_full_context_act_as_they_do_alone() -> None:
    model = cached_target("llama")
    long_prompt = ([1, *range(30, 60)] * 6)[: model.context - 9]
    prompt_ids = [long_prompt, *prompts(4, seed=9), long_prompt[5:]]
    sampling = Settings.of(temperature=0.7, seed=3, repetition_penalty=1.2, frequency_penalty=0.3)
    limits = Limits(max_tokens=30, stop=("E", "!!"), num_draft=8)

    sequences = decode_batch(model, prompt_ids, auto_drafts(), 3, sampling, lambda i: limits)

    for sequence, prompt in zip(sequences, prompt_ids, strict=True):
        alone = Run(model, make_drafter("none"), Context(prompt), sampling, limits)
        last_step = list(alone)[-1]
        assert sequence.token_ids == alone.output
        assert sequence.finish_reason == alone.finish_reason
        assert sequence.steps[-1].tokens[-1].text == last_step.tokens[-1].text
    assert "context" in {sequence.finish_reason for sequence in sequences}


def test_attention_of_a_batch_at_once_or_by_sequence_gives_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt_ids = prompts(5, seed=2)

    for family in ("llama", "mistral-sliding", "gemma3-sliding"):
        expected = decode_each_alone(make_target(family), prompt_ids)
        for is_cheaper in (True, False):
            monkeypatch.setattr(
                BatchKeys, "_costs_less_at_once", lambda self, query, result=is_cheaper: result
            )
            sequences = decode_batch(make_target(family), prompt_ids, separate_drafts(), 4)
            assert outputs(sequences) == expected


def test_a_sequence_whose_logits_are_not_numbers_fails_alone() -> None:
    model = make_target("llama")
    prompt_ids = prompts(5, seed=4)
    expected = decode_each_alone(model, prompt_ids)
    used_tokens = {token for ids in [*prompt_ids, *expected] for token in ids}
    bad_token = min(set(range(VOCABULARY)) - used_tokens)
    prompt_ids[1] = [bad_token, *prompt_ids[1]]
    model.hf.get_input_embeddings().weight.data[bad_token] = float("nan")

    sequences = decode_batch(model, prompt_ids, separate_drafts(), 3)

    assert "not numbers" in str(sequences.pop(1).error)
    del expected[1]
    assert outputs(sequences) == expected


def test_logits_that_are_not_numbers_fail_in_exact_forward_passes() -> None:
    model = make_target("llama")
    model.hf.get_input_embeddings().weight.data[5] = float("nan")
    exact = Numerics(PassRows.fixed(8))
    drafter = make_drafter("none")

    with pytest.raises(ModelError, match="not numbers"):
        Run(model, drafter, Context([5, 6, 7]), GREEDY, Limits(9, 7), numerics=exact).finish()


@pytest.mark.parametrize(("max_rows", "max_sequences"), [(3, 1000), (1000, 2), (1, 1000)])
def test_a_batch_that_runs_out_of_memory_shrinks_and_loses_no_sequence(
    monkeypatch: pytest.MonkeyPatch, max_rows: int, max_sequences: int
) -> None:
    model = cached_target("qwen3")
    prompt_ids = prompts(5, seed=6)
    expected = decode_each_alone(model, prompt_ids)
    memory = LimitedMemory(monkeypatch, max_rows, max_sequences)

    sequences = decode_batch(model, prompt_ids, random_drafters(), 5)

    assert outputs(sequences) == expected
    assert memory.failures > 0


def test_a_sequence_waits_until_there_is_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama", max_position_embeddings=600)
    model.context = 600
    prompt_ids = prompts(6, seed=8)
    prompt_ids[2] = [5, 6, 7, 8, 9] * 80
    prompt_ids[5] = prompt_ids[5][:3]
    prompt_ids += prompts(4, seed=9)
    expected = decode_each_alone(model, prompt_ids)

    # Positions, layers, keys and values, heads, head width, bytes of a float32.
    slot_bytes = 256 * 2 * 2 * 2 * 8 * 4
    monkeypatch.setattr(scheduler, "free_memory", lambda device: 2 * 3 * slot_bytes)

    model.keep_prefixes(memory=True)
    assert model.prefixes is not None
    prefix_drops: list[bool] = []
    monkeypatch.setattr(model.prefixes, "drop", lambda: prefix_drops.append(True))

    admissions: list[tuple[int, int]] = []  # the batch size, and the longest sequence's tokens
    admit = Scheduler.admit

    def admit_and_record(self: Scheduler, sequence: DecodedSequence, *rest: Any) -> bool:
        size_before = len(self.running)
        fits_alone = admit(self, sequence, *rest)
        if len(self.running) > size_before:
            longest = max(running.log.settled for running in self.running)
            admissions.append((len(self.running), longest))
        return fits_alone

    monkeypatch.setattr(Scheduler, "admit", admit_and_record)
    sequences = decode_batch(model, prompt_ids, separate_drafts(), 5)

    assert outputs(sequences) == expected
    assert admissions[0] == (1, len(prompt_ids[0]))
    batch_sizes = [size for size, _ in admissions]
    assert [size for size, longest in admissions if longest > 256] == [1]
    assert max(batch_sizes[:2]) == 2
    assert max(batch_sizes[3:]) == 3  # the long sequence has ended
    assert not prefix_drops  # no forward pass ran out of memory


def test_free_memory_is_looked_up_less_often_than_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_target("llama")
    model.end_ids = frozenset()
    lookups: list[str] = []

    def free_memory(device: str) -> int:
        lookups.append(device)
        return 10**10

    monkeypatch.setattr(scheduler, "free_memory", free_memory)
    decoder = Decoder(model, separate_drafts(), 4)
    for prompt in prompts(2, seed=8):
        decoder.add(sequence_of(model, prompt, Limits(60)))
    steps = 0
    while not decoder.is_done:
        assert decoder.takes_more  # the engine asks this for each request that waits
        decoder.step()
        steps += 1

    assert steps == 60
    assert 1 <= len(lookups) <= 8


def test_cache_slots_grow_with_their_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama", max_position_embeddings=600)
    model.context = 600
    model.end_ids = frozenset()
    monkeypatch.setattr(scheduler, "EXPECTED_OUTPUT", 1)
    prompt_ids = [[5, 6, 7, 8, 9] * 45, [1, 2, 3], [7, 8] * 118]
    expected = decode_each_alone(model, prompt_ids, max_tokens=60)
    lengths = [
        len(prompt) + len(output) for prompt, output in zip(prompt_ids, expected, strict=True)
    ]
    assert max(lengths) > 256  # the smallest capacity of a slot

    drafting = separate_drafts(most=4)
    sequences = decode_batch(model, prompt_ids, drafting, 3, limits=lambda i: Limits(60))

    assert outputs(sequences) == expected


@pytest.mark.parametrize("steps_alone", [0, 1])
def test_sequences_join_a_running_one_and_share_the_chunk_of_its_prompt(
    monkeypatch: pytest.MonkeyPatch, steps_alone: int
) -> None:
    """The chunk's keys and values are copied from the slot of the running sequence."""
    for module in (kv_cache, prefixes):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", 16)
    model = make_target("llama")
    prompt_ids = [[*range(4, 40), last] for last in (5, 7, 9)]
    expected = decode_each_alone(model, prompt_ids, max_tokens=12)
    model.keep_prefixes(memory=False)
    sequences = [
        sequence_of(model, prompt, Limits(12, 8), GREEDY, CachePolicy(), make_drafter("trie"))
        for prompt in prompt_ids
    ]

    decoder = Decoder(model)
    ended = decoder.add(sequences[0])
    for _ in range(steps_alone):
        ended += decoder.step()
    decoder.regroup(separate_drafts(), 3)
    for sequence in sequences[1:]:
        ended += decoder.add(sequence)
        assert model.reused.tokens == 32
    while not decoder.is_done:
        ended += decoder.step()

    assert set(ended) == set(sequences)
    assert outputs(sequences) == expected


def test_an_answer_begun_alone_and_ended_in_a_batch_is_pooled_once() -> None:
    model = make_target("llama")
    model.end_ids = frozenset()
    pool = Pool(1000)
    drafter = make_drafter("auto", DraftSettings(num_draft=8, pool=pool))
    prompt = prompts(2, seed=3)[0]
    sequence = sequence_of(model, prompt, Limits(30, 8), drafter=drafter)

    decoder = Decoder(model)
    decoder.add(sequence)
    for _ in range(2):
        decoder.step()
    decoder.regroup(auto_drafts(pool), 2)
    while not decoder.is_done:
        decoder.step()

    assert [list(answer) for answer in pool.answers] == [sequence.token_ids]


class InjectedError(Exception):
    pass


@pytest.mark.parametrize("fixed_buffers", [False, True])
def test_each_sequence_continues_alone_after_a_forward_pass_failed(fixed_buffers: bool) -> None:
    """The step fails before its tokens are in the log ("score") or after that ("keep")."""
    for phase in ("score", "keep"):
        for failing_call in (1, 3, 6):
            decode_with_failure(fixed_buffers, phase, failing_call)


def decode_with_failure(fixed_buffers: bool, phase: str, failing_call: int) -> None:
    """Let one call of a method of the model fail; check that the answers are right."""
    model = make_target("llama")
    model.end_ids = frozenset()
    prompt_ids = prompts(4, seed=12)
    lengths = [12, 14, 16, 18]
    expected = [
        plain(model, prompt, max_tokens=length)
        for prompt, length in zip(prompt_ids, lengths, strict=True)
    ]
    model.cache.fixed_buffers = fixed_buffers
    sequences = [
        sequence_of(model, prompt, Limits(length, 6), drafter=make_drafter("trie"))
        for prompt, length in zip(prompt_ids, lengths, strict=True)
    ]
    decoder = Decoder(model, separate_drafts("trie", 12), 4)
    for sequence in sequences:
        decoder.add(sequence)

    method = getattr(model, phase)
    calls = 0

    def fail_once(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise InjectedError
        return method(*args)

    setattr(model, phase, fail_once)
    while not decoder.is_done:
        try:
            decoder.step()
        except InjectedError:
            decoder.regroup()

    assert calls > failing_call
    assert outputs(sequences) == expected
    assert [sequence.statistics.new_tokens for sequence in sequences] == lengths


def test_batches_are_refused_where_positions_depend_on_the_longest_sequence() -> None:
    model = make_target("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}

    assert "positions" in find_batching(model).why


def test_a_model_is_probed_for_batches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama")
    probed: list[TargetModel] = []

    def record(model: TargetModel) -> bool:
        probed.append(model)
        return True

    monkeypatch.setattr(probe, "_batch_agrees", record)

    assert find_batching(model) == SUPPORTED
    assert find_batching(model) == SUPPORTED
    assert probed == [model]


def test_a_probe_that_runs_out_of_memory_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out_of_memory(model: TargetModel) -> bool:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    model = make_target("llama")
    with monkeypatch.context() as patched:
        patched.setattr(probe, "_batch_agrees", run_out_of_memory)
        with pytest.raises(RuntimeError):
            find_batching(model)

    assert find_batching(model) == SUPPORTED


def test_a_model_that_raises_with_a_batch_decodes_one_sequence_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(model: TargetModel) -> bool:
        raise logits_are_not_numbers(model.name)

    monkeypatch.setattr(probe, "_batch_agrees", fail)

    assert "several texts" in find_batching(make_target("llama")).why


def test_the_probe_for_batches_changes_no_bit_of_later_logits() -> None:
    prompt = torch.tensor(prompts(1, seed=3))

    for family in FAMILIES:
        model = make_target(family)
        with torch.inference_mode():
            before = model.hf(prompt).logits
            assert find_batching(model) == SUPPORTED
            after = model.hf(prompt).logits
        assert torch.equal(after, before), family
