"""A small n-gram trie that grows token by token: the prompt outside documents, and the output."""

from collections.abc import Iterable, Iterator, Sequence


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
            if node is None:
                return None
            node = node.children.get(token)
        return node

    @staticmethod
    def children(node: Node) -> Iterator[tuple[int, Node]]:
        """(token, child), the most frequent first; ties in the order of first occurrence."""
        yield from sorted(node.children.items(), key=lambda pair: -pair[1].count)
