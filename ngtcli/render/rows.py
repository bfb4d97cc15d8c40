"""What `ngt bench` reports: rows, and whole results around them, each with its JSON form.

Measuring fills them, rendering reads them. Shares and acceptance rates are from 0 to 1, quartiles
are (lower, upper); a unit stands in the name where there is one. None is what could not be known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OVERALL = "overall"  # the task of rows over all tasks
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What the drafts of some answers came to; the histogram counts steps by accepted drafts."""

    new_tokens: int
    steps: int
    drafted_tokens: int | None
    accepted_tokens: int | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: Mapping[int, int]
    nodes_per_step: float | None
    undrafted_share: float | None

    def as_json(self) -> dict[str, Any]:
        """All fields; JSON has no numbers as keys, so those of the histogram are strings."""
        counts = {str(k): self.acceptance_histogram[k] for k in sorted(self.acceptance_histogram)}
        return {**asdict(self), "acceptance_histogram": counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times over prompts; `spread` is a prompt's interquartile range over its median, typically.

    `setup_s_median` is what comes before prefill: the trie from the cache, the drafter.
    """

    seconds_median: float
    seconds_quartiles: Pair
    spread: float | None
    tokens_per_s: float | None
    tokens_per_s_with_prefill: float
    prefill_s_median: float | None
    setup_s_median: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """The other's time by own time, prompt by prompt."""

    median: float
    quartiles: Pair
    least_and_most: Pair

    def as_json(self, name: str) -> dict[str, Any]:
        """The median as `name`, the others as NAME_quartiles and NAME_least_and_most."""
        return {
            name: self.median,
            f"{name}_quartiles": self.quartiles,
            f"{name}_least_and_most": self.least_and_most,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Means over judged answers; `rouge_l` is None, and not in JSON, without its package."""

    judged: int
    exact_match: float | None
    f1: float | None
    rouge_l: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The scores that were computed."""
        whole = asdict(self)
        if self.rouge_l is None:
            del whole["rouge_l"]
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """A method on the prompts of one task; `same_ids` counts those with plain decoding's ids.

    `speedup` is over plain decoding.
    """

    method: str
    num_draft: int | None
    task: str
    questions: int
    drafting: Drafting
    times: Times
    speedup: Speedup
    speedup_over_hf: Speedup | None
    same_ids: int
    peak_memory_mib: float
    scores: Scores | None

    def as_json(self) -> dict[str, Any]:
        """One flat object; what was not compared or not judged is left out."""
        over_hf = self.speedup_over_hf
        return {
            **_head(self),
            **self.drafting.as_json(),
            **asdict(self.times),
            **self.speedup.as_json("speedup"),
            **(over_hf.as_json("speedup_over_hf") if over_hf else {}),
            "same_ids": self.same_ids,
            "peak_memory_mib": self.peak_memory_mib,
            **(self.scores.as_json() if self.scores else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """A method on the recorded questions of one task; times are of one proposal, observed."""

    method: str
    num_draft: int
    task: str
    questions: int
    drafting: Drafting
    draft_us_median: float
    draft_us_p99: float

    def as_json(self) -> dict[str, Any]:
        """One flat object."""
        drafting = self.drafting.as_json()
        kept = (
            "new_tokens", "steps", "mean_acceptance_length", "draft_acceptance_rate",
            "acceptance_histogram", "nodes_per_step",
        )  # fmt: skip
        return {
            **_head(self),
            **{name: drafting[name] for name in kept},
            "draft_us_median": self.draft_us_median,
            "draft_us_p99": self.draft_us_p99,
            "undrafted_share": self.drafting.undrafted_share,
        }


def _head(row: LiveRow | ReplayRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "num_draft": row.num_draft,
        "task": row.task,
        "questions": row.questions,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """Where a method's time goes: prefill in ms a prompt, the parts of a step in µs, shares."""

    method: str
    num_draft: int | None
    steps: int
    prefill_ms: float
    step_us: Mapping[str, float]
    share: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTimes:
    """The rounds of one prompt by one method."""

    rounds: int
    seconds_median: float
    seconds_quartiles: Pair
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One prompt, and what each method took for it."""

    id: str
    task: str
    prompt_tokens: int
    results: Mapping[str, PromptTimes]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A method that takes no part, and why."""

    method: str
    reason: str

    def as_json(self) -> dict[str, str]:
        return {"method": self.method, "reason": self.reason}


AnyRow = LiveRow | ReplayRow | SplitRow | PromptRow | Refusal


def as_rows(rows: Sequence[AnyRow]) -> list[dict[str, Any]]:
    """The JSON form of each row."""
    return [row.as_json() for row in rows]
