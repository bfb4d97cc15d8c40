"""Answers to many prompts, several of which are decoded together."""

from collections.abc import Callable, Iterable, Iterator

from ngtcli.decode.batch import Batch, Begun, Member
from ngtcli.decode.batch_drafts import Drafts, OwnDrafts, joint_drafts
from ngtcli.decode.batch_target import why_not
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.scores import runs_exactly
from ngtcli.decode.steps import Limits
from ngtcli.draft.registry import MethodSpec
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import Answered, Given, failed
from ngtcli.session.local import Session, sampling_settings

_MAY_DIFFER = (
    "in half precision an answer given beside others may differ from its own run where scores"
    " nearly tie; --batch-size 1 gives that one"
)


def answers(
    session: Session,
    prompts: Iterable[Given],
    size: int,
    own: Callable[[int], Session] | None = None,
) -> Iterator[Answered]:
    """The answers to `prompts`, each with the caller's key, as they finish: in any order.

    Prompts are drawn one at a time, when there is room for one; an error in place of a prompt, and
    one that its answer ends with, is yielded as that key's. `size` texts are decoded together at
    most; 0: as many as memory allows and pay. In float32 each answer has the ids of its run alone.
    In half precision near ties may turn out otherwise, as whenever passes have other shapes.
    A text's seconds are its share of the passes (Batch). `own` gives the session of a key, whose
    settings of the answer may be others than those of `session`; model and method are the same.
    Raises UsageError where answers are to be exact and `size` is not 1.
    """
    own = own or (lambda key: session)
    if size != 1 and session.settings.exact == "on" and not session.model.plain_reason:
        raise UsageError(
            "exact decoding takes one text at a time", "Leave out --exact, or give --batch-size 1."
        )
    if size == 1:
        return _one_by_one(prompts, own)
    if reason := _why_one_by_one(session):
        session.warn(f"prompts are answered one after another: {reason}")
        return _one_by_one(prompts, own)
    if session.settings.exact == "auto" and not runs_exactly(session.model.hf):
        session.warn(_MAY_DIFFER)
    return _together(session, prompts, size, own)


def _why_one_by_one(session: Session) -> str:
    if session.settings.method.startswith("draft-model"):
        return "a draft model follows one text at a time"
    return why_not(session.model)


def _one_by_one(prompts: Iterable[Given], own: Callable[[int], Session]) -> Iterator[Answered]:
    for key, prompt in prompts:
        yield failed(key, prompt) if isinstance(prompt, NgtError) else _alone(own(key), key, prompt)


def _alone(session: Session, key: int, prompt: Prompt) -> Answered:
    try:
        answer = session.answer(prompt)
        steps = tuple(answer)
    except NgtError as error:
        return failed(key, error, prompt)
    return Answered(
        key, prompt, steps, answer.finish_reason, answer.run.statistics, answer.policy,
        exact=answer.run.exact, trie=answer.trie,
    )  # fmt: skip


def _together(
    session: Session, prompts: Iterable[Given], size: int, own: Callable[[int], Session]
) -> Iterator[Answered]:
    method = session.parse_method()
    batch = Batch(session.model, _drafts(session, method), size, session.reading)
    source = _begun(method, prompts, own)
    more = True
    try:
        while more or not batch.done:
            while more and batch.takes_more:
                begun = next(source, None)
                if begun is None:
                    more = False
                elif isinstance(begun, Answered):
                    yield begun
                else:
                    yield from (_answered(own, m) for m in batch.add(begun))
            yield from (_answered(own, m) for m in batch.step())
    finally:
        session.save_memory()


def _begun(
    method: MethodSpec, prompts: Iterable[Given], own: Callable[[int], Session]
) -> Iterator[Begun | Answered]:
    """The texts that the prompts begin; in place of one that cannot be begun what says so."""
    for key, prompt in prompts:
        if isinstance(prompt, NgtError):
            yield failed(key, prompt)
            continue
        session = own(key)
        s = session.settings
        limits = Limits(s.max_tokens, method.settings.num_draft, s.stop, s.max_repeats)
        try:
            context, trie = session.context(prompt, method)
            text = Continuation(session.model, context, sampling_settings(s), limits)
        except NgtError as error:
            yield failed(key, error, prompt)
        else:
            yield Begun((key, prompt, trie), text, context)


def _answered(own: Callable[[int], Session], member: Member) -> Answered:
    key, prompt, trie = member.given
    if member.crowded:
        return _alone(own(key), key, prompt)
    if member.error is not None:
        return failed(key, member.error, prompt)
    text = member.text
    steps = tuple(member.steps)
    return Answered(
        key, prompt, steps, text.finish_reason, text.statistics, member.policy, trie=trie
    )


def _drafts(session: Session, method: MethodSpec) -> Drafts:
    most = method.settings.num_draft
    if not method.entry.costs:
        return OwnDrafts(lambda: session.new_drafter(method.spec), most)
    session.memory.load()
    memory = session.memory
    return joint_drafts(memory.costs, memory.pool, most, memory.backgrounds.load())
