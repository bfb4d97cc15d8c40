"""What heads are trained on: a recording of a model's answers to prompts made of documents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.bench.prompts import Item
from ngtcli.documents.load import Document, Loaded
from ngtcli.documents.passages import Cutting, passages
from ngtcli.engine.request import Request, Tasks
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.prompts.preset import Preset
from ngtcli.system.files import key_of
from ngtcli.system.progress import progress_bar
from ngtcli.words import counted
from tests.tools.heads.folder import Text
from tests.tools.measuring.traces import Trace, TraceWriter

if TYPE_CHECKING:
    from ngtcli.engine.local import LocalSession

_HELD_SHARE = 0.1  # of the texts, to validate on; guess
_LEAST = 40  # characters of a part from which on it is asked of; guess


def parts_of(document: Document, tokens: int) -> Iterator[Document]:
    """The parts of a document that are asked about, of about so many tokens."""
    for passage in passages(document, Cutting(tokens)):
        text = document.text[passage.start : passage.end]
        if len(text) >= _LEAST:
            yield Document(document.name, text)


def record(
    session: "LocalSession",
    presets: Mapping[str, Preset],
    items: Sequence[Item],
    folder: Path,
    status: Callable[[str], object],
) -> int:
    """Let the model answer what a recording has no answer of, drafted, many at once.

    `presets` by task. Returns how many prompts do not fit the model. Raises NgtError as answers do.
    """

    from ngtcli.engine.drivers import run  # here: they load torch
    from ngtcli.engine.local_engine import LocalEngine

    model, failed = session.model, 0
    settings = session.settings.replace(overflow="error")
    tasks = Tasks({task: (settings, preset) for task, preset in presets.items()})
    own = model.tokenizer.fingerprint, settings.model.model, model.vocabulary
    with TraceWriter(folder, *own, more=True) as trace:
        left = [item for item in items if item.id not in trace.done]
        coming, before = iter(left), len(items) - len(left)

        def draw(_: bool) -> tuple[Item, Request] | None:
            if (item := next(coming, None)) is None:
                return None
            loaded = Loaded(tuple(item.documents))
            request = tasks.request(_task(item), item.question, loaded=loaded)
            return item, replace(request, wants=frozenset())

        outcomes = run(LocalEngine(session, many=True), draw)
        for count, one in enumerate(outcomes, before + 1):
            if isinstance(one.answer, ContextOverflowError):
                failed += 1
            elif isinstance(one.answer, NgtError):
                raise one.answer
            elif (ids := [token.id for token in one.answer.tokens]) and one.prompt is not None:
                given = one.prompt.ids, ids, one.prompt.references, settings.answer.max_tokens
                trace.add(one.key.id, _task(one.key), *given)
            bar = progress_bar(count, len(items))
            status(f"Answering {bar} {count} of {counted(len(items), 'answer')}")
    return failed


def _task(item: Item) -> str:
    return "ask" if item.question else "summarize"


def held_out(traces: Sequence[Trace]) -> list[Text]:
    """The texts of traces, with all that is about a share of the documents held out.

    Without documents the turns of a conversation stay together.
    """
    about = [key_of(*t.references) if t.references else t.id.partition("/")[0] for t in traces]
    keys = sorted(set(about))
    held = set(keys[: max(1, round(_HELD_SHARE * len(keys)))])
    pairs = zip(traces, about, strict=True)
    return [Text(trace.prompt_ids, trace.output_ids, key in held) for trace, key in pairs]
