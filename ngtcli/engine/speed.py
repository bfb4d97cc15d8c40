"""The time that drafting saves: how long plain decoding would have taken for the same tokens."""

from ngtcli.config import Settings
from ngtcli.engine.events import Ended

_MIN_PLAIN_STEPS = 4  # fewer say too little about the cost of a plain forward pass (guess)


def plain_decoding_s(settings: Settings, answer: Ended) -> float | None:
    """Return the seconds that plain decoding would have taken for an answer; None if unknown.

    Plain decoding takes one forward pass over one token for each new token, at the cost that the
    drafter measured on this device and refined in this run, or else at the mean cost of the run's
    own plain steps. The time is unknown if the method never drafts, or if sequences shared forward
    passes.
    """
    statistics = answer.statistics
    if (
        statistics.shared_steps
        or settings.drafting.method == "none"
        or settings.drafting.num_draft == 0
    ):
        return None
    cost_s = answer.policy.cost_s.get(1) if answer.policy else None
    if cost_s is None and statistics.plain_steps >= _MIN_PLAIN_STEPS:
        cost_s = statistics.plain_s / statistics.plain_steps
    return None if cost_s is None else statistics.new_tokens * cost_s
