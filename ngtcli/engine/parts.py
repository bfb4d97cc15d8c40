"""A summary of documents that do not fit, made part by part.

Each part is summarized, then the summaries, until these fit: their prompt is the last. The parts of
a level wait for nothing but their turn, so that an engine may answer them together. What came of
each is kept in the cache until the whole is done, so that a run which was interrupted goes on where
it stopped.
"""

import json
from dataclasses import dataclass, replace

from ngtcli.documents.load import Document
from ngtcli.engine.question import Question
from ngtcli.engine.session import AnswerOptions, Session
from ngtcli.errors import ContextOverflowError, counted
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset, deciding
from ngtcli.prompts.reports import PartReport
from ngtcli.prompts.splitting import Part, fits, split
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

PARTS = Kind("parts", str)
_VERSION = 3


class KeptParts:
    """The texts of finished parts, by their prompts, the settings and the model.

    For others than the user nothing is kept.
    """

    def __init__(self, session: Session, preset: Preset) -> None:
        settings = session.settings
        how = settings.engine, json.dumps(deciding(settings, preset), sort_keys=True)
        self._made_by = (_VERSION, session.facts.tokenizer.fingerprint, *how)
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


@dataclass(frozen=True, slots=True)
class NumberedPart:
    """A part of a level, from 1, and its number among the `count` of its level, from 1."""

    part: Part
    level: int
    number: int
    count: int

    @property
    def words(self) -> str:
        """Which one it is."""
        return f"Part {self.number} of {self.count}"


class InParts:
    """A question about documents that may not fit; `whole` is its prompt where they do.

    `options` are those of the answers to parts, and at the end of the last one; `reports` are of
    levels that are finished.
    """

    def __init__(self, session: Session, question: Question) -> None:
        self._session = session
        self._task = session.task(question.preset, question.documents)
        self.whole: Prompt | None = fits(self._task)
        self.kept = KeptParts(session, question.preset)
        self.options = AnswerOptions(many=True)
        self.reports: list[PartReport] = []
        self._level, self._done = 0, dict[int, PartReport]()  # of this level, by number
        self._count = self._total = self._taken = 0  # `_taken` of an earlier run, not told

    def after(
        self, one: NumberedPart | None = None, report: PartReport | None = None
    ) -> list[NumberedPart] | Prompt:
        """What is to be answered first, or once that came of a part: a level, or the last prompt.

        [] while others of a level are answered. Raises ContextOverflowError.
        """
        what, session = "not everything fits", self._session
        if one is not None and report is not None:
            self._done[one.number] = report
            if len(self._done) < one.count:
                return []
            done = [self._done[i] for i in range(1, one.count + 1)]
            self.reports += done
            found = [Document(r.name, r.text) for r in done if r.text.strip()]
            self._task = replace(self._task, documents=found or [Document(done[0].name, "")])
            what = "their summaries do not fit either"
        prompt = fits(self._task) if self.reports else None
        if prompt is not None:
            self.tell_taken()
        if prompt is not None or not self.reports:
            trie = session.documents_trie(self._task.documents, keep=prompt is None)
            self.options = AnswerOptions(trie=trie, many=True)
        return self._split(what) if prompt is None else prompt

    def _split(self, what: str) -> list[NumberedPart]:
        """The parts of the next level. Raises ContextOverflowError."""
        parts, before = split(self._task), len(self._done)
        if before and len(parts) >= before:
            raise ContextOverflowError(
                f"{len(parts)} summaries of parts do not fit and get no shorter",
                "Give a smaller --max-tokens, or name a model with a longer context (-m).",
            )
        self._level, self._done, count = self._level + 1, {}, len(parts)
        self._total += count
        how = "each is summarized, then their summaries"
        self._session.warn(f"{what}: split into {counted(count, 'part')}, {how}")
        return [NumberedPart(part, self._level, i, count) for i, part in enumerate(parts, 1)]

    def earlier(self, one: NumberedPart, prompt: Prompt) -> PartReport | None:
        """What an earlier run made of a part; None where it is to be answered."""
        if (text := self.kept.get(prompt)) is None:
            self.tell_taken()
            return None
        self._count, self._taken = self._count + 1, self._taken + 1
        return PartReport(one.part.name, text, True, one.level, 0)

    def answered(self, one: NumberedPart, prompt: Prompt, text: str, tokens: int) -> PartReport:
        """What the model made of a part, in so many tokens; it is kept."""
        self.kept.put(prompt, text)
        self._count += 1
        return PartReport(one.part.name, text, False, one.level, tokens)

    def tell_taken(self) -> None:
        """Say how many parts an earlier run has made."""
        if self._taken:
            of = f"{self._taken} of {counted(self._total, 'part')}"
            self._session.warn(f"took {of} from an earlier run")
        self._taken = 0

    def kept_words(self) -> str:
        """How many parts are done, as the end of a sentence; "" for none."""
        if not (self._count and self.kept.is_stored):
            return ""
        of = f"{self._count} of {counted(self._total, 'part')}"
        return f"; kept {of}: the same command goes on from there"
