"""REST (He et al. 2023, "Retrieval-Based Speculative Decoding"), section 3 and the released code
(DraftRetriever and rest/model/utils.py).

The last tokens of the text are looked up in a datastore, a suffix array over an external corpus:
`max_token_span` = 16 of them, then one fewer, down to 2. The first span found has up to `k` = 5000
matches; a trie is built of the `long` = 10 tokens after each, and the draft tree is its `choices` =
64 most frequent nodes.

What decides drafts, as in the source:
- The k matches are the first in the order of the suffix array, that is by token ids, not by place.
- Drafts come from the corpus alone, never from prompt or output.
- The released code then removes nodes: it adds up, over all nodes, the number of distinct tokens on
  the path to each, and drops the nodes with the most until the sum is at most `choices`. With one
  match all 10 nodes stay, with two different ones 15 of 20. `cut=false` omits this, as the paper
  does.

What differs:
- Ties, in the source broken by a hash table's order: the shallower node is first, then the one with
  the smaller ids; of nodes with equally many distinct tokens, the last in that order is dropped.
- No match and no continuation spans two documents. The source does not separate documents.
- A match without a continuation does not count; if it is the only one, the source stops with an
  error.
- Without a match the source drafts the fixed token id 100; here the draft is empty.
- With a budget below `choices` the most frequent nodes are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ngtcli.drafting.drafter import Context, Draft, Drafter, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, check_range, option
from ngtcli.drafting.tree import in_depth_first_order
from ngtcli.drafting.tries.corpus import Corpus
from ngtcli.drafting.tries.store import DATASTORE_DEPTH as DEPTH
from ngtcli.drafting.tries.store import load_datastore
from ngtcli.errors import InputError
from ngtcli.system.files import DamagedFileError

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The source's settings and defaults; `cut` is its `cut_to_choices`."""

    datastore: str = "default"
    max_token_span: int = option(16, 2, DEPTH - 1)
    k: int = option(5000, 1, 1_000_000)
    long: int = 10
    choices: int = option(64, 1, 1024)
    cut: bool = True

    def __post_init__(self) -> None:
        MethodOptions.__post_init__(self)
        check_range("long", self.long, 1, DEPTH - self.max_token_span)


class Rest(Drafter):
    """A drafter with a datastore, which is loaded again only if the tokenizer changes."""

    _datastore: Corpus | None = None
    _tokenizer = ""

    def begin(self, context: Context) -> None:
        """Start on a new prompt. Raises InputError if the datastore is absent or damaged."""
        if self._datastore is not None and context.tokenizer == self._tokenizer:
            return
        name = self.options.datastore
        hint = f"Build it: ngt trie build -m MODEL --rest PATH… --name {name}"
        try:
            self._datastore = load_datastore(name, context.tokenizer, context.vocabulary)
        except DamagedFileError as error:
            raise InputError(f"the datastore {name!r} is damaged ({error})", hint=hint) from None
        if self._datastore is None:
            raise InputError(
                f"there is no datastore {name!r} for this model's tokenizer", hint=hint
            )
        self._tokenizer = context.tokenizer

    def propose(self, log: TokenLog, room: Room) -> Draft:
        assert self._datastore is not None
        options = self.options
        matches, span = longest_match(self._datastore, log.token_ids, options.max_token_span)
        if not matches:
            return Draft()
        matches = matches[: options.k]
        paths = most_frequent(self._datastore, matches, span, options.long, options.choices)
        if options.cut:
            paths = cut_to_choices(paths, options.choices)
        # Each path follows its prefix, so a cut leaves no path without its parent.
        nodes = list(paths)[: room.nodes]
        number_of: dict[Path, int] = {(): -1}
        for number, path in enumerate(nodes):
            number_of[path] = number
        tree = in_depth_first_order(
            [path[-1] for path in nodes],
            [number_of[path[:-1]] for path in nodes],
            [paths[path] for path in nodes],
        )
        return Draft(tree)


def longest_match(datastore: Corpus, ids: Sequence[int], longest: int) -> tuple[range, int]:
    """Find the longest suffix of `ids`, of 2 to `longest` tokens, that the datastore has.

    Its length is found by bisection, since a match of a suffix is one of all shorter suffixes.

    Returns:
        Its matches, as `Corpus.find` returns them, and its length.
    """
    low = min(2, len(ids))
    high = min(longest, len(ids))
    matches = datastore.find(ids[len(ids) - low :])
    while matches and low < high:
        middle = (low + high + 1) // 2
        longer = datastore.find(ids[len(ids) - middle :])
        if longer:
            matches = longer
            low = middle
        else:
            high = middle - 1
    return matches, low


def most_frequent(
    datastore: Corpus, matches: range, span: int, long: int, choices: int
) -> dict[Path, int]:
    """Return the most frequent continuations of matches, with their counts.

    The most frequent comes first; of equally frequent ones the shorter, then the one with the
    smaller ids, so that a prefix precedes its extensions.

    Args:
        datastore: The corpus.
        matches: The matches of one sequence, as `Corpus.find` returns them.
        span: The number of tokens of that sequence.
        long: The maximum number of tokens of a continuation.
        choices: The number of continuations.
    """
    paths: dict[Path, int] = {}
    waiting: list[tuple[int, int, Path, range]] = [(0, 0, (), matches)]  # (-count, tokens, …)
    while waiting and len(paths) <= choices:
        count, size, path, places = heappop(waiting)
        paths[path] = -count
        if size >= long:
            continue
        for token, _, longer in datastore.below(places, span + size):
            heappush(waiting, (-len(longer), size + 1, (*path, token), longer))
    del paths[()]
    return paths


def cut_to_choices(paths: dict[Path, int], choices: int) -> dict[Path, int]:
    """Drop the paths with the most distinct tokens until the sum of these is at most `choices`.

    Prefixes of the remaining paths remain, too.
    """
    distinct = {path: len(set(path)) for path in paths}
    total = sum(distinct.values())
    dropped = set()
    last_first = list(reversed(paths))  # a sort in reverse keeps the order of equals, too
    for path in sorted(last_first, key=distinct.__getitem__, reverse=True):
        if total <= choices:
            break
        total -= distinct[path]
        dropped.add(path)
    needed: set[Path] = set()
    for path in paths:
        if path not in dropped:
            needed.update(path[:size] for size in range(1, len(path) + 1))
    return {path: count for path, count in paths.items() if path in needed}
