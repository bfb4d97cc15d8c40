"""Answers to many prompts, several of which are decoded together."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ngtcli.decode.batch import Batch
from ngtcli.decode.batch_target import why_not
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Member
from ngtcli.decode.scores import runs_exactly
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import FinishedAnswer, NumberedPrompt, failed

if TYPE_CHECKING:
    from ngtcli.session.local import LocalSession

SessionOf = Callable[[int], "LocalSession"]
_MAY_DIFFER = (
    "in half precision an answer given with others may differ from its own run where scores"
    " nearly tie; --batch-size 1 gives that one"
)


def answers(
    session: "LocalSession",
    prompts: Iterable[NumberedPrompt],
    size: int,
    session_of: SessionOf,
) -> Iterator[FinishedAnswer]:
    """As `Session.answers`.

    In float32 each answer has the ids of its run alone. In half precision near ties may turn out
    otherwise, as whenever passes have other shapes. A text's seconds are its share of the passes
    (Batch). Raises UsageError where answers are to be exact and `size` is not 1.
    """
    if size != 1 and session.settings.exact == "on" and not session.model.plain_reason:
        raise UsageError(
            "exact decoding takes one text at a time", "Leave out --exact, or give --batch-size 1."
        )
    if size == 1:
        return _one_by_one(prompts, session_of)
    if reason := _why_one_by_one(session):
        session.warn(f"prompts are answered one after another: {reason}")
        return _one_by_one(prompts, session_of)
    if session.settings.exact == "auto" and not runs_exactly(session.model.hf):
        session.warn(_MAY_DIFFER)
    return _together(session, prompts, size, session_of)


def _why_one_by_one(session: "LocalSession") -> str:
    if session.settings.method.startswith("draft-model"):
        return "a draft model follows one text at a time"
    return why_not(session.model)


def _one_by_one(
    prompts: Iterable[NumberedPrompt], session_of: SessionOf
) -> Iterator[FinishedAnswer]:
    for key, prompt in prompts:
        if isinstance(prompt, NgtError):
            yield failed(key, prompt)
        else:
            yield _alone(session_of(key), key, prompt)


def _alone(session: "LocalSession", key: int, prompt: Prompt) -> FinishedAnswer:
    try:
        answer = session.answer(prompt).finish()
    except NgtError as error:
        return failed(key, error, prompt)
    return answer.finished(key)


def _together(
    session: "LocalSession",
    prompts: Iterable[NumberedPrompt],
    size: int,
    session_of: SessionOf,
) -> Iterator[FinishedAnswer]:
    batch = Batch(session.model, session.new_drafters(), size, session.reading)
    source = _members(prompts, session_of)
    more = True
    try:
        while more or not batch.done:
            while more and batch.takes_more:
                member = next(source, None)
                if member is None:
                    more = False
                elif isinstance(member, FinishedAnswer):
                    yield member
                else:
                    yield from (_finished(session_of, m) for m in batch.add(member))
            yield from (_finished(session_of, m) for m in batch.step())
    finally:
        session.save_memory()


def _members(
    prompts: Iterable[NumberedPrompt], session_of: SessionOf
) -> Iterator[Member | FinishedAnswer]:
    """The texts that the prompts begin; in place of one that cannot be begun its error."""
    for key, prompt in prompts:
        if isinstance(prompt, NgtError):
            yield failed(key, prompt)
            continue
        session = session_of(key)
        try:
            start = session.start(prompt)
            text = Continuation(session.model, start.context, session.settings, start.limits)
        except NgtError as error:
            yield failed(key, error, prompt)
        else:
            yield Member((key, prompt, start.trie), text, start.context)


def _finished(session_of: SessionOf, member: Member) -> FinishedAnswer:
    key, prompt, trie = member.given
    session = session_of(key)
    if member.crowded:
        return _alone(session, key, prompt)
    if member.error is not None:
        return failed(key, member.error, prompt)
    text, passes = member.text, session.model.passes.report()
    return FinishedAnswer(
        key,
        prompt,
        tuple(member.steps),
        text.finish_reason,
        text.statistics,
        member.policy,
        passes,
        trie=trie,
    )
