"""Answers to many prompts."""

from collections.abc import Iterable, Iterator

from ngtcli.answered import Answered, failed
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.session import Session


def answers(
    session: Session, prompts: Iterable[tuple[int, Prompt | NgtError]], size: int
) -> Iterator[Answered]:
    """The answers to `prompts`, each with the caller's key, as they finish: in any order.

    Prompts are drawn one at a time, when there is room for one; an error in place of a prompt, and
    one that its answer ends with, is yielded as that key's. `size` sequences are decoded together
    at most; 0: as many as memory allows.
    """
    for key, prompt in prompts:
        yield failed(key, prompt) if isinstance(prompt, NgtError) else _alone(session, key, prompt)


def _alone(session: Session, key: int, prompt: Prompt) -> Answered:
    """One answer by itself."""
    try:
        answer = session.answer(prompt)
        steps = tuple(answer)
    except NgtError as error:
        return failed(key, error, prompt)
    return Answered(
        key, prompt, steps, answer.finish_reason, answer.run.statistics, answer.policy,
        exact=answer.run.exact, trie=answer.trie,
    )  # fmt: skip
