"""The drafting method `auto` as a proposer for vLLM, which verifies one draft chain per request.

    LLM(model, speculative_config={
        "method": "custom_class",
        "model": "ngtcli.engine.vllm.proposer.NgramTrieProposer",
        "num_speculative_tokens": 16,
    }, additional_config={"ngt": {"pool": True}})

vLLM creates the class with its configuration. After each step it calls `propose` with arrays that
have a row for each request. Rows are reused and reordered, and the call does not name the requests:
their names are read from the calling model runner (`input_batch.req_ids`).

Options under "ngt" in vLLM's `additional_config`:

- `pool` (true): also draft from answers to other requests. At most `pool_tokens` (50,000) token ids
  are kept of the text that answers do not quote from their prompts. A request with
  `extra_args={"ngt_pool": False}` in its sampling parameters takes no part: none of its text
  reaches another request, and no other text reaches it.
- `documents` ([]): files and folders to draft from, in addition to the pool.
- `background` ("english"): the general text to draft from; "none" disables it.

It needs vLLM 0.32 or 0.33 (tested with 0.32) and the model runner V1, which vLLM uses for a custom
class. V2, the default if Triton is installed, refuses custom drafters. Neither verifies trees.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ngtcli.documents.load import load
from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.config import Options as AutoOptions
from ngtcli.drafting.auto.drafter import Auto, compile_loops, propose_together
from ngtcli.drafting.auto.shared import Shared
from ngtcli.drafting.background.loaded import Background
from ngtcli.drafting.costs import CostCurve
from ngtcli.drafting.drafter import Context, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.pool import Pool
from ngtcli.errors import UsageError
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.removed import OWN_BACKGROUNDS
from ngtcli.system.yaml_file import shown

TokenIds = npt.NDArray[np.int32]

# Numbers of query tokens at which the cost of a forward pass is learned (derived: doublings). Above
# 1,024 it is extrapolated.
_QUERY_TOKENS = tuple(2**i for i in range(11))
# Query tokens that double the cost of a forward pass, until costs are measured (guess: where a GPU
# of 2025 stops being bound by memory).
_DOUBLING_TOKENS = 256
_POOL_KEY = "ngt_pool"  # the key in the `extra_args` of a request
_INCOMPATIBLE = "ngt: no drafts: this version of vLLM calls proposers in an unknown way"
_LOG = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options in `additional_config["ngt"]`; see the module docstring."""

    pool: bool = True
    pool_tokens: int = CONFIG.pool_tokens
    documents: tuple[str, ...] = ()
    background: Literal["english", "none"] = "english"


def read_options(value: object) -> Options:
    """Convert the value of `additional_config["ngt"]`.

    Raises:
        UsageError: An option is unknown or has an invalid value.
    """
    try:
        return msgspec.convert(value, Options)
    except msgspec.ValidationError as error:
        hint = "ngt help vllm lists its options."
        if "$.background" in str(error):
            hint = f'Use "english" or "none". {OWN_BACKGROUNDS}'
        raise UsageError(
            f'invalid additional_config["ngt"] {shown(value)}: {error}', hint=hint
        ) from None


class NgramTrieProposer:
    """The custom drafter class of vLLM; see the module docstring.

    It proposes nothing for requests whose prompt is not prefilled yet.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._max_draft: int = vllm_config.speculative_config.num_speculative_tokens
        self._context: int = vllm_config.model_config.max_model_len
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        extra = vllm_config.additional_config
        self.options = read_options(extra.get("ngt", {}) if isinstance(extra, Mapping) else {})
        self._settings, texts = self._load_sources(vllm_config.model_config.tokenizer)
        compile_loops()
        self._shared = Shared(self._settings, AutoOptions(), texts)
        # Drafters and logs by vLLM's name of the request.
        self._drafters: dict[str, Auto] = {}
        self._logs: dict[str, TokenLog] = {}
        self._verified: set[str] = set()  # the requests whose drafts the last step verifies
        self._has_warned = False  # that this version of vLLM is incompatible
        self._returned_at = 0.0  # perf_counter when the last drafts were returned, in seconds
        self._query_tokens = 0  # of the forward pass that verifies them: drafts and a root each

    def _load_sources(self, tokenizer_name: str) -> tuple[DraftSettings, list[TokenIds]]:
        """Load what the options name.

        Returns:
            Settings for drafters, and the documents' token ids.

        Raises:
            NgtError: A document, the tokenizer or the background cannot be read.
        """
        options = self.options
        pool = Pool(options.pool_tokens) if options.pool else None
        texts: list[TokenIds] = []
        if options.documents:
            tokenizer = load_tokenizer(tokenizer_name)
            documents = load(options.documents).documents
            texts = [np.array(tokenizer.encode(document.text), np.int32) for document in documents]
        background = None
        if options.background != "none":
            background = Background(
                options.background,
                load_tokenizer(tokenizer_name),
                self._vocab_size,
                model=tokenizer_name,
            ).load()
        return DraftSettings(pool=pool, background=background), texts

    def load_model(self, *_: object, **__: object) -> None:
        """Do nothing: there is no draft model to load."""

    def dummy_run(self, *_: object, **__: object) -> None:
        """Do nothing: there is nothing to warm up."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: TokenIds,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return a draft chain for each request, [] for none.

        Args:
            sampled_token_ids: The tokens of the last step for each request; none while its prompt
                is being prefilled.
            num_tokens_no_spec: int32 (requests,): the number of valid token ids in each row.
            token_ids_cpu: int32 (requests, context): the token ids of prompts and outputs, the
                tokens of the last step included.
            slot_mappings: Not used.
        """
        called_at = time.perf_counter()
        runner: Any = sys._getframe(1).f_locals.get("self")
        try:
            requests = runner.requests
            names = list(runner.input_batch.req_ids)
            shares_text = {name: _shares_text(requests[name]) for name in names}
        except (AttributeError, KeyError):
            if not self._has_warned:
                _LOG.warning(_INCOMPATIBLE)
            self._has_warned = True
            return [[] for _ in sampled_token_ids]

        sequences = {
            name: token_ids_cpu[i, : num_tokens_no_spec[i]]
            for i, (name, sampled) in enumerate(zip(names, sampled_token_ids, strict=True))
            if sampled
        }
        seconds = None
        # The time of a step that prefilled a prompt as well would say nothing about verifying.
        if set(names) == sequences.keys() == self._verified:
            seconds = called_at - self._returned_at
        for name in self._drafters.keys() - requests.keys():
            self._drafters.pop(name).close()
            del self._logs[name]
        self._learn(sequences, seconds)
        for name, sampled in zip(names, sampled_token_ids, strict=True):
            if name in sequences and name not in self._drafters:
                self._begin(name, sequences[name].tolist(), len(sampled), shares_text[name])
        chains = self._draft(list(sequences))
        self._returned_at = time.perf_counter()
        return [chains.get(name, []) for name in names]

    def _learn(self, sequences: Mapping[str, TokenIds], seconds: float | None) -> None:
        """Learn the tokens of the last step, and its duration in seconds if that is known."""
        if seconds is not None and self._shared.policy is None:
            # The first measured forward pass sets the scale of the guessed curve.
            seconds_of_one = seconds / (1 + self._query_tokens / _DOUBLING_TOKENS)
            curve = {n: seconds_of_one * (1 + n / _DOUBLING_TOKENS) for n in _QUERY_TOKENS}
            self._shared.use_costs(CostCurve(curve))
        outcome = Outcome(rows=self._query_tokens, seconds=seconds)
        for name, token_ids in sequences.items():
            if name in self._drafters:
                log = self._logs[name]
                log.emit(token_ids[len(log) :].tolist())
                self._drafters[name].learn(log, outcome)

    def _begin(self, name: str, token_ids: list[int], sampled: int, shares_text: bool) -> None:
        """Create the drafter of a request.

        Args:
            name: vLLM's name of the request.
            token_ids: Its prompt and its first tokens.
            sampled: The number of these first tokens.
            shares_text: Other requests may be drafted from, and may draft from this one.
        """
        prompt = token_ids[:-sampled]
        private = not shares_text
        settings = self._shared.settings_for(self._settings, private)
        drafter = Auto(settings, shared=self._shared)
        drafter.begin(Context(prompt, vocabulary=self._vocab_size, chains=True, private=private))
        self._drafters[name] = drafter
        self._logs[name] = TokenLog(prompt)
        self._logs[name].emit(token_ids[-sampled:])

    def _draft(self, names: list[str]) -> dict[str, list[int]]:
        """Draft a chain for each request, as long as it pays and as the context allows."""
        drafters = [self._drafters[name] for name in names]
        logs = [self._logs[name] for name in names]
        rooms = [Room(min(self._max_draft, self._context - len(log) - 1)) for log in logs]
        drafts = propose_together(drafters, logs, rooms)
        chains = {name: list(draft.tree.tokens) for name, draft in zip(names, drafts, strict=True)}
        self._verified = set(names)
        self._query_tokens = len(names) + sum(map(len, chains.values()))
        return chains


def _shares_text(request: Any) -> bool:
    """Return whether a request of vLLM allows drafts from and for other requests."""
    return bool((request.sampling_params.extra_args or {}).get(_POOL_KEY, True))
