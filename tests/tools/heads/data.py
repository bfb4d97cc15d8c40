"""The data to train heads on: a recording of a model's answers to prompts made of documents."""

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
from tests.tools.heads.folder import Sample
from tests.tools.measuring.traces import Trace, TraceWriter

if TYPE_CHECKING:
    from ngtcli.engine.local import LocalSession

_HELD_OUT_SHARE = 0.1  # of the groups of samples, to validate on; guess
_MIN_PART_CHARACTERS = 40  # shorter parts are left out; guess


def parts_of(document: Document, tokens: int) -> Iterator[Document]:
    """The parts of a document, of about `tokens` tokens each; very short ones are left out."""
    for passage in passages(document, Cutting(tokens)):
        text = document.text[passage.start : passage.end]
        if len(text) >= _MIN_PART_CHARACTERS:
            yield Document(document.name, text)


def record(
    session: "LocalSession",
    presets: Mapping[str, Preset],
    items: Sequence[Item],
    folder: Path,
    status: Callable[[str], object],
) -> int:
    """Record the model's answers to the prompts that the recording in `folder` does not have yet.

    The answers are drafted, and many are decoded at once. Raises NgtError as answers do.

    Args:
        session: The session with the model.
        presets: The preset of each task.
        items: The prompts.
        folder: The recording's folder.
        status: Receives status lines.

    Returns:
        The number of prompts that do not fit the model.
    """
    from ngtcli.engine.drivers import run  # lazy: these modules load torch
    from ngtcli.engine.local_engine import LocalEngine

    model = session.model
    settings = session.settings.replace(overflow="error")
    tasks = Tasks({task: (settings, preset) for task, preset in presets.items()})
    writer = TraceWriter(
        folder, model.tokenizer.fingerprint, settings.model.model, model.vocabulary, resume=True
    )
    with writer:
        unanswered = [item for item in items if item.id not in writer.done]
        remaining = iter(unanswered)

        def next_request(_: bool) -> tuple[Item, Request] | None:
            item = next(remaining, None)
            if item is None:
                return None
            loaded = Loaded(tuple(item.documents))
            request = tasks.request(_task(item), item.question, loaded=loaded)
            return item, replace(request, wants=frozenset())

        failed = 0
        answered_before = len(items) - len(unanswered)
        outcomes = run(LocalEngine(session, many=True), next_request)
        for count, outcome in enumerate(outcomes, answered_before + 1):
            answer = outcome.answer
            if isinstance(answer, ContextOverflowError):
                failed += 1
            elif isinstance(answer, NgtError):
                raise answer
            elif answer.tokens and outcome.prompt is not None:
                writer.add(
                    outcome.key.id,
                    _task(outcome.key),
                    outcome.prompt.ids,
                    [token.id for token in answer.tokens],
                    outcome.prompt.references,
                    settings.answer.max_tokens,
                )
            bar = progress_bar(count, len(items))
            status(f"Answering {bar} {count} of {counted(len(items), 'answer')}")
    return failed


def _task(item: Item) -> str:
    return "ask" if item.question else "summarize"


def samples_of(traces: Sequence[Trace]) -> list[Sample]:
    """The samples of traces; all that are about some of the documents are held out together.

    Without documents, the turns of a conversation stay together.
    """
    groups = [_group(trace) for trace in traces]
    keys = sorted(set(groups))
    held_out = set(keys[: max(1, round(_HELD_OUT_SHARE * len(keys)))])
    return [
        Sample(trace.prompt_ids, trace.output_ids, group in held_out)
        for trace, group in zip(traces, groups, strict=True)
    ]


def _group(trace: Trace) -> str:
    """A key that traces about the same documents, or of the same conversation, share."""
    if trace.references:
        return key_of(*trace.references)
    return trace.id.partition("/")[0]
