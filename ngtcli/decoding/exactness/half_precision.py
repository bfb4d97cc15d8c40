"""Half precision that a rule chose for a model: it may stay only where it is exact.

Drafts must change no token unless the user says so. If forward passes of any number of rows are
not exact, the model is loaded again in float32; that is stored, so that a later start reads it
once.
"""

from dataclasses import dataclass

import torch

from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.model import TargetModel
from ngtcli.models.quantized import name_of
from ngtcli.models.weights.formats import HALF_DTYPES, WeightFormat
from ngtcli.system.trials import Trial

_MAX_TOKENS = 900  # of prompt and answer, for which it is tried: that serves all up to 1,024


@dataclass(frozen=True, slots=True)
class HalfPrecision:
    """The condition on which a model stays in half precision.

    Attributes:
        weights: What tells the files of the weights.
        format: How they are to be computed.
        num_draft: The most draft nodes of a forward pass; None: it holds whatever they are.
    """

    weights: str
    format: WeightFormat
    num_draft: int | None

    @property
    def is_conditional(self) -> bool:
        """Return whether a rule chose half precision, and it must be exact to stay."""
        is_half = self.format.dtype in HALF_DTYPES
        return self.format.chosen_by_rule and is_half and self.num_draft is not None

    @property
    def is_known_to_fail(self) -> bool:
        """Return whether an earlier start found that it is not exact."""
        return self.is_conditional and self._stored.load() is False

    def holds(self, model: TargetModel, exactness: Exactness) -> bool:
        """Return whether the model that was loaded stays as it is; a failure is stored."""
        if not self.is_conditional or self.num_draft is None:
            return True
        if not model.verifies_trees:  # to be exact it decodes plainly
            return True
        if exactness.any_number(self.num_draft, _MAX_TOKENS) is not None:
            return True
        self._stored.save(False)
        return False

    @property
    def _stored(self) -> Trial[bool]:
        depends_on = (
            self.weights,
            name_of(self.format.dtype),
            self.format.kind,
            self.format.packed,
        )
        return Trial("halves", torch.device("cpu"), depends_on, bool)
