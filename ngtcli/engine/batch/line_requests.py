"""The requests of the lines of a batch, with the documents and settings of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ngtcli.config import ReadingSettings, Settings
from ngtcli.documents.catalog import stamp_of
from ngtcli.documents.find import WRITTEN, find
from ngtcli.documents.load import Loaded, load
from ngtcli.documents.read import DocumentReader
from ngtcli.engine.batch.input import InputLine
from ngtcli.engine.batch.journal import Record
from ngtcli.engine.batch.lines import BatchLine, below
from ngtcli.engine.batch.output import check_not_read, written_with
from ngtcli.engine.request import Request, Tasks
from ngtcli.errors import NgtError
from ngtcli.system import reporting
from ngtcli.system.files import key_of

_READERS = 4  # readers that are open at once (guess)


class LineRequests:
    """Makes requests of lines, and reads their documents. `close` it.

    The readers of files stay open for all lines.

    Args:
        tasks: The settings and the wording of each task.
        preset_name: The preset that words all tasks; None if each task has its own.
        folder: The folder that paths in lines are relative to.
        output: The files that this run writes; they are never read as documents.
    """

    def __init__(
        self, tasks: Tasks, preset_name: str | None, folder: str, output: Path | None
    ) -> None:
        self._tasks = tasks
        self._preset_name = preset_name
        self._folder = folder
        self._output = output
        self._open: dict[ReadingSettings, DocumentReader] = {}  # readers
        self._hashes: dict[int, tuple[str, str]] = {}  # hashes of files and of their texts, by line

    def check_paths(self, number: int, paths: Sequence[str]) -> None:
        """Raise UsageError if a line's paths name a file that this run writes."""
        check_not_read(number, [below(self._folder, path) for path in paths], self._output)

    def _request(self, line: InputLine, path: Path | None) -> tuple[BatchLine, list[str], Request]:
        """Return a line's content, its resolved paths, and its request. Raises NgtError."""
        content = line.content(path)
        request = self._tasks.request(
            content.task,
            content.question or "",
            loaded=Loaded(content.texts),
            prediction=content.predict,
            **content.settings,
        )
        return content, [below(self._folder, path) for path in content.paths], request

    def read(self, line: InputLine, path: Path | None) -> Request:
        """Return the request of a line, of the file at `path`, with documents. Raises NgtError."""
        content, paths, request = self._request(line, path)
        preset_name = content.task if self._preset_name is None else self._preset_name
        if request.preset.name != preset_name:
            reporting.warn(
                f"preset {preset_name} has no place for a question:"
                f" preset {request.preset.name} is used for the lines that have one"
            )
        if self._tasks.by_name["ask"][0].engine.engine == "vllm":
            request = replace(request, settings=self._of_vllm(content.task, request.settings))
        if paths:
            settings = request.settings
            # This comes before reading, so that a change meanwhile is noticed later.
            files = self._hash_of_files(paths, settings, stamp_of)
            request = replace(request, loaded=self._load(paths, settings))
            self._hashes[line.index] = files, _hash_of_texts(request.loaded)
        return request

    def hashes(self, line: InputLine) -> tuple[str, str]:
        """Return the `files` and `texts` hashes of a line that was read, once; "" for none."""
        return self._hashes.pop(line.index, ("", ""))

    def changed(
        self, lines: Iterable[InputLine], path: Path, record_of: Callable[[int], Record]
    ) -> Iterator[InputLine]:
        """Yield the lines whose files have changed or gone since they were done.

        The paths of many lines are listed once. The size and times of a file are looked up once,
        and the file is read only if these have changed.

        Args:
            lines: Lines that are done.
            path: The file that they are in.
            record_of: Returns the journal's record of the line at an index.

        Raises:
            NgtError: A line cannot be read again.
        """
        stamp = cache(stamp_of)

        @cache
        def is_same(
            paths: tuple[str, ...], reading: ReadingSettings, files: str, texts: str
        ) -> bool:
            try:
                settings = Settings(reading=reading)
                if self._hash_of_files(paths, settings, stamp) == files:
                    return True
                return _hash_of_texts(self._load(paths, settings)) == texts
            except NgtError:
                return False

        for line in lines:
            record = record_of(line.index)
            if not record.texts:
                continue
            _, paths, request = self._request(line, path)
            reading = request.settings.reading
            if not is_same(tuple(paths), reading, record.files, record.texts):
                yield line

    def close(self) -> None:
        """Close the readers."""
        while self._open:
            self._open.popitem()[1].close()

    def _load(self, paths: Sequence[str], settings: Settings) -> Loaded:
        """Read the documents of a line, except files that this run writes."""
        loaded = load(
            paths,
            settings=settings,
            written=written_with(self._output),
            reader=self._reader(settings),
        )
        for skipped in loaded.skipped:
            if skipped.reason == WRITTEN:
                reporting.warn(f"skipped {skipped.name}: {WRITTEN}")
        for remark in loaded.remarks:
            reporting.warn(remark)
        return loaded

    def _hash_of_files(
        self, paths: Sequence[str], settings: Settings, stamp: Callable[[str], object]
    ) -> str:
        """Return a hash of the names and stamps of all files of paths.

        The hash is "" if one of them is not a file.
        """
        files = find(paths, settings, written_with(self._output)).files
        stamps = [(path, stamp(path)) for path in files]
        if any(state is None for _, state in stamps):
            return ""
        return key_of(*stamps)

    def _reader(self, settings: Settings) -> DocumentReader:
        """Return the reader for these settings; a few readers stay open."""
        reading = settings.reading
        if reading not in self._open:
            if len(self._open) == _READERS:
                self.close()
            self._open[reading] = DocumentReader(settings)
        return self._open[reading]

    def _of_vllm(self, task: str, settings: Settings) -> Settings:
        """Return the settings for vLLM, which drafts as `ask` was set when it was started.

        Raises UsageError for settings that vLLM does not support.
        """
        from ngtcli.engine.vllm.process import check

        started = self._tasks.by_name["ask"][0]
        drafting = {name: started.get(name) for name in ("method", "num_draft")}
        for name, value in drafting.items():
            of_line = settings.get(name)
            if of_line != value:
                reporting.warn(
                    f"vLLM drafts for all texts as for ask, with {name} {value}:"
                    f" {name} {of_line} of a line ({task}) has no effect"
                )
        settings = settings.replace(**drafting)
        check(settings)
        return settings


def _hash_of_texts(loaded: Loaded) -> str:
    return key_of(*(document.sha256 for document in loaded.documents))
