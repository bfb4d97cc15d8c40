"""`auto` as a proposer for vLLM, whose engine verifies one chain of drafts a request.

    LLM(model, speculative_config={
        "method": "custom_class",
        "model": "ngtcli.engine.vllm.proposer.NgramTrieProposer",
        "num_speculative_tokens": 16,
    }, additional_config={"ngt": {"pool": True}})

vLLM makes the class with its configuration and calls `propose` after each step with arrays that
have a row for each request. Rows are used again and change places; whose they are says the runner
that calls (`input_batch.req_ids`), which hands no request over.

Options under "ngt" in vLLM's `additional_config`:

- `pool` (true): drafts come from answers to other requests as well, whose own words (what they do
  not quote from their prompts) are kept, `pool_tokens` (50,000) token ids at most. A request with
  `extra_args={"ngt_pool": False}` in its sampling parameters takes no part: none of its text
  reaches another request, and none of another's reaches it.
- `documents` ([]): files and folders whose text is counted in addition to the pool.
- `background` ("english"): the general text that drafts come from as well; "none" does without.

Tried with vLLM 0.32; needs 0.32 or 0.33. Trees cannot be fed to it.

It runs on vLLM's model runner V1, which vLLM takes for a custom class, and ends with it: V2, the
default where Triton is there, refuses custom drafters.
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

Ids = npt.NDArray[np.int32]

# Rows at which the cost of a pass is learned; more than 1,024 are extrapolated. Derived: doublings.
_ROWS = tuple(2**i for i in range(11))
# Rows that double the cost of a pass over one, before any is measured; guess: where a GPU of 2025
# stops being bound by memory.
_DOUBLING_ROWS = 256
_ALLOWED = "ngt_pool"  # the key in a request's `extra_args`
_NOT_FOUND = "ngt: nothing is drafted: this version of vLLM calls the proposer in another way"
_LOG = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `additional_config["ngt"]` may say; see the module's description."""

    pool: bool = True
    pool_tokens: int = CONFIG.pool_tokens
    documents: tuple[str, ...] = ()
    background: Literal["english", "none"] = "english"


def read_options(given: Any) -> Options:
    """The options of `additional_config["ngt"]`. Raises UsageError for unknown or wrong ones."""
    try:
        return msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        what = f'additional_config["ngt"] is {shown(given)}: {error}'
        hint = "ngt help vllm lists its options."
        if "$.background" in str(error):
            hint = f'Give "english" or "none". {OWN_BACKGROUNDS}'
        raise UsageError(what, hint=hint) from None


class NgramTrieProposer:
    """See the module's description. Proposes nothing for requests whose prompt is not read yet."""

    def __init__(self, vllm_config: Any) -> None:
        self._most: int = vllm_config.speculative_config.num_speculative_tokens
        self._context: int = vllm_config.model_config.max_model_len
        self._vocabulary: int = vllm_config.model_config.get_vocab_size()
        extra = vllm_config.additional_config
        self.options = read_options(extra.get("ngt", {}) if isinstance(extra, Mapping) else {})
        self._settings, texts = self._sources(vllm_config.model_config.tokenizer)
        compile_loops()
        self._shared = Shared(self._settings, AutoOptions(), texts)
        self._drafters = dict[str, Auto]()  # by vLLM's name of a request
        self._logs = dict[str, TokenLog]()  # by the same
        self._checked: set[str] = set()  # whose drafts the last step checked
        self._has_warned = False  # that requests are not found
        self._left_at = 0.0  # seconds on the clock when the last step's drafts were given
        self._rows_out = 0  # rows of the pass that checks them, with one row a request

    def _sources(self, tokenizer: str) -> tuple[DraftSettings, list[Ids]]:
        """What the options name: settings for drafters, and texts to count. Raises NgtError."""
        own, texts, background = self.options, list[Ids](), None
        pool = Pool(own.pool_tokens) if own.pool else None
        if own.documents:
            ids, documents = load_tokenizer(tokenizer), load(own.documents).documents
            texts = [np.array(ids.encode(document.text), np.int32) for document in documents]
        if own.background != "none":
            ids = load_tokenizer(tokenizer)
            background = Background(own.background, ids, self._vocabulary, model=tokenizer).load()
        return DraftSettings(pool=pool, background=background), texts

    def load_model(self, *_: object, **__: object) -> None:
        """There is no model to load."""

    def dummy_run(self, *_: object, **__: object) -> None:
        """There is nothing to warm up."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: Ids,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """One chain a request, [] for none.

        `sampled_token_ids` are those of the last step, none for a prompt that is not read yet.
        `token_ids_cpu`, int32 (requests, context), holds the ids of prompts and outputs, those just
        sampled included; `num_tokens_no_spec`, int32 (requests,), says how many of a row count.
        """
        entered = time.perf_counter()
        caller: Any = sys._getframe(1).f_locals.get("self")
        try:
            asked, names = caller.requests, list(caller.input_batch.req_ids)
            allowed = {name: _takes_part(asked[name]) for name in names}
        except (AttributeError, KeyError):
            if not self._has_warned:
                _LOG.warning(_NOT_FOUND)
            self._has_warned = True
            return [[] for _ in sampled_token_ids]
        rows = {
            name: token_ids_cpu[i, : num_tokens_no_spec[i]]
            for i, (name, sampled) in enumerate(zip(names, sampled_token_ids, strict=True))
            if sampled
        }
        seconds = None
        if set(names) == rows.keys() == self._checked:  # no prompt was read as well
            seconds = entered - self._left_at
        for name in self._drafters.keys() - asked.keys():
            self._drafters.pop(name).close()
            del self._logs[name]
        self._learn(rows, seconds)
        for name, sampled in zip(names, sampled_token_ids, strict=True):
            if name in rows and name not in self._drafters:
                self._begin(name, rows[name].tolist(), len(sampled), allowed[name])
        chains = self._draft(list(rows))
        self._left_at = time.perf_counter()
        return [chains.get(name, []) for name in names]

    def _learn(self, rows: Mapping[str, Ids], seconds: float | None) -> None:
        """Learn the tokens of the last step, and what it took where that is known."""
        if seconds is not None and self._shared.policy is None:  # this pass sets the scale
            seconds_of_one = seconds / (1 + self._rows_out / _DOUBLING_ROWS)
            curve = {r: seconds_of_one * (1 + r / _DOUBLING_ROWS) for r in _ROWS}
            self._shared.use_costs(CostCurve(curve))
        outcome = Outcome(rows=self._rows_out, seconds=seconds)
        for name, row in rows.items():
            if name in self._drafters:
                log = self._logs[name]
                log.emit(row[len(log) :].tolist())
                self._drafters[name].learn(log, outcome)

    def _begin(self, name: str, ids: list[int], sampled: int, takes_part: bool) -> None:
        prompt = ids[:-sampled]
        private = not takes_part
        settings = self._shared.settings_for(self._settings, private)
        drafter = Auto(settings, shared=self._shared)
        drafter.begin(Context(prompt, vocabulary=self._vocabulary, chains=True, private=private))
        self._drafters[name] = drafter
        self._logs[name] = TokenLog(prompt)
        self._logs[name].emit(ids[-sampled:])

    def _draft(self, names: list[str]) -> dict[str, list[int]]:
        """Chains for these requests, as long as they pay and the context allows."""
        drafters = [self._drafters[name] for name in names]
        logs = [self._logs[name] for name in names]
        rooms = [Room(min(self._most, self._context - len(log) - 1)) for log in logs]
        drafts = propose_together(drafters, logs, rooms)
        chains = {n: list(draft.tree.tokens) for n, draft in zip(names, drafts, strict=True)}
        self._checked = set(names)
        self._rows_out = len(names) + sum(map(len, chains.values()))
        return chains


def _takes_part(request: Any) -> bool:
    """Whether a request of vLLM's allows text to cross requests."""
    return bool((request.sampling_params.extra_args or {}).get(_ALLOWED, True))
