"""Prompts made of a preset, documents and a question. Knows nothing of torch.

A prompt knows which of its tokens stand outside the documents, because the documents' own n-grams
come from their cached trie.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ngtcli.documents.load import Document
from ngtcli.errors import ContextOverflowError
from ngtcli.presets import Preset
from ngtcli.tokens import Tokenizer

_FIELD = re.compile(r"\{(documents|question|name|text|index)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with its `{field}`s filled, once: braces inside a value stay as they are.

    >>> fill("{text}!", {"text": "{name}"})
    '{name}!'
    """
    return _FIELD.sub(lambda m: values.get(m.group(1), m.group()), template)


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of a document was kept where it was cut to fit, in tokens."""

    name: str
    tokens: int
    kept: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `outside` are the runs of ids that are not a document's.

    Each run overlaps the documents beside it by a few tokens, so that n-grams across the seam
    are known as well. `references` are the documents' ids as they stand in the prompt; empty where
    that cannot be told.
    """

    text: str
    ids: list[int]
    outside: tuple[tuple[int, ...], ...]
    documents: tuple[Document, ...]
    cuts: tuple[Cut, ...] = ()
    references: tuple[tuple[int, ...], ...] = ()


def user_text(preset: Preset, documents: Sequence[Document], question: str) -> str:
    """The user's message: the template, filled."""
    form = preset.document if len(documents) == 1 else preset.titled_document
    parts = [
        fill(form, {"name": d.name, "text": d.text.strip(), "index": str(i)})
        for i, d in enumerate(documents, 1)
    ]
    return fill(preset.template, {"documents": preset.separator.join(parts), "question": question})


def build_prompt(
    preset: Preset, documents: Sequence[Document], question: str, tokenizer: Tokenizer
) -> Prompt:
    """The prompt in the model's chat format, or as plain text where the model has none."""
    message = user_text(preset, documents, question)
    chat = tokenizer.has_chat_template
    text = tokenizer.chat([{"role": "user", "content": message}]) if chat else message + "\n\n"
    ids, starts = _encode_with_offsets(tokenizer, text, special=not chat)
    spans = _document_spans(text, starts, documents)
    references = tuple(tuple(ids[first:last]) for first, last in spans)
    outside = _outside(ids, spans)
    return Prompt(text, ids, outside, tuple(documents), references=references)


def _encode_with_offsets(
    tokenizer: Tokenizer, text: str, special: bool
) -> tuple[list[int], list[int]]:
    """Ids and the character each starts at; no starts where the tokenizer cannot tell."""
    if not getattr(tokenizer.backend, "is_fast", False):
        return tokenizer.encode(text, special), []
    coded = tokenizer.backend(text, add_special_tokens=special, return_offsets_mapping=True)
    return list(coded["input_ids"]), [start for start, _ in coded["offset_mapping"]]


def _document_spans(
    text: str, starts: list[int], documents: Sequence[Document]
) -> list[tuple[int, int]]:
    """First and last-but-one index of each document's ids; none where they cannot be told."""
    spans: list[tuple[int, int]] = []
    at = 0
    for document in documents if starts else ():
        body = document.text.strip()
        at = text.find(body, at)
        if at < 0:  # the chat template changed the text: treat all of it as prompt
            return []
        spans.append((bisect_left(starts, at), bisect_left(starts, at + len(body))))
        at += len(body)
    return spans


def _outside(
    ids: list[int], spans: Sequence[tuple[int, int]], overlap: int = 4
) -> tuple[tuple[int, ...], ...]:
    inside = [False] * len(ids)
    for first, last in spans:
        inside[first:last] = [True] * (last - first)
    near = [not all(inside[max(0, i - overlap) : i + overlap + 1]) for i in range(len(ids))]
    return tuple(_runs(ids, near))


def _runs(ids: list[int], wanted: list[bool]) -> list[tuple[int, ...]]:
    runs: list[list[int]] = [[]]
    for token, keep in zip(ids, wanted, strict=True):
        if keep:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tuple(run) for run in runs if run]


def fit_prompt(
    preset: Preset,
    documents: Sequence[Document],
    question: str,
    tokenizer: Tokenizer,
    context: int,
    answer: int,
    overflow: str = "error",
) -> Prompt:
    """A prompt that leaves room in `context` positions: one token, or `answer` where it is cut.

    With `overflow="truncate"` the documents, never the question, are cut: the longest first, down
    to one common length. Raises ContextOverflowError with both numbers.
    """
    prompt = build_prompt(preset, documents, question, tokenizer)
    room = context - min(answer, context // 4)
    if len(prompt.ids) <= room or (overflow != "truncate" and len(prompt.ids) < context):
        return prompt
    if overflow != "truncate":
        raise ContextOverflowError(
            f"the prompt has {len(prompt.ids)} tokens, the model takes {context - 1}",
            "Give fewer or shorter documents, use --overflow truncate to cut them,"
            " or name a model with a longer context (-m).",
        )
    lengths = [len(tokenizer.encode(d.text.strip())) for d in documents]
    target = sum(lengths) - (len(prompt.ids) - room)
    while target > 0:
        kept = level(lengths, target)
        shorter = [_head(d, k, tokenizer) for d, k in zip(documents, kept, strict=True)]
        prompt = build_prompt(preset, shorter, question, tokenizer)
        if len(prompt.ids) <= room:
            cuts = [
                Cut(d.name, whole, k)
                for d, whole, k in zip(documents, lengths, kept, strict=True)
                if k < whole
            ]
            return replace(prompt, cuts=tuple(cuts))
        target -= max(len(prompt.ids) - room, 1)
    raise ContextOverflowError(
        f"the question alone leaves no room in {context} tokens",
        "Shorten the question or name a model with a longer context (-m).",
    )


def level(lengths: Sequence[int], total: int) -> list[int]:
    """`lengths` cut at one common height so that their sum is at most `total`.

    >>> level([5, 100, 40], 65)
    [5, 30, 30]
    """
    kept = list(lengths)
    height, left = 0, total
    for rank, length in enumerate(sorted(lengths)):
        height = left // (len(lengths) - rank)
        if length > height:
            break
        left -= length
    else:
        return kept
    return [min(length, height) for length in kept]


def _head(document: Document, tokens: int, tokenizer: Tokenizer) -> Document:
    text = document.text.strip()
    ids, starts = _encode_with_offsets(tokenizer, text, special=False)
    if tokens >= len(ids):
        return document
    head = text[: starts[tokens]] if starts else tokenizer.decode(ids[:tokens])
    return Document(document.name, head.strip())
