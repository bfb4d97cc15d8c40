"""What `auto` draws its predictions from, and where the text so far matches in it."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.attribution import learn_output as _learn_output
from ngtcli.draft.auto.blend import ORDERS, OWN, POOL, PROMPT, PlainArrays, match_end
from ngtcli.draft.auto.escapes import EscapeTallies
from ngtcli.draft.auto.ranks import Ranks
from ngtcli.draft.drafter import Context
from ngtcli.draft.origins import SOURCES
from ngtcli.trie.counts import NONE, CountTrie, learn_prompt

Ints = npt.NDArray[np.int32]


class Sources:
    """The tries of own text, prompt and pool, and the table of scores.

    `borders` tells the prompt's nodes in documents from others (`learn_prompt`).
    """

    def __init__(self) -> None:
        self._tries = [CountTrie(ORDERS) for _ in (OWN, PROMPT, POOL)]
        self.ranks = Ranks(0)
        self.borders = np.zeros(0, np.int64)

    @property
    def own(self) -> CountTrie:
        """The generated text of this answer."""
        return self._tries[OWN]

    @property
    def pool(self) -> CountTrie:
        """Earlier answers."""
        return self._tries[POOL]

    @property
    def arrays(self) -> PlainArrays:
        """For compiled code; others after anything was learned."""
        own, prompt, pool = self._tries
        tries = (tuple(own.arrays), tuple(prompt.arrays), tuple(pool.arrays))
        return tries, tuple(self.ranks.arrays)

    def start(self, context: Context) -> None:
        """Begin a prompt: own text and prompt are emptied; the pool and the scores are kept."""
        self._tries[OWN], self._tries[PROMPT] = CountTrie(ORDERS), CountTrie(ORDERS)
        ids = np.asarray(context.ids, dtype=np.int32)
        self.borders = learn_prompt(self._tries[PROMPT], ids, context.references)
        if self.ranks.vocabulary != context.vocabulary:
            self.ranks = Ranks(context.vocabulary)

    def learn_answers(self, answers: Iterable[Ints]) -> None:
        """Count earlier answers, each a text of its own."""
        for answer in answers:
            self.pool.end()
            self.pool.extend(answer)


class MatchState:
    """The matches of the text's last tokens: `nodes`, int32 (sources, orders), as `advance` has it.

    `last` is the text's last token.
    """

    def __init__(self) -> None:
        self.nodes = np.full((len(SOURCES), ORDERS), NONE, np.int32)
        self.last = 0

    def start(self, sources: Sources, ids: Sequence[int]) -> None:
        """Match the end of a prompt."""
        self.last = int(ids[-1]) if len(ids) else 0
        match_end(sources.arrays, self.nodes, np.asarray(ids[-ORDERS:], np.int32))

    def learn(self, sources: Sources, tokens: Ints, tallies: EscapeTallies) -> None:
        """Learn emitted tokens: their sources' tallies, the own text's counts, the new matches."""
        own = sources.own
        own.reserve(len(tokens))
        own.used = _learn_output(
            sources.arrays, self.nodes, tokens, tuple(tallies.arrays), own.open_nodes, own.used
        )
        own.tokens += len(tokens)
        self.last = int(tokens[-1])
