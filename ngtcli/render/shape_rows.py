"""What a replay with real passes reports of each method."""

from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.render.rows import Drafting, Speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of decoding, prefill left out; of a question the median of its rounds counts.

    `decode_s` is a sum over questions, `step_ms` a mean over passes, `draft_ms` what of it is spent
    drafting (None where that cannot be told). `speedup_overall` is the sum of plain decoding's
    times by that of the own ones. `spread` is a question's interquartile range over its median,
    typically; None with one round.
    """

    decode_s: float
    tokens_per_s: float
    step_ms: float
    draft_ms: float | None
    speedup_overall: float
    spread: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """A method on the recorded questions of one task; `speedup` is over plain decoding."""

    method: str
    num_draft: int | None
    task: str
    questions: int
    drafting: Drafting
    times: StepTimes
    speedup: Speedup

    def as_json(self) -> dict[str, Any]:
        """One flat object."""
        return {
            "method": self.method,
            "num_draft": self.num_draft,
            "task": self.task,
            "questions": self.questions,
            **self.drafting.as_json(),
            **asdict(self.times),
            **self.speedup.as_json("speedup"),
        }
