"""A summary of documents that do not fit in the context, made part by part.

Each part is summarized, then the summaries are, until these fit into the last prompt. The parts of
a level do not depend on each other, so that an engine may answer them together. The summary of each
part is cached until the whole answer is delivered, so that an interrupted run continues where it
stopped.
"""

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from ngtcli.documents.load import Document
from ngtcli.engine.request import Request
from ngtcli.engine.session import AnswerOptions, Session
from ngtcli.errors import ContextOverflowError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset, deciding
from ngtcli.prompts.reports import PartReport
from ngtcli.prompts.splitting import Part, whole_or_parts
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind
from ngtcli.words import counted

PARTS = Kind("parts", str)
_VERSION = 3


class CachedParts:
    """The summaries of finished parts, by their prompts, the settings and the model.

    Nothing is cached for owners other than the user.
    """

    def __init__(self, session: Session, preset: Preset) -> None:
        settings = session.settings
        self._made_by = (
            _VERSION,
            session.facts.tokenizer.fingerprint,
            settings.engine.engine,
            json.dumps(deciding(settings, preset), sort_keys=True),
        )
        self.is_stored = not session.owner
        self._keys: set[str] = set()

    def get(self, prompt: Prompt) -> str | None:
        """Return the summary that an earlier run made for this prompt."""
        return PARTS.get(self._key(prompt)) if self.is_stored else None

    def put(self, prompt: Prompt, text: str) -> None:
        """Cache the summary of a prompt."""
        if self.is_stored:
            PARTS.put(self._key(prompt), text)

    def forget(self) -> None:
        """Delete the summaries of all prompts that were looked up, after the whole answer."""
        PARTS.delete(self._keys)

    def _key(self, prompt: Prompt) -> str:
        key = key_of(*self._made_by, prompt.ids)
        self._keys.add(key)
        return key


@dataclass(frozen=True, slots=True)
class NumberedPart:
    """A part, its level from 1, and its number among the `count` parts of its level, from 1."""

    part: Part
    level: int
    number: int
    count: int

    @property
    def words(self) -> str:
        """Return the number of the part, in words."""
        return f"Part {self.number} of {self.count}"


@dataclass(frozen=True, slots=True)
class Level:
    """Parts that may be answered together, and the options of their answers."""

    parts: list[NumberedPart]
    options: AnswerOptions


Plan = Generator[Level, Sequence[PartReport], Prompt]


def in_parts(session: Session, request: Request) -> Plan:
    """Plan the prompts of a request about documents that may not fit, level by level.

    Yields each level and is sent the summaries of its parts, in their order. Returns the last
    prompt, at once where everything fits.

    Raises:
        ContextOverflowError: Not even a part fits, or summaries get no shorter.
    """
    task = session.task(request.preset, request.documents)
    parts = whole_or_parts(task)
    if isinstance(parts, Prompt):
        return parts
    options = AnswerOptions(trie=session.documents_trie(task.documents), many=True)
    problem = "not everything fits"
    level = 0
    previous_count = 0
    while not isinstance(parts, Prompt):
        if level and len(parts) >= previous_count:
            raise ContextOverflowError(
                f"{len(parts)} summaries of parts do not fit and get no shorter",
                hint="Give a smaller --max-tokens, or name a model with a longer context (-m).",
            )
        level += 1
        previous_count = len(parts)
        count = counted(len(parts), "part")
        session.warn(f"{problem}: split into {count}, each is summarized, then their summaries")
        numbered = [NumberedPart(part, level, i, len(parts)) for i, part in enumerate(parts, 1)]
        reports = yield Level(numbered, options)
        summaries = [Document(report.name, report.text) for report in reports]
        not_empty = [summary for summary in summaries if summary.text.strip()]
        task = replace(task, documents=not_empty or [Document(summaries[0].name, "")])
        problem = "their summaries do not fit either"
        parts = whole_or_parts(task)
    return parts


def advance(plan: Plan, reports: Sequence[PartReport] | None = None) -> Level | Prompt:
    """Advance a plan: begin it, or send it the summaries of its last level."""
    try:
        return next(plan) if reports is None else plan.send(reports)
    except StopIteration as finished:
        prompt: Prompt = finished.value
        return prompt


class PartsInProgress:
    """The progress of a plan: the finished parts of its level and of earlier levels."""

    def __init__(self, session: Session, request: Request, plan: Plan, level: Level) -> None:
        self.session = session
        self.cache = CachedParts(session, request.preset)
        self.level = level
        self.reports: list[PartReport] = []  # of the levels that are finished
        self._plan = plan
        self._done: dict[int, PartReport] = {}  # of this level, by number
        self._total_count = len(level.parts)
        self._reused_count = 0  # from an earlier run, and not reported yet

    def reuse(self, part: NumberedPart, prompt: Prompt) -> PartReport | None:
        """Return the report of an earlier run on a part; None if the part must be answered."""
        text = self.cache.get(prompt)
        if text is None:
            self.report_reused()
            return None
        self._reused_count += 1
        return PartReport(part.part.name, text, True, part.level, 0)

    def answered(self, part: NumberedPart, prompt: Prompt, text: str, tokens: int) -> PartReport:
        """Cache the summary of a part, which the model wrote in `tokens` tokens."""
        self.cache.put(prompt, text)
        return PartReport(part.part.name, text, False, part.level, tokens)

    def add(self, part: NumberedPart, report: PartReport) -> Level | Prompt | None:
        """Count a part as done; return what follows its level, None until the level is done."""
        self._done[part.number] = report
        if len(self._done) < part.count:
            return None
        reports = [self._done[number] for number in range(1, part.count + 1)]
        self.reports += reports
        self._done = {}
        following = advance(self._plan, reports)
        if isinstance(following, Level):
            self.level = following
            self._total_count += len(following.parts)
        else:
            self.report_reused()
        return following

    def report_reused(self) -> None:
        """Report once how many parts come from an earlier run."""
        if self._reused_count:
            count = f"{self._reused_count} of {counted(self._total_count, 'part')}"
            self.session.warn(f"reused {count} from an earlier run")
        self._reused_count = 0

    def last_options(self, prompt: Prompt) -> AnswerOptions:
        """Return the options of the whole answer, which drafts from the summaries in its prompt."""
        trie = self.session.documents_trie(prompt.documents, keep=False)
        return AnswerOptions(trie=trie, many=True)

    @property
    def resume_hint(self) -> str:
        """Return how many parts are cached, as the end of a sentence; "" for none."""
        finished = len(self.reports) + len(self._done)
        if not finished or not self.cache.is_stored:
            return ""
        count = f"{finished} of {counted(self._total_count, 'part')}"
        return f"; kept {count}: the same command resumes there"
