"""Answers to many prompts, in batches."""

import gc
import weakref
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.decoding import kv_cache, memory_limits, prefixes
from ngtcli.decoding import model as model_module
from ngtcli.decoding import step as step_module
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.support import Support
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, Drafter
from ngtcli.drafting.log import TokenLog
from ngtcli.engine import local_engine
from ngtcli.engine.engine import Submission
from ngtcli.engine.events import Ended, Outcome, Stepped, report_to
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.request import Request
from ngtcli.engine.session import SESSION_OPTIONS
from ngtcli.engine.submissions import SubmissionEvent, Submissions
from ngtcli.errors import ContextOverflowError, InputError, UsageError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import load_preset
from ngtcli.system.reporting import Reporter
from tests.support.ready_prompts import NumberedPrompt, ReadyPrompts, answer_prompts
from tests.support.recording_reporter import RecordingReporter

TEXTS = [
    "The harbour was built in",
    "Once there was a ship. Once there was",
    "1 2 3 4 1 2 3 4 1 2",
    "A",
    "The lighthouse keeper wrote every evening that",
    "list: a b c a b c a b c a b",
]


DOCUMENTS = [
    "The harbour of Dunmore was dug between 1820 and 1826 by two hundred men.",
    "Oysters were brought to the bay by Ann Kerr in 1911. The beds were sold in 1950.",
    "A note on seeds. They are sown in spring by all who have a field here.",
]


def numbered_prompts(session: LocalSession) -> list[NumberedPrompt]:
    token_ids = [session.model.tokenizer.encode(text) for text in TEXTS]
    return [(10 + i, Prompt(text, token_ids[i], (), ())) for i, text in enumerate(TEXTS)]


@lru_cache
def loaded_session() -> LocalSession:
    return LocalSession(Settings.of(max_tokens=6, method="none"), persist=False)


def session_with(reporter: Reporter | None = None, **changes: Any) -> LocalSession:
    settings = {"max_tokens": 6, "method": "none", **changes}
    return loaded_session().with_settings(
        Settings.of(**settings), report=report_to(reporter or Reporter())
    )


def answers_to(
    session: LocalSession, prompts: Iterable[NumberedPrompt], size: int, *each_settings: Settings
) -> Generator[Outcome]:
    """The answers to prompts, up to `size` in a batch, with their own settings if there are any."""
    settings = {10 + i: chosen for i, chosen in enumerate(each_settings)}
    return answer_prompts(ReadyPrompts(session, size=size, many=True), prompts, settings)


def completed(outcome: Outcome) -> Ended:
    assert isinstance(outcome.answer, Ended)
    return outcome.answer


def tokens_of(outcome: Outcome) -> list[int]:
    return [token.id for token in completed(outcome).tokens]


def tokens_by_key(session: LocalSession, size: int) -> dict[Any, list[int]]:
    """The tokens of all numbered prompts' answers, up to `size` in a batch."""
    outcomes = answers_to(session, numbered_prompts(session), size)
    return {outcome.key: tokens_of(outcome) for outcome in outcomes}


def test_an_error_in_place_of_a_prompt_is_the_answer_for_its_key() -> None:
    session = session_with()
    error = InputError("no.txt: no such file")
    prompt = numbered_prompts(session)[0][1]
    assert isinstance(prompt, Prompt)
    prompts: list[NumberedPrompt] = [(7, error), (3, prompt), (5, Prompt("", [], (), ()))]
    for size in (1, 4):
        outcomes = {outcome.key: outcome for outcome in answers_to(session, prompts, size)}
        assert outcomes[7].answer is error
        assert outcomes[7].request is None
        assert completed(outcomes[3]).text
        assert outcomes[3].prompt is prompt
        assert completed(outcomes[3]).statistics.new_tokens == len(tokens_of(outcomes[3]))
        assert "empty" in str(outcomes[5].answer)


@pytest.mark.parametrize(("method", "size"), [("none", 6), ("trie", 0), ("auto", 0)])
def test_answers_of_a_batch_with_different_settings_are_those_given_alone(
    method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: dict[str, Any] = {"method": method, "calibrate": False, "pool": False}
    each_change: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.9, "seed": 4, "top_k": 5},
        {"max_tokens": 3},
        {"stop": ("e",)},
        {"repetition_penalty": 1.5},
    ]
    sessions = [session_with(**base, **changes) for changes in each_change]
    prompts = numbered_prompts(sessions[0])
    alone = [next(answers_to(s, [single], 1)) for s, single in zip(sessions, prompts, strict=True)]
    batch_sizes = list[int]()
    score = TargetModel.score

    def score_and_count(model: TargetModel, layout: Any) -> Any:
        batch_sizes.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", score_and_count)
    chosen = [session.settings for session in sessions]
    outcomes = {outcome.key: outcome for outcome in answers_to(sessions[0], prompts, size, *chosen)}
    assert max(batch_sizes) > 3
    for single in alone:
        assert tokens_of(outcomes[single.key]) == tokens_of(single)
        in_batch = completed(outcomes[single.key])
        assert in_batch.text == completed(single).text
        assert in_batch.finish_reason == completed(single).finish_reason
    assert len({tuple(tokens_of(single)) for single in alone}) == len(alone)


def test_prompts_are_drawn_when_there_is_room_and_answers_come_as_they_finish() -> None:
    session = session_with()
    drawn = list[int]()

    def source() -> Iterator[NumberedPrompt]:
        for key, prompt in numbered_prompts(session):
            drawn.append(key)
            yield key, prompt

    outcomes = answers_to(session, source(), 2)
    assert not drawn
    first = next(outcomes)
    assert len(drawn) == 2
    assert first.key in drawn
    assert len([first, *outcomes]) == len(TEXTS)


def test_an_interrupt_loses_no_answer_that_was_complete() -> None:
    session = session_with()

    def source() -> Iterator[NumberedPrompt]:
        yield from numbered_prompts(session)[:4]
        raise KeyboardInterrupt

    answered_keys = []
    with pytest.raises(KeyboardInterrupt):
        for outcome in answers_to(session, source(), 2):
            answered_keys.append(outcome.key)  # noqa: PERF402  # a comprehension would lose them
    assert len(answered_keys) >= 2
    assert still_answers(session)


def still_answers(session: LocalSession) -> bool:
    """Whether the session still gives the same answer alone and in a batch."""
    prompts = numbered_prompts(session)[:1]
    alone, batched = (next(answers_to(session, prompts, size)) for size in (1, 3))
    return tokens_of(alone) == tokens_of(batched)


def test_without_memory_for_a_batch_each_prompt_is_answered_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resize(model: TargetModel, count: int, places: int) -> None:
        if count > 1:
            raise MemoryError
        resize_slots(model, count, places)

    resize_slots = TargetModel.resize
    session = session_with()
    alone = tokens_by_key(session, 1)
    monkeypatch.setattr(TargetModel, "resize", resize)
    assert tokens_by_key(session, 3) == alone


def test_a_prompt_without_memory_for_its_drafter_ends_alone_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = session_with()
    prompts = numbered_prompts(session)
    single = {a.key: tokens_of(a) for a in answers_to(session, prompts, 1)}
    failing_key, failing_prompt = prompts[1]
    join = Drafting.join

    def join_or_fail(drafting: Drafting, context: Context, log: TokenLog) -> Drafter:
        if list(context.ids) == failing_prompt.ids:
            raise MemoryError
        return join(drafting, context, log)

    monkeypatch.setattr(Drafting, "join", join_or_fail)
    outcomes = {a.key: a for a in answers_to(session, prompts, 3)}
    assert isinstance(outcomes.pop(failing_key).answer, ContextOverflowError)
    del single[failing_key]
    assert {key: tokens_of(outcome) for key, outcome in outcomes.items()} == single


def test_exact_answers_are_refused_in_a_batch() -> None:
    with pytest.raises(UsageError, match="--exact does not support batches"):
        answers_to(session_with(exact="on"), [], 2)
    assert not list(answers_to(session_with(exact="on"), [], 1))


def test_a_model_that_supports_no_batches_answers_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reporter = RecordingReporter()
    warnings = reporter.warnings
    session = session_with(reporter)
    no_batches = Support.no("its layers keep a state")
    monkeypatch.setattr(session.model, "batching", no_batches)
    answered_keys = [outcome.key for outcome in answers_to(session, numbered_prompts(session), 4)]
    assert answered_keys == [key for key, _ in numbered_prompts(session)]
    assert {*warnings} == {"prompts are answered one at a time: its layers keep a state"}


def test_a_batch_in_half_precision_warns_that_answers_may_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reporter = RecordingReporter()
    warnings = reporter.warnings
    monkeypatch.setattr(local_engine, "rounds", lambda model: True)  # as in half precision
    for size, exact in ((1, "auto"), (2, "off"), (2, "auto")):
        session = session_with(reporter, exact=exact)
        assert tokens_of(next(answers_to(session, numbered_prompts(session)[:1], size)))
    assert len(warnings) == 1
    assert "--batch-size 1" in warnings[0]


def test_sequences_of_a_failed_batch_continue_alone_without_what_the_failure_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Held:
        pass

    run_step = step_module.run_step
    references = list["weakref.ref[Held]"]()
    reporter = RecordingReporter()
    warnings = reporter.warnings

    def fail_in_batches(model: TargetModel, sequences: Any, *args: Any) -> bool:
        if len(sequences) > 1:
            local = Held()
            references.append(weakref.ref(local))
            raise RuntimeError("shapes do not match")
        assert not references or references[0]() is None
        return run_step(model, sequences, *args)

    session = session_with(reporter)
    alone = tokens_by_key(session, 1)
    monkeypatch.setattr(step_module, "run_step", fail_in_batches)
    gc.disable()
    try:
        assert tokens_by_key(session, 3) == alone
    finally:
        gc.enable()
    assert "shapes do not match" in warnings[0]
    assert "continuing one after another" in warnings[0]


@pytest.mark.parametrize(
    ("fixed_buffers", "fails_twice"), [(False, False), (True, False), (True, True)]
)
def test_answers_are_right_after_a_batch_failed_that_one_sequence_had_left(
    fixed_buffers: bool, fails_twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fixed buffers too, as on a GPU, and with a prefix cache.

    The second failure is that of copying a prompt's rows to the prefix cache.
    """
    for module in (kv_cache, prefixes):
        monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", 8)
    monkeypatch.setattr(model_module, "STAYING_DEVICES", {"cpu"} if fixed_buffers else set())
    session = session_with(max_tokens=30)
    model = session.model
    monkeypatch.setattr(model, "_prefixes", None)
    model.drop_cache()
    texts = [TEXTS[0], *(f"{text} Question: What is told here? Answer:" for text in DOCUMENTS)]
    token_ids = [model.tokenizer.encode(text) for text in texts]
    numbered = [(i, Prompt(text, token_ids[i], (), ())) for i, text in enumerate(texts)]
    each_settings = [session.settings.replace(max_tokens=2 if i == 0 else 30) for i in range(4)]

    def all_answers(size: int) -> dict[Any, list[int]]:
        prompts = ReadyPrompts(session, size=size, many=True)
        return {
            outcome.key: tokens_of(outcome)
            for outcome in answer_prompts(prompts, numbered, dict(enumerate(each_settings)))
        }

    alone = all_answers(1)
    score = TargetModel.score
    keep = prefixes.Prefixes.keep
    batch_sizes = list[int]()

    def fail_in_the_fifth(self: TargetModel, layout: Any) -> Any:
        if len(layout.spans) == 1:
            return score(self, layout)
        batch_sizes.append(len(layout.spans))
        if len(batch_sizes) == 5:
            if fails_twice:
                monkeypatch.setattr(prefixes.Prefixes, "keep", fail_once)
            raise RuntimeError("a kernel failed")
        return score(self, layout)

    def fail_once(*_: Any) -> None:
        monkeypatch.setattr(prefixes.Prefixes, "keep", keep)
        raise RuntimeError("a copy failed")

    monkeypatch.setattr(TargetModel, "score", fail_in_the_fifth)
    model.keep_prefixes(memory=True)
    model.drop_cache()
    try:
        assert all_answers(4) == alone
        assert len(batch_sizes) == 5
        assert max(batch_sizes) > batch_sizes[-1]  # one had ended
    finally:
        monkeypatch.undo()
        model.drop_cache()


def test_the_first_sequence_goes_on_if_no_batch_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Making the drafters of the batch fails, as where memory ends."""
    session = session_with(method="trie")
    alone = tokens_by_key(session, 1)

    def fail(*_: object) -> None:
        raise RuntimeError("no drafter")

    engine = LocalEngine(session)
    engine.warm()
    requests = Submissions(engine)
    events = list[SubmissionEvent]()
    prepared = {}
    for key, prompt in numbered_prompts(session)[:2]:
        question = Request(task="ask", settings=session.settings, preset=load_preset("ask"))
        assert isinstance(prompt, Prompt)
        prepared[key] = engine.prepare_prompt(
            Submission(question), session, prompt, SESSION_OPTIONS
        )
    first, second = prepared.values()
    requests.add(first)
    while not any(isinstance(event, Stepped) for _, event in events):
        events += requests.step()
    assert requests.has_room(second.submission)
    monkeypatch.setattr(Drafting, "join", fail)
    requests.add(second)
    for _ in range(3):  # `Prompted`, then the attempt
        events += requests.step()
    monkeypatch.undo()
    while requests.busy:
        events += requests.step()
    answers_of = {request: event for request, event in events if isinstance(event, Ended)}
    for key, answer_prepared in prepared.items():
        assert [token.id for token in answers_of[answer_prepared.submission].tokens] == alone[key]
