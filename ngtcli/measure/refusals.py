"""Methods that cannot take part in a measurement, each with the reason. Knows no torch."""

from collections.abc import Sequence

from ngtcli.config import Settings
from ngtcli.draft.drafter import draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import NgtError, UsageError
from ngtcli.render.rows import Refusal


def unreadable(methods: Sequence[str], settings: Settings) -> list[Refusal]:
    """The methods with an unknown name or a wrong option; loads no model."""
    refused = []
    for method in methods:
        try:
            parse_method(method, draft_settings(settings))
        except NgtError as error:
            refused.append(refusal(method, error))
    return refused


def refusal(method: str, error: Exception) -> Refusal:
    """Why a method does not take part, as results name it."""
    hint = error.hint if isinstance(error, NgtError) else ""
    return Refusal(method, f"{error}. {hint}" if hint else str(error))


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
