"""What `auto` draws its predictions from, and where the text so far matches in it."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import (
    COPIED,
    HEADS,
    ORDERS,
    OWN,
    PROMPT,
    PlainArrays,
    match_end,
)
from ngtcli.drafting.auto.core.copies import Copies
from ngtcli.drafting.auto.core.learning import learn_output
from ngtcli.drafting.auto.escapes import EscapeTallies
from ngtcli.drafting.auto.guesses import Guesses, no_ranks
from ngtcli.drafting.auto.prompts import PromptCounts, PromptMemory
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.guesses import Heads
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tries.background import BackgroundCounts, lay_out
from ngtcli.drafting.tries.counts import FOLLOWED, NONE, CountTrie, spans_of

_RUN = CONFIG.repeat_run
Ints = npt.NDArray[np.int32]
NOTHING = lay_out(())  # where there is no background
_UNPREDICTED = CountTrie(ORDERS)  # where no answer is predicted; it stays empty


class PoolCounts:
    """Counts of earlier answers and of `texts` that stay; several sequences may share them.

    The trie is another one where all was counted again: who has the old one goes on with it.
    """

    def __init__(self, texts: Sequence[Ints] = (), answers: Sequence[Ints] = ()) -> None:
        self._texts = texts
        self._count_again(answers)

    def add(self, kept: Sequence[Ints], pool: Pool) -> None:
        """Count what `pool` has just kept of an answer."""
        if self.trie.tokens - self._fixed + sum(map(len, kept)) > 2 * pool.limit:
            self._count_again(pool.answers)  # counts cannot be taken back
        else:
            self._count(kept)

    def _count_again(self, answers: Sequence[Ints]) -> None:
        self.trie = CountTrie(ORDERS)
        self._count(self._texts)
        self._fixed = self.trie.tokens
        self._count(answers)

    def _count(self, texts: Iterable[Ints]) -> None:
        for text in texts:
            self.trie.end()
            self.trie.extend(text)


class Sources:
    """The tries of predicted and own text, prompt and pool, counts of a general text, and scores.

    `own` is the generated text of this answer. `borders` tells the prompt's nodes in documents from
    others (`learn_prompt`). `pool` has the `earlier` answers as they were counted at the start, and
    those that join since. `copies` has the text and the places in it. `nodes`, int32 (HEADS +
    heads, ORDERS), are the matches of the text's last tokens, as `advance` has them, and the place
    that is copied; `last` is the last of these tokens. `guesses` are those of `heads` in this step;
    `alone`: nothing else is matched. `arrays` are all of these for compiled code, by SOURCES.
    """

    def __init__(
        self,
        earlier: PoolCounts | None = None,
        background: BackgroundCounts | None = None,
        heads: Heads | None = None,
        alone: bool = False,
        prompts: PromptMemory | None = None,
    ) -> None:
        self._earlier = earlier or PoolCounts()
        self.pool = self._earlier.trie
        self.background = background or NOTHING
        self._prompts = prompts or PromptMemory()
        self._counted: PromptCounts | None = None  # of the prompt, until the answer has ended
        self.own, self._prompt = CountTrie(ORDERS), CountTrie(ORDERS)
        self._predicted = _UNPREDICTED
        self.ranks = no_ranks(0)
        self.borders = np.zeros(0, np.int64)
        self.guesses, self._alone = Guesses(heads), alone
        self.nodes = np.full((HEADS + len(self.guesses.heads), ORDERS), NONE, np.int32)
        self.copies = Copies()
        self.last = 0
        self._is_private = False  # whether the text is

    @property
    def repeats(self) -> bool:
        """Whether the last tokens stood in the text before, and something followed them."""
        matches = ((self.own, self.nodes[OWN, _RUN]), (self._prompt, self.nodes[PROMPT, _RUN]))
        return any(n != NONE and trie.arrays.counts[n, FOLLOWED] > 0 for trie, n in matches)

    def _gathered(self) -> PlainArrays:
        texts = self._predicted, self.own, self._prompt, self.pool
        tries = tuple([tuple(trie.arrays) for trie in texts])
        background = self.background.nodes, self.background.by_token
        known = tries, background, tuple(self.ranks)
        return *known, tuple(self.copies.arrays), tuple(self.guesses.arrays)

    def start(self, context: Context) -> None:
        """Begin a prompt: own text and prompt are emptied; the pool and the scores are kept.

        Scores of a private text are not kept, and it begins without any.
        """
        self.end()
        if self.own.tokens:
            self.own = CountTrie(ORDERS)
        self.pool = self._earlier.trie
        self.guesses.start()
        ids = np.asarray(() if self._alone else context.ids, dtype=np.int32)
        prompts = PromptMemory() if context.private else self._prompts
        self._counted = prompts.counts_of(ids, spans_of(ids, context.references))
        self._prompt, self.borders = self._counted.trie, self._counted.borders
        self._predicted, predicted = _UNPREDICTED, np.zeros(0, np.int32)
        if len(context.predicted):
            # As what follows the prompt: so an answer that has not begun yet is like its beginning.
            predicted = np.array([*context.ids[-ORDERS:], *context.predicted], np.int32)
            self._predicted = CountTrie(ORDERS)
            self._predicted.extend(predicted)
        if len(self.ranks.tokens) != context.vocabulary or context.private or self._is_private:
            self.ranks = no_ranks(context.vocabulary)
        self._is_private = context.private
        end = np.full(min(1, len(predicted)), NONE, np.int32)
        before = np.concatenate([predicted, end, ids])
        self.copies.start(before, self.nodes[COPIED], len(predicted))
        self.arrays = self._gathered()
        self.match(context.ids)

    def end(self) -> None:
        """End the answer: the counts of its prompt are kept for the next one."""
        if self._counted is not None and not self._is_private:
            self._prompts.keep(self._counted)
        self._counted = None

    def prefer_first(self) -> None:
        """Of what followed equally often in the prompt, take what stands first for likelier."""
        if self._counted is not None:
            self._counted.put_first_met_first()

    def match(self, ids: Sequence[int]) -> None:
        """Match the end of a text from nothing."""
        self.last = int(ids[-1]) if len(ids) else 0
        match_end(self.arrays, self.nodes, np.asarray(ids[-ORDERS:], np.int32))
        self._leave_out()

    def _leave_out(self) -> None:
        if self._alone:
            self.nodes[:HEADS] = NONE

    def retract(self, count: int, output: Sequence[int], nodes: Ints) -> None:
        """Forget the last `count` tokens that were learned: `output` is left.

        `nodes` are the matches as they were at its end.
        """
        self.own = CountTrie(ORDERS)
        self.own.extend(output)
        self.copies.retract(count)
        self.arrays = self._gathered()
        self.nodes[:] = nodes
        self.nodes[HEADS:] = NONE  # guesses hold for one step

    def learn(self, tokens: Ints, tallies: EscapeTallies) -> None:
        """Learn emitted tokens: their sources' tallies, the own text's counts, the new matches."""
        own = self.own
        own.reserve(len(tokens))
        self.copies.reserve(len(tokens))
        arrays = self.arrays = self._gathered()  # making room may have replaced some
        nodes, seen = self.nodes, tallies.arrays
        own.used = learn_output(arrays, nodes, tokens, seen, own.open_nodes, own.used)
        own.tokens += len(tokens)
        self.last = int(tokens[-1])
        self._leave_out()
        if self.guesses.heads:  # guesses hold for one step
            self.nodes[HEADS:] = NONE

    def take_guesses(self) -> None:
        """Let what the heads guessed after the last token take part."""
        self.nodes[HEADS:, 1] = self.guesses.states
