"""What the lines of `ngt batch` ask for, with the documents and settings of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ngtcli.batch.lines import below
from ngtcli.batch.source import asked_of
from ngtcli.batch.waiting import Line
from ngtcli.batch.work import Work
from ngtcli.cli.batch_files import Written
from ngtcli.config import Settings
from ngtcli.documents.listing import WRITTEN
from ngtcli.documents.load import Loaded, load
from ngtcli.prompt.preset import Preset, load_preset
from ngtcli.prompt.tasks import can_ask, for_task

Tasks = Mapping[str, tuple[Settings, Preset]]


def wording(task: str, preset: Preset) -> Preset:
    """What words a task: `preset`, or that of `ask` where it has no place for a question."""
    return load_preset(task) if task == "ask" and not can_ask(preset) else preset


class WorkReader:
    """Reads what lines ask for; their paths are taken from `folder`.

    The tasks are worded by preset `given`, or by their own without one. What holds for many lines
    is told to `warn`.
    """

    def __init__(
        self, tasks: Tasks, given: str | None, folder: str, written: Written,
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._tasks, self._given, self._folder = tasks, given, folder
        self._written, self._warn = written, warn

    def check_paths(self, number: int, paths: Sequence[str]) -> None:
        """Raise UsageError where the line of that number names what is written."""
        self._written.check(number, below(self._folder, paths))

    def work(self, line: Line, path: Path | None) -> Work:
        """What a line, of the file at `path`, asks for, its documents read. Raises NgtError."""
        asked = asked_of(line, path)
        settings, preset = self._tasks[asked.task]
        given = asked.task if self._given is None else self._given
        if preset.name != given:
            what = f"preset {given} has no place for a question"
            self._warn(f"{what}: preset {preset.name} words the lines that have one")
        settings = for_task(asked.task, replace(settings, **asked.settings), preset)
        if self._tasks["ask"][0].engine == "vllm":
            settings = self._of_vllm(asked.task, settings)
        loaded = Loaded(asked.documents)
        if asked.paths:
            loaded = self._load(below(self._folder, asked.paths), settings)
        return Work(asked.task, settings, preset, loaded, asked.question)

    def _load(self, paths: Sequence[str], settings: Settings) -> Loaded:
        """The documents of a line, without what this run writes."""
        loaded = load(paths, settings=settings, written=self._written.files())
        for skipped in loaded.skipped:
            if skipped.reason == WRITTEN:
                self._warn(f"left out {skipped.name}: {WRITTEN}")
        return loaded

    def _of_vllm(self, task: str, settings: Settings) -> Settings:
        """The settings as vLLM follows them: it drafts as `ask` was set when it was started.

        Raises UsageError for what it cannot follow.
        """
        from ngtcli.engines.vllm_arguments import check

        started = self._tasks["ask"][0]
        drafting = {name: getattr(started, name) for name in ("method", "num_draft")}
        for name, value in drafting.items():
            if (other := getattr(settings, name)) != value:
                self._warn(
                    f"vLLM drafts for all texts as for ask, with {name} {value}:"
                    f" {name} {other} of {task} does nothing"
                )
        settings = replace(settings, **drafting)
        check(settings)
        return settings
