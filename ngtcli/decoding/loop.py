"""One text, decoded step by step."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ngtcli.config import Settings
from ngtcli.decoding.continuation import Continuation
from ngtcli.decoding.decoder import Decoder, Member
from ngtcli.decoding.exact import ExactDrafters
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import Keeping
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.drafter import Context, Drafter, Drafters
from ngtcli.drafting.steps import InSteps, Limits, Step


class Run(InSteps):
    """One generation: iterate over it for its steps, or `finish` it.

    `output` are the ids emitted, end token included, `statistics` what the run has done so far.
    `numerics` says whether it is decoded exactly; `exact`: in any dtype the tokens do not
    depend on what is drafted. `split_times` as in Decoder. `progress` is called with how many ids
    of how many are read; `text` takes the place of a usual continuation; `keeping` says what is
    kept of the prompt.
    Raises ContextOverflowError when the prompt leaves no room for a single token.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        context: Context,
        sampling: Settings,
        limits: Limits,
        split_times: bool = False,
        progress: Callable[[int, int], object] = lambda read, total: None,
        text: Continuation | None = None,
        keeping: Keeping | None = None,
        numerics: Numerics = NOT_EXACT,
    ) -> None:
        context = replace(
            context,
            chains=model.takes_chains,
            free_nodes=numerics.has_one_shape,
            probes_count=numerics.is_exact,
        )
        self.model, self.drafter, self.context, self.limits = model, drafter, context, limits
        text = text or Continuation(model, context, sampling, limits)
        self.output, self.statistics = text.output, text.statistics
        # A model that decodes plainly is exact without exact drafting.
        self.drafters = Drafters(lambda: drafter, limits.num_draft if model.takes_drafts else 0)
        if numerics.rows is not None and model.takes_drafts:
            self.drafters = ExactDrafters(drafter, numerics.rows, limits.num_draft)
        self.numerics = numerics
        self.exact = numerics.is_exact or not model.takes_drafts
        self.member = Member(None, text, context, keeping)
        self.decoder = Decoder(model, self.drafters, 1, progress, split_times, numerics)

    @property
    def finish_reason(self) -> str:
        """Why the run has ended, as in its last step; "" before."""
        return self.member.text.finish_reason

    def __iter__(self) -> Iterator[Step]:
        """The steps. Raises NgtError and what a pass raises."""
        member = self.member
        try:
            over = self.decoder.add(member)
            while not over:
                over = self.decoder.step()
                yield from member.steps
                member.steps.clear()
            if member.error is not None:
                raise member.error
        finally:
            self.decoder.close()
