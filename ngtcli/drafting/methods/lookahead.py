"""Lookahead decoding (Fu et al. 2024, "Break the Sequential Dependency of LLM Inference").

Each pass has two branches. The lookahead branch runs Jacobi iteration on a window of guessed future
tokens: `window_size` columns, each with its `level` - 1 last guesses. The newest guess of a column
is the model's most likely token after the older ones, so a column is an n-gram of `level` tokens
that is likely to occur later. A pool stores these n-grams by their first token. The verification
branch is a tree of the pooled n-grams that start with the last token.

The window needs no special mask: level 0 is a chain below the last token, and the later levels of
column i are below its i-th node, so the branch is a tree of probes. As in the authors' code (LADE)
the window starts with random tokens of the prompt, gains a level per step until it has all, moves
by one column per step however many tokens were accepted, and the pool has the `guess_set_size`
newest n-grams per first token, of one prompt. Their code never accepts an n-gram's last token; here
verification decides. Defaults are the paper's for 7B models; LADE's own examples have `level` 5,
`window_size` 7 and `guess_set_size` 7.
"""

import random
from dataclasses import dataclass

from ngtcli.drafting.drafter import Context, Draft, Drafter, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """N, W and G of the paper."""

    level: int = option(5, 3, 32)
    window_size: int = option(15, 2, 256)
    guess_set_size: int = option(15, 1, 256)
    pool_from_prompt: bool = False


class Lookahead(Drafter):
    """The window and the pool of one prompt."""

    def begin(self, context: Context) -> None:
        options = self.options
        ids = list(context.ids) or [0]
        rng = random.Random(10)
        # Level 0 loses a token in each of the `level` - 2 steps that add the other levels.
        length = options.window_size + options.level - 3
        self._levels = [[rng.choice(ids) for _ in range(length)]]
        self._pool: dict[int, list[tuple[int, ...]]] = {}
        self._last = ids[-1]
        self._proposed = DraftTree()
        self._newest: list[int] = []
        if options.pool_from_prompt:
            for start in range(len(ids) - options.level + 1):
                self._remember(ids[start], tuple(ids[start + 1 : start + options.level]))

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Draft the n-grams that are pooled for the last token, with the window as probes."""
        self._last = log.token_ids[-1]
        tokens, parents = self._guesses(room.nodes)
        drafts = len(tokens)
        base = [ROOT]  # of each column: the root, then level 0
        for token in self._levels[0]:
            parents.append(base[-1])
            tokens.append(token)
            base.append(len(tokens) - 1)
        newest = base[1:]
        for level in self._levels[1:]:
            below = base if level is self._levels[1] else newest
            newest = []
            for parent, token in zip(below, level, strict=False):
                parents.append(parent)
                tokens.append(token)
                newest.append(len(tokens) - 1)
        self._newest = newest
        self._proposed = DraftTree(tuple(tokens), tuple(parents), len(tokens) - drafts)
        return Draft(self._proposed, top_k=1)

    def _guesses(self, budget: int) -> tuple[list[int], list[int]]:
        """Return tokens and parents of the tree of n-grams of the last token, newest first."""
        tokens: list[int] = []
        parents: list[int] = []
        node_of: dict[tuple[int, ...], int] = {(): ROOT}
        for guess in reversed(self._pool.get(self._last, [])):
            for end in range(1, len(guess) + 1):
                if guess[:end] not in node_of and len(tokens) < budget:
                    node_of[guess[:end]] = len(tokens)
                    tokens.append(guess[end - 1])
                    parents.append(node_of[guess[: end - 1]])
        return tokens, parents

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Add a guess to each column, add complete n-grams to the pool, and move the window."""
        tree = outcome.tree
        if outcome.top is None or tree.probes != self._proposed.probes:
            return  # The window was cut, because the context is nearly full.
        # Drafts, which precede the probes, may be cut.
        shift = len(tree) - len(self._proposed)
        best = outcome.top[:, 0].tolist()
        new = [best[node + shift + 1] for node in self._newest]
        levels = self._levels
        if len(levels) == self.options.level - 1:
            # The guess in `new` completes the n-gram of its column.
            for first, *following in zip([self._last, *levels[0]], *levels[1:], new, strict=False):
                self._remember(first, tuple(following))
            self._levels = [levels[1][1:], *levels[2:], new]
        elif len(levels) == 1:
            self._levels = [levels[0][1:], new]
        else:
            self._levels = [*(level[1:] for level in levels), new[1:]]

    def _remember(self, first: int, following: tuple[int, ...]) -> None:
        """Pool an n-gram as the newest of its first token; of too many the oldest goes."""
        ngrams = self._pool.setdefault(first, [])
        if following in ngrams:
            ngrams.remove(following)
        elif len(ngrams) == self.options.guess_set_size:
            del ngrams[0]
        ngrams.append(following)
