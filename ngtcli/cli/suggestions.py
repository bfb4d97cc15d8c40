"""A hint that each user gets once: how questions are answered without loading the model again."""

from typing import TYPE_CHECKING

from ngtcli.cli.notes import Notes

if TYPE_CHECKING:
    from ngtcli.system.store import Kind

SLOW_S = 3.0  # seconds until an answer begins, of which loading a model takes most (guess)
_KEY = "slow starts"


def suggest_keeping_warm(waited_s: float, notes: Notes) -> None:
    """On a terminal, name `ngt serve` when the model was loaded slowly for the second time.

    Args:
        waited_s: Seconds until the answer began, by a model that was loaded for it.
        notes: Where the line goes.
    """
    if not notes.terminal or waited_s < SLOW_S:
        return
    slow_starts = _hints().get(_KEY) or 0
    if slow_starts >= 2:
        return
    _hints().put(_KEY, slow_starts + 1)
    if slow_starts == 1:
        notes.remark(
            f"The answer began after {waited_s:.0f} s, because the model was loaded first. `ngt"
            " serve` in another terminal, or --keep-warm 10m, keeps it loaded."
        )


def _hints() -> "Kind[int]":
    from ngtcli.system.store import Kind  # here: most runs need no hint

    return Kind("hints", int, is_state=True)
