"""N-Gram Trie Speculative Decoding (EMNLP 2025, section 3.2): drafts from the context's trie.

The prefix is the longest suffix of the text, at most lp tokens, that has a continuation in the
trie. The draft is the subtree below it, pruned to the `budget` nodes of the highest frequency, as
the paper counts it (`_grow`). The
paper leaves ties open: here the shallower node is first, then the one found first.

The trie of the context consists of the corpus of the documents (cached), that of the rest of the
prompt (made here) and, with `learn_output`, a trie of the output, which grows. A sequence's
count is the sum over all, as in one trie of the context.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from typing import Any

from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.indexed import Indexed
from ngtcli.drafting.tree import DraftTree, in_depth_first_order
from ngtcli.drafting.tries.corpus import NOWHERE, build

_NOTHING = build((), 1)


class Node:
    """A sequence that was counted `count` times, and its continuations by token."""

    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, Node] = {}


class GrowingTrie:
    """Counts of all sequences of at most `n` tokens of a text that grows.

    Sequences that end within the tokens `before` the text are not counted; those that end in the
    text are.

    >>> trie = GrowingTrie(3, [3])
    >>> trie.extend([1, 2, 3, 1, 2])
    >>> trie.match([1, 2]).count, trie.match([3, 1]).count, trie.match([3]).count
    (2, 2, 1)
    """

    def __init__(self, n: int, before: Sequence[int] = ()) -> None:
        self.n = n
        self.root = Node()
        self._open: list[Node] = []  # nodes of the suffixes that end at the last token
        self._extend(before[max(0, len(before) - n + 1) :], 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Count the sequences that end at each of `tokens`, which continue the text."""
        self._extend(tokens, 1)

    def _extend(self, tokens: Iterable[int], count: int) -> None:
        for token in tokens:
            self._count(token, count)

    def _count(self, token: int, count: int) -> None:
        self._open = [self.root, *self._open][: self.n]
        for i, node in enumerate(self._open):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node()
            child.count += count
            self._open[i] = child

    def extend_by(self, token: int) -> Callable[[], None]:
        """Count the sequences that end at `token`; return a function that undoes this.

        Tokens must be undone from the last one on.
        """
        before = self._open
        parents = [self.root, *before][: self.n]
        had_it = [token in parent.children for parent in parents]
        self._count(token, 1)

        def undo() -> None:
            self._open = before
            for parent, had in zip(parents, had_it, strict=True):
                if had:
                    parent.children[token].count -= 1
                else:
                    del parent.children[token]

        return undo

    def match(self, sequence: Sequence[int]) -> Node | None:
        """Return the node of `sequence`, or None."""
        node: Node | None = self.root
        for token in sequence:
            node = node.children.get(token) if node else None
        return node


# Where a sequence is in the documents, in the rest of the prompt, and its node of the output.
Match = tuple[range, range, Node | None]
Child = tuple[int, int, Match]  # token, count, the sequence with it


def _falling(child: Child) -> int:
    return -child[1]


class TrieDrafter(Indexed):
    """The paper's method; with `learn_output` it also drafts from the output so far."""

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        super().__init__(settings, options)
        self._documents = _NOTHING
        self._outside = _NOTHING
        self._output = GrowingTrie(settings.n)

    def clear(self, context: Context) -> None:
        n = self.settings.n
        self._documents = context.documents or _NOTHING
        self._outside = build(context.outside, n) if context.outside else _NOTHING
        last = tuple(context.outside[-1]) if context.outside else ()
        # The output continues the last text outside the documents if the prompt ends in that text.
        # It is a text of its own if the prompt ends in a document, or if the last text outside is a
        # prediction, which is not in the prompt.
        prompt_ends_in_last = last == tuple(context.ids[len(context.ids) - len(last) :])
        continues_last = prompt_ends_in_last and self.settings.learn_output
        self._output = GrowingTrie(n, last if continues_last else ())

    def index(self, start: int) -> None:
        """Count the tokens of the output."""
        if not self.settings.learn_output:
            return
        for position in range(max(start, self.prompt_length), len(self.token_ids)):
            undo = self._output.extend_by(self.token_ids[position])
            self.undo_if_shorter_than(position + 1, undo)

    def draft(self, budget: int) -> DraftTree:
        for length in range(min(self.settings.lp, len(self.token_ids)), 0, -1):
            sequence = self.token_ids[-length:]
            match = (
                self._documents.find(sequence),
                self._outside.find(sequence),
                self._output.match(sequence),
            )
            tree = self._grow(match, length, budget)
            if tree is not None:
                return tree
        return DraftTree()

    def _grow(self, start: Match, depth: int, budget: int) -> DraftTree | None:
        """Grow the best-first tree below a match; return None if nothing follows it.

        Args:
            start: The match of the last tokens.
            depth: The number of these tokens.
            budget: The maximum number of nodes.
        """
        tokens: list[int] = []
        parents: list[int] = []
        priority: list[float] = []
        n = self.settings.n
        lp = self.settings.lp
        heap: list[tuple[int, int, int, int, int, Match, Iterator[Child]]] = []
        pushed = 0

        def push_next(parent: int, level: int, siblings: Iterator[Child]) -> None:
            """Push the next sibling; the others wait until it is popped."""
            nonlocal pushed
            child = next(siblings, None)
            if child is None:
                return
            token, count, match = child
            pushed += 1
            # The paper's frequency: an occurrence counts once for each window of n tokens that
            # contains it and in which it starts among the first lp tokens.
            frequency = count * min(lp, n - level + 1)
            heappush(heap, (-frequency, level, pushed, token, parent, match, siblings))

        push_next(-1, depth + 1, self._children(start, depth))
        while heap and len(tokens) < budget:
            frequency, level, _, token, parent, match, siblings = heappop(heap)
            tokens.append(token)
            parents.append(parent)
            priority.append(-frequency)
            push_next(parent, level, siblings)
            if level < n:
                push_next(len(tokens) - 1, level + 1, self._children(match, level))
        return in_depth_first_order(tokens, parents, priority) if tokens else None

    def _children(self, match: Match, depth: int) -> Iterator[Child]:
        """Yield the tokens that follow a sequence in any of the three texts.

        The most frequent comes first. Of equally frequent ones those outside the documents come
        first, each in the order of its text.

        Args:
            match: The match of the sequence.
            depth: The number of its tokens.
        """
        documents, outside, output = match
        output_children = output.children if output else {}
        if not documents and not output_children:
            for token, _, child in self._outside.below(outside, depth):
                yield token, len(child), (NOWHERE, child, None)
            return
        in_documents = (
            (token, len(child), (child, NOWHERE, None))
            for token, _, child in self._documents.below(documents, depth)
        )
        if not outside and not output_children:
            yield from in_documents
            return

        # For each token that follows outside the documents: its first place there, and where the
        # sequence with it is in the rest of the prompt.
        places = {
            token: (first, child) for token, first, child in self._outside.below(outside, depth)
        }
        for first, (token, node) in enumerate(output_children.items(), len(self._outside.stream)):
            if node.count:  # 0: it occurs only in the tokens before the output
                places.setdefault(token, (first, NOWHERE))
        children: list[Child] = []
        for token, (_, in_rest) in sorted(places.items(), key=lambda item: item[1][0]):
            in_document = self._documents.child(documents, depth, token)
            in_output = output_children.get(token)
            count = len(in_document) + len(in_rest) + (in_output.count if in_output else 0)
            children.append((token, count, (in_document, in_rest, in_output)))
        children.sort(key=_falling)
        others = (child for child in in_documents if child[0] not in places)
        yield from merge(children, others, key=_falling)
