"""The reasoning of a model, set off from its answer in a stream of tokens.

The marks of a format separate them. A mark that is a token of its own counts as that token alone,
so that reasoning can quote its name; any other mark counts as text. Tags in an answer that has
begun belong to the answer.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum

from ngtcli.models.tokenizer import Detokenizer, overlap


class StreamPart(StrEnum):
    """The part of an output that follows a mark."""

    REASONING = "reasoning"
    ANSWER = "answer"
    HEADER = "header"  # the name of a channel
    CHANNEL = "channel"  # reasoning or the answer, by the header before
    SAME = "same"  # the part that continues
    STOP = "stop"  # nothing: the mark is a stop string


@dataclass(frozen=True, slots=True)
class Format:
    """The marks around the reasoning of a family of models.

    Attributes:
        marks: The marks, with what follows each.
        opening: The text that opens reasoning.
        closing: The text that closes it and begins the answer.
    """

    marks: Mapping[str, StreamPart]
    opening: str
    closing: str


def _tags(opening: str, closing: str, **others: StreamPart) -> Format:
    marks = {opening: StreamPart.REASONING, closing: StreamPart.ANSWER, **others}
    return Format(marks, f"{opening}\n", f"\n{closing}\n\n")


# A model's format is the one whose closing mark is in the model's chat template.
FORMATS = (
    # gpt-oss: https://cookbook.openai.com/articles/openai-harmony
    Format(
        {
            "<|channel|>": StreamPart.HEADER,
            "<|start|>": StreamPart.HEADER,
            "<|end|>": StreamPart.HEADER,
            "<|message|>": StreamPart.CHANNEL,
        },
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    # Qwen, DeepSeek and many others; Granite 3.3 puts tags around its answer as well.
    _tags("<think>", "</think>", **{"<response>": StreamPart.SAME, "</response>": StreamPart.SAME}),
    _tags("[THINK]", "[/THINK]"),  # Magistral
    _tags("<thought>", "</thought>"),  # EXAONE Deep
    _tags("Here is my thought process:", "Here is my response:"),  # Granite 3.2
)


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's reasoning after a prompt.

    Attributes:
        tokens: The marks that are tokens of their own, with what follows each.
        texts: The other marks, with what follows each.
        closing: The tokens that end reasoning when it has `max_tokens`.
        part: The part that begins after the prompt.
        is_closed: Whether the prompt has closed the reasoning.
        max_tokens: The maximum number of tokens of reasoning.
    """

    tokens: Mapping[int, StreamPart]
    texts: Mapping[str, StreamPart]
    closing: tuple[int, ...]
    part: StreamPart
    is_closed: bool
    max_tokens: int

    @property
    def extra_tokens(self) -> int:
        """How many tokens an output may have besides those of the answer.

        The marks that open reasoning count, too: they have no more tokens than those that close it.
        """
        return 0 if self.is_closed else self.max_tokens + 2 * len(self.closing)


def part_of(header: str) -> StreamPart:
    """The part that a header begins: the answer in channel "final", reasoning in any other."""
    is_answer = header.split()[:1] in ([], ["final"], ["assistant"])
    return StreamPart.ANSWER if is_answer else StreamPart.REASONING


class TextStream:
    """The text of tokens as they come, reasoning and answer apart, until a stop string.

    Text that may begin a stop string or a mark is held back. White space around reasoning is left
    out, and an empty line separates one piece of reasoning from the next.

    Args:
        detokenizer: Turns tokens into text.
        stop: The stop strings, which count in the answer alone.
        thinking: The marks around reasoning; None: everything is the answer.
        max_reasoning: The number of tokens of reasoning after which `forced` tokens close it.

    Attributes:
        part: The part that the next token belongs to.
        answer_tokens: How many tokens belong to the answer.
        reasoning_tokens: How many do not.
        stopped: Whether a stop string has come.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        thinking: Thinking | None = None,
        max_reasoning: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._thinking = thinking
        self._max_reasoning = max_reasoning
        self._tokens = thinking.tokens if thinking else {}
        self._texts = dict(thinking.texts) if thinking else {}
        self._texts |= dict.fromkeys(filter(None, stop), StreamPart.STOP)

        self.part = thinking.part if thinking else StreamPart.ANSWER
        self.answer_tokens = 0
        self.reasoning_tokens = 0
        self.stopped = False
        self._reasoning_ended = thinking is None or thinking.is_closed
        self._answer_begun = self._reasoning_ended
        self._has_mark = False  # whether any mark has come
        self._has_reasoning = False  # whether this piece of reasoning has a text
        self._header = ""  # of a channel
        self._held_back = ""  # text that may begin a mark
        self._space = ""  # white space that counts if more text follows
        self._closing_count = 0  # tokens of `closing` that have come
        self._out = {StreamPart.REASONING: "", StreamPart.ANSWER: ""}

    def copy(self) -> "TextStream":
        """Return a stream in the same state, to look ahead."""
        other = copy(self)
        other._detokenizer = copy(self._detokenizer)
        return other

    @property
    def forced(self) -> int | None:
        """The token that must come next; None if the model chooses it."""
        if self._thinking is None:
            return None
        is_full = self.part == StreamPart.REASONING and self.reasoning_tokens >= self._max_reasoning
        if self._closing_count or is_full:
            return self._thinking.closing[self._closing_count]
        return None

    @property
    def openings(self) -> tuple[int, ...] | None:
        """The marks that may open reasoning where an answer may begin.

        None if the next token does not belong to an answer.
        """
        if self.part != StreamPart.ANSWER or self.forced is not None:
            return None
        if self._reasoning_ended or self.answer_tokens:
            return ()
        return tuple(
            [
                token
                for token, following in self._tokens.items()
                if following == StreamPart.REASONING
            ]
        )

    def may_force(self, ahead: int) -> bool:
        """Return whether one of the next `ahead` tokens may be forced."""
        if self._thinking is None:
            return False
        return self.reasoning_tokens + ahead > self._max_reasoning

    def push(self, token: int) -> tuple[str | None, str]:
        """Add a token.

        Returns:
            The new text of reasoning, None for a token of the answer; and the new text of the
            answer.
        """
        self._out = {StreamPart.REASONING: "", StreamPart.ANSWER: ""}
        if token == self.forced:
            self._closing_count += 1
        following = self._tokens.get(token)
        in_answer = self._answer_begun and self.answer_tokens > 0
        is_quoted = in_answer and following in (StreamPart.REASONING, StreamPart.ANSWER)
        if following is None or is_quoted:
            self._take(self._detokenizer.push(token))
        else:
            self._take(self._detokenizer.flush(), end=True)
            self._follow(following)
        if self._thinking and self._closing_count == len(self._thinking.closing):
            self._closing_count = 0
            self.part = StreamPart.ANSWER

        reasoning = self._out[StreamPart.REASONING]
        if self.part == StreamPart.ANSWER and (self._answer_begun or not self._reasoning_ended):
            self.answer_tokens += 1
            return reasoning or None, self._out[StreamPart.ANSWER]
        self.reasoning_tokens += 1
        return reasoning, self._out[StreamPart.ANSWER]

    def flush(self, reasoning: str | None = None, text: str = "") -> tuple[str | None, str]:
        """Return the two texts of the last token, with the text that was held back.

        Args:
            reasoning: The text of reasoning that `push` returned for the last token.
            text: The text of the answer that it returned.
        """
        self._out = {StreamPart.REASONING: "", StreamPart.ANSWER: ""}
        self._take(self._detokenizer.flush(), end=True)
        if not self._has_mark and self.part == StreamPart.HEADER:  # the model ignores the format
            self._out[StreamPart.ANSWER] += self._header
        if self._out[StreamPart.REASONING]:
            reasoning = (reasoning or "") + self._out[StreamPart.REASONING]
        return reasoning, text + self._out[StreamPart.ANSWER]

    def _take(self, text: str, end: bool = False) -> None:
        """Take the text of tokens and follow the marks in it; at an `end` hold nothing back."""
        text = self._without_lead(self._held_back + text)
        while True:
            marks = [(text.find(mark), mark) for mark in self._marks()]
            in_text = [(start, mark) for start, mark in marks if start >= 0]
            if not in_text:
                break
            start, mark = min(in_text)
            self._emit(text[:start])
            if mark in self._marks():
                self._follow(self._texts[mark])
            else:  # The text before the mark has begun the answer, where the mark counts as text.
                self._emit(mark)
            text = self._without_lead(text[start + len(mark) :])

        held_back = 0
        if not end:
            held_back = max((overlap(text, mark) for mark in self._marks()), default=0)
        cut = len(text) - held_back
        self._held_back = text[cut:]
        self._emit(text[:cut])

    def _without_lead(self, text: str) -> str:
        """Return the text without white space before an answer; no stop string counts there."""
        if self.part == StreamPart.ANSWER and self._reasoning_ended and not self._answer_begun:
            return text.lstrip()
        return text

    def _marks(self) -> list[str]:
        """Return the marks that count now: reasoning begins only where an answer may begin."""
        if not self._texts or self.stopped:
            return []
        if self.part == StreamPart.ANSWER:
            counting = {StreamPart.STOP}
            if not self._answer_begun:
                counting.add(StreamPart.REASONING)
            if self._reasoning_ended:
                counting.add(StreamPart.SAME)
        else:
            counting = {StreamPart.ANSWER} if self.part == StreamPart.REASONING else set()
        return [mark for mark, following in self._texts.items() if following in counting]

    def _follow(self, following: StreamPart) -> None:
        """Begin the part that follows a mark."""
        if following == StreamPart.STOP:
            self.stopped = True
        if following in (StreamPart.SAME, StreamPart.STOP):
            return
        if following == StreamPart.CHANNEL:
            following = part_of(self._header)
        if following == StreamPart.ANSWER:
            self._reasoning_ended = True
        if self._has_reasoning:
            self._out[StreamPart.REASONING] += "\n\n"
        self.part = following
        self._header = ""
        self._space = ""
        self._has_reasoning = False
        self._has_mark = True

    def _emit(self, text: str) -> None:
        """Emit text of the current part, except for white space around reasoning."""
        if self.stopped:
            return
        if self.part == StreamPart.HEADER:
            self._header += text
        elif self.part == StreamPart.ANSWER and self._answer_begun:
            self._out[StreamPart.ANSWER] += text
        elif not text.strip():
            self._space += text
        elif self.part == StreamPart.ANSWER:
            self._out[StreamPart.ANSWER] += (
                text.lstrip() if self._reasoning_ended else self._space + text
            )
            self._answer_begun = True
            self._space = ""
        else:
            text = self._space + text if self._has_reasoning else text.lstrip()
            stripped = text.rstrip()
            self._out[StreamPart.REASONING] += stripped
            self._has_reasoning = True
            self._space = text[len(stripped) :]
