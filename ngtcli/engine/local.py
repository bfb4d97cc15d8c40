"""A session with a model that is loaded in this process; it connects the packages below."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import ngtcli.models.weights  # noqa: F401 - imports torch and transformers quickly
from ngtcli.config import Settings
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
from ngtcli.engine.events import Report
from ngtcli.engine.memory import AutoMemory
from ngtcli.errors import ModelError
from ngtcli.heads.kinds import load_head
from ngtcli.heads.reading import HeadRows
from ngtcli.models.pretrained import mask_tokens
from ngtcli.models.weights.trials import module_devices
from ngtcli.prompts.build import Prompt
from ngtcli.system import compiled, store
from ngtcli.system.reporting import reporting_to

_SLOWER = "until then answers are the same, only slower."
# Remarks while a stand-in drafts; none are needed while another command compiles the code.
_NOTICES = {
    Begun.FOR_ALL: f"Part of ngt is being compiled in the background, once, for about"
    f" {compiled.COMPILING_S} s; {_SLOWER}",
    Begun.FOR_THIS_RUN: f"Part of ngt is being compiled for this run, for about"
    f" {compiled.COMPILING_S} s, because the result cannot be stored; {_SLOWER}",
    Begun.NOT_STORED: "Answers are the same, only slower, since a compiled part of ngt cannot be"
    " stored. Set NUMBA_CACHE_DIR to a folder with room that you may write to.",
}


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """The preparation of an answer, before the model is used.

    Attributes:
        context: The token ids and tries that its drafter gets.
        trie: Where the trie of its documents came from, and how long it took to get it.
        limits: The limits of its length, and its grammar.
        method: The drafting method.
    """

    context: Context
    trie: TrieReport
    limits: Limits
    method: MethodSpec


class LocalSession(session.Session):
    """A session that loads the model once and prepares any number of answers.

    Args:
        settings: The settings of the session.
        persist: Whether what `auto` learns is read from files and written to them; measurements do
            without.
        stand_ins: Whether another method drafts until the chosen one is compiled; measurements
            wait instead.
        stays: Whether more answers will follow in this process.

    Attributes:
        model: The target model.
        memory: What `auto` has learned from earlier answers.
    """

    def __init__(
        self,
        settings: Settings,
        persist: bool = True,
        stand_ins: bool = False,
        stays: bool = True,
    ) -> None:
        super().__init__(settings)
        self._stand_ins = stand_ins
        self._stays = stays
        self._reported = set[str]()  # remarks made so far; all sessions of a model share them
        self._drafters: dict[str, Drafter] = {}
        self._assistant: AssistantModel | None = None
        self._masks: tuple[int, ...] = ()
        self._heads: HeadRows | None = None
        self._compiled = lru_cache(maxsize=4)(Grammar)  # Many answers share one (4: guess).
        check_drafting(settings)  # This must precede the loading of anything large.
        use_threads(settings.model.threads)
        with reporting_to(self):
            self._load_all(persist)

    def _load_all(self, persist: bool) -> None:
        """Load the model, the draft model and the heads, and what `auto` keeps."""
        settings = self.settings
        self.model: TargetModel = self._load(
            settings.model.model,
            drafts=settings.drafting.method != "none",
            num_draft=self.parse_method().settings.num_draft,
            ready=self._captured,
        )
        self._masks = mask_tokens(self.model.config)
        if settings.model.draft_model:
            self._assistant = AssistantModel(self._captured(self._load_assistant()), settings)
            self.parse_method().check()
        self._heads = self._load_heads()
        self.memory = AutoMemory(self.model, settings, persist)
        self._exactness = Exactness(self.model)
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

    def sharing(self, settings: Settings, owner: str = "", report: Report | None = None) -> Self:
        """Return a session for one answer; see `Session.sharing`."""
        other = super().sharing(settings, owner, report)
        other._drafters = {} if owner else self._drafters
        return other

    def with_settings(
        self, settings: Settings, owner: str = "", report: Report | None = None
    ) -> Self:
        """Return a session with other settings; see `Session.with_settings`.

        It shares the loaded models and the costs of forward passes. Its drafters and its pool are
        new.
        """
        other = super().with_settings(settings, owner, report)
        other._drafters = {}
        other.memory = self.memory.with_settings(settings)
        if self._assistant is not None:
            with reporting_to(other):
                other._assistant = AssistantModel(self._assistant.model, settings)
        return other

    def _load(
        self,
        name: str,
        *,
        drafts: bool,
        num_draft: int | None = None,
        ready: Callable[[TargetModel], object] = lambda _: None,
    ) -> TargetModel:
        """Load a model as the settings say; see `ModelSpec` and `load_model` for the arguments."""
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
        return load_model(spec, ready)

    def _captured(self, model: TargetModel) -> TargetModel:
        """Let a model capture its forward passes as CUDA graphs if the settings say so.

        A model that is spread over devices is asked in any case, so that it records why it cannot.
        """
        if self.settings.model.capture or module_devices(model.hf):
            model.capture()
        return model

    def _load_assistant(self) -> TargetModel:
        """Load the draft model. Raises ModelError if its tokenizer differs from the model's."""
        name = self.settings.model.draft_model
        model = self._load(name, drafts=False)
        if model.tokenizer.fingerprint != self.model.tokenizer.fingerprint:
            raise ModelError(
                f"the tokenizers of {name} and {self.settings.model.model} differ",
                hint="Use a draft model of the same family.",
            )
        return model

    def _load_heads(self) -> HeadRows | None:
        """Load the heads of the settings. Raises ModelError if one does not fit the model."""
        if not self.settings.model.heads:
            return None
        if not self.model.verifies_trees:
            self.warn(f"heads are not used: {self.model.mode.why}")
            return None
        self.status("Loading heads …")
        model = self.model
        captures = model.passes.captures
        heads = [
            load_head(name, model.hf, model.device, model.dtype, captures=captures)
            for name in self.settings.model.heads
        ]
        return HeadRows(heads)

    def parse_method(self, method: str | None = None) -> MethodSpec:
        """Parse a method (None: that of the settings); the settings give its defaults."""
        defaults = replace(
            draft_settings(self.settings),
            assistant=self._assistant,
            heads=self._heads,
            masks=self._masks,
        )
        return parse_method(self.settings.drafting.method if method is None else method, defaults)

    def available_method(self, method: str | None = None) -> MethodSpec:
        """Parse a method; return its stand-in if it is not compiled yet."""
        parsed = self.parse_method(method)
        if not self._stand_ins or not self.model.takes_drafts:
            return parsed
        available = parsed.available(self._stays)
        if available is not parsed:
            notice = _NOTICES.get(compiling.begun())
            if notice:
                self._remark_once(notice)
        return available

    def _remark_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.remark(text)

    def drafter(self, method: str | None = None) -> Drafter:
        """Return the session's drafter for a method; it remembers what it has learned."""
        return self._drafter_of(self.available_method(method))

    def _drafter_of(self, parsed: MethodSpec) -> Drafter:
        drafter = self._drafters.get(parsed.spec)
        if drafter is None:
            self.status("Preparing to draft …")
            drafter = self._with_memory(parsed, lambda: self.memory.pool).build()
            self._drafters[parsed.spec] = drafter
        return drafter

    def new_drafter(self, method: str) -> Drafter:
        """Build a new drafter for a method, with an empty pool."""
        return self._with_memory(self.parse_method(method), self.memory.empty_pool).build()

    def _with_memory(self, parsed: MethodSpec, pool: Callable[[], Pool | None]) -> MethodSpec:
        """Add costs, pool and background to the settings of a method that uses them."""
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
        """Return the policy of the prefix cache for a prompt.

        Prompts of clients are kept in memory only. Prompts of a batch or of passages (`many`) are
        stored on disk only if the settings say so.
        """
        keep_documents = self.settings.cache.keep_documents
        if self.owner or keep_documents == "off":
            return CachePolicy(self.owner)
        min_disk_s = WORTH_S
        if keep_documents == "on":
            min_disk_s = 0.0
        elif many:
            min_disk_s = math.inf
        return CachePolicy("", True, min_disk_s, self.settings.cache.cache_mb * 1_000_000)

    def save(self, *, store_prefixes: bool = True) -> None:
        """Store what `auto` learned from finished answers, and the prefix cache if it is wanted."""
        if store_prefixes and self.model.prefixes is not None:
            self.model.prefixes.store(self.model.cache)
            refused = self.model.prefixes.take_not_stored()
            if refused is not None and self.settings.cache.keep_documents == "on":
                self.warn(f"the prefix cache was not stored: {refused.why}")
        self.memory.save()
        remark = store.take_remark()
        if remark:
            self.warn(remark)

    def sequence(
        self,
        prompt: Prompt,
        options: session.AnswerOptions = session.SESSION_OPTIONS,
        start: AnswerStart | None = None,
    ) -> DecodedSequence:
        """Return the sequence of an answer, to be decoded alone.

        Args:
            prompt: The prompt.
            options: The options of this answer.
            start: The result of `self.start` for this prompt; None: it is called now.

        Raises:
            ContextOverflowError: The prompt leaves no room for an answer.
            UsageError: The drafter lacks a draft model, a head or mask tokens.
            ModelError: Exact decoding is required, but not possible.
        """
        start = start or self.start(prompt, options)
        limits = start.limits
        tokens = min(len(prompt.ids) + limits.max_output, self.model.context)
        with reporting_to(self):
            numerics = self._exactness.numerics(
                self.settings.drafting.exact, limits.num_draft, tokens
            )
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
        """Return the sequence of an answer, to be decoded in a batch.

        Raises:
            ContextOverflowError: The prompt leaves no room for an answer.
        """
        return DecodedSequence(
            self.model,
            start.context,
            self.settings,
            start.limits,
            lambda: options.drafter or self._drafter_of(start.method),
            cache_policy=self.cache_policy(many),
        )

    def decode(self, sequence: DecodedSequence, split_times: bool = False) -> Iterator[Step]:
        """Decode a single sequence step by step."""
        return decode(self.model, sequence, self.reading, split_times)

    def generate(
        self, prompt: Prompt, options: session.AnswerOptions = session.SESSION_OPTIONS
    ) -> DecodedSequence:
        """Decode the whole answer to a prompt. Raises the errors of `sequence` and `decode`."""
        sequence = self.sequence(prompt, options)
        for _ in self.decode(sequence, options.split_times):
            pass
        return sequence

    def batch_drafting(self, method: MethodSpec | None = None) -> Drafting:
        """Return the drafting of a batch by a method (None: by that of the settings)."""
        parsed = method or self.available_method()
        return self._with_memory(parsed, lambda: self.memory.pool).build_batch()

    def start(
        self, prompt: Prompt, options: session.AnswerOptions = session.SESSION_OPTIONS
    ) -> AnswerStart:
        """Prepare an answer to a prompt without using the model."""
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
        is_cached = prompt.selection is None  # The next question will select other passages.
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
        """Compile the grammar of structured output for the model's tokens, if it is wanted."""
        form = form_of(self.settings)
        if form is None:
            return None
        model = self.model
        with reporting_to(self):
            rules = grammar_of(form, [document.text for document in prompt.documents])
        return self._compiled(rules, model.tokenizer, model.vocabulary, frozenset(model.end_ids))

    def documents_trie(
        self, documents: Sequence[Document], keep: bool = True, method: MethodSpec | None = None
    ) -> session.DocumentsTrie:
        """Return the trie of documents; see `Session.documents_trie`.

        Args:
            documents: The documents.
            keep: Whether to cache the trie.
            method: The drafting method; None: that of the settings.
        """
        method = method or self.parse_method()
        if not method.entry.documents or not self.model.takes_drafts:
            return session.NO_TRIE
        self.status("Preparing the n-gram trie …")
        with reporting_to(self):
            return document_trie(
                documents,
                self.model.tokenizer,
                self.model.vocabulary,
                method.settings.n,
                method.settings.lp,
                keep=keep and not self.owner,
            )
