"""Prompts that fit the model's context: a longer one is refused or cut.

Of a prompt that is much too long only the start is counted, piece by piece; near the end of a piece
a few tokens may differ from those of the whole. A prompt near the limit is encoded whole, and that
number decides.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ngtcli.errors import ContextOverflowError, counted, short
from ngtcli.prompt.build import Prompt, Task, code
from ngtcli.prompt.chat import Chat
from ngtcli.prompt.reports import Cut
from ngtcli.tokens.control import Coded
from ngtcli.tokens.tokenizer import LONG, piece_end

_EXACT = 1 << 15  # tokens up to which prompts are always counted whole; about 0.1 s, guess
_NAMES = 1 << 20  # tokens up to which names are counted for a message; about 4 s, guess
_SPARE = 1000  # 1 / _SPARE of the room may stay unused where documents are cut; guess
_SHOWN = 20  # cuts that are reported one by one; guess


PIECE = 1 << 16  # characters, encoded in about 50 ms (measured); Ctrl-C is obeyed between pieces
_INTERVAL_S = 0.3  # between two status lines; guess


class Reading:
    """Encodes texts piece by piece; at intervals, while any is left, a line "Reading 12k of 30k …".

    `characters` is about how many will be read.
    """

    def __init__(self, task: Task, characters: int) -> None:
        self.tokenizer = task.tokenizer
        self._status, self._characters = task.status, characters
        self._read = self._tokens = 0
        self._last = time.monotonic()

    def piece(self, text: str, at: int, size: int) -> tuple[Coded, int]:
        """The ids of about `size` characters from index `at`, and where those end.

        Raises ModelError as `Tokenizer.locate`.
        """
        end = piece_end(text, at, size)
        coded = self.tokenizer.locate(text[at:end])
        self._read += end - at
        self._tokens += len(coded.ids)
        if self._read < self._characters and time.monotonic() - self._last >= _INTERVAL_S:
            self._last = time.monotonic()
            whole = self._tokens * max(self._characters, self._read) // max(self._read, 1)
            self._status(f"Reading {short(self._tokens)} of {short(whole)} tokens …")
        return coded, end

    def count(self, texts: Iterable[str], limit: int) -> int:
        """The number of tokens of `texts`, each by itself; counting stops beyond `limit`."""
        tokens = 0
        for text in texts:
            at = 0
            while at < len(text) and tokens <= limit:
                coded, at = self.piece(text, at, PIECE)
                tokens += len(coded.ids)
            if tokens > limit:
                break
        return tokens


class Head:
    """The start of a text, encoded as far as `read` was called."""

    def __init__(self, text: str, reading: Reading) -> None:
        self.text, self._reading = text, reading
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._at = 0

    def __len__(self) -> int:
        """The number of tokens read so far."""
        return len(self._ids)

    @property
    def done(self) -> bool:
        """Whether all of the text is read."""
        return self._at >= len(self.text)

    def read(self, size: int) -> None:
        """Encode about `size` characters more. Raises ModelError as `Reading.piece`."""
        coded, end = self._reading.piece(self.text, self._at, size)
        self._ids += coded.ids
        self._starts += [self._at + start for start in coded.starts]
        self._at = end

    def cut(self, tokens: int) -> str:
        """The text of the first `tokens` tokens, or of all that were read."""
        if tokens >= len(self._ids):
            return self.text[: self._at]
        if len(self._starts) == len(self._ids):
            return self.text[: self._starts[tokens]]
        return self._reading.tokenizer.decode(self._ids[:tokens])


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
        "Give fewer or shorter documents, use --overflow truncate to cut them,"
        " or name a model with a longer context (-m).",
    )


def whole_prompt(task: Task) -> Prompt | str:
    """The prompt with all documents; if that is far too long, its number of tokens in words."""
    characters = sum(len(d.text) for d in task.documents)
    limit = _near(max(task.context, _EXACT))
    if characters > limit or characters + len(task.frame.whole) > limit:
        # The frame is made last, or not at all: for many documents that takes longer than to count.
        texts = (task.frame.whole if d is None else d.text for d in (*task.documents, None))
        if Reading(task, characters).count(texts, limit) > limit:
            return f"more than {limit}"
    return task.build(task.documents)


def _near(limit: int) -> int:
    """The count in pieces up to which only a count of the whole decides."""
    return limit + limit // 8  # guess: pieces add a token or two per thousand


def _cut(task: Task) -> Prompt:
    """The prompt, or the longest that fits with all documents cut at one number of tokens."""
    texts = [d.text.strip() for d in task.documents]
    reading = Reading(task, min(sum(map(len, texts)), 5 * task.room))
    heads = [Head(text, reading) for text in texts]
    target = task.room - frame_tokens(task)
    read_level(heads, _near(target))
    if all(head.done for head in heads):
        prompt = task.build(task.documents)
        if len(prompt.ids) <= task.room:
            return prompt
    best: tuple[Prompt, list[int]] | None = None
    while target > 0 and any(kept := read_level(heads, target)):
        starts = [head.cut(k).strip() for head, k in zip(heads, kept, strict=True)]
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


def _cuts(task: Task, prompt: Prompt, kept: Sequence[int]) -> Iterator[Cut]:
    """The documents that were cut; their tokens only if that many are counted quickly."""
    known = sum(len(d.text) for d in task.documents) <= LONG
    for document, left, k in zip(task.documents, prompt.documents, kept, strict=True):
        text = document.text.strip()
        if len(left.text) < len(text):
            whole = len(task.tokenizer.encode(text)) if known else None
            own = len(task.tokenizer.encode(left.text)) if known else k
            yield Cut(document.name, whole, own, len(text), len(left.text))


def frame_tokens(task: Task) -> int:
    """The number of tokens of the prompt without documents' texts. Raises ContextOverflowError."""
    frame = task.frame
    if Reading(task, len(frame.whole)).count([frame.whole], 2 * task.room) > 2 * task.room:
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
    alone = replace(task, preset=replace(task.preset, template="{documents}"), chat=Chat())
    names = [alone.message(task.empty).text]
    wording = [replace(task, question="", summary="").message([]).text]
    many = len(task.documents)
    parts = {
        f"{many} names alone need": (names if many > 1 else [], "Give fewer documents"),
        "the system text alone needs": ([task.chat.system], "Shorten the system text"),
        "the question alone needs": ([task.question], "Shorten the question"),
        "the summary so far alone needs": ([task.summary], "Give a smaller --max-tokens"),
        f"the wording of preset {task.preset.name} alone needs": (wording, "Shorten its template"),
    }
    reading = Reading(task, sum(len(t) for texts, _ in parts.values() for t in texts))
    counts = {p: reading.count(t, _NAMES) for p, (t, _) in parts.items()}
    part = max(counts, key=lambda p: counts[p])
    tokens = f"more than {_NAMES}" if counts[part] > _NAMES else str(counts[part])
    return ContextOverflowError(
        f"{part} {tokens} tokens; of {task.context} there are {task.room} besides the answer",
        f"{parts[part][1]} or name a model with a longer context (-m).",
    )


def read_level(heads: Sequence[Head], total: int) -> list[int]:
    """`level` of the heads' lengths; each head is read only as far as that needs."""
    size = max(256, 6 * total // len(heads))  # characters; guess: a token has about four
    while True:
        # A head that is not read to its end counts as longer than `total`.
        kept = level([len(h) if h.done else len(h) + total for h in heads], total)
        short = [h for h, k in zip(heads, kept, strict=True) if not h.done and len(h) <= k]
        if not short:
            return kept
        for head in short:
            head.read(min(size, PIECE))


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
