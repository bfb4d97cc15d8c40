"""Answers to many prompts together."""

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


TOLD = [
    "The harbour of Dunmore was dug between 1820 and 1826 by two hundred men.",
    "Oysters were brought to the bay by Ann Kerr in 1911. The beds were sold in 1950.",
    "A note on seeds. They are sown in spring by all who have a field here.",
]


def given(session: LocalSession) -> list[NumberedPrompt]:
    ids = [session.model.tokenizer.encode(text) for text in TEXTS]
    return [(10 + i, Prompt(text, ids[i], (), ())) for i, text in enumerate(TEXTS)]


@lru_cache
def loaded() -> LocalSession:
    return LocalSession(Settings.of(max_tokens=6, method="none"), persist=False)


def session_with(reporter: Reporter | None = None, **changes: Any) -> LocalSession:
    settings = {"max_tokens": 6, "method": "none", **changes}
    return loaded().with_settings(Settings.of(**settings), report=report_to(reporter or Reporter()))


def answered(
    session: LocalSession, prompts: Iterable[NumberedPrompt], size: int, *of_each: Settings
) -> Generator[Outcome]:
    """The answers to prompts, up to `size` together, with these settings if there are any."""
    settings = {10 + i: own for i, own in enumerate(of_each)}
    return answer_prompts(ReadyPrompts(session, size=size, many=True), prompts, settings)


def whole(found: Outcome) -> Ended:
    assert isinstance(found.answer, Ended)
    return found.answer


def ids_of(found: Outcome) -> list[int]:
    return [token.id for token in whole(found).tokens]


def test_an_error_in_place_of_a_prompt_is_that_keys_answer() -> None:
    session = session_with()
    lost = InputError("no.txt: no such file")
    prompt = given(session)[0][1]
    assert isinstance(prompt, Prompt)
    mixed: list[NumberedPrompt] = [(7, lost), (3, prompt), (5, Prompt("", [], (), ()))]
    for size in (1, 4):
        found = {a.key: a for a in answered(session, mixed, size)}
        assert found[7].answer is lost
        assert found[7].request is None
        assert whole(found[3]).text
        assert found[3].prompt is prompt
        assert whole(found[3]).statistics.new_tokens == len(ids_of(found[3]))
        assert "empty" in str(found[5].answer)


@pytest.mark.parametrize(("method", "size"), [("none", 6), ("trie", 0), ("auto", 0)])
def test_answers_with_settings_of_their_own_share_passes_and_are_those_given_alone(
    method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: dict[str, Any] = {"method": method, "calibrate": False, "pool": False}
    of_each: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.9, "seed": 4, "top_k": 5},
        {"max_tokens": 3},
        {"stop": ("e",)},
        {"repetition_penalty": 1.5},
    ]
    sessions = [session_with(**base, **more) for more in of_each]
    asked = given(sessions[0])
    alone = [next(answered(s, [one], 1)) for s, one in zip(sessions, asked, strict=True)]
    together, score = list[int](), TargetModel.score

    def counted(model: TargetModel, layout: Any) -> Any:
        together.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", counted)
    own = [session.settings for session in sessions]
    found = {a.key: a for a in answered(sessions[0], asked, size, *own)}
    assert max(together) > 3
    for one in alone:
        assert ids_of(found[one.key]) == ids_of(one)
        ends = [(whole(a).text, whole(a).finish_reason) for a in (found[one.key], one)]
        assert ends[0] == ends[1]
    assert len({tuple(ids_of(one)) for one in alone}) == len(alone)


def test_prompts_are_drawn_when_there_is_room_and_answers_come_as_they_finish() -> None:
    session, drawn = session_with(), list[int]()

    def source() -> Iterator[NumberedPrompt]:
        for key, prompt in given(session):
            drawn.append(key)
            yield key, prompt

    found = answered(session, source(), 2)
    assert not drawn
    first = next(found)
    assert len(drawn) == 2
    assert first.key in drawn
    assert len([first, *found]) == len(TEXTS)


def test_what_was_answered_before_an_interrupt_has_been_given() -> None:
    session = session_with()

    def source() -> Iterator[NumberedPrompt]:
        yield from given(session)[:4]
        raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        for one in answered(session, source(), 2):
            found.append(one.key)  # noqa: PERF402  # what came before the interrupt counts
    assert len(found) >= 2
    assert answered_after(session)


def answered_after(session: LocalSession) -> bool:
    """Whether the session still answers, as before."""
    prompts = given(session)[:1]
    one, three = (next(answered(session, prompts, size)) for size in (1, 3))
    return ids_of(one) == ids_of(three)


def test_without_memory_for_a_batch_each_prompt_is_answered_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resize(model: TargetModel, count: int, places: int) -> None:
        if count > 1:
            raise MemoryError
        real(model, count, places)

    real = TargetModel.resize
    session = session_with()
    alone = {a.key: ids_of(a) for a in answered(session, given(session), 1)}
    monkeypatch.setattr(TargetModel, "resize", resize)
    assert {a.key: ids_of(a) for a in answered(session, given(session), 3)} == alone


def test_a_prompt_without_memory_for_its_drafter_ends_alone_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = session_with()
    prompts = given(session)
    single = {a.key: ids_of(a) for a in answered(session, prompts, 1)}
    failing_key, failing_prompt = prompts[1]
    join = Drafting.join

    def join_or_fail(drafting: Drafting, context: Context, log: TokenLog) -> Drafter:
        if list(context.ids) == failing_prompt.ids:
            raise MemoryError
        return join(drafting, context, log)

    monkeypatch.setattr(Drafting, "join", join_or_fail)
    outcomes = {a.key: a for a in answered(session, prompts, 3)}
    assert isinstance(outcomes.pop(failing_key).answer, ContextOverflowError)
    del single[failing_key]
    assert {key: ids_of(outcome) for key, outcome in outcomes.items()} == single


def test_exact_answers_are_refused_in_a_batch() -> None:
    with pytest.raises(UsageError, match="--exact does not support batches"):
        answered(session_with(exact="on"), [], 2)
    assert not list(answered(session_with(exact="on"), [], 1))


def test_a_model_that_cannot_take_several_texts_answers_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = RecordingReporter()
    said = reported.warnings
    session = session_with(reported)
    no_batches = Support.no("its layers keep a state")
    monkeypatch.setattr(session.model, "batching", no_batches)
    found = [a.key for a in answered(session, given(session), 4)]
    assert found == [key for key, _ in given(session)]
    assert {*said} == {"prompts are answered one at a time: its layers keep a state"}


def test_a_batch_in_half_precision_warns_that_answers_may_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = RecordingReporter()
    said = reported.warnings
    monkeypatch.setattr(local_engine, "rounds", lambda model: True)  # as in half precision
    for size, exact in ((1, "auto"), (2, "off"), (2, "auto")):
        session = session_with(reported, exact=exact)
        assert ids_of(next(answered(session, given(session)[:1], size)))
    assert len(said) == 1
    assert "--batch-size 1" in said[0]


def test_sequences_of_a_failed_batch_continue_alone_without_what_the_failure_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Held:
        pass

    step, held, reported = step_module.run_step, list["weakref.ref[Held]"](), RecordingReporter()
    said = reported.warnings

    def failing(model: TargetModel, sequences: Any, *more: Any) -> bool:
        if len(sequences) > 1:
            kept = Held()
            held.append(weakref.ref(kept))
            raise RuntimeError("shapes do not match")
        assert not held or held[0]() is None
        return step(model, sequences, *more)

    session = session_with(reported)
    alone = {a.key: ids_of(a) for a in answered(session, given(session), 1)}
    monkeypatch.setattr(step_module, "run_step", failing)
    gc.disable()
    try:
        assert {a.key: ids_of(a) for a in answered(session, given(session), 3)} == alone
    finally:
        gc.enable()
    assert "shapes do not match" in said[0]
    assert "continuing one after another" in said[0]


@pytest.mark.parametrize(("stay", "fails_twice"), [(False, False), (True, False), (True, True)])
def test_answers_are_right_after_a_batched_pass_failed_when_one_text_had_ended(
    stay: bool, fails_twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On buffers that stay, too, as on a GPU, and with what was read of the prompts kept.

    The second failure is one of copying what was read.
    """
    for place in (kv_cache, prefixes):
        monkeypatch.setattr(place, "CHUNK", 8)
    monkeypatch.setattr(memory_limits, "PREFILL_CHUNK", 8)
    monkeypatch.setattr(model_module, "STAYING_DEVICES", {"cpu"} if stay else set())
    session = session_with(max_tokens=30)
    model = session.model
    monkeypatch.setattr(model, "_prefixes", None)
    model.drop_cache()
    texts = [TEXTS[0], *(f"{text} Question: What is told here? Answer:" for text in TOLD)]
    ids = [model.tokenizer.encode(text) for text in texts]
    asked = [(i, Prompt(text, ids[i], (), ())) for i, text in enumerate(texts)]
    each = [session.settings.replace(max_tokens=2 if i == 0 else 30) for i in range(4)]

    def all_answers(size: int) -> dict[Any, list[int]]:
        prompts = ReadyPrompts(session, size=size, many=True)
        return {a.key: ids_of(a) for a in answer_prompts(prompts, asked, dict(enumerate(each)))}

    alone = all_answers(1)
    score, keep, shared = TargetModel.score, prefixes.Prefixes.keep, list[int]()

    def failing(self: TargetModel, layout: Any) -> Any:
        shared.extend([len(layout.spans)] * (len(layout.spans) > 1))
        if len(shared) == 5 and len(layout.spans) > 1:
            if fails_twice:
                monkeypatch.setattr(prefixes.Prefixes, "keep", failing_once)
            raise RuntimeError("a kernel failed")
        return score(self, layout)

    def failing_once(*_: Any) -> None:
        monkeypatch.setattr(prefixes.Prefixes, "keep", keep)
        raise RuntimeError("a copy failed")

    monkeypatch.setattr(TargetModel, "score", failing)
    model.keep_prefixes(memory=True)
    model.drop_cache()
    try:
        assert all_answers(4) == alone
        assert len(shared) == 5 and max(shared) > shared[-1]  # one had ended
    finally:
        monkeypatch.undo()
        model.drop_cache()


def test_where_sharing_fails_the_first_text_goes_on_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where memory ends while drafters for several are made."""
    session = session_with(method="trie")
    alone = {a.key: ids_of(a) for a in answered(session, given(session), 1)}

    def fails(*_: object) -> None:
        raise RuntimeError("no drafter")

    engine = LocalEngine(session)
    engine.warm()
    requests, events = Submissions(engine), list[SubmissionEvent]()
    prepared = {}
    for key, prompt in given(session)[:2]:
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
    monkeypatch.setattr(Drafting, "join", fails)
    requests.add(second)
    for _ in range(3):  # `Prompted`, then the attempt
        events += requests.step()
    monkeypatch.undo()
    while requests.busy:
        events += requests.step()
    answers_of = {request: e for request, e in events if isinstance(e, Ended)}
    for key, one in prepared.items():
        assert [token.id for token in answers_of[one.submission].tokens] == alone[key]
