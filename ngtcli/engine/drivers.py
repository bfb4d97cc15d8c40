"""Two of the three drivers of an engine: `answer` asks one question, `run` many, of one thread.

The third is the `Resident` of serve/, of many threads.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ngtcli.engine.engine import Asked, Engine, caught
from ngtcli.engine.events import USUAL, Ended, Event, Message, Outcome, Part, Reading, Wants
from ngtcli.engine.question import OtherModelError, Question
from ngtcli.errors import NgtError

Drawn = tuple[Any, Question | NgtError]  # the caller's key; in place of a question its error


def answer(engine: Engine, question: Question, wants: Wants = USUAL) -> Generator[Event]:
    """The events of a question, but for what the engine says aloud at once. Raises NgtError.

    A KeyboardInterrupt, raised here or thrown in, ends the answer: `Ended` has as much as there is.
    Before it has begun that raises StoppedError. What is kept of parts stays until the caller asks
    for more than `Ended`; then what was read is kept.
    """
    coming = deque[Event | NgtError]()

    def tell(event: Event | NgtError) -> None:
        if isinstance(event, Message | Reading | Part):
            engine.aloud(event)
        else:
            coming.append(event)

    asked = Asked(question, tell, wants=wants)
    try:
        try:
            engine.prepare(asked)
            engine.add(asked)
        except KeyboardInterrupt:
            raise asked.stopped from None
        while coming or engine.busy:
            try:
                while coming:
                    event = coming.popleft()
                    if isinstance(event, NgtError):
                        raise event
                    yield event
                engine.step()
            except KeyboardInterrupt:
                engine.interrupt()
    finally:
        asked.is_over = True
        engine.interrupt()


def run(
    engine: Engine, draw: Callable[[bool], Drawn | None], wants: Wants = USUAL
) -> Generator[Outcome]:
    """The answers to many questions as they finish, in any order.

    `draw` gives the next one when there is room for it, and None where none is there now; where
    nothing is being answered it is told to wait, and None is the end. What is kept of parts stays
    until the next outcome is asked for. Raises NgtError for what ends the run.
    """
    done, next_one = deque[Outcome](), list[Asked]()

    def taken(key: Any, question: Question | NgtError) -> None:
        def tell(event: Event | NgtError) -> None:
            if isinstance(event, Ended | NgtError):
                done.append(Outcome(key, asked.question, asked.prompt, event))
            elif isinstance(event, Message):
                engine.aloud(event)

        if isinstance(question, NgtError):
            done.append(Outcome(key, None, None, question))
            return
        asked = Asked(question, tell, wants=wants)
        try:
            engine.prepare(asked)
            next_one.append(asked)
        except OtherModelError:
            raise
        except Exception as error:
            asked.say(caught(error))

    try:
        while True:
            while done:
                yield done.popleft()
            if not next_one and engine.has_room and (drawn := draw(not engine.busy)) is not None:
                taken(*drawn)
            elif next_one and engine.takes(next_one[0]):
                engine.add(next_one.pop())
            elif engine.busy:
                engine.step()
            else:
                break
    finally:
        for asked in engine.asked:
            asked.is_over = True
        engine.interrupt()
