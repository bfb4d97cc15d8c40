"""What others than the user of this machine are told, and programs that have no command line.

Nothing of paths of this machine, no flags, and no control characters, as in a pipe.
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

_PATH = re.compile(r"(?<![\w./])[/~]\w")  # of this machine, in what is said of an answer
_FLAG = re.compile(r"--(?:set )?(?P<name>[a-z][a-z_-]*)(?:[ =](?P<value>[\w.:+-]*\w))?")
_COMMAND = re.compile(r"(^|[ (])(--?\w|ngt )")  # words of a command line
_SENTENCE = re.compile(r"(?<=[.?!]) +")


class RequestError(UsageError):
    """What a request asks for is wrong, or not here; `param` names what."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        param: str | None = None,
        code: str = "invalid_value",
        status: int = 400,
    ) -> None:
        super().__init__(message, hint=hint)
        self.param, self.code, self.status = param, code, status


def public(event: Event) -> Event | None:
    """An event as others may see it; None for one that they may not."""
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

    >>> _without_commands("read the best 3 of 9 passages; --passages 6 reads more")
    'read the best 3 of 9 passages'
    """
    first, *advice = text.split("; ")
    return "; ".join([first, *(part for part in advice if not _COMMAND.search(part))])


def _step(step: Step) -> Step:
    tokens = (
        replace(t, text=visible(t.text), thought=t.thought and visible(t.thought))
        for t in step.tokens
    )
    return replace(step, tokens=tuple(tokens))


def words_of(error: NgtError, *, with_settings: bool) -> str:
    """What an error says to a program; flags as `settings` of a request, where it may have them.

    >>> from ngtcli.errors import ContextOverflowError
    >>> error = ContextOverflowError("too long", hint="Use --overflow truncate. Name one (-m).")
    >>> words_of(error, with_settings=True)
    'too long. Use "settings": {"overflow": "truncate"}. Name one.'
    >>> words_of(error, with_settings=False)
    'too long. Name one.'
    """

    def setting(found: re.Match[str]) -> str:
        name, value = found["name"].replace("-", "_"), found["value"]
        if not with_settings or name not in PER_REQUEST or value is None:
            return found[0]
        number = re.fullmatch(r"-?\d+(\.\d+)?", value)
        if not number and value not in SETTINGS[name].choices:
            return found[0]
        return f'"settings": {{"{name}": {value if number else json.dumps(value)}}}'

    message = _FLAG.sub(lambda found: found[0].lstrip("-"), str(error))
    said = [_FLAG.sub(setting, one.replace(" (-m)", "")) for one in _SENTENCE.split(error.hint)]
    hints = [one for one in said if one and not _COMMAND.search(one)]
    return one_line(" ".join([f"{message}.", *hints] if hints else [message]))


def has_path(words: str) -> bool:
    """Whether words name a place of this machine."""
    return bool(_PATH.search(words))


def private_words(error: Exception) -> str:
    """What others are told of an error that is not for them."""
    if isinstance(error, InputError):
        return "the server's documents cannot be read"
    return "the answer failed; the server's output says why"


def is_private(error: Exception) -> bool:
    """Whether an error is not for others: of this machine, and not of what was asked."""
    if isinstance(error, RequestError | SettingError):
        return False
    return not isinstance(error, NgtError | TimeoutError) or (
        isinstance(error, InputError) or has_path(f"{error} {getattr(error, 'hint', '')}")
    )
