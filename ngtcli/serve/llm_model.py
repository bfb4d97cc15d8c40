"""What the plugin of `llm` registers: ngt's models with their options, and documents as fragments.

A question is answered in the resident process where one fits; else the model is loaded here.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llm
from llm.parts import StreamEvent, TextPart
from pydantic import Field, create_model

from ngtcli import config
from ngtcli.config import Layer, check_key, environment_and_file_layers
from ngtcli.documents.load import Document, Loaded, distinct_names, load
from ngtcli.documents.text import utf8
from ngtcli.errors import NgtError
from ngtcli.model_files.checkpoint import BUILTIN, BUILTIN_PATH
from ngtcli.model_files.hub import cache_folder, cached_ids
from ngtcli.model_files.quantized import kept
from ngtcli.prompt.turns import Turn
from ngtcli.serve.answerer import Answerer
from ngtcli.session.events import Ended, Event, Message, Stepped
from ngtcli.session.question import Question, Tasks

_OWN = ("system", "schema", "schema_multi")  # for which `llm` has flags of its own
# The options are the settings that one of several questions may have, but for the system text.
_SET = tuple(name for name in config.settings_where(config.Use.LINE) if name not in _OWN)
_DOCS = "File, folder or glob of documents, which the question is about."


def _warn(event: Event) -> None:
    if isinstance(event, Message) and event.kind == "warn":
        print(f"ngt: {event.text}", file=sys.stderr)


_ANSWERER = Answerer(_warn, stays=True)  # a model stays loaded while `llm chat` goes on


def names() -> list[str]:
    """The models that `ngt models list` has: built in, in the hub's cache, kept quantised."""
    found = [BUILTIN]
    with suppress(NgtError, OSError):  # what is wrong there is told by `ngt models list`
        named = (cache_folder(), BUILTIN_PATH)  # what is in these has a shorter name
        found += cached_ids()
        folders = [Path(one.folder) for one in kept()]
        found += [str(f) for f in folders if not any(map(f.is_relative_to, named))]
    return found


def configured() -> str:
    """The model that ngt's settings name."""
    try:
        return config.merge(environment_and_file_layers()).settings.model
    except NgtError:  # it is told once a model of ngt is asked
        return BUILTIN


def fragments(path: str) -> list[llm.Fragment]:
    """The documents of a file, a folder or a pattern, as `llm` takes them. Raises NgtError."""
    settings = config.merge(environment_and_file_layers()).settings
    loaded = load([path], settings=settings)
    for skipped in loaded.skipped:
        if not skipped.kind:
            print(f"ngt: left out {skipped.name}: {skipped.reason}", file=sys.stderr)
    made: Callable[[str, str], llm.Fragment] = llm.Fragment
    return [made(d.text, d.path or d.name) for d in loaded.documents]


@cache
def _options() -> type[llm.Options]:
    """Options of the settings' names, types and help; what is wrong with a value they say, too."""
    fields: dict[str, Any] = {"docs": (str | None, Field(description=_DOCS, default=None))}
    for name in _SET:
        about = config.SETTINGS[name]
        kind = str if about.kind is tuple else about.kind
        fields[name] = (kind | None, Field(description=about.help, default=None))
    return create_model("Options", __base__=llm.Options, **fields)


class NgtModel(llm.Model):
    """A model of this machine, `ngt/NAME`."""

    can_stream = supports_schema = True

    def __init__(self, name: str) -> None:
        self._name, self.model_id = name, f"ngt/{name}"
        self.Options = _options()  # type: ignore[assignment]

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str | StreamEvent]:
        """The answer as it is made; raises llm.ModelError."""
        try:
            question = self._question(prompt)
            with closing(_ANSWERER.ask(question, by="llm")) as answer:
                for event in answer:
                    match event:
                        case Message():
                            _warn(event)
                        case Stepped():
                            yield from _told(event)
                        case Ended():
                            _note(event, response)
                            if error := question.cut_off(event.finish_reason):
                                raise error
        except NgtError as error:
            raise llm.ModelError(f"{error}. {error.hint}".strip()) from error

    def _question(self, prompt: llm.Prompt) -> Question:
        """What is asked, by options above ngt's own settings. Raises NgtError."""
        given = {k: v for k, v in prompt.options.model_dump().items() if v is not None}
        given |= {"schema": prompt.schema} if prompt.schema else {}
        docs = given.pop("docs", None)
        values = {name: check_key(name, value, "option") for name, value in given.items()}
        *before, last = _turns(prompt)
        task = "chat" if before else "ask" if docs else "generate"
        layers = [Layer("option", {**values, "model": self._name}), *environment_and_file_layers()]
        tasks = Tasks.resolved(layers, tasks=(task,))
        loaded = load([docs], settings=tasks.of[task][0]) if docs else _of_fragments(prompt)
        system = {"system": prompt.system} if prompt.system else {}
        return tasks.question(task, utf8(last.text), loaded=loaded, turns=before, **system)


def _turns(prompt: llm.Prompt) -> list[Turn]:
    """What was said, the question last; its fragments are documents, and no part of it."""
    turns = []
    for message in prompt.messages:
        if message.role in ("user", "assistant"):
            texts = [part.text for part in message.parts if isinstance(part, TextPart)]
            turns.append(Turn(message.role, utf8("".join(texts))))
    if prompt.fragments:
        turns[-1] = Turn("user", utf8(prompt._prompt or ""))
    if not turns or turns[-1].role != "user":
        raise llm.ModelError("there is no question")
    return turns


def _of_fragments(prompt: llm.Prompt) -> Loaded:
    """The fragments of a question as documents, named as their files are."""
    texts = prompt.fragments or []
    paths = [str(getattr(text, "source", None) or "") for text in texts]
    named = distinct_names([(path or f"fragment {i}", 1) for i, path in enumerate(paths, 1)])
    each = zip(named, texts, paths, strict=True)
    return Loaded(tuple(Document(name, utf8(str(text)), path=path) for name, text, path in each))


def _told(event: Stepped) -> Iterator[str | StreamEvent]:
    for token in event.step.tokens:
        if token.thought:
            yield StreamEvent(type="reasoning", chunk=token.thought)
        if token.text:
            yield token.text


def _note(ended: Ended, response: llm.Response) -> None:
    """Put into the response, and so into the log of `llm`, what the answer took."""
    s = ended.statistics
    details = {"drafted_tokens": s.drafted_tokens, "accepted_tokens": s.accepted_tokens}
    if s.thought_tokens:
        details["reasoning_tokens"] = s.thought_tokens
    response.set_usage(input=s.prompt_tokens, output=s.new_tokens, details=details)
    found = ended.sources.places()
    sources = [{"document": one.name, "place": one.place, "quote": one.quote} for one in found]
    seconds = {"prefill_s": round(s.prefill_s, 6), "decode_s": round(s.decode_s, 6)}
    response.response_json = {"finish_reason": ended.finish_reason, **seconds, "sources": sources}
