"""A summary of documents that do not fit: summaries of their parts, then one of those.

What came of each part is kept in the cache until the whole is done, so that a run which was
interrupted goes on where it stopped.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from ngtcli.documents.load import Document
from ngtcli.errors import ContextOverflowError
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset
from ngtcli.prompt.splitting import Part, PartReport, fits, split
from ngtcli.session import AnswerOptions, Session
from ngtcli.system import process
from ngtcli.system.storage import DamagedFileError, home, key_of, read_json, write_json
from ngtcli.trie.ngram import NGramTrie

_VERSION = 1
_BYTES = 100_000_000  # largest file of kept parts that is read; guess
# Settings that decide the text of a part.
_DECIDE = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "device",
    "dtype", "exact", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


class KeptParts:
    """The texts of finished parts, in a file for one set of documents, settings and model."""

    def __init__(
        self,
        session: Session,
        preset: Preset,
        documents: Sequence[Document],
        warn: Callable[[str], None],
    ) -> None:
        settings = session.settings
        decide = [getattr(settings, name) for name in _DECIDE]
        wording = (preset.template, preset.document, preset.titled_document, preset.separator)
        texts = [part for d in documents for part in (d.name, d.sha256)]
        key = key_of(_VERSION, session.model.tokenizer.fingerprint, *decide, *wording, *texts)
        self._path, self._warn = home("cache") / "parts" / f"{key}.json", warn
        self._texts = self._read()

    def _read(self) -> dict[str, str]:
        try:
            found = read_json(self._path, _BYTES)
            if not all(isinstance(text, str) for text in found.values()):
                raise DamagedFileError("other values than texts")
            return found
        except FileNotFoundError:
            return {}
        except DamagedFileError as error:
            self._warn(f"the parts that were kept are made anew: {error}")
            return {}

    @staticmethod
    def _key(prompt: Prompt) -> str:
        return hashlib.sha256(repr(prompt.ids).encode()).hexdigest()

    def get(self, prompt: Prompt) -> str | None:
        """The text that an earlier run made of this prompt."""
        return self._texts.get(self._key(prompt))

    def put(self, prompt: Prompt, text: str) -> None:
        """Keep a text."""
        self._texts[self._key(prompt)] = text
        try:
            write_json(self._path, self._texts)
        except OSError as error:
            self._warn(f"the part is not kept: {error.strerror or error}")

    def forget(self) -> None:
        """Remove the file: the whole is done."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class Splitting:
    """Makes the last prompt, which has the summaries of all parts; `reports` has the parts."""

    def __init__(
        self,
        session: Session,
        preset: Preset,
        documents: Sequence[Document],
        status: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._session, self._preset, self._documents = session, preset, documents
        self._status, self._warn = status, warn
        self.reports: list[PartReport] = []
        self.total = 0  # parts of all levels so far
        self._kept = KeptParts(session, preset, documents, warn)

    def prompt(self) -> Prompt:
        """The prompt of everything, or of the summaries of parts. Raises ContextOverflowError."""
        documents, level, before = self._documents, 1, 0
        trie: NGramTrie | None = None
        while (prompt := fits(self._session.task(self._preset, documents))) is None:
            parts = split(self._session.task(self._preset, documents))
            if before and len(parts) >= before:
                raise ContextOverflowError(
                    f"{len(parts)} summaries of parts do not fit and get no shorter",
                    "Give a smaller --max-tokens, or name a model with a longer context (-m).",
                )
            self._announce(len(parts), level)
            trie = trie or self._session.documents_trie(self._documents)
            documents = self._summaries(parts, level, trie)
            level, before = level + 1, len(parts)
        return prompt

    def _announce(self, count: int, level: int) -> None:
        self.total += count
        what = "not everything fits" if level == 1 else "their summaries do not fit either"
        self._warn(f"{what}: split into {count} parts, each is summarized, then their summaries")

    def _summaries(
        self, parts: Sequence[Part], level: int, trie: NGramTrie | None
    ) -> list[Document]:
        process.unwind_on_interrupt()  # what is finished is told
        found = []
        if taken := sum(self._kept.get(part.prompt) is not None for part in parts):
            self._warn(f"took {taken} of {len(parts)} parts from a run that was interrupted")
        for i, part in enumerate(parts, 1):
            text = self._kept.get(part.prompt)
            kept, tokens = text is not None, 0
            if text is None:
                text, tokens = self._answer(part, f"Part {i} of {len(parts)}, {part.name}", trie)
                self._kept.put(part.prompt, text)
            self.reports.append(PartReport(part.name, text, kept, level, tokens))
            if text.strip():
                found.append(Document(part.name, text))
        return found or [Document(parts[0].name, "")]

    def _answer(self, part: Part, name: str, trie: NGramTrie | None) -> tuple[str, int]:
        self._status(f"{name} …")
        answer = self._session.answer(part.prompt, AnswerOptions(trie=trie))
        texts = []
        for step in answer:
            texts += [token.text for token in step.tokens]
            self._status(f"{name}: {len(texts)} tokens …")
        return "".join(texts), len(texts)

    def kept_words(self) -> str:
        """How many parts are done, as the end of a sentence; "" for none."""
        if not self.reports:
            return ""
        return (
            f"; kept {len(self.reports)} of {self.total} parts: the same command goes on from there"
        )

    def forget(self) -> None:
        """The whole is done: what was kept of it is removed."""
        self._kept.forget()
