"""Counts of a general text: common English, as it is shipped."""

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.cells import GENERAL as GENERAL_EVIDENCE
from ngtcli.drafting.auto.core.forms import SORTED
from ngtcli.drafting.auto.sources.source import Floats, Resources, Source, fitted
from ngtcli.drafting.origins import BACKGROUND
from ngtcli.drafting.tries.background import DEPTH, lay_out
from ngtcli.drafting.tries.counts import NONE

NOTHING = lay_out(())  # where there is no background


class BackgroundSource(Source):
    """A background, which never changes.

    It is not asked at order 0: with it the mean acceptance length is 2.800 in place of 2.801, and a
    drafting step takes 2 us more.
    """

    origin = BACKGROUND
    form = SORTED
    evidence = GENERAL_EVIDENCE
    orders = 1, DEPTH - 1

    def __init__(self, resources: Resources) -> None:
        counts = resources.background or NOTHING
        self.table = counts.nodes, counts.by_token
        self.root = 0 if len(counts) else NONE

    @classmethod
    def first_escapes(cls) -> Floats:
        """As fitted, at the orders at which it is asked."""
        escapes = fitted(cls.origin).copy()
        escapes[:, 0] = CONFIG.unused_escape
        return escapes
