"""What `ngt bench` is asked to measure, and who cannot take part. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.config import Settings
from ngtcli.errors import NgtError, UsageError
from ngtcli.measure.grid import Cell, cell_of
from ngtcli.measure.records import Refusal, refusal

IDS = ("all", "odd", "even")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured and how, live or on a recording.

    Live, plain decoding always takes part: the others are set against it. `tasks` (none: all) and
    `limit`, per task, choose prompts; of a recording `ids` keeps the questions with "odd" or "even"
    ids, or "all".
    """

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False
    quality: bool = True
    tasks: Sequence[str] = ()
    limit: int | None = None
    ids: str = "all"


def cells_of(
    methods: Sequence[str], num_drafts: Sequence[int], settings: Settings
) -> tuple[list[Cell], list[Refusal]]:
    """A cell for each method and number of nodes, each once; methods that cannot be are refused."""
    cells: dict[str, Cell] = {}
    refused: list[Refusal] = []
    for method in dict.fromkeys(methods):
        try:
            made = [cell_of(method, number, settings) for number in num_drafts]
        except NgtError as error:
            refused.append(refusal(method, error))
        else:
            cells |= {cell.key: cell for cell in made}
    return list(cells.values()), refused


def check_some_left(methods: Sequence[str], refused: Sequence[Refusal]) -> None:
    """Raise UsageError where none of `methods` can run."""
    reasons = {r.method: r.reason for r in refused}
    if reasons.keys() >= set(methods):
        reason = next(iter(reasons.values()), "none is named")
        raise UsageError(f"no method can run: {reason}", "Choose others with --methods.")


def check_against(settings: Settings) -> None:
    """Raise UsageError where `generate` would not be asked for the same text."""
    penalties = (settings.presence_penalty, settings.frequency_penalty)
    if settings.temperature > 0 or settings.repetition_penalty != 1 or any(penalties):
        raise UsageError("--against hf compares greedy decoding", "Leave out sampling flags.")
    if settings.stop:
        raise UsageError("--against hf knows no stop strings", "Leave out --stop.")
