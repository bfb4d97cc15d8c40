"""The source of common phrases: counts of a general English text, which ship with ngt."""

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

    It is not queried at order 0, which would change the mean acceptance length from 2.801 to 2.800
    and add 2 us to a drafting step.
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
        """Return the fitted escapes, at the orders at which the source is queried."""
        escapes = fitted(cls.origin).copy()
        escapes[:, 0] = CONFIG.unused_escape
        return escapes
