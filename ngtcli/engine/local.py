"""A session over a model that is loaded here. It connects the packages below the engine."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import ngtcli.models.weights  # noqa: F401 - torch and transformers are imported there in one go
from ngtcli.config import Settings
from ngtcli.decoding import load
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.decoder import decode
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.grammar.form import form_of, grammar_of
from ngtcli.decoding.grammar.matcher import Grammar
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.load import ModelSpec, load_model, use_threads
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.prefixes import WORTH_S
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.documents.load import Document
from ngtcli.drafting.auto import compiling
from ngtcli.drafting.auto.compiling import Begun
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, Drafter, draft_settings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import MethodSpec, parse_method
from ngtcli.drafting.steps import Step
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.drafting.tries.store import document_trie
from ngtcli.engine import session
from ngtcli.engine.checks import check_drafting
from ngtcli.engine.events import Message, Reading, Report, ignore
from ngtcli.engine.memory import AutoMemory
from ngtcli.errors import ModelError
from ngtcli.heads.kinds import load_head
from ngtcli.heads.reading import HeadRows
from ngtcli.models.pretrained import mask_tokens
from ngtcli.models.weights.trials import module_devices
from ngtcli.prompts.build import Prompt
from ngtcli.system import compiled, store

_SIMPLER = "until then drafts are simpler, and the answer is the same."
# What is reported where another method drafts; nothing where another command compiles.
_NOTICES = {
    Begun.FOR_ALL: f"Drafting code is being compiled in the background, once, for about"
    f" {compiled.COMPILING_S} s; {_SIMPLER}",
    Begun.FOR_THIS_RUN: f"Drafting code is being compiled for this run, for about"
    f" {compiled.COMPILING_S} s, as it cannot be stored; {_SIMPLER}",
    Begun.NOT_STORED: "Drafts are simpler, as compiled drafting code cannot be stored; the answer"
    " is the same. Set NUMBA_CACHE_DIR to a folder with room that you may write to.",
}


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """What is known of an answer before the model is used.

    Attributes:
        context: What its drafter knows.
        trie: How the trie of its documents was had.
        limits: When it stops.
        method: What drafts.
    """

    context: Context
    trie: TrieReport
    limits: Limits
    method: MethodSpec


class LocalSession(session.Session):
    """Loads the model once; prepares any number of answers.

    `memory` is what `auto` keeps from answer to answer; without `persist` it is this session's own
    and no file is read or written for it. With `stand_ins` an answer does not wait until its method
    is compiled: another one drafts. A measurement waits. `stays` says that more answers follow.
    """

    def __init__(
        self,
        settings: Settings,
        report: Report = ignore,
        persist: bool = True,
        stand_ins: bool = False,
        stays: bool = True,
    ) -> None:
        super().__init__(settings, report)
        self._stand_ins = stand_ins
        self._stays = stays
        self._reported = set[str]()  # remarks, each made once; all sessions of a model share them
        self._drafters: dict[str, Drafter] = {}
        self._assistant: AssistantModel | None = None
        self._masks: tuple[int, ...] = ()
        self._heads: HeadRows | None = None
        self._compiled = lru_cache(maxsize=4)(Grammar)  # many texts are of one form; guess
        check_drafting(settings)  # before anything is loaded
        use_threads(settings.model.threads)
        self.model: TargetModel = self._load(
            settings.model.model,
            drafts=settings.drafting.method != "none",
            num_draft=self.parse_method().settings.num_draft,
            ready=self._captured,
        )
        self._masks = mask_tokens(self.model.config)
        if settings.model.draft_model:
            self._assistant = AssistantModel(
                self._captured(self._load_assistant()), settings, self.warn
            )
            self.parse_method().check()
        self._heads = self._load_heads()
        self.memory = AutoMemory(self.model, settings, persist, self.status, self.warn)
        self._exactness = Exactness(self.model, self.status)
        if not self.model.takes_drafts and settings.drafting.method != "none":
            self.warn(f"{settings.model.model} decodes without drafts: {self.model.mode.why}")

    @property
    def facts(self) -> session.ModelFacts:
        model = self.model
        return session.ModelFacts(
            tokenizer=model.tokenizer,
            context=model.context,
            vocabulary=model.vocabulary,
            dtype=model.dtype,
            context_why=model.context_why,
            draft_support=model.mode.support,
            draft_why=model.mode.why,
            prefix_caching=model.prefix_caching,
            dtype_why=model.origin.dtype_why,
            capturing=model.passes.capturing,
            unused=model.unused,
        )

    def reading(self, read: int, total: int) -> None:
        """Report how many tokens of a prompt are read."""
        self.report(Reading(read, total))

    def sharing(self, settings: Settings, owner: str = "", report: Report | None = None) -> Self:
        """As `Session.sharing`."""
        other = super().sharing(settings, owner, report)
        other._drafters = {} if owner else self._drafters
        return other

    def with_settings(
        self, settings: Settings, owner: str = "", report: Report | None = None
    ) -> Self:
        """As `Session.with_settings`: it shares the loaded models and the costs of passes.

        Its drafters and its pool have learned nothing.
        """
        other = super().with_settings(settings, owner, report)
        other._drafters = {}
        other.memory = self.memory.with_settings(settings)
        if self._assistant is not None:
            other._assistant = AssistantModel(self._assistant.model, settings, other.warn)
        return other

    def _load(
        self,
        name: str,
        *,
        drafts: bool,
        num_draft: int | None = None,
        ready: Callable[[TargetModel], object] = lambda _: None,
    ) -> TargetModel:
        """Load a model by the settings; see `ModelSpec` and `LoadReporter` for the arguments."""
        self.status(f"Loading {name} …")
        spec = ModelSpec(
            name,
            device=self.settings.model.device,
            dtype=self.settings.model.dtype,
            packed=self.settings.model.packed,
            quantize=self.settings.model.quantize,
            device_map=self.settings.model.device_map,
            drafts=drafts,
            num_draft=num_draft,
        )
        return load_model(spec, load.LoadReporter(self.warn, self.status, ready))

    def _captured(self, model: TargetModel) -> TargetModel:
        """Return a model, its forward passes captured as CUDA graphs if the settings want it."""
        if self.settings.model.capture or module_devices(model.hf):
            model.capture(self.warn)
        return model

    def _load_assistant(self) -> TargetModel:
        """Load the draft model. Raises ModelError unless its token ids mean the same."""
        name = self.settings.model.draft_model
        model = self._load(name, drafts=False)
        if model.tokenizer.fingerprint != self.model.tokenizer.fingerprint:
            raise ModelError(
                f"{name} has another tokenizer than {self.settings.model.model}",
                hint="Name a draft model of the same family.",
            )
        return model

    def _load_heads(self) -> HeadRows | None:
        """Load the heads that are named. Raises ModelError for one that does not fit the model."""
        if not self.settings.model.heads:
            return None
        if not self.model.verifies_trees:
            self.warn(f"heads are not used: {self.model.mode.why}")
            return None
        self.status("Loading heads …")
        model = self.model
        warn = self.warn if model.passes.captures else None
        heads = [
            load_head(name, model.hf, model.device, model.dtype, self.status, warn)
            for name in self.settings.model.heads
        ]
        return HeadRows(heads)

    def parse_method(self, method: str | None = None) -> MethodSpec:
        """Parse `method`, or that of the settings, whose values are its defaults."""
        defaults = replace(
            draft_settings(self.settings),
            assistant=self._assistant,
            heads=self._heads,
            masks=self._masks,
        )
        return parse_method(self.settings.drafting.method if method is None else method, defaults)

    def available_method(self, method: str | None = None) -> MethodSpec:
        """Return what `parse_method` does, or what drafts in its place until it is compiled."""
        wanted = self.parse_method(method)
        if not self._stand_ins or not self.model.takes_drafts:
            return wanted
        available = wanted.available(self._stays)
        if available is not wanted and (notice := _NOTICES.get(compiling.begun())):
            self._remark_once(notice)
        return available

    def _remark_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.report(Message("remark", text))

    def drafter(self, method: str | None = None) -> Drafter:
        """The session's drafter for `method`; it keeps what it learned from answer to answer."""
        return self._drafter_of(self.available_method(method))

    def _drafter_of(self, parsed: MethodSpec) -> Drafter:
        drafter = self._drafters.get(parsed.spec)
        if drafter is None:
            self.status("Preparing to draft …")
            drafter = self._with_memory(parsed, lambda: self.memory.pool).build()
            self._drafters[parsed.spec] = drafter
        return drafter

    def new_drafter(self, method: str) -> Drafter:
        """Build a drafter for `method` that has learned nothing, and whose pool is empty."""
        return self._with_memory(self.parse_method(method), self.memory.empty_pool).build()

    def _with_memory(self, parsed: MethodSpec, pool: Callable[[], Pool | None]) -> MethodSpec:
        """Return the method with costs, pool and background in its settings, if it reads them."""
        if not parsed.entry.costs:
            return parsed
        self.memory.load()
        settings = replace(
            parsed.settings,
            costs=self.memory.costs,
            pool=pool(),
            background=self.memory.background.load(),
        )
        return replace(parsed, settings=settings)

    def cache_policy(self, many: bool = False) -> CachePolicy:
        """What the prefix cache may do for a prompt.

        Prompts of clients stay in memory. One of `many` prompts, or one made of passages, goes to
        disk only if the settings say so.
        """
        wanted = self.settings.cache.keep_documents
        if self.owner or wanted == "off":
            return CachePolicy(self.owner)
        min_disk_s = WORTH_S
        if wanted == "on":
            min_disk_s = 0.0
        elif many:
            min_disk_s = math.inf
        return CachePolicy("", True, min_disk_s, self.settings.cache.cache_mb * 1_000_000)

    def save(self, *, documents: bool = True) -> None:
        """Store what `auto` learned of answers that have ended, and what was read for them."""
        if documents and self.model.prefixes is not None:
            self.model.prefixes.store(self.model.cache)
            refused = self.model.prefixes.take_not_stored()
            if refused is not None and self.settings.cache.keep_documents == "on":
                self.warn(f"what the model read is not kept: {refused.why}")
        self.memory.save()
        remark = store.take_remark()
        if remark:
            self.warn(remark)

    def sequence(
        self,
        prompt: Prompt,
        options: session.AnswerOptions = session.AS_SET,
        start: AnswerStart | None = None,
    ) -> DecodedSequence:
        """Return a prepared answer to `prompt`, to be decoded by itself.

        `start` is what the method of that name returned for it; None to call it now.

        Raises:
            ContextOverflowError: The prompt leaves no room for an answer.
            UsageError: The drafter lacks something.
            ModelError: It cannot be exact and is to be.
        """
        start = start or self.start(prompt, options)
        limits = start.limits
        tokens = min(len(prompt.ids) + limits.max_output, self.model.context)
        numerics = self._exactness.numerics(self.settings.drafting.exact, limits.num_draft, tokens)
        drafter = options.drafter or self._drafter_of(start.method)
        return DecodedSequence(
            self.model,
            start.context,
            self.settings,
            limits,
            lambda: drafter,
            numerics,
            self.cache_policy(options.many or prompt.selection is not None),
        )

    def batch_sequence(
        self, start: AnswerStart, options: session.AnswerOptions, many: bool = True
    ) -> DecodedSequence:
        """Return a prepared answer to be decoded in a batch. Raises ContextOverflowError."""
        return DecodedSequence(
            self.model,
            start.context,
            self.settings,
            start.limits,
            lambda: options.drafter or self._drafter_of(start.method),
            cache_policy=self.cache_policy(many),
        )

    def decode(self, sequence: DecodedSequence, split_times: bool = False) -> Iterator[Step]:
        """Decode an answer by itself, step by step."""
        return decode(self.model, sequence, self.reading, split_times)

    def generate(
        self, prompt: Prompt, options: session.AnswerOptions = session.AS_SET
    ) -> DecodedSequence:
        """Return the whole answer to `prompt`. Raises as `sequence`, and as `decode`."""
        sequence = self.sequence(prompt, options)
        for _ in self.decode(sequence, options.split_times):
            pass
        return sequence

    def batch_drafting(self, method: MethodSpec | None = None) -> Drafting:
        """Return the drafters of a batch, by the settings' method if none is given."""
        parsed = method or self.available_method()
        return self._with_memory(parsed, lambda: self.memory.pool).build_batch()

    def start(self, prompt: Prompt, options: session.AnswerOptions = session.AS_SET) -> AnswerStart:
        """Return what is known of an answer to `prompt` before the model is used."""
        if options.drafter is None:
            method = self.available_method(options.method)
        else:
            method = self.parse_method(options.method)
        limits = replace(
            self.limits,
            num_draft=(
                method.settings.num_draft if options.num_draft is None else options.num_draft
            ),
            grammar=self._grammar(prompt),
            probabilities=options.probabilities,
        )
        if options.to_the_end:
            limits = replace(limits, max_repeats=0, thinking=None)

        if not method.entry.costs:
            prompt = prompt.with_prediction_as_document
        is_cached = prompt.selection is None  # passages are others for each question
        trie, report = options.trie or self.documents_trie(prompt.documents, is_cached, method)
        context = Context(
            prompt.ids,
            documents=trie,
            outside=prompt.outside,
            references=prompt.references,
            tokenizer=self.model.tokenizer.fingerprint,
            vocabulary=self.model.vocabulary,
            predicted=prompt.predicted,
        )
        return AnswerStart(context, report, limits, method)

    def _grammar(self, prompt: Prompt) -> Grammar | None:
        """Return the grammar of the form that the settings ask for, over the model's tokens."""
        form = form_of(self.settings)
        if form is None:
            return None
        model = self.model
        rules = grammar_of(form, [document.text for document in prompt.documents], self.warn)
        return self._compiled(rules, model.tokenizer, model.vocabulary, frozenset(model.end_ids))

    def documents_trie(
        self, documents: Sequence[Document], keep: bool = True, method: MethodSpec | None = None
    ) -> session.DocumentsTrie:
        """As `Session.documents_trie`; the method is the settings' where none is given."""
        method = method or self.parse_method()
        if not method.entry.documents or not self.model.takes_drafts:
            return session.NO_TRIE
        self.status("Preparing the n-gram trie …")
        return document_trie(
            documents,
            self.model.tokenizer,
            self.model.vocabulary,
            method.settings.n,
            method.settings.lp,
            self.warn,
            keep=keep and not self.owner,
        )
