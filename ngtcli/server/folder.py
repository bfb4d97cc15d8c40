"""The folders that a server answers from: read once, read again where files have changed."""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ngtcli.config import Settings
from ngtcli.documents.catalog import stamp_of
from ngtcli.documents.find import find
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import DocumentReader
from ngtcli.documents.text import utf8
from ngtcli.errors import InputError

_LOCK_TIMEOUT_S = 0.05  # for another thread that reads the documents (guess)


class StillReadingError(Exception):
    """Another thread is reading the documents: ask again later, see `Threads`."""


class ServedFolder:
    """The documents of files and folders, named by their paths below these; `close` it.

    May be used from any thread; none waits for another one that reads. A link in a folder that
    leads to a file outside the folders is left out.
    """

    def __init__(self, paths: Sequence[str], settings: Settings) -> None:
        self._paths = tuple(paths)
        self._settings = settings
        self._roots = [os.path.realpath(os.path.expanduser(path)) for path in paths]
        self._files = DocumentReader(settings, inside=True)
        self._lock = threading.Lock()
        self._stamps: object = None
        self._loaded = Loaded(())

    def documents(self) -> Loaded:
        """Return the documents as they are now; read the files where one has changed.

        Raises:
            InputError: There are no documents.
            StillReadingError: Another thread is reading, which may take minutes.
        """
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise StillReadingError
        try:
            # The stamps are taken before the files are read, so that no later change is missed.
            paths = find(self._paths, self._settings, inside=True).files
            stamps = {path: stamp_of(path) for path in paths}
            if stamps != self._stamps:
                loaded = load(self._paths, None, self._settings, reader=self._files, inside=True)
                self._loaded = replace(loaded, documents=self._renamed(loaded.documents))
                self._stamps = stamps
            if not self._loaded.documents:
                raise InputError("the folder has no documents", hint="Put files into it.")
            return self._loaded
        finally:
            self._lock.release()

    def _renamed(self, documents: Sequence[Document]) -> tuple[Document, ...]:
        """Return the documents inside the folders, by their names there where these are unique."""
        names = [self.name_of(document.path) for document in documents]
        counts = Counter(names)
        return tuple(
            replace(document, name=name if counts[name] == 1 else document.name)
            for document, name in zip(documents, names, strict=True)
            if name is not None
        )

    def name_of(self, path: str) -> str | None:
        """Return the path of a file below the folder; None if it is elsewhere."""
        real = os.path.realpath(path)
        for root in self._roots:
            if real == root:
                return utf8(os.path.basename(root))
            if real.startswith(os.path.join(root, "")):
                return utf8(os.path.relpath(real, root))
        return None

    def close(self) -> None:
        """End the reader."""
        with self._lock:
            self._files.close()
