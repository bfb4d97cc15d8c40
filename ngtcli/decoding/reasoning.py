"""The reasoning of a model, set off from its answer in a stream of tokens.

The marks of a format set them off. A mark that is a token of its own counts as that token alone, so
that reasoning can quote its name; one that is none counts as text. Tags in an answer that has begun
belong to its text.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from ngtcli.models.tokenizer import Detokenizer, overlap

# What follows a mark: a thought, the answer, the name of a channel, or what that name says.
THOUGHT, ANSWER, HEADER, CHANNEL, _SAME = "thought", "answer", "header", "channel", "same"
_STOP = "stop"  # nothing follows a stop string


@dataclass(frozen=True, slots=True)
class Format:
    """Marks with what follows each, and texts that open a thought and that close one."""

    marks: Mapping[str, str]
    opening: str
    closing: str


def _tags(first: str, last: str, **more: str) -> Format:
    marks = {first: THOUGHT, last: ANSWER, **more}
    return Format(marks, f"{first}\n", f"\n{last}\n\n")


# Each is recognised by the mark that ends a thought, which its template names.
FORMATS = (
    # gpt-oss: https://cookbook.openai.com/articles/openai-harmony
    Format(
        {"<|channel|>": HEADER, "<|start|>": HEADER, "<|end|>": HEADER, "<|message|>": CHANNEL},
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    # Qwen, DeepSeek and many others; Granite 3.3 puts tags around its answer as well.
    _tags("<think>", "</think>", **{"<response>": _SAME, "</response>": _SAME}),
    _tags("[THINK]", "[/THINK]"),  # Magistral
    _tags("<thought>", "</thought>"),  # EXAONE Deep
    _tags("Here is my thought process:", "Here is my response:"),  # Granite 3.2
)


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model's thoughts are set off, behind a prompt that ends in `part`.

    `tokens` are marks that are tokens of their own, `texts` the others, both with what follows.
    `most` tokens of thought may be made; then the tokens of `closing` end it. `settled`: the prompt
    has closed the thought already.
    """

    tokens: Mapping[int, str]
    texts: Mapping[str, str]
    closing: tuple[int, ...]
    part: str
    settled: bool
    most: int

    @property
    def room(self) -> int:
        """Tokens besides those of the answer; marks that open a thought are fewer than closing."""
        return 0 if self.settled else self.most + 2 * len(self.closing)


def part_of(header: str) -> str:
    """What a message is by the text before it: of all channels but "final" it is a thought."""
    return ANSWER if header.split()[:1] in ([], ["final"], ["assistant"]) else THOUGHT


class TextStream:
    """The text of tokens as they come, thought and answer apart, up to a stop string in the answer.

    What may begin a stop string or a mark is kept back. `thought` tokens were not of the answer,
    `answered` were. White space around a thought is left out, and an empty line ends it. At `most`
    tokens a thought is closed by `forced` ones.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        thinking: Thinking | None = None,
        most: int = 0,
    ) -> None:
        self._detokenizer, self._thinking, self._most = detokenizer, thinking, most
        self._tokens, texts = (thinking.tokens, thinking.texts) if thinking else ({}, {})
        self._texts = {**texts, **dict.fromkeys(filter(None, stop), _STOP)}
        self.part = thinking.part if thinking else ANSWER
        self.answered = self.thought = 0
        self.stopped = False
        self._settled = thinking is None or thinking.settled  # whether a thought has ended
        self._begun = self._settled  # whether the answer has
        self._said = self._marked = False  # whether this thought has a text; any mark came
        self._header = self._kept = ""  # of a channel; a text that may begin a mark
        self._blank = ""  # white space that counts where more follows
        self._closed = 0  # tokens of `closing` that were made
        self._out = {THOUGHT: "", ANSWER: ""}

    def copy(self) -> "TextStream":
        """One in the same state, to look ahead."""
        other = copy(self)
        other._detokenizer = copy(self._detokenizer)
        return other

    @property
    def forced(self) -> int | None:
        """The token that comes next whatever the model would choose; None where it chooses."""
        over = self.part == THOUGHT and self.thought >= self._most
        if self._thinking is None or not (self._closed or over):
            return None
        return self._thinking.closing[self._closed]

    @property
    def openings(self) -> tuple[int, ...] | None:
        """The marks that may come where an answer may begin, and open a thought instead.

        None where what comes is none of an answer.
        """
        if self.part != ANSWER or self.forced is not None:
            return None
        if self._settled or self.answered:
            return ()
        return tuple([token for token, after in self._tokens.items() if after == THOUGHT])

    def may_force(self, ahead: int) -> bool:
        """Whether one of the next `ahead` tokens may be forced."""
        return self._thinking is not None and self.thought + ahead > self._most

    def push(self, token: int) -> tuple[str | None, str]:
        """The text of the thought, None for a token of the answer, and the text of the answer."""
        self._out = {THOUGHT: "", ANSWER: ""}
        self._closed += token == self.forced
        following = self._tokens.get(token)
        quoted = self._begun and self.answered and following in (THOUGHT, ANSWER)
        if following is None or quoted:
            self._take(self._detokenizer.push(token))
        else:
            self._take(self._detokenizer.flush(), end=True)
            self._follow(following)
        if self._thinking and self._closed == len(self._thinking.closing):
            self._closed, self.part = 0, ANSWER
        if self.part == ANSWER and (self._begun or not self._settled):
            self.answered += 1
            return self._out[THOUGHT] or None, self._out[ANSWER]
        self.thought += 1
        return self._out[THOUGHT], self._out[ANSWER]

    def flush(self, thought: str | None = None, text: str = "") -> tuple[str | None, str]:
        """Both texts of the last token with what is left when there are no more."""
        self._out = {THOUGHT: "", ANSWER: ""}
        self._take(self._detokenizer.flush(), end=True)
        if not self._marked and self.part == HEADER:  # the model does not keep to the format
            self._out[ANSWER] += self._header
        if self._out[THOUGHT]:
            thought = (thought or "") + self._out[THOUGHT]
        return thought, text + self._out[ANSWER]

    def _take(self, text: str, end: bool = False) -> None:
        """Text of tokens, in which marks count that are none; nothing is kept back at an `end`."""
        text = self._counts(self._kept + text)
        while found := [(at, m) for m in self._marks() if (at := text.find(m)) >= 0]:
            at, mark = min(found)
            self._say(text[:at])
            if mark in self._marks():  # else the answer has begun
                self._follow(self._texts[mark])
            else:
                self._say(mark)
            text = self._counts(text[at + len(mark) :])
        longest = 0 if end else max((overlap(text, mark) for mark in self._marks()), default=0)
        self._kept = text[len(text) - longest :]
        self._say(text[: len(text) - longest])

    def _counts(self, text: str) -> str:
        """The text without what stands before an answer, in which no stop string counts."""
        return text.lstrip() if self.part == ANSWER and self._settled and not self._begun else text

    def _marks(self) -> list[str]:
        """The marks that count now as text: one begins a thought only where an answer begins."""
        if not self._texts or self.stopped:
            return []
        counts = {THOUGHT: not self._begun, _SAME: self._settled, _STOP: True}
        if self.part != ANSWER:
            counts = {ANSWER: self.part == THOUGHT}
        return [mark for mark, following in self._texts.items() if counts.get(following)]

    def _follow(self, following: str) -> None:
        """What is behind a mark."""
        self.stopped |= following == _STOP
        if following in (_SAME, _STOP):
            return
        if following == CHANNEL:
            following = part_of(self._header)
        self._settled |= following == ANSWER
        if self._said:
            self._out[THOUGHT] += "\n\n"
        self.part, self._header, self._blank = following, "", ""
        self._said, self._marked = False, True

    def _say(self, text: str) -> None:
        """Text of the part that is being made; white space at a thought's ends is none of it."""
        if self.stopped:
            return
        if self.part == HEADER:
            self._header += text
        elif self.part == ANSWER and self._begun:
            self._out[ANSWER] += text
        elif not text.strip():
            self._blank += text
        elif self.part == ANSWER:
            self._out[ANSWER] += text.lstrip() if self._settled else self._blank + text
            self._begun, self._blank = True, ""
        else:
            text = self._blank + text if self._said else text.lstrip()
            self._out[THOUGHT] += text.rstrip()
            self._said, self._blank = True, text[len(text.rstrip()) :]
