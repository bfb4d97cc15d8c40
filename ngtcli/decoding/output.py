"""The output of one sequence: its tokens as they come, with their texts, and where it ends.

It ends at an end token, at a stop string, which is cut off, and where its last tokens are the same
ones many times in a row.
"""

import numpy as np

from ngtcli.decoding.limits import Limits
from ngtcli.decoding.reasoning import StreamPart, TextStream
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.steps import OWN, Token
from ngtcli.models.tokenizer import Detokenizer, Tokenizer

MAX_PERIOD = 512  # tokens that repeat, at most (guess)
# Tokens of all repeats at least. Swept with `Settings.max_repeats` on 805 recorded answers, three
# of which end in a loop, and on 740 texts by people. With 128 tokens, 3 to 8 repeats find in the
# texts two with hundreds of zeros, 3 to 6 find the three loops; with 32 tokens, 6 find 27 texts.
MIN_REPEATED = 128


class Repetition:
    """Looks at every token of an answer, in `push`.

    The answer repeats itself once its last tokens are `repeats` times the same ones in a row,
    MAX_PERIOD at most, and all these are MIN_REPEATED tokens or more. With fewer than two `repeats`
    it never does.
    """

    def __init__(self, repeats: int) -> None:
        periods = np.arange(1, MAX_PERIOD + 1)
        self._needed = np.maximum((repeats - 1) * periods, MIN_REPEATED - periods)
        self._last = np.full(MAX_PERIOD, -1)  # the newest first
        # For each period the tokens in a row that equal the one a period before.
        self._equal = np.zeros(MAX_PERIOD, np.int64)
        self._is_on = repeats > 1

    def push(self, token: int) -> bool:
        """Return whether the answer repeats itself with this token."""
        if not self._is_on:
            return False
        self._equal = (self._equal + 1) * (self._last == token)
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        return bool((self._equal >= self._needed).any())


class Output:
    """Emits the tokens of a sequence to its log, one by one, until it ends.

    Attributes:
        log: Of the sequence; `append` emits the token to it.
        stream: The texts of the tokens, reasoning and answer apart.
        max_tokens: Tokens of reasoning and answer for which there is room.
        finish_reason: "" until the output has ended.
    """

    def __init__(
        self,
        log: TokenLog,
        tokenizer: Tokenizer,
        limits: Limits,
        max_tokens: int,
        max_reasoning: int,
    ) -> None:
        self.log = log
        self.stream = TextStream(
            Detokenizer(tokenizer), limits.stop, limits.thinking, max_reasoning
        )
        self.max_tokens = max_tokens
        self.finish_reason = ""
        self._limits = limits
        self._repetition = Repetition(limits.max_repeats)

    @property
    def tokens_left(self) -> int:
        """The number of tokens that can still be emitted."""
        in_all = self.max_tokens - self.log.emitted
        if self.stream.part != StreamPart.ANSWER:
            return in_all
        return min(in_all, self._limits.max_tokens - self.stream.answer_tokens)

    def append(self, token: int, is_end: bool, origin: str = OWN, finish_reason: str = "") -> Token:
        """Emit a token.

        Args:
            token: Its id.
            is_end: Whether it is an end token, which has no text.
            origin: What it comes from.
            finish_reason: Why the output ends with it, where that is known already.
        """
        self.log.emit([token])
        reasoning, text = (None, "") if is_end else self.stream.push(token)
        repeats = self.stream.part == StreamPart.ANSWER and self._repetition.push(token)
        self.finish_reason = self._reason(is_end or self.stream.stopped, repeats) or finish_reason
        if self.finish_reason:
            reasoning, text = self.stream.flush(reasoning, text)
        return Token(token, text, origin, reasoning)

    def _reason(self, has_stopped: bool, repeats: bool) -> str:
        if has_stopped:
            return "stop"
        if repeats:
            return "repetition"
        has_room = self.log.emitted < self.max_tokens
        if has_room and self.stream.answer_tokens < self._limits.max_tokens:
            return ""
        if not has_room and self.max_tokens < self._limits.max_output:
            return "context"
        return "length"
