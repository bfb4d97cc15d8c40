"""Answers to many prompts by vLLM, which joins what is asked at once into its own batches."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from ngtcli.engines.vllm_session import VllmSession
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import Answered, Given, failed
from ngtcli.session.local import Session


def answers(
    session: Session,
    prompts: Iterable[Given],
    size: int,
    own: Callable[[int], Session] | None = None,
) -> Iterator[Answered]:
    """As `ngtcli.batch.answers.answers`; `size` is 0 for as many at once as vLLM takes.

    Raises NgtError where vLLM's process has ended; what was being answered then has no answer.
    """
    assert isinstance(session, VllmSession)
    most, source = size or session.engine.sequences, iter(prompts)
    loop = session.engine.loop
    asked: set[asyncio.Task[Answered]] = set()
    try:
        while True:
            while len(asked) < most and (drawn := next(source, None)) is not None:
                key, prompt = drawn
                if isinstance(prompt, NgtError):
                    yield failed(key, prompt)
                else:
                    asked.add(
                        loop.create_task(_answered(own(key) if own else session, key, prompt))
                    )
            if not asked:
                return
            waiting = asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            done, asked = session.engine.wait(waiting)
            session.engine.check_alive()
            for task in done:
                yield task.result()
    finally:
        for task in asked:
            task.cancel()
        if asked:
            session.engine.wait(asyncio.wait(asked))


async def _answered(session: Session, key: int, prompt: Prompt) -> Answered:
    assert isinstance(session, VllmSession)
    try:
        run = session.run(prompt)
        steps = tuple([step async for step in run.steps()])
    except NgtError as error:
        return failed(key, error, prompt)
    return Answered(key, prompt, steps, run.finish_reason, run.statistics)
