"""Fit prompts to the model's context: a longer one is refused or cut.

The tokens of a prompt that is much too long are only counted up to a limit, in pieces. Around the
ends of pieces the count may be off by a few tokens, so a prompt near the limit is encoded in one
go, and that number decides.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ngtcli.errors import ContextOverflowError
from ngtcli.models.control import Encoding
from ngtcli.models.tokenizer import Tokenizer, piece_end
from ngtcli.prompts.build import Prompt, Task, encode_message
from ngtcli.prompts.reports import Cut
from ngtcli.system import reporting
from ngtcli.words import counted, short

_EXACT = 1 << 15  # tokens up to which prompts are encoded in one go; about 0.1 s (guess)
_SPARE = 1000  # 1 / _SPARE of the room may stay unused where documents are cut (guess)
_SHOWN = 20  # cuts that are reported one by one (guess)
_PIECE = 1 << 16  # characters, encoded in about 50 ms (measured); Ctrl-C is obeyed between pieces
_LONG = 1 << 18  # characters that are encoded in 0.3 s, measured with the built-in tokenizer
_INTERVAL_S = 0.3  # between two status lines (guess)
_CHARACTERS = 6  # per token that is kept, encoded at first (guess: most tokens have about four)


def count_tokens(task: Task, texts: Iterable[str], limit: int, characters: int) -> int:
    """Count the tokens of texts, and report the progress from time to time.

    Args:
        task: Its tokenizer counts.
        texts: The texts, which are encoded one by one, in pieces.
        limit: The number of tokens above which counting stops.
        characters: About how many characters the texts have, for the progress.

    Raises:
        ModelError: As `Tokenizer.locate`.
    """
    tokens = 0
    read = 0  # characters
    reported_at = time.monotonic()
    for text in texts:
        start = 0
        while start < len(text) and tokens <= limit:
            end = piece_end(text, start, _PIECE)
            tokens += len(task.tokenizer.locate(text[start:end]).ids)
            read += end - start
            start = end
            if read < characters and time.monotonic() - reported_at >= _INTERVAL_S:
                reported_at = time.monotonic()
                total = short(tokens * max(characters, read) // read)
                reporting.status(f"Reading {short(tokens)} of {total} tokens …")
        if tokens > limit:
            break
    return tokens


def fit_prompt(task: Task, overflow: str = "auto") -> Prompt:
    """Return a prompt of fewer than `context` tokens.

    With `overflow="truncate"` it also leaves room for the answer: the documents are cut to one
    common number of tokens, and the start of each is kept. The question is never cut.

    Raises:
        ContextOverflowError: The prompt does not fit; the error has both numbers.
        ModelError: As `Task.build`.
    """
    if overflow == "truncate":
        return _cut(task)
    prompt = whole_prompt(task)
    if isinstance(prompt, Prompt):
        if len(prompt.ids) < task.context:
            return prompt
        number = str(len(prompt.ids))
    else:
        number = prompt
    raise ContextOverflowError(
        f"the prompt has {number} tokens, the model takes at most {task.context - 1}",
        hint="Give fewer or shorter documents, use --overflow truncate to cut them,"
        " or name a model with a longer context (-m).",
    )


def whole_prompt(task: Task) -> Prompt | str:
    """Return the prompt with all documents; if it is far too long, only its length in words."""
    characters = sum(len(d.text) for d in task.documents)
    limit = _near(max(task.context, _EXACT))
    if characters > limit or characters + len(task.frame.whole) > limit:
        # The frame is made last if at all: for many documents it takes longer than counting.
        texts = (task.frame.whole if d is None else d.text for d in [*task.documents, None])
        if count_tokens(task, texts, limit, characters) > limit:
            return f"more than {limit}"
    return task.build(task.documents)


def _near(limit: int) -> int:
    """Return the count in pieces up to which the prompt is encoded in one go."""
    return limit + limit // 8  # guess: pieces add a token or two per thousand


def _cut(task: Task) -> Prompt:
    """Return the prompt, or the longest that fits with all documents cut at the same length."""
    texts = [d.text.strip() for d in task.documents]
    target = task.room - frame_tokens(task)
    heads = _heads(task.tokenizer, texts, _near(target))
    if all(len(head.text) == len(text) for head, text in zip(heads, texts, strict=True)):
        prompt = task.build(task.documents)
        if len(prompt.ids) <= task.room:
            return prompt
    lengths = [len(head.encoding.ids) for head in heads]
    best: tuple[Prompt, list[int]] | None = None
    while target > 0:
        kept = level(lengths, target)
        if not any(kept):
            break
        documents = [
            replace(document, text=head.cut(tokens, task.tokenizer))
            for document, head, tokens in zip(task.documents, heads, kept, strict=True)
        ]
        prompt = task.build(documents)
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
    """The start of a text, or all of it, with its encoding."""

    text: str
    encoding: Encoding

    def cut(self, tokens: int, tokenizer: Tokenizer) -> str:
        """Return the text of the first `tokens` tokens."""
        token_ids = self.encoding.ids
        starts = self.encoding.starts
        if tokens >= len(token_ids):
            text = self.text
        elif starts:
            text = self.text[: starts[tokens]]
        else:
            text = tokenizer.decode(token_ids[:tokens])
        return text.strip()


def _heads(tokenizer: Tokenizer, texts: Sequence[str], total: int) -> list[_Head]:
    """Encode enough of each text to cut all of them at the same length, `total` tokens together."""
    characters = _CHARACTERS
    while True:
        sizes = level([len(text) for text in texts], characters * max(total, 1))
        heads: list[_Head] = []
        lengths: list[int] = []  # tokens; a text that is not encoded to its end has more than total
        for text, size in zip(texts, sizes, strict=True):
            head = _Head(text[:size], tokenizer.locate(text[:size]))
            heads.append(head)
            length = len(head.encoding.ids)
            lengths.append(length if size == len(text) else length + total)
        kept = level(lengths, total)
        if all(n <= len(head.encoding.ids) for n, head in zip(kept, heads, strict=True)):
            return heads
        characters *= 2


def _cuts(task: Task, prompt: Prompt, kept: Sequence[int]) -> Iterator[Cut]:
    """Yield the documents that were cut, with their lengths in tokens if counting is quick."""
    is_quick = sum(len(d.text) for d in task.documents) <= _LONG
    for document, shortened, kept_tokens in zip(
        task.documents, prompt.documents, kept, strict=True
    ):
        text = document.text.strip()
        if len(shortened.text) == len(text):
            continue
        tokens = None
        if is_quick:
            tokens = len(task.tokenizer.encode(text))
            kept_tokens = len(task.tokenizer.encode(shortened.text))
        yield Cut(document.name, tokens, kept_tokens, len(text), len(shortened.text))


def frame_tokens(task: Task) -> int:
    """Count the tokens of the prompt without the texts of documents.

    Raises:
        ContextOverflowError: They leave no room for documents.
    """
    frame = task.frame
    if count_tokens(task, [frame.whole], 2 * task.room, len(frame.whole)) > 2 * task.room:
        raise no_room(task)
    tokens = len(encode_message(frame, task.tokenizer)[1])
    if tokens >= task.room:
        raise no_room(task)
    return tokens


def cut_words(cuts: Sequence[Cut]) -> Iterator[str]:
    """Yield a sentence for each of the first cut documents, and one for the others."""
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
    """Return the error for a question, names or a preset that leave no room for documents."""
    names = f" and {len(task.documents)} names" if len(task.documents) > 1 else ""
    return ContextOverflowError(
        f"no room for documents: of {task.context} tokens the answer leaves {task.room},"
        f" and system prompt, wording, question{names} take all of them",
        hint="Shorten these, give fewer documents, or name a model with a longer context (-m).",
    )


def level(lengths: Sequence[int], total: int) -> list[int]:
    """Limit lengths to the largest number that keeps their sum at `total` or below.

    >>> level([5, 100, 40], 65)
    [5, 30, 30]
    """
    remaining = total
    for rank, length in enumerate(sorted(lengths)):
        limit = remaining // (len(lengths) - rank)  # an equal share for this one and longer ones
        if length > limit:
            return [min(length, limit) for length in lengths]
        remaining -= length
    return list(lengths)
