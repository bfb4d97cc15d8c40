"""What `ngt bench` is asked to measure, and who cannot take part. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.draft.drafter import draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import NgtError, UsageError
from ngtcli.measure.records import Refusal, refusal

IDS = ("all", "odd", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured and how, live or on a recording.

    Live and with real passes plain decoding always takes part: the others are set against it.
    `shape` names a model for real passes. `tasks` (none: all) and `limit`, per task, choose
    prompts; of a recording `ids` keeps the questions with "odd" or "even" ids, or "all";
    `template` and `turns` are as `read_traces` has them.
    """

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False
    quality: bool = True
    shape: str = ""
    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"
    template: str = ""
    turns: str = "first"


def unreadable(methods: Sequence[str], settings: Settings) -> list[Refusal]:
    """The methods with an unknown name or a wrong option; loads no model."""
    refused = []
    for method in methods:
        try:
            parse_method(method, draft_settings(settings))
        except NgtError as error:
            refused.append(refusal(method, error))
    return refused


def check_some_left(methods: Sequence[str], refused: Sequence[Refusal]) -> None:
    """Raise UsageError where none of `methods` can run."""
    reasons = {r.method: r.reason for r in refused}
    if all(m in reasons for m in methods):
        raise UsageError(
            f"no method can run: {next(iter(reasons.values()), 'none is named')}",
            "Choose others with --methods.",
        )


def check_against(settings: Settings) -> None:
    """Raise UsageError where `generate` would not be asked for the same text."""
    penalties = (settings.presence_penalty, settings.frequency_penalty)
    if settings.temperature > 0 or settings.repetition_penalty != 1 or any(penalties):
        raise UsageError("--against hf compares greedy decoding", "Leave out sampling flags.")
    if settings.stop:
        raise UsageError("--against hf knows no stop strings", "Leave out --stop.")
