"""One model, one set of settings, and the answers they give: wires the rooms below together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ngtcli import compiled
from ngtcli.config import Settings
from ngtcli.decode.assistant import AssistantModel
from ngtcli.decode.costs import calibrate, load_costs, save_costs
from ngtcli.decode.load import load_model, use_threads
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits, Step
from ngtcli.documents.load import Document
from ngtcli.draft.auto.costs import SHORT, Costs
from ngtcli.draft.auto.pool import TOKENS as POOL
from ngtcli.draft.auto.pool import Pool, load_pool, pool_path, save_pool
from ngtcli.draft.drafter import (
    Assistant,
    Context,
    Drafter,
    DraftSettings,
)
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.errors import ContextOverflowError, ModelError
from ngtcli.fitting import cut_words, fit_prompt
from ngtcli.presets import Preset
from ngtcli.prompts import Prompt
from ngtcli.storage import DamagedFileError
from ngtcli.trie.documents import TrieReport, document_trie
from ngtcli.trie.ngram import NGramTrie

Notify = Callable[[str], None]


def sampling_settings(settings: Settings) -> SamplingSettings:
    """The part of the settings that decides how a token is chosen."""
    return SamplingSettings(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        seed=settings.seed,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
    )


def draft_settings(settings: Settings) -> DraftSettings:
    """The part of the settings that drafters read."""
    return DraftSettings(settings.n, settings.lp, settings.num_draft, settings.learn_output)


def reading(done: int, total: int) -> str:
    """The status line while the prompt is read.

    >>> reading(0, 94), reading(12_288, 30_000)
    ('Reading the prompt: 94 tokens …', 'Reading the prompt: 12k of 30k tokens …')
    """
    if total < 1000:
        return f"Reading the prompt: {total} tokens …"
    return f"Reading the prompt: {done // 1000}k of {total // 1000}k tokens …"


class Answer:
    """A prepared answer: iterate over it for steps, then read `run`."""

    def __init__(
        self, run: Run, prompt: Prompt, trie: TrieReport, at_end: Callable[[], None]
    ) -> None:
        self.run, self.prompt, self.trie, self._at_end = run, prompt, trie, at_end
        self.interrupted = False

    def __iter__(self) -> Iterator[Step]:
        try:
            yield from self.run
        finally:
            self._at_end()

    @property
    def policy(self) -> dict[str, Any]:
        """What the drafter decided in this run; empty for one that decides nothing."""
        return self.run.drafter.report()

    @property
    def finish_reason(self) -> str:
        return "interrupted" if self.interrupted else self.run.finish_reason


class Session:
    """Loads the model once; prepares any number of answers.

    Without `persist` the pool of earlier answers and the costs of passes are this session's own,
    neither read nor stored: what else runs on the machine has no part in a measurement.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Notify = lambda _: None,
        warn: Notify = lambda _: None,
        persist: bool = True,
    ) -> None:
        self.settings, self._tell, self._warn = settings, progress, warn
        self._persist = persist
        self._drafters: dict[str, Drafter] = {}
        self._assistant: Assistant | None = None
        self._costs: Costs | None = None
        self._pool: Pool | None = None
        compiled.announce(progress)
        method = self.parse_method()  # a wrong name or option fails before anything is loaded
        if not settings.draft_model:
            method.check()
        use_threads(settings.threads)
        self._progress(f"Loading {settings.model} …")
        self.model: TargetModel = load_model(
            settings.model, settings.device, settings.dtype, warn, self._progress
        )
        if settings.draft_model:
            self._assistant = self._load_assistant()
            self.parse_method().check()
        if self.model.plain_reason and settings.method != "none":
            warn(f"{settings.model} decodes without drafts: {self.model.plain_reason}")

    def _progress(self, message: str) -> None:
        """Say what is being done; compiling says so itself, wherever it comes between."""
        self._tell(message)
        compiled.announce(self._tell)

    def _load_assistant(self) -> Assistant:
        """The draft model. Raises ModelError unless its token ids mean the same."""
        s = self.settings
        self._progress(f"Loading {s.draft_model} …")
        model = load_model(s.draft_model, s.device, s.dtype, self._warn, self._progress)
        if model.tokenizer.fingerprint != self.model.tokenizer.fingerprint:
            raise ModelError(
                f"{s.draft_model} has another tokenizer than {s.model}",
                "Name a draft model of the same family.",
            )
        return AssistantModel(model, sampling_settings(s))

    def prompt(self, preset: Preset, documents: Sequence[Document], question: str = "") -> Prompt:
        """The prompt, fitted to the model. Raises ContextOverflowError and ModelError."""
        s = self.settings
        try:
            prompt = fit_prompt(
                preset, documents, question, self.model.tokenizer, context=self.model.context,
                answer=s.max_tokens, overflow=s.overflow, vocabulary=self.model.vocabulary,
                status=self._progress,
            )  # fmt: skip
        except ContextOverflowError as error:
            reason = self.model.context_reason
            raise ContextOverflowError(str(error), f"{error.hint} {reason}".strip()) from None
        for words in cut_words(prompt.cuts):
            self._warn(words)
        return prompt

    def parse_method(self, method: str | None = None) -> MethodSpec:
        """`method`, or the settings', read with the settings' values as defaults."""
        settings = replace(draft_settings(self.settings), assistant=self._assistant)
        return parse_method(self.settings.method if method is None else method, settings)

    def drafter(self, method: str | None = None) -> Drafter:
        """The one drafter of this session for `method`: what it learned stays from run to run."""
        parsed = self.parse_method(method)
        if parsed.spec not in self._drafters:
            self._progress("Preparing to draft …")
            self._drafters[parsed.spec] = self._made(parsed, self._earlier)
        return self._drafters[parsed.spec]

    def new_drafter(self, method: str) -> Drafter:
        """A drafter of the caller's own for `method`; it has learned nothing, its pool is empty."""
        s = self.settings
        return self._made(
            self.parse_method(method), lambda: Pool(POOL, s.pool_documents) if s.pool else None
        )

    def _made(self, parsed: MethodSpec, pool: Callable[[], Pool | None]) -> Drafter:
        if parsed.entry.costs:
            own = replace(parsed.settings, costs=self._pass_costs(), pool=pool())
            parsed = replace(parsed, settings=own)
        return parsed.build()

    def _pass_costs(self) -> Costs | None:
        """What passes cost on this device: stored, or measured now and stored, unless unwanted.

        None leaves the number of nodes as it is set.
        """
        if self._costs is None and not self.model.plain_reason:
            self._costs = self._stored_costs() if self._persist else None
            if self._costs is None and self.settings.calibrate:
                self._progress("Measuring what a pass costs …")
                self._costs = Costs({SHORT: calibrate(self.model)})
                if self._persist:
                    save_costs(self.model, self._costs)
        return self._costs

    def _stored_costs(self) -> Costs | None:
        try:
            return load_costs(self.model)
        except DamagedFileError as error:
            then = "measured anew" if self.settings.calibrate else "not used"
            self._warn(f"the cost file is {then}: {error}")
            return None

    def _earlier(self) -> Pool | None:
        """The pool of earlier answers of this model, if it is parsed."""
        s = self.settings
        if s.pool and not self._persist and self._pool is None:
            self._pool = Pool(POOL, s.pool_documents)
        if s.pool and self._pool is None:
            path = pool_path(self.model.tokenizer.fingerprint, s.model)
            try:
                self._pool = load_pool(path, self.model.vocabulary, POOL, s.pool_documents)
            except DamagedFileError as error:
                self._warn(f"the pool of earlier answers is begun anew: {error}")
                self._pool = Pool(POOL, s.pool_documents)
        return self._pool

    def keep(self, drafter: Drafter) -> None:
        """After an answer: store what it taught, about the model's text and the cost of passes."""
        drafter.finish()
        try:
            if self._pool is not None and not self._persist:
                self._pool.new.clear()
            elif self._pool is not None:
                path = pool_path(self.model.tokenizer.fingerprint, self.settings.model)
                save_pool(path, self._pool, self.settings.model, self.model.vocabulary)
        except OSError as error:
            self._warn(f"the pool of earlier answers is not stored: {error.strerror or error}")
        if self._costs is not None and self._persist:
            save_costs(self.model, self._costs)
        if remark := compiled.keep():
            self._warn(remark)

    def forget(self) -> None:
        """Let go of what drafters learned from earlier answers."""
        self._drafters.clear()
        self._pool = None

    def answer(
        self,
        prompt: Prompt,
        method: str | None = None,
        num_draft: int = -1,
        split_times: bool = False,
        trie: NGramTrie | None = None,
        drafter: Drafter | None = None,
    ) -> Answer:
        """An answer to `prompt`; method and number of drafts are the settings' unless given.

        `trie` stands in for the documents' cached one, which is then neither read nor written, and
        `drafter`, one for this method, for the session's own.
        """
        s, parsed = self.settings, self.parse_method(method)
        own, report = parsed.settings, TrieReport("none")
        if trie is None and parsed.entry.documents and not self.model.plain_reason:
            self._progress("Preparing the n-gram trie …")
            trie, report = document_trie(
                prompt.documents, self.model.tokenizer, self.model.vocabulary, own.n, own.lp,
                self._warn,
            )  # fmt: skip
        context = Context(
            prompt.ids, trie, prompt.outside, prompt.references,
            self.model.tokenizer.fingerprint, self.model.vocabulary,
        )  # fmt: skip
        limits = Limits(s.max_tokens, own.num_draft if num_draft < 0 else num_draft, s.stop)
        drafter = drafter or self.drafter(method)
        total = len(prompt.ids)
        run = Run(
            self.model, drafter, context, sampling_settings(s), limits, split_times,
            lambda done: self._progress(reading(done, total)),
        )  # fmt: skip
        return Answer(run, prompt, report, lambda: self.keep(drafter))
