"""A summary of documents that do not fit, made part by part.

`split` summarizes each part, then the summaries. `refine` takes the summary of a part into the
prompt of the next, so that the last one's covers all. The last prompt's answer is the caller's to
make. What came of each part is kept in the cache until the whole is done, so that a run which was
interrupted goes on where it stopped.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ngtcli.documents.load import Document
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.prompt.build import Prompt, Task
from ngtcli.prompt.preset import Preset, deciding
from ngtcli.prompt.reports import PartReport
from ngtcli.prompt.splitting import Part, fits, refined, split, split_to_refine
from ngtcli.session.session import Answer, AnswerOptions, Session
from ngtcli.system import process
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

PARTS = Kind("parts", str)
_VERSION = 3
_INTERVAL_S = 0.3  # between two status lines; guess


class KeptParts:
    """The texts of finished parts, by their prompts, the settings and the model.

    For others than the user nothing is kept.
    """

    def __init__(self, session: Session, preset: Preset) -> None:
        settings = session.settings
        how = settings.engine, json.dumps(deciding(settings, preset), sort_keys=True)
        self._made_by = (_VERSION, session.model.tokenizer.fingerprint, *how)
        self.is_stored = not session.owner
        self._keys: set[str] = set()

    def get(self, prompt: Prompt) -> str | None:
        """The text that an earlier run made of this prompt."""
        return PARTS.get(self._key(prompt)) if self.is_stored else None

    def put(self, prompt: Prompt, text: str) -> None:
        """Keep a text."""
        if self.is_stored:
            PARTS.put(self._key(prompt), text)

    def forget(self) -> None:
        """Delete the texts that were asked for: the whole is done."""
        PARTS.delete(self._keys)

    def _key(self, prompt: Prompt) -> str:
        key = key_of(*self._made_by, prompt.ids)
        self._keys.add(key)
        return key


class Splitting:
    """Makes the last prompt, the one after all parts; `reports` has the parts that are done.

    `begin_part` is told which part what the session tells next is of, "" after the last.
    """

    def __init__(
        self,
        session: Session,
        preset: Preset,
        documents: Sequence[Document],
        begin_part: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session, self._preset, self._documents = session, preset, documents
        self._begin_part = begin_part
        self._kept = KeptParts(session, preset)
        self._taken = 0  # parts of an earlier run that nothing was said of yet
        self.reports: list[PartReport] = []
        self._total = 0  # parts of all levels so far
        self._options = AnswerOptions()

    def whole(self) -> Prompt | None:
        """The prompt of everything; None where it does not fit."""
        self._task = self._session.task(self._preset, self._documents)
        return fits(self._task)

    def prompt(self) -> Prompt:
        """The one after all parts, where the `whole` does not fit. Raises ContextOverflowError."""
        task = self._task
        process.unwind_on_interrupt()  # what is finished is said
        self._options = AnswerOptions(trie=self._session.documents_trie(self._documents), many=True)
        is_refined = self._session.settings.overflow == "refine"
        try:
            prompt = self._refined(task) if is_refined else self._of_summaries(task)
        finally:
            self._begin_part("")
        self._tell_taken()
        return prompt

    def answer(self, prompt: Prompt) -> Answer:
        """The prepared answer to that prompt, or to the one of a part."""
        return self._session.answer(prompt, self._options)

    def _refined(self, task: Task) -> Prompt:
        """The prompt of the last part, with the summary of all parts before it."""
        rest = deque(split_to_refine(task))
        self._announce("not everything fits", len(rest), "the summary of each goes into the next")
        part, number = rest.popleft(), 1
        summary = ""
        while rest:
            summary = self._summary(part, f"Part {number} of {self._total}", 1).strip() or summary
            part, *more = refined(task, rest.popleft(), summary)
            rest.extendleft(reversed(more))
            self._total += len(more)
            number += 1
        return part.build()

    def _of_summaries(self, task: Task) -> Prompt:
        """The prompt of the parts' summaries, or of summaries of those if they do not fit."""
        what, level, before = "not everything fits", 1, 0
        while True:
            parts = split(task)
            if before and len(parts) >= before:
                raise ContextOverflowError(
                    f"{len(parts)} summaries of parts do not fit and get no shorter",
                    "Give a smaller --max-tokens, or name a model with a longer context (-m).",
                )
            self._announce(what, len(parts), "each is summarized, then their summaries")
            documents = self._summaries(parts, level)
            task = replace(task, documents=documents)
            if (prompt := fits(task)) is not None:
                trie = self._session.documents_trie(documents, keep=False)
                self._options = AnswerOptions(trie=trie, many=True)
                return prompt
            what, level, before = "their summaries do not fit either", level + 1, len(parts)

    def _announce(self, what: str, count: int, how: str) -> None:
        self._total += count
        self._session.warn(f"{what}: split into {counted(count, 'part')}, {how}")

    def _summaries(self, parts: Sequence[Part], level: int) -> list[Document]:
        """The parts' summaries as documents; blank ones are left out."""
        found = []
        for i, part in enumerate(parts, 1):
            if (text := self._summary(part, f"Part {i} of {len(parts)}", level)).strip():
                found.append(Document(part.name, text))
        return found or [Document(parts[0].name, "")]

    def _summary(self, part: Part, number: str, level: int) -> str:
        """The text for a part: from an earlier run, or else the model's, which is kept."""
        prompt = part.build()
        kept, tokens = self._kept.get(prompt), 0
        if kept is not None:
            self._taken, text = self._taken + 1, kept
        else:
            self._tell_taken()
            self._begin_part(number)
            text, tokens = self._answer(prompt, part.name, number)
            self._kept.put(prompt, text)
        self.reports.append(PartReport(part.name, text, kept is not None, level, tokens))
        return text

    def _tell_taken(self) -> None:
        if self._taken:
            of = f"{self._taken} of {counted(self._total, 'part')}"
            self._session.warn(f"took {of} from an earlier run")
        self._taken = 0

    def _answer(self, prompt: Prompt, part: str, number: str) -> tuple[str, int]:
        """The model's text for a part, and its number of tokens; an error names the part."""
        self._session.status(f"{part} …")
        name, texts, shown = f"{number}, {part}", [], time.monotonic()
        try:
            answer = self.answer(prompt)
            for step in answer:
                texts += [token.text for token in step.tokens]
                if time.monotonic() - shown > _INTERVAL_S:
                    shown = time.monotonic()
                    self._session.status(f"{counted(len(texts), 'token')} …")
            if answer.finish_reason == "repetition":
                self._session.warn(f"{name}: its summary is cut off: it repeats itself")
        except Exception:
            if process.interrupted():  # a library made this of the Ctrl-C
                raise KeyboardInterrupt from None
            self._session.warn(f"failed at {name[0].lower()}{name[1:]}{self.kept_words()}")
            raise
        return "".join(texts), len(texts)

    def kept_words(self) -> str:
        """How many parts are done, as the end of a sentence; "" for none."""
        if not (self.reports and self._kept.is_stored):
            return ""
        of = f"{len(self.reports)} of {counted(self._total, 'part')}"
        return f"; kept {of}: the same command goes on from there"

    def forget(self) -> None:
        """The whole is done: what was kept of it is removed."""
        self._kept.forget()
