"""The draft model: what it drafts is what a fresh one drafts after the same text."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.runner import ModelRunner
from ngtcli.drafting.drafter import DraftSettings, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.system.reporting import reporting_to
from tests.support.helpers import VOCABULARY
from tests.support.recording_reporter import CallsOf, RecordingReporter
from tests.support.tiny_models import GREEDY, decode, make_drafter, make_target, plain, prompts

PENALIZED = Settings.of(temperature=0.9, presence_penalty=0.7, repetition_penalty=1.2)
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
TARGET, DRAFTS = make_target("llama"), make_target("llama", seed=1)
OTHER_DRAFTS = make_target("llama", seed=1)


def drafter_of(assistant: AssistantModel) -> Any:
    return make_drafter("draft-model", DraftSettings(assistant=assistant))


@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED], ids=["greedy", "penalized"])
@given(data=st.data())
def test_drafts_are_those_of_a_fresh_draft_model_after_tokens_are_taken_back(
    sampling: Settings, data: st.DataObject
) -> None:
    tokens = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=5)
    prompt = data.draw(tokens)
    old = AssistantModel(DRAFTS, sampling)
    old.begin(prompt)
    log = TokenLog(prompt)
    for _ in range(4):
        log.take_back(data.draw(st.integers(0, len(log.expected))))
        new = data.draw(tokens)
        if data.draw(st.booleans()):
            log.emit([*log.expected[: data.draw(st.integers(0, 2))], *new])
        else:
            log.expect(new, [""] * len(new))
        fresh = AssistantModel(OTHER_DRAFTS, sampling)
        fresh.begin(prompt)
        expected = fresh.draft(log, 3)
        drafts = old.draft(log, 3)
        assert drafts == expected
        drafts = drafts[: data.draw(st.integers(0, 3))]
        if data.draw(st.booleans()):
            log.emit([*log.expected, *drafts])
        else:
            log.expect(drafts, [""] * len(drafts))


def test_nothing_is_drafted_behind_a_token_that_the_draft_model_does_not_know() -> None:
    small = make_target("llama", seed=1, vocab_size=VOCABULARY - 8)
    prompt, unknown = list(range(5, 15)), VOCABULARY - 2
    assistant = AssistantModel(small, GREEDY)
    assistant.begin(prompt)
    log = TokenLog(prompt)
    log.emit([6])
    drafts = assistant.draft(log, 3)
    assert len(drafts) == 3
    log.expect([unknown], [""])
    assert assistant.draft(log, 3) == []
    log.expect([7], [""])
    assert assistant.draft(log, 3) == []
    log.take_back()
    assert assistant.draft(log, 3) == drafts
    log = TokenLog([*prompt, unknown])
    assistant.begin(log.token_ids)
    log.emit([7])
    assert assistant.draft(log, 3) == []


@pytest.mark.parametrize("size", [VOCABULARY - 8, VOCABULARY + 40])
def test_answers_are_plain_ones_with_a_draft_model_of_another_vocabulary_size(size: int) -> None:
    assistant = AssistantModel(make_target("llama", vocab_size=size), GREEDY)
    drafter = drafter_of(assistant)
    warm = Settings.of(temperature=2.0, seed=3)  # any token may come
    for prompt in prompts(3, seed=4):
        assert decode(TARGET, drafter, prompt, warm).output == plain(TARGET, prompt, warm)


def test_a_token_that_the_target_model_does_not_know_is_never_drafted() -> None:
    large = make_target("llama", vocab_size=VOCABULARY + 400)
    drafter = drafter_of(AssistantModel(large, Settings.of(temperature=5.0)))
    prompt = [5, 6, 7]
    decode(TARGET, drafter, prompt, max_tokens=2)
    for last in range(8, 40):
        tree = drafter.propose(TokenLog([*prompt, last]), Room(4)).tree
        assert all(token < VOCABULARY for token in tree.tokens)


def starved(monkeypatch: pytest.MonkeyPatch, too_large: Callable[[int], bool]) -> Any:
    """A draft model whose forward passes fail where `too_large(rows)`."""
    model = make_target("llama")
    run = ModelRunner.run

    def fail(
        runner: ModelRunner, cache: Any, plan: Any, ids: torch.Tensor, *rest: Any, **options: Any
    ) -> Any:
        if runner is model.runner and too_large(len(ids)):
            raise OUT_OF_MEMORY
        return run(runner, cache, plan, ids, *rest, **options)

    monkeypatch.setattr(ModelRunner, "run", fail)
    return model


def test_a_draft_model_reads_a_long_prompt_in_chunks_that_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = RecordingReporter()
    model = starved(monkeypatch, lambda rows: rows > 64)
    assistant = reported.of(lambda: AssistantModel(model, GREEDY))
    prompt = random.Random(5).choices(range(4, VOCABULARY), k=100)
    assistant.begin(prompt)
    fresh = AssistantModel(make_target("llama"), GREEDY)
    fresh.begin(prompt)
    drafts = assistant.draft(TokenLog(prompt), 4)
    assert drafts == fresh.draft(TokenLog(prompt), 4) != []
    assert reported.warnings == []


@pytest.mark.parametrize("first_call", [1, 2, 5])
def test_an_answer_goes_on_without_a_draft_model_that_runs_out_of_memory(
    first_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, reported = 0, RecordingReporter()

    def too_large(rows: int) -> bool:
        nonlocal calls
        calls += 1
        return calls >= first_call

    model = starved(monkeypatch, too_large)
    assistant = reported.of(lambda: AssistantModel(model, GREEDY))
    prompt = prompts(1, seed=6)[0]
    run = decode(TARGET, drafter_of(assistant), prompt)
    assert run.output == plain(TARGET, prompt)
    (warning,) = reported.warnings
    assert "draft model" in warning


def test_an_answer_goes_on_without_a_draft_model_that_has_no_room_for_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, reported = make_target("llama"), RecordingReporter()

    def start(*_: Any, **__: Any) -> None:
        raise OUT_OF_MEMORY

    with monkeypatch.context() as patch:
        patch.setattr(model, "start", start)
        assistant = reported.of(lambda: AssistantModel(model, GREEDY))
        prompt = prompts(1, seed=7)[0]
        run = decode(TARGET, drafter_of(assistant), prompt)
    assert run.output == plain(TARGET, prompt)
    assert len(reported.warnings) == 1
    run = decode(TARGET, drafter_of(assistant), prompt)  # there is memory for the next answer
    assert run.statistics.mean_acceptance_length > 1


def test_memory_that_ends_in_the_draft_model_makes_its_drafts_smaller() -> None:
    """As that of heads or of a large tree does; the draft model continues with smaller ones."""
    target, drafts = make_target("llama"), make_target("llama")
    forward, counts = drafts.forward, list[int]()

    class Hungry(AssistantModel):
        def draft(self, log: TokenLog, count: int) -> list[int]:
            counts.append(count)
            drafts.forward = forward if count <= 2 else starve  # type: ignore[method-assign]
            return super().draft(log, count)

    def starve(*_: Any) -> Any:
        raise OUT_OF_MEMORY

    with reporting_to(CallsOf(warn=pytest.fail)):
        assistant = Hungry(drafts, GREEDY)
    prompt = prompts(1, seed=6)[0]
    run = decode(target, drafter_of(assistant), prompt, num_draft=8)
    assert run.output == plain(target, prompt)
    assert counts[:3] == [4, 4, 2]  # of a budget of 8, then of 4, then of 2
    assert set(counts[3:]) <= {0, 1, 2}
    assert run.statistics.mean_acceptance_length > 1.5
