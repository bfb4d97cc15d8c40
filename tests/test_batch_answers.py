"""Answers to many prompts together."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.decode.model import TargetModel
from ngtcli.errors import InputError, UsageError
from ngtcli.prompt.build import Prompt
from ngtcli.session import local
from ngtcli.session.local import LocalSession
from ngtcli.session.session import FinishedAnswer, NumberedPrompt
from tests.support.helpers import STORIES
from tests.support.tiny_models import generate

TEXTS = [
    "The harbour was built in", "Once there was a ship. Once there was", "1 2 3 4 1 2 3 4 1 2",
    "A", "The lighthouse keeper wrote every evening that", "list: a b c a b c a b c a b",
]  # fmt: skip


def given(session: LocalSession) -> list[NumberedPrompt]:
    ids = [session.model.tokenizer.encode(text) for text in TEXTS]
    return [(10 + i, Prompt(text, ids[i], (), ())) for i, text in enumerate(TEXTS)]


@lru_cache
def loaded() -> LocalSession:
    return LocalSession(Settings(max_tokens=12, method="none"), persist=False)


def session_with(**changes: Any) -> LocalSession:
    settings = {"max_tokens": 12, "method": "none", **changes}
    return loaded().with_settings(Settings(**settings))


def ids_of(found: FinishedAnswer) -> list[int]:
    assert found.error is None
    return [token.id for step in found.steps for token in step.tokens]


def test_an_error_in_place_of_a_prompt_is_that_keys_answer() -> None:
    session = session_with()
    lost = InputError("no.txt: no such file")
    prompt = given(session)[0][1]
    assert isinstance(prompt, Prompt)
    mixed: list[NumberedPrompt] = [(7, lost), (3, prompt), (5, Prompt("", [], (), ()))]
    for size in (1, 4):
        found = {a.key: a for a in session.answers(mixed, size)}
        assert found[7].error is lost and not found[7].steps
        assert found[3].error is None and found[3].text and found[3].prompt is prompt
        assert found[3].statistics.new_tokens == len(ids_of(found[3]))
        assert found[5].error is not None and "empty" in str(found[5].error)


@pytest.mark.parametrize(("method", "size"), [("none", 6), ("trie", 0), ("auto", 6), ("auto", 0)])
def test_answers_with_settings_of_their_own_share_passes_and_are_those_given_alone(
    method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: dict[str, Any] = {"method": method, "calibrate": False, "pool": False}
    of_each: list[dict[str, Any]] = [
        {}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "seed": 4, "top_k": 5},
        {"max_tokens": 3}, {"stop": ("e",)}, {"repetition_penalty": 1.5},
    ]  # fmt: skip
    sessions = [session_with(**base, **more) for more in of_each]
    asked = given(sessions[0])
    alone = [next(s.answers([one], 1)) for s, one in zip(sessions, asked, strict=True)]
    together, score = list[int](), TargetModel.score

    def counted(model: TargetModel, layout: Any) -> Any:
        together.append(len(layout.spans))
        return score(model, layout)

    monkeypatch.setattr(TargetModel, "score", counted)
    found = {a.key: a for a in sessions[0].answers(asked, size, lambda key: sessions[key - 10])}
    assert max(together) > 3
    for one in alone:
        assert ids_of(found[one.key]) == ids_of(one)
        assert (found[one.key].text, found[one.key].finish_reason) == (one.text, one.finish_reason)
    assert len({tuple(ids_of(one)) for one in alone}) == len(alone)


def test_prompts_are_drawn_when_there_is_room_and_answers_come_as_they_finish() -> None:
    session, drawn = session_with(), list[int]()

    def source() -> Iterator[NumberedPrompt]:
        for key, prompt in given(session):
            drawn.append(key)
            yield key, prompt

    found = session.answers(source(), 2)
    assert not drawn
    first = next(found)
    assert len(drawn) == 2 and first.key in drawn
    assert len([first, *found]) == len(TEXTS)


def test_what_was_answered_before_an_interrupt_has_been_given() -> None:
    session = session_with()

    def source() -> Iterator[NumberedPrompt]:
        yield from given(session)[:4]
        raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        for answered in session.answers(source(), 2):
            found.append(answered.key)  # noqa: PERF402  # what came before the interrupt counts
    assert len(found) >= 2
    assert answered_after(session)


@pytest.mark.skipif(not STORIES.exists(), reason="no ../shared/data")
def test_a_real_checkpoint_has_the_ids_of_generate_beside_others() -> None:
    settings = Settings(model=str(STORIES), method="auto", max_tokens=25, calibrate=False)
    session = LocalSession(settings, persist=False)
    prompts = given(session)
    for found in session.answers(prompts, 3):
        wanted = generate(session.model.hf, found.prompt.ids, 25)
        assert ids_of(found) == wanted


def answered_after(session: LocalSession) -> bool:
    """Whether the session still answers, as before."""
    prompts = given(session)[:1]
    return ids_of(next(session.answers(prompts, 1))) == ids_of(next(session.answers(prompts, 3)))


def test_without_memory_for_a_batch_each_prompt_is_answered_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resize(model: TargetModel, count: int, places: int) -> None:
        if count > 1:
            raise MemoryError
        real(model, count, places)

    real = TargetModel.resize
    session = session_with()
    alone = {a.key: ids_of(a) for a in session.answers(given(session), 1)}
    monkeypatch.setattr(local, "why_not", lambda model: "")
    monkeypatch.setattr(TargetModel, "resize", resize)
    assert {a.key: ids_of(a) for a in session.answers(given(session), 3)} == alone


def test_exact_answers_are_refused_together() -> None:
    with pytest.raises(UsageError, match="one text at a time"):
        session_with(exact="on").answers([], 2)
    assert not list(session_with(exact="on").answers([], 1))


def test_a_model_that_cannot_take_several_texts_answers_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, said = session_with(), list[str]()
    monkeypatch.setattr(session, "warn", said.append)
    monkeypatch.setattr(local, "why_not", lambda model: "its layers keep a state")
    found = [a.key for a in session.answers(given(session), 4)]
    assert found == [key for key, _ in given(session)]
    assert said == ["prompts are answered one after another: its layers keep a state"]


def test_what_is_otherwise_for_texts_given_together_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(local, "rounds", lambda model: True)  # as in half precision
    for size, exact, method in (
        (1, "auto", "none"), (2, "off", "none"), (2, "auto", "none"), (2, "auto", "draft-model"),
    ):  # fmt: skip
        session = session_with(exact=exact, method=method)
        session.warn = said.append
        session.answers([], size)
    assert len(said) == 2 and "own run" in said[0] and "a draft model follows one" in said[1]
