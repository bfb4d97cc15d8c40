"""The table of all sources, and the operations of a drafter on all of them at once.

To add a source, write its file beside this one (`predicted.py` is short), and add its class to
SOURCES. Sources are queried in that order, at each order of matches from the longest on.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import advance_all
from ngtcli.drafting.auto.core.forms import ROW, SORTED, TABLE, TRIE, PlainTables
from ngtcli.drafting.auto.core.learning import learn_output
from ngtcli.drafting.auto.escapes import EscapeTallies
from ngtcli.drafting.auto.sources.background import BackgroundSource
from ngtcli.drafting.auto.sources.copies import CopySource
from ngtcli.drafting.auto.sources.heads import HeadSource
from ngtcli.drafting.auto.sources.own_text import OwnTextSource
from ngtcli.drafting.auto.sources.pool import PoolSource
from ngtcli.drafting.auto.sources.predicted import PredictedSource
from ngtcli.drafting.auto.sources.prompt import PromptSource
from ngtcli.drafting.auto.sources.scores import ScoreSource
from ngtcli.drafting.auto.sources.source import ORDERS, Floats, Ints, Resources, Source
from ngtcli.drafting.auto.weights import LogLinear, StageWeights
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.tries.counts import FOLLOWED, NONE

SOURCES: tuple[type[Source], ...] = (
    PredictedSource,
    OwnTextSource,
    PromptSource,
    PoolSource,
    BackgroundSource,
    ScoreSource,
)
# The origins that tokens of a draft may have; their order is that of the numbers in compiled code.
ORIGINS = tuple(
    dict.fromkeys(
        [kind.origin for kind in SOURCES]
        + [kind.origin_in_document for kind in SOURCES if kind.origin_in_document]
        + [HeadSource.origin]
    )
)
_RUN = CONFIG.repeat_run
_FORMS = (TRIE, SORTED, ROW)
AnySource = TypeVar("AnySource", bound=Source)


class Sources:
    """The sources of one drafter, and the matches of the text so far in them.

    Attributes:
        matches: int32 (rows, orders): a row for each of SOURCES, the two of copies, and one for
            each head. The rows of copies hold the state of the copy.
        last: The last token of the text.
        spec: As in Tables of core/forms.py.
        arrays: All tables, for compiled code.
        stage: The log-linear stage after the blend.
        own_text, prompt, scores, copies, heads: The sources that a drafter accesses by name.
    """

    def __init__(
        self,
        resources: Resources | None = None,
        heads_only: bool = False,
        weights: StageWeights | None = None,
    ) -> None:
        """Make all sources.

        Args:
            resources: The objects that the sources share.
            heads_only: Whether only heads are ever matched, and no stage follows.
            weights: The weights of the log-linear stage after the blend; None for no stage.
        """
        if resources is None:
            resources = Resources()
        self._heads_only = heads_only
        self._by_order = tuple([kind(resources) for kind in SOURCES])
        self.own_text = self._find(OwnTextSource)
        self.prompt = self._find(PromptSource)
        self.scores = self._find(ScoreSource)
        self.copies = CopySource(resources)
        self.heads = HeadSource(resources)
        self._all: tuple[Source, ...] = (*self._by_order, self.copies, self.heads)
        # A step calls none of the methods that do nothing.
        self._growing = [s for s in self._all if type(s).refresh is not Source.refresh]
        self._learning = [s for s in self._all if type(s).extend is not Source.extend]
        self.matches = np.full((sum([s.rows for s in self._all]), ORDERS), NONE, np.int32)
        row = 0
        for source in self._all:
            source.matches = self.matches[row : row + source.rows]
            row += source.rows
        self.spec = _spec_of(self._all)
        self._own_trie = int(self.spec[self._by_order.index(self.own_text), TABLE])
        if weights is None or heads_only:
            weights = StageWeights(None)
        background = resources.background
        self.stage = LogLinear(weights, None if background is None else background.classes)
        self.last = 0
        self._gather()

    def _find(self, kind: type[AnySource]) -> AnySource:
        return next(source for source in self._by_order if isinstance(source, kind))

    def _gather(self) -> None:
        """Set `arrays`."""
        tries, in_order, rows = [
            tuple([s.table for s in self._all if s.form == form and s.table]) for form in _FORMS
        ]
        copies = tuple(self.copies.arrays)
        self.arrays: PlainTables = self.spec, len(self._by_order), tries, in_order, rows, copies

    @property
    def repeats(self) -> bool:
        """Return whether the last tokens occurred earlier in the text, and something followed."""
        for source in (self.own_text, self.prompt):
            node = source.matches[0, _RUN]
            if node != NONE and source.trie.arrays.counts[node, FOLLOWED] > 0:
                return True
        return False

    def start(self, context: Context) -> None:
        """Begin an answer."""
        self.end()
        if self._heads_only:
            context = replace(context, ids=(), references=(), predicted=(), vocabulary=0)
        for source in self._all:
            source.begin(context)
        self._gather()
        self.stage.begin(self.copies.arrays)
        self._match(context.ids)

    def end(self) -> None:
        """End the answer."""
        for source in self._all:
            source.end()

    def _match(self, token_ids: Sequence[int]) -> None:
        """Match the end of the text anew."""
        self.last = int(token_ids[-1]) if len(token_ids) else 0
        for source in self._all:
            source.start_matching()
        advance_all(self.arrays, self.matches, np.asarray(token_ids[-ORDERS:], np.int32))
        if self._heads_only:
            self._leave_out()

    def _leave_out(self) -> None:
        """Remove the matches of all sources except the heads."""
        for source in (*self._by_order, self.copies):
            source.matches[:] = NONE

    def learn(self, tokens: Ints, tallies: EscapeTallies) -> None:
        """Learn emitted tokens, int32: tally their predictions, and extend the text."""
        replaced = [source.refresh(len(tokens)) for source in self._growing]
        if any(replaced):
            self._gather()
        trie = self.own_text.trie
        trie.used = learn_output(
            self.arrays,
            self.stage.arrays,
            self.stage.least_learned,
            self.matches,
            tokens,
            tallies.arrays,
            self._own_trie,
            trie.open_nodes,
            trie.used,
        )
        trie.tokens += len(tokens)
        self.last = int(tokens[-1])
        for source in self._learning:
            source.extend(tokens)
        if self._heads_only:
            self._leave_out()
        if self.heads.rows:
            self.heads.forget()

    def retract(self, count: int, output: Sequence[int], matches: Ints) -> None:
        """Remove the last `count` tokens that were learned.

        Args:
            count: The number of tokens.
            output: The remaining answer.
            matches: The matches at its end.
        """
        for source in self._all:
            source.retract(count, output)
            source.refresh(0)
        self._gather()
        self.stage.retract(self.copies.arrays)
        self.matches[:] = matches
        self.heads.forget()


@cache
def first_escapes(heads: int = 0) -> Floats:
    """Return the initial escape probabilities of all sources.

    Args:
        heads: The number of learned heads.

    Returns:
        float64 (rows, orders, buckets), read-only, in the order of the rows of matches.
    """
    kinds: list[type[Source]] = [*SOURCES, CopySource, *[HeadSource] * heads]
    escapes = np.concatenate([kind.first_escapes() for kind in kinds])
    escapes.setflags(write=False)
    return escapes


def _spec_of(sources: Sequence[Source]) -> Ints:
    """Make the spec of Tables, a row for each row of matches."""
    lines: list[tuple[int, ...]] = []
    tables = dict.fromkeys(_FORMS, 0)
    for source in sources:
        table = NONE
        if source.table:
            table = tables[source.form]
            tables[source.form] += 1
        origin = ORIGINS.index(source.origin)
        in_document = origin
        if source.origin_in_document:
            in_document = ORIGINS.index(source.origin_in_document)
        line = (
            source.form,
            table,
            *source.orders,
            source.segment,
            origin,
            in_document,
            source.evidence,
        )
        lines += [line] * source.rows
    return np.array(lines, np.int32)
