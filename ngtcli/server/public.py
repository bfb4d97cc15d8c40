"""Events and errors as clients over the network and programs without a command line may see them.

They contain no paths of this machine, no flags, and no control characters.
"""

import json
import re
from dataclasses import replace

from ngtcli.config import PER_REQUEST, SETTINGS, SettingError
from ngtcli.drafting.steps import Step
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.engine.events import Ended, Event, Message, Part, Stepped
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.render.terminal import one_line, visible

_PATH = re.compile(r"(?<![\w./])[/~]\w")  # a path of this machine, in a message
_FLAG = re.compile(r"--(?:set )?(?P<name>[a-z][a-z_-]*)(?:[ =](?P<value>[\w.:+-]*\w))?")
_COMMAND = re.compile(r"(^|[ (])(--?\w|ngt )")  # words of a command line
_SENTENCE = re.compile(r"(?<=[.?!]) +")


class RequestError(UsageError):
    """A request is wrong, or asks for something that this server lacks.

    Attributes:
        param: The parameter that is wrong, if it is one.
        code: OpenAI's code of the error.
        status: The HTTP status.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        param: str | None = None,
        code: str = "invalid_value",
        status: int = 400,
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code
        self.status = status


def public(event: Event) -> Event | None:
    """Return an event as clients may see it; None for one that they may not see."""
    match event:
        case Message():
            text = one_line(_without_commands(event.text))
            return None if has_path(text) else replace(event, text=text)
        case Part():
            return replace(event, words=one_line(event.words))
        case Stepped():
            return replace(event, step=_step(event.step))
        case Ended():
            spans = tuple(
                replace(
                    source,
                    name=one_line(source.name),
                    path="",
                    quote=visible(source.quote),
                    before=visible(source.before),
                    after=visible(source.after),
                    heading=source.heading and one_line(source.heading),
                )
                for source in event.sources.spans
            )
            return replace(
                event,
                steps=tuple(map(_step, event.steps)),
                sources=replace(event.sources, spans=spans),
                facts=tuple(map(one_line, event.facts)),
                details=tuple(map(one_line, event.details)),
                trie=TrieReport("none"),
            )
    return event


def _without_commands(text: str) -> str:
    """Return a message without its advice on flags, which only a command line has.

    >>> _without_commands("only 3 of 9 passages are read; --passages 6 reads more")
    'only 3 of 9 passages are read'
    """
    first, *advice = text.split("; ")
    return "; ".join([first, *(part for part in advice if not _COMMAND.search(part))])


def _step(step: Step) -> Step:
    tokens = (
        replace(token, text=visible(token.text), thought=token.thought and visible(token.thought))
        for token in step.tokens
    )
    return replace(step, tokens=tuple(tokens))


def words_of(error: NgtError, *, with_settings: bool) -> str:
    """Return the message and the advice of an error for a program, without flags.

    With `with_settings`, advice on a flag becomes advice on the `settings` of a request.

    >>> from ngtcli.errors import ContextOverflowError
    >>> error = ContextOverflowError("too long", hint="Use --overflow truncate. Name one (-m).")
    >>> words_of(error, with_settings=True)
    'too long. Use "settings": {"overflow": "truncate"}. Name one.'
    >>> words_of(error, with_settings=False)
    'too long. Name one.'
    """

    def as_setting(flag: re.Match[str]) -> str:
        name = flag["name"].replace("-", "_")
        value = flag["value"]
        if not with_settings or name not in PER_REQUEST or value is None:
            return flag[0]
        is_number = re.fullmatch(r"-?\d+(\.\d+)?", value) is not None
        if not is_number and value not in SETTINGS[name].choices:
            return flag[0]
        return f'"settings": {{"{name}": {value if is_number else json.dumps(value)}}}'

    message = _FLAG.sub(lambda flag: flag[0].lstrip("-"), str(error))
    sentences = [
        _FLAG.sub(as_setting, sentence.replace(" (-m)", ""))
        for sentence in _SENTENCE.split(error.hint)
    ]
    advice = [sentence for sentence in sentences if sentence and not _COMMAND.search(sentence)]
    if advice:
        message = " ".join([f"{message}.", *advice])
    return one_line(message)


def has_path(text: str) -> bool:
    """Return whether a text has a path of this machine."""
    return bool(_PATH.search(text))


def private_words(error: Exception) -> str:
    """Return the message that clients get in place of an error that is not for them."""
    if isinstance(error, InputError):
        return "the server's documents cannot be read"
    return "the answer failed; the server's output says why"


def is_private(error: Exception) -> bool:
    """Return whether an error is not for clients: it concerns this machine, not the request."""
    if isinstance(error, RequestError | SettingError):
        return False
    if not isinstance(error, NgtError | TimeoutError) or isinstance(error, InputError):
        return True
    return has_path(f"{error} {getattr(error, 'hint', '')}")
