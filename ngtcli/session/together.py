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
    session: "LocalSession", prompts: Iterable[NumberedPrompt], size: int, session_of: SessionOf
) -> Iterator[FinishedAnswer]:
    """As `Session.answers`.

    In float32 each answer has the ids of its run alone. In half precision near ties may turn out
    otherwise, as whenever passes have other shapes. A text's seconds are its share of the passes
    (Batch). Raises UsageError where answers are to be exact and `size` is not 1.
    """
    settings, model = session.settings, session.model
    if size != 1 and settings.exact == "on" and not model.plain_reason:
        raise UsageError(
            "exact decoding takes one text at a time", "Leave out --exact, or give --batch-size 1."
        )
    reason = ""
    if size != 1:
        is_followed = settings.method.startswith("draft-model")
        reason = "a draft model follows one text at a time" if is_followed else why_not(model)
    if reason:
        session.warn(f"prompts are answered one after another: {reason}")
    if reason or size == 1:
        return (_alone(session_of, *one) for one in prompts)
    if settings.exact == "auto" and not runs_exactly(model.hf):
        session.warn(_MAY_DIFFER)
    return _together(session, prompts, size, session_of)


def _alone(session_of: SessionOf, key: int, prompt: Prompt | NgtError) -> FinishedAnswer:
    if isinstance(prompt, NgtError):
        return failed(key, prompt)
    try:
        return session_of(key).answer(prompt).finish().finished(key)
    except NgtError as error:
        return failed(key, error, prompt)


def _together(
    session: "LocalSession", prompts: Iterable[NumberedPrompt], size: int, session_of: SessionOf
) -> Iterator[FinishedAnswer]:
    batch = Batch(session.model, session.new_drafters(), size, session.reading)
    source = iter(prompts)
    more = True
    try:
        while more or not batch.done:
            while more and batch.takes_more:
                if (one := next(source, None)) is None:
                    more = False
                elif isinstance(member := _begun(session_of, *one), Member):
                    yield from (_finished(session_of, m) for m in batch.add(member))
                else:
                    yield member
            yield from (_finished(session_of, m) for m in batch.step())
    finally:
        session.save_memory()


def _begun(session_of: SessionOf, key: int, prompt: Prompt | NgtError) -> Member | FinishedAnswer:
    """The text that a prompt begins; its answer where it cannot be begun."""
    if isinstance(prompt, NgtError):
        return failed(key, prompt)
    session = session_of(key)
    try:
        context, trie, limits = session.start(prompt)
        text = Continuation(session.model, context, session.settings, limits)
    except NgtError as error:
        return failed(key, error, prompt)
    return Member((key, prompt, trie), text, context)


def _finished(session_of: SessionOf, member: Member) -> FinishedAnswer:
    key, prompt, trie = member.given
    if member.crowded:
        return _alone(session_of, key, prompt)
    if member.error is not None:
        return failed(key, member.error, prompt)
    text, passes = member.text, session_of(key).model.passes.report()
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
