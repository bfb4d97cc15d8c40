"""What heads are trained on: a recording of a model's answers to prompts made of documents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.heads.training.folder import Text
from ngtcli.measure.prompts import Item
from ngtcli.measure.traces import Trace, TraceWriter
from ngtcli.prompt.preset import Preset
from ngtcli.system.files import key_of
from ngtcli.system.progress import progress_bar

if TYPE_CHECKING:
    from ngtcli.prompt.build import Prompt
    from ngtcli.session.local import LocalSession

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

    def prompt(item: Item) -> "Prompt | ContextOverflowError":
        preset = presets["ask" if item.question else "summarize"]
        try:
            return session.prompt(preset, item.documents, item.question)
        except ContextOverflowError as error:
            return error

    model, failed = session.model, 0
    own = model.tokenizer.fingerprint, session.settings.model, model.vocabulary
    with TraceWriter(folder, *own, more=True) as trace:
        left = [item for item in items if item.id not in trace.done]
        asked = ((number, prompt(item)) for number, item in enumerate(left))
        for count, finished in enumerate(session.answers(asked, 0), len(items) - len(left) + 1):
            if isinstance(finished.error, ContextOverflowError):
                failed += 1
            elif finished.error is not None:
                raise finished.error
            elif ids := [token.id for token in finished.tokens]:
                item, given = left[finished.key], finished.prompt
                task = "ask" if item.question else "summarize"
                room = session.settings.max_tokens
                trace.add(item.id, task, given.ids, ids, given.references, room)
            bar = progress_bar(count, len(items))
            status(f"Answering {bar} {count} of {counted(len(items), 'answer')}")
    return failed


def held_out(traces: Sequence[Trace]) -> list[Text]:
    """The texts of traces, with all that is about a share of the documents held out.

    Without documents the turns of a conversation stay together.
    """
    about = [key_of(*t.references) if t.references else t.id.partition("/")[0] for t in traces]
    keys = sorted(set(about))
    held = set(keys[: max(1, round(_HELD_SHARE * len(keys)))])
    pairs = zip(traces, about, strict=True)
    return [Text(trace.prompt_ids, trace.output_ids, key in held) for trace, key in pairs]
