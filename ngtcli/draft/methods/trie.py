"""N-Gram Trie Speculative Decoding (EMNLP 2025, section 3.2): drafts from the context's trie.

The prefix is the longest suffix of the text, at most lp tokens, that has a continuation in the
trie. The draft is the subtree below it, pruned to the `budget` nodes of the highest frequency. The
paper leaves ties open: here the shallower node is first, then the one found first.

The trie of the context consists of two: the documents' (cached) and that of the rest of the prompt
(small, built here). A sequence's frequency is the sum over both, as in one trie of the context.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge

from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.tree import DraftTree, in_depth_first_order
from ngtcli.trie.ngram import NGramTrie


class Node:
    """A sequence counted `count` times, and its continuations by token."""

    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, Node] = {}


class GrowingTrie:
    """Counts of all sequences of at most `n` tokens; the same nodes and counts as `NGramTrie`.

    >>> trie = GrowingTrie(3)
    >>> trie.extend([1, 2, 3, 1, 2])
    >>> trie.match([1, 2]).count
    2
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.root = Node()
        self._open: list[Node] = []  # nodes of the suffixes that end at the last token

    def extend(self, tokens: Iterable[int]) -> None:
        """Count the sequences that end at each of `tokens`, which continue the current text."""
        for token in tokens:
            self._open.append(self.root)
            if len(self._open) > self.n:
                self._open.pop(0)
            for i, node in enumerate(self._open):
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = Node()
                child.count += 1
                self._open[i] = child
            self.root.count += 1

    def end(self) -> None:
        """End the current text: the next token starts another."""
        self._open.clear()

    def match(self, sequence: Sequence[int]) -> Node | None:
        """The node of `sequence`, or None."""
        node: Node | None = self.root
        for token in sequence:
            node = node.children.get(token) if node else None
        return node


# The node of a sequence in the documents' trie and in the growing one; None where it has none.
Pair = tuple[int | None, Node | None]


def _falling(child: tuple[int, int, Pair]) -> int:
    return -child[1]


class TrieDrafter(Drafter):
    """The paper's method; with `learn_output` it also drafts from the output so far."""

    def reset(self, context: Context) -> None:
        self._documents: NGramTrie | None = context.documents
        self._grown = GrowingTrie(self.settings.n)
        for run in context.outside:
            self._grown.end()
            self._grown.extend(run)
        if not context.outside or tuple(context.outside[-1]) != tuple(
            context.ids[-len(context.outside[-1]) :]
        ):  # the prompt ends inside a document: output starts another text
            self._grown.end()

    def observe(self, tokens: Sequence[int]) -> None:
        if self.settings.learn_output:
            self._grown.extend(tokens)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        for length in range(min(self.settings.lp, len(ids)), 0, -1):
            sequence = ids[len(ids) - length :]
            cached = self._documents.match(sequence) if self._documents else None
            tree = self._grow((cached, self._grown.match(sequence)), length, budget)
            if tree is not None:
                return tree
        return DraftTree()

    def _grow(self, start: Pair, depth: int, budget: int) -> DraftTree | None:
        """The best-first tree below `start`, a sequence of `depth` tokens; None without a child."""
        tokens: list[int] = []
        parents: list[int] = []
        priority: list[float] = []
        n, lp = self.settings.n, self.settings.lp
        heap: list[tuple[int, int, int, int, int, Pair, Iterator[tuple[int, int, Pair]]]] = []
        pushed = 0

        def push(parent: int, level: int, siblings: Iterator[tuple[int, int, Pair]]) -> None:
            nonlocal pushed
            for token, count, pair in siblings:
                pushed += 1
                frequency = count * min(lp, n - level + 1)
                heappush(heap, (-frequency, level, pushed, token, parent, pair, siblings))
                return

        push(-1, depth + 1, self._children(start))
        while heap and len(tokens) < budget:
            frequency, level, _, token, parent, pair, siblings = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            priority.append(-frequency)
            push(parent, level, siblings)
            if level < n:
                push(len(tokens) - 1, level + 1, self._children(pair))
        return in_depth_first_order(tokens, parents, priority) if tokens else None

    def _children(self, pair: Pair) -> Iterator[tuple[int, int, Pair]]:
        """(token, count, pair) of the children in both tries, the most frequent first."""
        cached, grown = pair
        if grown is None or not grown.children:
            return self._cached(cached)
        trie = self._documents
        both: list[tuple[int, int, Pair]] = []
        for token, node in grown.children.items():
            child = trie.child(cached, token) if trie and cached is not None else None
            count = node.count + (trie.count(child) if trie and child is not None else 0)
            both.append((token, count, (child, node)))
        both.sort(key=_falling)
        others = (child for child in self._cached(cached) if child[0] not in grown.children)
        return merge(both, others, key=_falling)

    def _cached(self, node: int | None) -> Iterator[tuple[int, int, Pair]]:
        """(token, count, pair) of the children in the documents' trie alone."""
        trie = self._documents
        if node is not None and trie is not None:
            for child in trie.children(node):
                yield trie.token(child), trie.count(child), (child, None)
