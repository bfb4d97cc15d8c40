"""What the lines of a batch ask for, with the documents and settings of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.batch.input import Line, content_of
from ngtcli.batch.json_lines import BatchLine, below
from ngtcli.batch.output import Read, Written
from ngtcli.config import Settings, settings_where
from ngtcli.documents.catalog import stamp_of
from ngtcli.documents.find import WRITTEN, find
from ngtcli.documents.load import Loaded, load
from ngtcli.documents.read import Documents
from ngtcli.errors import NgtError
from ngtcli.prompt.preset import Preset, can_ask, for_task, load_preset
from ngtcli.session.question import Question, check_prediction
from ngtcli.system.files import key_of

if TYPE_CHECKING:
    from ngtcli.session.session import FinishedAnswer

_READERS = 4  # that are open at once; guess
Tasks = Mapping[str, tuple[Settings, Preset]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineQuestion(Question):
    """What a line asks; `read` is None where it names no files."""

    read: Read | None = None


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """A line that is done, with its answer or error. `question` is None if it could not be read."""

    line: Line
    question: Question | None
    answer: "FinishedAnswer"


def wording(task: str, preset: Preset) -> Preset:
    """What words a task: `preset`, or that of `ask` where it has no place for a question."""
    return load_preset(task) if task == "ask" and not can_ask(preset) else preset


class Questions:
    """Reads what lines ask for; their paths are taken from `folder`. `close` it.

    The tasks are worded by preset `given`, or by their own without one. What holds for many lines
    is told to `warn`. Files are read by readers that stay open for all lines.
    """

    def __init__(
        self,
        tasks: Tasks,
        given: str | None,
        folder: str,
        written: Written,
        warn: Callable[[str], None],
    ) -> None:
        self._tasks, self._given, self._folder = tasks, given, folder
        self._written, self._warn = written, warn
        self._open: dict[tuple[object, ...], Documents] = {}  # by the settings that they read as

    def check_paths(self, number: int, paths: Sequence[str]) -> None:
        """Raise UsageError where the line of that number names what is written."""
        self._written.check(number, [below(self._folder, path) for path in paths])

    def _asked(self, line: Line, path: Path | None) -> tuple[BatchLine, Settings]:
        """What a line says, with its paths as they are read, and its settings. Raises NgtError."""
        content = content_of(line, path)
        paths = tuple(below(self._folder, path) for path in content.paths)
        settings, preset = self._tasks[content.task]
        settings = for_task(content.task, replace(settings, **content.settings), preset)
        check_prediction(content.prediction, settings)
        return replace(content, paths=paths), settings

    def read(self, line: Line, path: Path | None) -> LineQuestion:
        """What a line, of the file at `path`, asks for, its documents read. Raises NgtError."""
        content, settings = self._asked(line, path)
        preset = self._tasks[content.task][1]
        given = content.task if self._given is None else self._given
        if preset.name != given:
            what = f"preset {given} has no place for a question"
            self._warn(f"{what}: preset {preset.name} words the lines that have one")
        if self._tasks["ask"][0].engine == "vllm":
            settings = self._of_vllm(content.task, settings)
        loaded, read = Loaded(content.documents), None
        if content.paths:
            # Before they are read, to notice a later change.
            files = self._stamp(content.paths, settings)
            loaded = self._load(content.paths, settings)
            read = Read(files, _hash_of_texts(loaded))
        return LineQuestion(
            task=content.task,
            settings=settings,
            preset=preset,
            loaded=loaded,
            question=content.question,
            prediction=content.prediction,
            read=read,
        )

    def changed(self, line: Line, path: Path, read: Read) -> Read | None:
        """What would be read now for a line for which `read` was; None for other texts or none.

        Files whose sizes and times are the same are not read.
        """
        try:
            content, settings = self._asked(line, path)
            files = self._stamp(content.paths, settings)
            if files == read.files:
                return read
            texts = _hash_of_texts(self._load(content.paths, settings))
        except NgtError:
            return None
        return Read(files, texts) if texts == read.texts else None

    def close(self) -> None:
        """End the readers, and keep what they learned of the files."""
        while self._open:
            self._close_oldest()

    def _close_oldest(self) -> None:
        """End the reader that was used least recently."""
        for remark in self._open.pop(next(iter(self._open))).close():
            self._warn(remark)

    def _stamp(self, paths: Sequence[str], settings: Settings) -> str:
        """A hash of the names, sizes and times of a line's files; "" for what is not a file."""
        found = find(paths, settings, self._written.files()).found
        stamps = [(path, stamp_of(path)) for path in found]
        return "" if any(stamp is None for _, stamp in stamps) else key_of(*stamps)

    def _load(self, paths: Sequence[str], settings: Settings) -> Loaded:
        """The documents of a line, without what this run writes."""
        written, files = self._written.files(), self._files(settings)
        loaded = load(paths, settings=settings, written=written, files=files)
        for skipped in loaded.skipped:
            if skipped.reason == WRITTEN:
                self._warn(f"left out {skipped.name}: {WRITTEN}")
        for remark in loaded.remarks:
            self._warn(remark)
        return loaded

    def _files(self, settings: Settings) -> Documents:
        """The reader for these settings; a few are open."""
        key = tuple(getattr(settings, name) for name in settings_where(reading=True))
        if key not in self._open and len(self._open) == _READERS:
            self._close_oldest()
        files = self._open.pop(key) if key in self._open else Documents(settings)
        self._open[key] = files  # as the last, since it was used last
        return files

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


def _hash_of_texts(loaded: Loaded) -> str:
    return key_of(*(document.sha256 for document in loaded.documents))
