"""Several texts in one pass: each has the tokens of its run alone."""

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
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from tests.support.batches import (
    auto_drafts,
    cached_target,
    decode_batch,
    outputs,
    separate_drafters,
    separate_drafts,
    sequence_of,
)
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

SHAPES = ["llama", "mistral-sliding", "gemma2-sliding", "gemma3-sliding"]
SAMPLED = Settings.of(temperature=0.8, top_p=0.9, seed=7)


def guess(ids: Sequence[int], budget: int) -> DraftTree:
    """A forked tree of arbitrary tokens, some of which the model will choose."""
    rng = random.Random(len(ids))
    size = rng.randint(0, budget)
    parents = [rng.randint(ROOT, i - 1) for i in range(size)]
    tokens: list[int] = []
    for i in range(size):
        taken = {tokens[j] for j in range(i) if parents[j] == parents[i]}
        tokens.append(next(t for t in iter(lambda: rng.randrange(97), -1) if t not in taken))
    return DraftTree(tuple(tokens), tuple(parents))


def rising(i: int) -> Limits:
    """So that texts end at different steps."""
    return Limits(max_tokens=4 * i + 1)


@pytest.mark.parametrize("family", SHAPES)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1000), st.integers(2, 5), st.sampled_from([GREEDY, SAMPLED]))
def test_each_text_has_the_tokens_of_its_run_alone(
    family: str, seed: int, size: int, sampling: Settings
) -> None:
    model, texts = cached_target(family), prompts(5, seed=seed)
    alone = [
        plain(model, text, sampling, max_tokens=rising(i).max_tokens)
        for i, text in enumerate(texts)
    ]
    right = {tuple(text): output for text, output in zip(texts, alone, strict=True)}
    for drafts in (
        separate_drafts(),
        separate_drafters(lambda: Scripted(guess), 16),
        separate_drafters(lambda: Scripted(drafts_of(right)), 16),
        auto_drafts(Pool(1000)),
    ):
        found = decode_batch(model, texts, drafts, size, sampling, rising)
        assert outputs(found) == alone
        assert [m.finish_reason for m in found] == [
            "stop" if output[-1] == 3 else "length" for output in alone
        ]


def test_drafts_that_are_right_are_accepted_beside_other_texts() -> None:
    model, texts = cached_target("qwen3"), prompts(5, seed=3)
    alone = [plain(model, text, max_tokens=20) for text in texts]
    right = {tuple(text): output for text, output in zip(texts, alone, strict=True)}
    found = decode_batch(model, texts, separate_drafters(lambda: Scripted(drafts_of(right)), 24), 3)
    assert outputs(found) == alone
    for member, output in zip(found, alone, strict=True):
        statistics = member.statistics
        assert statistics.new_tokens == len(output) == len(member.token_ids)
        assert statistics.steps == len(member.steps)
        assert len(output) < 4 or statistics.steps <= len(output) // 2
        assert statistics.decode_s > 0
        assert sum(statistics.split_s.values()) > 0


@pytest.mark.parametrize(
    ("method", "most"),
    [("trie", 12), ("prompt-lookup", 12), ("recycling", 12), ("lookahead", 32)],
)
def test_other_methods_draft_for_each_text_and_share_the_nodes(method: str, most: int) -> None:
    """The window of lookahead is deeper than a share of the nodes: it learns from whole ones."""
    model, texts = cached_target("llama"), [[*text, *text[:9]] for text in prompts(6, seed=5)]
    found = decode_batch(model, texts, separate_drafts(method, most), 3)
    assert outputs(found) == [plain(model, text, max_tokens=20) for text in texts]
    assert all(step.nodes <= most for m in found for step in m.steps)
    assert sum(m.statistics.drafted_tokens for m in found) > 0


def test_penalties_stop_strings_and_a_full_context_are_as_alone() -> None:
    model = cached_target("llama")
    long = [[1, *range(30, 60)] * 6][0][: model.context - 9]
    texts = [long, *prompts(4, seed=9), long[5:]]
    sampling = Settings.of(temperature=0.7, seed=3, repetition_penalty=1.2, frequency_penalty=0.3)
    limits = Limits(max_tokens=30, stop=("E", "!!"), num_draft=8)
    found = decode_batch(model, texts, auto_drafts(), 3, sampling, lambda i: limits)
    for member, ids in zip(found, texts, strict=True):
        run = Run(model, make_drafter("none"), Context(ids), sampling, limits)
        last = [*run][-1]
        assert member.token_ids == run.output
        assert member.finish_reason == run.finish_reason
        assert member.steps[-1].tokens[-1].text == last.tokens[-1].text
    assert {m.finish_reason for m in found} >= {"context"}


def test_rows_that_attend_together_see_what_they_see_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = prompts(5, seed=2)
    for family in ("llama", "mistral-sliding", "gemma3-sliding"):
        found = []
        for choice in (True, False):
            model = make_target(family)
            monkeypatch.setattr(BatchKeys, "_costs_less_at_once", lambda self, query, c=choice: c)
            found.append(outputs(decode_batch(model, texts, separate_drafts(), 4)))
        assert found[0] == found[1] == [plain(model, text, max_tokens=20) for text in texts]


def test_a_text_whose_scores_are_no_numbers_fails_alone() -> None:
    model, texts = make_target("llama"), prompts(5, seed=4)
    alone = [plain(model, text, max_tokens=20) for text in texts]
    bad = next(i for i in range(97) if not any(i in ids for ids in [*texts, *alone]))
    texts[1] = [bad, *texts[1]]
    model.hf.get_input_embeddings().weight.data[bad] = float("nan")
    found = decode_batch(model, texts, separate_drafts(), 3)
    assert "not numbers" in str(found[1].error)
    assert [m.token_ids for i, m in enumerate(found) if i != 1] == [
        output for i, output in enumerate(alone) if i != 1
    ]
    exact = Numerics(PassRows.fixed(8))
    context = Context(texts[1])
    with pytest.raises(ModelError, match="not numbers"):
        Run(model, make_drafter("none"), context, GREEDY, Limits(9, 7), numerics=exact).finish()


class Memory:
    """Passes over more than `rows` rows, or more than `texts` texts, have no memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int = 1000, texts: int = 1000):
        real, self.refused = TargetModel.score, 0

        def score(model: TargetModel, layout: Any) -> Any:
            if len(layout.ids) > rows or len(layout.spans) > texts:
                self.refused += 1
                raise MemoryError
            return real(model, layout)

        monkeypatch.setattr(TargetModel, "score", score)


@pytest.mark.parametrize(("rows", "texts"), [(3, 1000), (1000, 2), (1, 1000)])
def test_where_memory_ends_drafts_shrink_then_fewer_run_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch, rows: int, texts: int
) -> None:
    model, ids = cached_target("qwen3"), prompts(5, seed=6)
    alone = [plain(model, text, max_tokens=20) for text in ids]
    memory = Memory(monkeypatch, rows, texts)
    assert (
        outputs(decode_batch(model, ids, separate_drafters(lambda: Scripted(guess), 16), 5))
        == alone
    )
    assert memory.refused


def test_a_text_for_which_there_is_no_room_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama", max_position_embeddings=600)
    model.context = 600
    ids = prompts(6, seed=8)
    ids[2], ids[5] = [5, 6, 7, 8, 9] * 80, ids[5][:3]
    ids += prompts(4, seed=9)
    alone = [plain(model, text, max_tokens=20) for text in ids]
    region = 256 * 2 * 2 * 2 * 8 * 4  # bytes: places, layers, keys and values, heads, width
    monkeypatch.setattr(scheduler, "free_memory", lambda device: 2 * 3 * region)
    seen, dropped = list[tuple[int, int]](), list[bool]()
    model.keep_prefixes(memory=True)
    assert model.prefixes is not None
    monkeypatch.setattr(model.prefixes, "drop", lambda: dropped.append(True))
    real = Scheduler.admit

    def admit(self: Scheduler, sequence: DecodedSequence, *more: Any) -> bool:
        before = len(self.running)
        fits_alone = real(self, sequence, *more)
        if len(self.running) > before:
            seen.append((len(self.running), max(one.log.settled for one in self.running)))
        return fits_alone

    monkeypatch.setattr(Scheduler, "admit", admit)
    assert outputs(decode_batch(model, ids, separate_drafts(), 5)) == alone
    assert [running for running, longest in seen if longest > 256] == [1]
    assert seen[0] == (1, len(ids[0]))
    assert max(running for running, _ in seen[:2]) == 2
    assert max(running for running, _ in seen[3:]) == 3  # as before, when the long one has gone
    assert not dropped  # rows kept of prompts: memory has not ended


def test_free_memory_is_looked_up_as_texts_come_and_go_and_not_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, looked = make_target("llama"), list[str]()
    model.end_ids = frozenset()
    monkeypatch.setattr(scheduler, "free_memory", lambda device: looked.append(device) or 10**10)
    batch, steps = Decoder(model, separate_drafts(), 4), 0
    for ids in prompts(2, seed=8):
        batch.add(sequence_of(model, ids, Limits(60)))
    while not batch.is_done:
        assert batch.takes_more  # as is asked for each question that waits
        batch.step()
        steps += 1
    assert steps == 60
    assert 1 <= len(looked) <= 8


def test_regions_grow_while_texts_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_target("llama", max_position_embeddings=600)
    model.context, model.end_ids = 600, frozenset()
    monkeypatch.setattr(scheduler, "EXPECTED_OUTPUT", 1)
    ids = [[5, 6, 7, 8, 9] * 45, [1, 2, 3], [7, 8] * 118]
    alone = [plain(model, text, max_tokens=60) for text in ids]
    limits = Limits(max_tokens=60)
    assert (
        outputs(decode_batch(model, ids, separate_drafts(most=4), 3, limits=lambda i: limits))
        == alone
    )
    assert max(len(text) + len(output) for text, output in zip(ids, alone, strict=True)) > 256


@pytest.mark.parametrize("first", [0, 1])
def test_a_text_alone_goes_on_beside_others_whose_prompts_begin_as_its_own(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Rows of a chunk that another text has are copied from there, at any of its steps."""
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", 16)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", 16)
    model = make_target("llama")
    ids = [[*range(4, 40), end] for end in (5, 7, 9)]
    alone = [plain(model, text, max_tokens=12) for text in ids]
    model.keep_prefixes(memory=False)
    limits = Limits(12, 8)
    every = [
        sequence_of(model, text, limits, GREEDY, CachePolicy(), make_drafter("trie"))
        for text in ids
    ]
    decoder = Decoder(model)
    ended = decoder.add(every[0])
    for _ in range(first):
        ended += decoder.step()
    decoder.regroup(separate_drafts(), 3)
    for sequence in every[1:]:
        ended += decoder.add(sequence)
        assert model.reused.tokens == 32
    while not decoder.is_done:
        ended += decoder.step()
    assert set(ended) == set(every)
    assert outputs(every) == alone


def test_an_answer_that_others_join_is_pooled_once() -> None:
    model, pool, ids = make_target("llama"), Pool(1000), prompts(2, seed=3)
    model.end_ids = frozenset()
    drafter = make_drafter("auto", DraftSettings(num_draft=8, pool=pool))
    sequence = sequence_of(model, ids[0], Limits(30, 8), drafter=drafter)
    decoder = Decoder(model)
    decoder.add(sequence)
    for _ in range(2):
        decoder.step()
    decoder.regroup(auto_drafts(pool), 2)
    while not decoder.is_done:
        decoder.step()
    assert [list(answer) for answer in pool.answers] == [sequence.token_ids]


class FailingOnce(Exception):
    """What a forward pass raises in a test."""


@pytest.mark.parametrize("stay", [False, True])
def test_after_a_forward_pass_that_failed_each_sequence_goes_on_by_itself(
    stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the failed step has done by then: its tokens are in the log, or they are not."""
    ids = prompts(4, seed=12)
    for phase in ("score", "keep"):
        for failing in (1, 3, 6):
            model = make_target("llama")
            model.end_ids = frozenset()
            alone = [plain(model, text, max_tokens=12 + 2 * i) for i, text in enumerate(ids)]
            model.cache.fixed_buffers = stay
            every = [
                sequence_of(model, text, Limits(12 + 2 * i, 6), drafter=make_drafter("trie"))
                for i, text in enumerate(ids)
            ]
            decoder = Decoder(model, separate_drafts("trie", 12), 4)
            for sequence in every:
                decoder.add(sequence)
            real, calls = getattr(model, phase), list[int]()

            def work(*given: Any, real: Any = real, calls: Any = calls, at: int = failing) -> Any:
                calls.append(1)
                if len(calls) == at:
                    raise FailingOnce
                return real(*given)

            monkeypatch.setattr(model, phase, work)
            while not decoder.is_done:
                try:
                    decoder.step()
                except FailingOnce:
                    decoder.regroup()
            assert len(calls) > failing
            assert outputs(every) == alone
            assert [one.statistics.new_tokens for one in every] == [*map(len, alone)]


def test_positions_that_depend_on_the_longest_text_are_refused() -> None:
    model = make_target("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}
    assert "positions" in find_batching(model).why


def test_a_model_is_tried_with_several_texts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = make_target("llama"), list[TargetModel]()
    monkeypatch.setattr(probe, "_batch_agrees", lambda model: tried.append(model) is None)
    assert find_batching(model) == find_batching(model) == SUPPORTED
    assert tried == [model]


def test_memory_that_ends_is_not_remembered_as_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: TargetModel) -> bool:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    model = make_target("llama")
    monkeypatch.setattr(probe, "_batch_agrees", fails)
    with pytest.raises(RuntimeError):
        find_batching(model)
    monkeypatch.undo()
    assert find_batching(model) == SUPPORTED


def test_a_model_that_raises_with_several_texts_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: TargetModel) -> bool:
        raise logits_are_not_numbers(model.name)

    monkeypatch.setattr(probe, "_batch_agrees", fails)
    assert "several texts" in find_batching(make_target("llama")).why


def test_one_sequence_has_the_same_bits_once_batches_were_tried() -> None:
    for family in FAMILIES:
        model = make_target(family)
        prompt = torch.tensor(prompts(1, seed=3))
        with torch.inference_mode():
            before = model.hf(prompt).logits
            assert find_batching(model) == SUPPORTED
            assert torch.equal(model.hf(prompt).logits, before)
