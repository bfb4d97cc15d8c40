"""A draft model drafts what a fresh one would draft after the same tokens."""

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
TARGET = make_target("llama")
DRAFT_MODEL = make_target("llama", seed=1)
FRESH_DRAFT_MODEL = make_target("llama", seed=1)


def drafter_of(assistant: AssistantModel) -> Any:
    return make_drafter("draft-model", DraftSettings(assistant=assistant))


@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED], ids=["greedy", "penalized"])
@given(data=st.data())
def test_drafts_are_those_of_a_fresh_draft_model_after_tokens_are_taken_back(
    sampling: Settings, data: st.DataObject
) -> None:
    tokens = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=5)
    prompt = data.draw(tokens)
    assistant = AssistantModel(DRAFT_MODEL, sampling)
    assistant.begin(prompt)
    log = TokenLog(prompt)
    for _ in range(4):
        log.take_back(data.draw(st.integers(0, len(log.expected))))
        new_tokens = data.draw(tokens)
        if data.draw(st.booleans()):
            log.emit([*log.expected[: data.draw(st.integers(0, 2))], *new_tokens])
        else:
            log.expect(new_tokens, [""] * len(new_tokens))
        fresh = AssistantModel(FRESH_DRAFT_MODEL, sampling)
        fresh.begin(prompt)
        expected = fresh.draft(log, 3)
        drafts = assistant.draft(log, 3)
        assert drafts == expected
        drafts = drafts[: data.draw(st.integers(0, 3))]
        if data.draw(st.booleans()):
            log.emit([*log.expected, *drafts])
        else:
            log.expect(drafts, [""] * len(drafts))


def test_nothing_is_drafted_after_a_token_that_the_draft_model_does_not_know() -> None:
    small_model = make_target("llama", seed=1, vocab_size=VOCABULARY - 8)
    prompt = list(range(5, 15))
    unknown = VOCABULARY - 2
    assistant = AssistantModel(small_model, GREEDY)
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
def test_a_draft_model_of_another_vocabulary_size_changes_no_token(size: int) -> None:
    assistant = AssistantModel(make_target("llama", vocab_size=size), GREEDY)
    drafter = drafter_of(assistant)
    sampling = Settings.of(temperature=2.0, seed=3)  # any token may come
    for prompt in prompts(3, seed=4):
        assert decode(TARGET, drafter, prompt, sampling).output == plain(TARGET, prompt, sampling)


def test_a_token_that_the_target_model_does_not_know_is_never_drafted() -> None:
    large_model = make_target("llama", vocab_size=VOCABULARY + 400)
    drafter = drafter_of(AssistantModel(large_model, Settings.of(temperature=5.0)))
    prompt = [5, 6, 7]
    decode(TARGET, drafter, prompt, max_tokens=2)
    for last_token in range(8, 40):
        tree = drafter.propose(TokenLog([*prompt, last_token]), Room(4)).tree
        assert all(token < VOCABULARY for token in tree.tokens)


def starved(monkeypatch: pytest.MonkeyPatch, too_large: Callable[[int], bool]) -> Any:
    """A draft model that runs out of memory in forward passes where `too_large(rows)`."""
    model = make_target("llama")
    run_pass = ModelRunner.run

    def run_within_memory(
        runner: ModelRunner, cache: Any, plan: Any, ids: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        if runner is model.runner and too_large(len(ids)):
            raise OUT_OF_MEMORY
        return run_pass(runner, cache, plan, ids, *args, **options)

    monkeypatch.setattr(ModelRunner, "run", run_within_memory)
    return model


def test_a_draft_model_reads_a_long_prompt_in_chunks_that_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reporter = RecordingReporter()
    model = starved(monkeypatch, lambda rows: rows > 64)
    assistant = reporter.of(lambda: AssistantModel(model, GREEDY))
    prompt = random.Random(5).choices(range(4, VOCABULARY), k=100)
    assistant.begin(prompt)
    fresh = AssistantModel(make_target("llama"), GREEDY)
    fresh.begin(prompt)
    drafts = assistant.draft(TokenLog(prompt), 4)
    assert drafts
    assert drafts == fresh.draft(TokenLog(prompt), 4)
    assert reporter.warnings == []


@pytest.mark.parametrize("first_call", [1, 2, 5])
def test_an_answer_goes_on_without_a_draft_model_that_runs_out_of_memory(
    first_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    reporter = RecordingReporter()

    def too_large(rows: int) -> bool:
        nonlocal calls
        calls += 1
        return calls >= first_call

    model = starved(monkeypatch, too_large)
    assistant = reporter.of(lambda: AssistantModel(model, GREEDY))
    prompt = prompts(1, seed=6)[0]
    run = decode(TARGET, drafter_of(assistant), prompt)
    assert run.output == plain(TARGET, prompt)
    (warning,) = reporter.warnings
    assert "draft model" in warning


def test_an_answer_goes_on_without_a_draft_model_without_memory_for_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_target("llama")
    reporter = RecordingReporter()

    def run_out_of_memory(*_: Any, **__: Any) -> None:
        raise OUT_OF_MEMORY

    with monkeypatch.context() as patched:
        patched.setattr(model, "start", run_out_of_memory)
        assistant = reporter.of(lambda: AssistantModel(model, GREEDY))
        prompt = prompts(1, seed=7)[0]
        run = decode(TARGET, drafter_of(assistant), prompt)
    assert run.output == plain(TARGET, prompt)
    assert len(reporter.warnings) == 1
    run = decode(TARGET, drafter_of(assistant), prompt)  # there is memory for the next answer
    assert run.statistics.mean_acceptance_length > 1


def test_a_draft_model_that_runs_out_of_memory_drafts_less() -> None:
    """The draft model goes on with smaller drafts, as heads and large trees do."""
    target = make_target("llama")
    draft_model = make_target("llama")
    forward = draft_model.forward
    draft_sizes = list[int]()

    class Hungry(AssistantModel):
        def draft(self, log: TokenLog, count: int) -> list[int]:
            draft_sizes.append(count)
            draft_model.forward = forward if count <= 2 else run_out_of_memory  # type: ignore[method-assign]
            return super().draft(log, count)

    def run_out_of_memory(*_: Any) -> Any:
        raise OUT_OF_MEMORY

    with reporting_to(CallsOf(warn=pytest.fail)):
        assistant = Hungry(draft_model, GREEDY)
    prompt = prompts(1, seed=6)[0]
    run = decode(target, drafter_of(assistant), prompt, num_draft=8)
    assert run.output == plain(target, prompt)
    assert draft_sizes[:3] == [4, 4, 2]  # of a budget of 8, then of 4, then of 2
    assert set(draft_sizes[3:]) <= {0, 1, 2}
    assert run.statistics.mean_acceptance_length > 1.5
