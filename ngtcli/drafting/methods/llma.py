"""LLMA (Yang et al. 2023, "Inference with Reference"), as in its released llma/src/decode.py.

When the last tokens of the output occur in a reference document, the draft is the `block_k` - 1
tokens after that place; with the model's next token a step yields up to `block_k`. The paper's n =
1 and k = 20 have the names of its code here, since `n` is the trie's window.

What the released code does beyond the paper's section 3, and this does too:
- It tries suffixes of `max_n` = 5 tokens first, then shorter ones down to `trigger_n`. A `max_n`
  below `trigger_n` has the effect of `trigger_n`.
- It matches suffixes of the output only, never of the prompt: the first step has no draft.
- Of several places it takes the first: the first document, and in it the first position.
- A draft ends with its document. If the longest suffix found ends a document, the draft is empty;
  neither another place nor a shorter suffix is then tried.

The references are the documents in the prompt. For a prompt without documents, a case that the
paper does not have, the prompt is the reference.
"""

from dataclasses import dataclass

from ngtcli.drafting.drafter import Context, Draft, Drafter, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import chain


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The tokens of the shortest suffix, of a step at most, and of the longest suffix."""

    trigger_n: int = option(1, 1, 64)
    block_k: int = option(20, 1, 1024)
    max_n: int = option(5, 1, 64)


class Llma(Drafter):
    """A drafter with an index of the references of a prompt."""

    def begin(self, context: Context) -> None:
        shortest = self.options.trigger_n
        self._sizes = range(shortest, max(shortest, self.options.max_n) + 1)
        self._references = [list(ids) for ids in context.references or (context.ids,)]
        self._copies: dict[tuple[int, ...], tuple[int, int]] = {}  # n-gram -> document, place after
        for document, ids in enumerate(self._references):
            for size in self._sizes:
                for end in range(size, len(ids) + 1):
                    self._copies.setdefault(tuple(ids[end - size : end]), (document, end))

    def propose(self, log: TokenLog, room: Room) -> Draft:
        longest = max(self._sizes)
        suffix = log.token_ids[max(log.prompt_length, len(log) - longest) :]
        for size in reversed(self._sizes):
            copy = self._copies.get(tuple(suffix[-size:]))
            if copy is not None and size <= len(suffix):
                document, start = copy
                length = min(self.options.block_k - 1, room.nodes)
                return Draft(chain(self._references[document][start : start + length]))
        return Draft()
