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


class Part(StrEnum):
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

    marks: Mapping[str, Part]
    opening: str
    closing: str


def _tags(opening: str, closing: str, **others: Part) -> Format:
    marks = {opening: Part.REASONING, closing: Part.ANSWER, **others}
    return Format(marks, f"{opening}\n", f"\n{closing}\n\n")


# Each is recognized by the mark that ends reasoning, which its template contains.
FORMATS = (
    # gpt-oss: https://cookbook.openai.com/articles/openai-harmony
    Format(
        {
            "<|channel|>": Part.HEADER,
            "<|start|>": Part.HEADER,
            "<|end|>": Part.HEADER,
            "<|message|>": Part.CHANNEL,
        },
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    # Qwen, DeepSeek and many others; Granite 3.3 puts tags around its answer as well.
    _tags("<think>", "</think>", **{"<response>": Part.SAME, "</response>": Part.SAME}),
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
        part: What the prompt ends in.
        settled: Whether the prompt has closed the reasoning.
        max_tokens: Of reasoning.
    """

    tokens: Mapping[int, Part]
    texts: Mapping[str, Part]
    closing: tuple[int, ...]
    part: Part
    settled: bool
    max_tokens: int

    @property
    def extra_tokens(self) -> int:
        """Tokens besides those of the answer.

        The marks that open reasoning count, too: they are no more than those that close it.
        """
        return 0 if self.settled else self.max_tokens + 2 * len(self.closing)


def part_of(header: str) -> Part:
    """The part that a header begins: the answer in channel "final", reasoning in any other."""
    is_answer = header.split()[:1] in ([], ["final"], ["assistant"])
    return Part.ANSWER if is_answer else Part.REASONING


class TextStream:
    """The text of tokens as they come, reasoning and answer apart, until a stop string.

    Text that may begin a stop string or a mark is held back. White space around reasoning is left
    out, and an empty line separates one piece of reasoning from the next.

    Args:
        detokenizer: Gives the text of tokens.
        stop: The stop strings, which count in the answer alone.
        thinking: How reasoning is set off; None: all is the answer.
        max_reasoning: Tokens of reasoning after which `forced` ones close it.

    Attributes:
        part: What the next token belongs to.
        answer_tokens: How many tokens were of the answer.
        reasoning_tokens: How many were not.
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
        self._texts |= dict.fromkeys(filter(None, stop), Part.STOP)

        self.part = thinking.part if thinking else Part.ANSWER
        self.answer_tokens = 0
        self.reasoning_tokens = 0
        self.stopped = False
        self._reasoning_ended = thinking is None or thinking.settled
        self._answer_begun = self._reasoning_ended
        self._has_mark = False  # whether any mark has come
        self._has_reasoning = False  # whether this piece of reasoning has a text
        self._header = ""  # of a channel
        self._held_back = ""  # text that may begin a mark
        self._space = ""  # white space that counts if more text follows
        self._closing_count = 0  # tokens of `closing` that have come
        self._out = {Part.REASONING: "", Part.ANSWER: ""}

    def copy(self) -> "TextStream":
        """One in the same state, to look ahead."""
        other = copy(self)
        other._detokenizer = copy(self._detokenizer)
        return other

    @property
    def forced(self) -> int | None:
        """The token that comes next whatever the model would choose; None if it chooses."""
        if self._thinking is None:
            return None
        is_full = self.part == Part.REASONING and self.reasoning_tokens >= self._max_reasoning
        if self._closing_count or is_full:
            return self._thinking.closing[self._closing_count]
        return None

    @property
    def openings(self) -> tuple[int, ...] | None:
        """The marks that may open reasoning where an answer may begin.

        None if the next token is none of an answer.
        """
        if self.part != Part.ANSWER or self.forced is not None:
            return None
        if self._reasoning_ended or self.answer_tokens:
            return ()
        return tuple(
            [token for token, following in self._tokens.items() if following == Part.REASONING]
        )

    def may_force(self, ahead: int) -> bool:
        """Return whether one of the next `ahead` tokens may be forced."""
        if self._thinking is None:
            return False
        return self.reasoning_tokens + ahead > self._max_reasoning

    def push(self, token: int) -> tuple[str | None, str]:
        """The text of reasoning, None for a token of the answer, and the text of the answer."""
        self._out = {Part.REASONING: "", Part.ANSWER: ""}
        if token == self.forced:
            self._closing_count += 1
        following = self._tokens.get(token)
        in_answer = self._answer_begun and self.answer_tokens > 0
        is_quoted = in_answer and following in (Part.REASONING, Part.ANSWER)
        if following is None or is_quoted:
            self._take(self._detokenizer.push(token))
        else:
            self._take(self._detokenizer.flush(), end=True)
            self._follow(following)
        if self._thinking and self._closing_count == len(self._thinking.closing):
            self._closing_count = 0
            self.part = Part.ANSWER

        reasoning = self._out[Part.REASONING]
        if self.part == Part.ANSWER and (self._answer_begun or not self._reasoning_ended):
            self.answer_tokens += 1
            return reasoning or None, self._out[Part.ANSWER]
        self.reasoning_tokens += 1
        return reasoning, self._out[Part.ANSWER]

    def flush(self, reasoning: str | None = None, text: str = "") -> tuple[str | None, str]:
        """Both texts of the last token, and what was held back."""
        self._out = {Part.REASONING: "", Part.ANSWER: ""}
        self._take(self._detokenizer.flush(), end=True)
        if not self._has_mark and self.part == Part.HEADER:  # the model ignores the format
            self._out[Part.ANSWER] += self._header
        if self._out[Part.REASONING]:
            reasoning = (reasoning or "") + self._out[Part.REASONING]
        return reasoning, text + self._out[Part.ANSWER]

    def _take(self, text: str, end: bool = False) -> None:
        """Take the text of tokens and follow the marks in it; nothing is held back at an `end`."""
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
            else:  # the text before it has begun the answer
                self._emit(mark)
            text = self._without_lead(text[start + len(mark) :])

        held_back = 0
        if not end:
            held_back = max((overlap(text, mark) for mark in self._marks()), default=0)
        cut = len(text) - held_back
        self._held_back = text[cut:]
        self._emit(text[:cut])

    def _without_lead(self, text: str) -> str:
        """The text without white space before an answer, in which no stop string counts."""
        if self.part == Part.ANSWER and self._reasoning_ended and not self._answer_begun:
            return text.lstrip()
        return text

    def _marks(self) -> list[str]:
        """The marks that count as text now: reasoning begins only where an answer may begin."""
        if not self._texts or self.stopped:
            return []
        if self.part == Part.ANSWER:
            counting = {Part.STOP}
            if not self._answer_begun:
                counting.add(Part.REASONING)
            if self._reasoning_ended:
                counting.add(Part.SAME)
        else:
            counting = {Part.ANSWER} if self.part == Part.REASONING else set()
        return [mark for mark, following in self._texts.items() if following in counting]

    def _follow(self, following: Part) -> None:
        """Begin what follows a mark."""
        if following == Part.STOP:
            self.stopped = True
        if following in (Part.SAME, Part.STOP):
            return
        if following == Part.CHANNEL:
            following = part_of(self._header)
        if following == Part.ANSWER:
            self._reasoning_ended = True
        if self._has_reasoning:
            self._out[Part.REASONING] += "\n\n"
        self.part = following
        self._header = ""
        self._space = ""
        self._has_reasoning = False
        self._has_mark = True

    def _emit(self, text: str) -> None:
        """Emit text of the current part, except for white space around reasoning."""
        if self.stopped:
            return
        if self.part == Part.HEADER:
            self._header += text
        elif self.part == Part.ANSWER and self._answer_begun:
            self._out[Part.ANSWER] += text
        elif not text.strip():
            self._space += text
        elif self.part == Part.ANSWER:
            self._out[Part.ANSWER] += text.lstrip() if self._reasoning_ended else self._space + text
            self._answer_begun = True
            self._space = ""
        else:
            text = self._space + text if self._has_reasoning else text.lstrip()
            stripped = text.rstrip()
            self._out[Part.REASONING] += stripped
            self._has_reasoning = True
            self._space = text[len(stripped) :]
