"""Prompts that fit the model's context: a longer one is refused or cut.

Of a prompt that is much too long only the start is counted, piece by piece; near the end of a piece
a few tokens may differ from those of the whole. A prompt near the limit is encoded whole, and that
number decides.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ngtcli.errors import ContextOverflowError
from ngtcli.models.control import Encoding
from ngtcli.models.tokenizer import Tokenizer, piece_end
from ngtcli.prompts.build import Prompt, Task, code
from ngtcli.prompts.reports import Cut
from ngtcli.system import reporting
from ngtcli.words import counted, short

_EXACT = 1 << 15  # tokens up to which prompts are always counted whole; about 0.1 s, guess
_SPARE = 1000  # 1 / _SPARE of the room may stay unused where documents are cut; guess
_SHOWN = 20  # cuts that are reported one by one; guess
_PIECE = 1 << 16  # characters, encoded in about 50 ms (measured); Ctrl-C is obeyed between pieces
_LONG = 1 << 18  # characters that are encoded in 0.3 s, measured with the built-in tokenizer
_INTERVAL_S = 0.3  # between two status lines; guess
_CHARACTERS = 6  # of a token, read at first of documents that are cut; guess: most have about four


def count_tokens(task: Task, texts: Iterable[str], limit: int, characters: int) -> int:
    """The number of tokens of `texts`, each by itself; counting stops beyond `limit`.

    They are encoded piece by piece; at intervals, while any of about so many `characters` is left,
    there is a line "Reading 12k of 30k …". Raises ModelError as `Tokenizer.locate`.
    """
    tokens = read = 0
    last = time.monotonic()
    for text in texts:
        at = 0
        while at < len(text) and tokens <= limit:
            end = piece_end(text, at, _PIECE)
            tokens += len(task.tokenizer.locate(text[at:end]).ids)
            read += end - at
            at = end
            if read < characters and time.monotonic() - last >= _INTERVAL_S:
                last = time.monotonic()
                whole = short(tokens * max(characters, read) // read)
                reporting.status(f"Reading {short(tokens)} of {whole} tokens …")
        if tokens > limit:
            break
    return tokens


def fit_prompt(task: Task, overflow: str = "auto") -> Prompt:
    """A prompt of less than `context` tokens.

    With `overflow="truncate"` it also leaves room for the answer; to fit, the documents are cut to
    one common number of tokens, keeping the start of each. The question is never cut. Raises
    ContextOverflowError with both numbers, and ModelError as `Task.build`.
    """
    if overflow == "truncate":
        return _cut(task)
    whole = whole_prompt(task)
    if isinstance(whole, Prompt) and len(whole.ids) < task.context:
        return whole
    number = str(len(whole.ids)) if isinstance(whole, Prompt) else whole
    raise ContextOverflowError(
        f"the prompt has {number} tokens, the model takes {task.context - 1}",
        hint="Give fewer or shorter documents, use --overflow truncate to cut them,"
        " or name a model with a longer context (-m).",
    )


def whole_prompt(task: Task) -> Prompt | str:
    """The prompt with all documents; if that is far too long, its number of tokens in words."""
    characters = sum(len(d.text) for d in task.documents)
    limit = _near(max(task.context, _EXACT))
    if characters > limit or characters + len(task.frame.whole) > limit:
        # The frame is made last, or not at all: for many documents that takes longer than to count.
        texts = (task.frame.whole if d is None else d.text for d in (*task.documents, None))
        if count_tokens(task, texts, limit, characters) > limit:
            return f"more than {limit}"
    return task.build(task.documents)


def _near(limit: int) -> int:
    """The count in pieces up to which only a count of the whole decides."""
    return limit + limit // 8  # guess: pieces add a token or two per thousand


def _cut(task: Task) -> Prompt:
    """The prompt, or the longest that fits with all documents cut at one number of tokens."""
    texts = [d.text.strip() for d in task.documents]
    target = task.room - frame_tokens(task)
    heads = _heads(task.tokenizer, texts, _near(target))
    if all(len(head.text) == len(text) for head, text in zip(heads, texts, strict=True)):
        prompt = task.build(task.documents)
        if len(prompt.ids) <= task.room:
            return prompt
    lengths = [len(head.coded.ids) for head in heads]
    best: tuple[Prompt, list[int]] | None = None
    while target > 0 and any(kept := level(lengths, target)):
        starts = [head.cut(k, task.tokenizer) for head, k in zip(heads, kept, strict=True)]
        pairs = zip(task.documents, starts, strict=True)
        prompt = task.build([replace(document, text=start) for document, start in pairs])
        spare = task.room - len(prompt.ids)
        if best and not len(best[0].ids) < len(prompt.ids) <= task.room:
            break
        if spare >= 0:
            best = prompt, kept
            if spare <= len(heads) + task.room // _SPARE:
                break
        target += spare
    if best is None:
        raise no_room(task)
    return replace(best[0], cuts=tuple(_cuts(task, *best)))


@dataclass(frozen=True, slots=True)
class _Head:
    """The start of a text, or all of it, encoded."""

    text: str
    coded: Encoding

    def cut(self, tokens: int, tokenizer: Tokenizer) -> str:
        """The text of the first `tokens` tokens."""
        ids, starts = self.coded.ids, self.coded.starts
        if tokens >= len(ids):
            return self.text.strip()
        return (self.text[: starts[tokens]] if starts else tokenizer.decode(ids[:tokens])).strip()


def _heads(tokenizer: Tokenizer, texts: Sequence[str], total: int) -> list[_Head]:
    """Of each text so much that they can be cut at one number of tokens, `total` in all."""
    characters = _CHARACTERS
    while True:
        sizes = level([len(text) for text in texts], characters * max(total, 1))
        heads = [
            _Head(text[:n], tokenizer.locate(text[:n]))
            for text, n in zip(texts, sizes, strict=True)
        ]
        # One that is not read to its end counts as longer than `total`.
        ends = [n == len(text) for text, n in zip(texts, sizes, strict=True)]
        lengths = [len(head.coded.ids) for head in heads]
        kept = level([n + total * (not end) for n, end in zip(lengths, ends, strict=True)], total)
        if all(k <= n for k, n in zip(kept, lengths, strict=True)):
            return heads
        characters *= 2


def _cuts(task: Task, prompt: Prompt, kept: Sequence[int]) -> Iterator[Cut]:
    """The documents that were cut; their tokens only if that many are counted quickly."""
    known = sum(len(d.text) for d in task.documents) <= _LONG
    for document, left, k in zip(task.documents, prompt.documents, kept, strict=True):
        text = document.text.strip()
        if len(left.text) < len(text):
            whole = len(task.tokenizer.encode(text)) if known else None
            own = len(task.tokenizer.encode(left.text)) if known else k
            yield Cut(document.name, whole, own, len(text), len(left.text))


def frame_tokens(task: Task) -> int:
    """The number of tokens of the prompt without documents' texts. Raises ContextOverflowError."""
    frame = task.frame
    if count_tokens(task, [frame.whole], 2 * task.room, len(frame.whole)) > 2 * task.room:
        raise no_room(task)
    tokens = len(code(frame, task.tokenizer)[1])
    if tokens >= task.room:
        raise no_room(task)
    return tokens


def cut_words(cuts: Sequence[Cut]) -> Iterator[str]:
    """A sentence per document that was cut; beyond _SHOWN one for the rest."""
    for cut in cuts[:_SHOWN]:
        if cut.tokens is not None:
            kept = f"{cut.kept} of {counted(cut.tokens, 'token')}"
        else:
            share = cut.kept_characters / cut.characters
            kept = f"{counted(cut.kept, 'token')}, {share:.2%} of its text,"
        yield f"{cut.name}: cut to its first {kept} to fit"
    if len(cuts) > _SHOWN:
        yield f"cut to fit: {counted(len(cuts) - _SHOWN, 'more document')}"


def no_room(task: Task) -> ContextOverflowError:
    """The error for names, question or wording of the preset that leave no room for documents."""
    names = f" and {len(task.documents)} names" if len(task.documents) > 1 else ""
    return ContextOverflowError(
        f"no room for documents: of {task.context} tokens there are {task.room} besides the answer,"
        f" which system prompt, wording, question{names} take",
        hint="Shorten these, give fewer documents, or name a model with a longer context (-m).",
    )


def level(lengths: Sequence[int], total: int) -> list[int]:
    """`lengths` bounded by the largest number with which their sum is at most `total`.

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
