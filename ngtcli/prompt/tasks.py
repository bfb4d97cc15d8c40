"""The tasks, `summarize` and `ask`: what each needs, and what it does where not everything fits."""

from dataclasses import replace

from ngtcli.config import IN_PARTS, Settings
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import Preset

TASKS = ("summarize", "ask")


def can_ask(preset: Preset) -> bool:
    """Whether a preset has a place for a question."""
    return "{question}" in preset.template


def for_task(task: str, settings: Settings, preset: Preset) -> Settings:
    """The settings with `overflow` as this task has it.

    Raises UsageError where the task cannot have it, or the preset has no place for a question.
    """
    if task == "ask" and not can_ask(preset):
        raise UsageError(
            f"preset {preset.name} has no place for a question", "Put {question} in its template."
        )
    if task == "ask" and settings.overflow in IN_PARTS:
        raise UsageError(
            f"--overflow {settings.overflow} makes summaries of parts, and a question is asked",
            "Use --overflow retrieve, which reads the passages that fit the question best.",
        )
    if task == "summarize" and settings.overflow == "retrieve":
        raise UsageError(
            "--overflow retrieve chooses passages by a question, and a summary has none",
            "Use --overflow truncate to cut the documents.",
        )
    if settings.overflow == "refine" and not preset.refine:
        raise UsageError(
            f"preset {preset.name} has no wording for --overflow refine",
            "Put `refine:` in it, a template with {documents} and {summary}.",
        )
    if settings.overflow == "auto":
        return replace(settings, overflow="retrieve" if task == "ask" else "split")
    return settings
