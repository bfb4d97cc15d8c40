"""Drafts only from learned heads of one kind: Medusa, Hydra, EAGLE, DFlash, MTP.

The tree grows best-first by the product of the head's probabilities, to as many nodes as a step may
have: what EAGLE-2 (Li et al. 2024, section 4) picks from a beam of each depth, here also for heads
that were published with a fixed tree (Medusa: Cai et al. 2024; Hydra: Ankner et al. 2024).
"""

from dataclasses import replace

from ngtcli.drafting.auto.config import Options as AutoOptions
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.options import MethodOptions
from ngtcli.errors import UsageError

_UNCALIBRATED = AutoOptions(trust=1e6)  # probabilities stay those of the head


class Learned(Auto):
    """`auto` with no source but the heads in its settings, and without its policy."""

    def __init__(self, settings: DraftSettings, options: MethodOptions) -> None:
        if settings.heads is None:
            raise UsageError("there is no head of this kind", hint="Name one with --heads.")
        without_sources = replace(settings, costs=None, pool=None, background=None)
        super().__init__(without_sources, _UNCALIBRATED, heads_only=True)
        self.tallies.trust_heads()

    def begin(self, context: Context) -> None:
        """Start on a new prompt, from which nothing is drafted and no scores are read."""
        super().begin(replace(context, vocabulary=0))
