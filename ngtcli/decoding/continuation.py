"""The text that follows one prompt: which tokens scores give it, and where it ends.

It ends at an end token, at a stop string, which is cut off, and where its last tokens are the same
ones many times in a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sampling import Mask, Sampler
from ngtcli.decoding.scores import scores_are_not_numbers
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import PREDICTED
from ngtcli.drafting.steps import OWN, Limits, Statistics, Step, Token
from ngtcli.drafting.tree import DraftTree, Path
from ngtcli.errors import ContextOverflowError, ModelError
from ngtcli.models.tokenizer import Detokenizer, Tokenizer
from ngtcli.prompts.thinking import ANSWER, TextStream

LONGEST = 512  # tokens that repeat, at most; guess
# Tokens of all repeats at least. Swept with `Settings.max_repeats` on 805 recorded answers, three
# of which end in a loop, and on 740 texts by people. With 128 tokens, 3 to 8 repeats find in the
# texts two with hundreds of zeros, 3 to 6 find the three loops; with 32 tokens, 6 find 27 texts.
LEAST = 128


class Repetition:
    """Looks at every token of a text, in `push`.

    It repeats itself once its last tokens are `repeats` times the same ones in a row, LONGEST at
    most, and in all these are LEAST tokens or more; with fewer than two `repeats` never.
    """

    def __init__(self, repeats: int) -> None:
        periods = np.arange(1, LONGEST + 1)
        self._needed = np.maximum((repeats - 1) * periods, LEAST - periods)
        self._last = np.full(LONGEST, -1)  # the newest first
        self._same = np.zeros(LONGEST, np.int64)  # tokens in a row equal to the one a period before
        self._is_on = repeats > 1

    def push(self, token: int) -> bool:
        """Whether the text repeats itself with this token."""
        if not self._is_on:
            return False
        self._same = (self._same + 1) * (self._last == token)
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        return bool((self._same >= self._needed).any())


class Growing:
    """Tokens that come one by one, with their texts.

    `output` are those emitted, end token included; `finish_reason` is "" until the text has ended.
    """

    def _begin(self, tokenizer: Tokenizer, limits: Limits, room: int, thought: int) -> None:
        """Tokens at most: `room` in all, `thought` of a thought."""
        self.limits, self._room = limits, room
        self.output, self.finish_reason = list[int](), ""
        self._text = TextStream(Detokenizer(tokenizer), limits.stop, limits.thinking, thought)
        self._repetition = Repetition(limits.max_repeats)

    def _add(self, token: int, ends: bool, origin: str = OWN, reason: str = "") -> Token:
        """Emit a token, which `ends` the text itself, or with which it ends for a `reason`."""
        self.output.append(token)
        thought, text = (None, "") if ends else self._text.push(token)
        repeats = self._text.part == ANSWER and self._repetition.push(token)
        self.finish_reason = self._reason(ends or self._text.stopped, repeats) or reason
        if self.finish_reason:
            thought, text = self._text.flush(thought, text)
        return Token(token, text, origin, thought)

    def _reason(self, ended: bool, repeats: bool) -> str:
        if ended:
            return "stop"
        if repeats:
            return "repetition"
        if len(self.output) < self._room and self._text.answered < self.limits.max_tokens:
            return ""
        return "context" if len(self.output) == self._room < self.limits.most else "length"


class Guide:
    """The state of a text's grammar, and of the `text`, which tells a thought from an answer."""

    def __init__(self, matcher: Matcher, text: TextStream) -> None:
        self.matcher, self.text = matcher, text

    @property
    def openings(self) -> tuple[int, ...] | None:
        """As of the text; none once the answer has begun. None, too, behind its end."""
        if self.matcher.over:
            return None
        return () if self.matcher.taken else self.text.openings

    def push(self, token: int) -> None:
        """The text, which was not given it yet, goes on with `token`."""
        openings = self.openings
        if openings is not None and token not in openings and not self.matcher.follow(token):
            raise ModelError("llguidance gave up", "Make the schema simpler.")

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. Raises ModelError as `Matcher.allows`."""
        openings = self.openings
        return openings is None or token in openings or self.matcher.allows(token)

    def mask(self) -> Mask | None:
        """The tokens that may, bool (vocabulary,); None: all. Raises ModelError as `allows`."""
        openings = self.openings
        if openings is None:
            return None
        mask = self.matcher.mask()
        mask[list(openings)] = True
        return mask


class Continuation(Growing):
    """Grows by `emit` and `commit`, step by step; `ids` are those of prompt and output.

    `statistics` count the steps. Raises ContextOverflowError when the prompt leaves no room for a
    single token.
    """

    def __init__(
        self, model: TargetModel, context: Context, sampling: Settings, limits: Limits
    ) -> None:
        if not len(context.ids):
            raise ContextOverflowError("the prompt is empty", "Give some text.")
        if len(context.ids) >= model.context:
            what = f"the prompt has {len(context.ids)} tokens, the model takes {model.context - 1}"
            raise ContextOverflowError(what, model.context_why or "Shorten the prompt.")
        self._model, left = model, model.context - len(context.ids)
        self.sampler = Sampler(sampling, context.ids, model.draws)
        self.ids = list(context.ids)
        self.statistics = Statistics(prompt_tokens=len(context.ids))
        self._predicted = len(context.predicted) > 0
        thinking = limits.thinking
        for_answer = min(limits.max_tokens, left // 2) + (len(thinking.closing) if thinking else 0)
        most = min(thinking.most, max(0, left - for_answer)) if thinking else 0
        self._begin(model.tokenizer, limits, min(limits.most, left), most)
        self._guide = Guide(limits.grammar.start(), self._text) if limits.grammar else None
        self._chances: list[float] = []  # of the tokens chosen in the last walk, if they are wanted
        self.most = len(self.ids) + self._room  # tokens of prompt and output

    @property
    def depth(self) -> int:
        """How deep a draft may be: behind it one more token can be emitted."""
        left = self._room - len(self.output)
        if self._text.part == ANSWER:
            left = min(left, self.limits.max_tokens - self._text.answered)
        return left - 1

    @property
    def left(self) -> int:
        """Tokens of the context that are left."""
        return self._model.context - len(self.ids)

    @property
    def matcher(self) -> Matcher | None:
        """The state of the grammar, if nothing but that decides what comes next; else None."""
        return self._guide.matcher if self._guide and self._guide.openings == () else None

    def choices(self, scores: Tensor, tree: DraftTree) -> Tensor | None:
        """As `Sampler.choices`; None, too, where tokens are drawn of those that a grammar allows.

        The highest scores are taken as they are: most are allowed, and `chooser` looks at that.
        """
        draws = self.sampler.settings.temperature != 0.0
        return None if draws and self.matcher else self.sampler.choices(scores, tree)

    def chooser(
        self, scores: Tensor, chosen: Sequence[int] | None
    ) -> Callable[[int, Sequence[int]], int]:
        """What `verify` asks, for scores (k + 1, vocabulary) after the root and k nodes.

        `chosen` are the tokens of the rows, None or -1 where they are not known yet. What is
        returned raises ModelError for scores that are not numbers. It is called for nodes each
        below the one before.
        """
        guide, self._chances = self._guide, []
        may_think = guide is not None and guide.openings != ()
        ahead = self._text.copy() if may_think or self._text.may_force(len(scores)) else None
        if guide is not None:
            guide = Guide(guide.matcher.copy(), ahead or self._text)

        def choose(node: int, tokens: Sequence[int]) -> int:
            for token in tokens[-1:]:
                if guide is not None:
                    guide.push(token)
                if ahead is not None:
                    ahead.push(token)
            row, known = scores[node + 1], -1 if chosen is None else chosen[node + 1]
            forced = ahead.forced if ahead is not None else None
            token = self._choose(row, tokens, guide, known) if forced is None else forced
            if token < 0:
                raise scores_are_not_numbers(self._model.name)
            if self.limits.probabilities:
                mask = guide.mask() if guide is not None else None
                self._chances.append(self.sampler.probability(token, row, tokens, mask))
            return token

        return choose

    def _choose(self, row: Tensor, path: Sequence[int], guide: Guide | None, known: int) -> int:
        """The token of a row after `path`, of those allowed; -1 as of `Sampler.choose`.

        `known` is what `choices` gave, -1 where it did not.
        """
        is_free = guide is None or guide.openings is None
        if is_free or self.sampler.settings.temperature == 0.0:
            token = known if known >= 0 else self.sampler.choose(row, path)
            if guide is None or token < 0 or guide.allows(token):
                return token
        return self.sampler.choose(row, path, guide.mask() if guide else None)

    def emit(self, path: Path, tree: DraftTree) -> Step:
        """Emit the path's tokens up to an end; tokens behind an end are dropped."""
        shown: list[Token] = []
        for i, token in enumerate(path.tokens):
            origin = tree.origin(path.nodes[i]) if i < len(path.nodes) else OWN
            ends, reason = token in self._model.end_ids, ""
            if self._guide is not None:
                self._guide.push(token)
                reason = "stop" if self._guide.matcher.over else ""
            added = self._add(token, ends, origin, reason)
            shown.append(replace(added, probability=self._chances[i]) if self._chances else added)
            if self.finish_reason:
                break
        predicted = tree.drafts_of(PREDICTED) if self._predicted else 0
        return Step(tuple(shown), self.finish_reason, tree.drafts, predicted)

    def commit(self, step: Step, accepted: int) -> None:
        """The text goes on with a step's tokens, of which `accepted` were drafted; count it."""
        emitted = [token.id for token in step.tokens]
        self.sampler.commit(emitted)
        self.ids += emitted
        self.statistics.add_step(step.nodes, min(accepted, len(emitted)), len(emitted))
        if self._predicted:
            own = sum(token.origin == PREDICTED for token in step.tokens)
            self.statistics.add_predicted(step.predicted, own)
        if self.limits.thinking:
            self.statistics.thought_tokens = self._text.thought
