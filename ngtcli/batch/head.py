"""What an output was begun with: the command that resumes it must ask for the same."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ngtcli.errors import UsageError
from ngtcli.system.storage import DamagedFileError, parse_json
from ngtcli.system.yaml_file import shown

FORMAT, VERSION = "ngt-batch", 1


@dataclass(frozen=True, slots=True)
class Head:
    """SHA-256 of the input in hex, which of its lines are meant, and how they are answered.

    `answers` are settings and wording by task, JSON-ready; see `deciding`.
    """

    input: str
    shard: str
    engine: str
    answers: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The fields, and the format's name and version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """The head in a line; None for another one's line, or one of another version."""
        try:
            found = parse_json(line, dict)
            same = (found.pop("format"), found.pop("version")) == (FORMAT, VERSION)
            head = cls(**found)
        except (DamagedFileError, KeyError, TypeError):
            return None
        return head if same and head._is_whole() else None

    def _is_whole(self) -> bool:
        """Whether all fields are what they should be."""
        words, answers = (self.input, self.shard, self.engine), self.answers
        return (
            all(isinstance(word, str) for word in words)
            and isinstance(answers, dict)
            and all(isinstance(of_task, dict) for of_task in answers.values())
        )

    def check(self, now: "Head", path: object) -> None:
        """Raise UsageError, which names what differs, unless `now` asks for the same."""
        changed = list(_changes(self, now))
        if not changed:
            return
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        hint = "Name another file with -o, or write it again with --restart."
        if self.input != now.input:
            hint = f"Put new and mended lines into a file of their own. {hint}"
        raise UsageError(f"{path} was begun with {changed[0]}{more}", hint)


def _changes(then: Head, now: Head) -> Iterator[str]:
    """What was otherwise, in words."""
    if then.input != now.input:
        yield "other lines: the input has changed"
    for name in ("shard", "engine"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            yield f"{name} {before}, now {after}"
    told: set[str] = set()
    for task in sorted({*then.answers, *now.answers}):
        before, after = then.answers.get(task, {}), now.answers.get(task, {})
        for name in sorted({*before, *after}):
            was, is_ = before.get(name), after.get(name)
            if was != is_ and name not in told:
                told.add(name)
                if name == "wording":
                    yield f"another wording of preset {task}"
                else:
                    yield f"{name} {shown(was)}, now {shown(is_)}"
