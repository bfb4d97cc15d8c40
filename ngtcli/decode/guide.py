"""Which tokens may come next of a text: a thought is free, in an answer a grammar decides."""

import numpy as np
import numpy.typing as npt

from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.errors import ModelError
from ngtcli.grammar.matcher import Matcher
from ngtcli.prompt.thinking import TextStream

Mask = npt.NDArray[np.bool_]


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
        if openings is not None and token not in openings:
            self.matcher.push(token)

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


def masks_of(tree: DraftTree, matcher: Matcher, rows: int) -> Mask:
    """What a grammar allows after the root and after each node, bool (rows, vocabulary).

    After a node that it refuses, and in rows of padding, that is nothing.
    """
    masks = np.zeros((rows, matcher.grammar.size), np.bool_)
    masks[0], states = matcher.mask(), {ROOT: matcher}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        own = states[parent].copy() if parent in states else None
        if own is not None and own.follow(token):
            states[node] = own
            try:
                masks[node + 1] = own.mask()
            except ModelError:  # raised again where the walk comes here
                continue
    return masks
