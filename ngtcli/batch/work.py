"""What is answered for a line, and what came of it. Loads nothing heavy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ngtcli.batch.waiting import Line
from ngtcli.config import Settings
from ngtcli.documents.load import Loaded
from ngtcli.prompt.preset import Preset

if TYPE_CHECKING:
    from ngtcli.prompt.splitting import PartReport
    from ngtcli.session.answer import Answered


@dataclass(frozen=True, slots=True)
class Read:
    """What was read for a line: a hash of its files' sizes and times, and one of their texts."""

    files: str
    texts: str


@dataclass(frozen=True, slots=True)
class Work:
    """What is answered for a line, and how. `read` is None for a line that names no files."""

    task: str
    settings: Settings
    preset: Preset
    loaded: Loaded
    question: str = ""
    read: Read | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line that is done: its answer or error. `work` is None where it was not even read."""

    line: Line
    work: Work | None
    answered: "Answered"
    parts: "Sequence[PartReport]" = ()
