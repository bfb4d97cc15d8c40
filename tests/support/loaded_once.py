"""Objects that take long to make and are the same for all tests: made once in a process.

Trials, costs and backgrounds are copied for each use. The weights of the built-in model are lent:
to one run of a command, or to one test, at a time; a second borrower meanwhile reads its own. What
a run changes (caches, captured passes, masks, threads) is in the `TargetModel`, which is made anew
over them. Weights whose versions or addresses have changed are lent no more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngtcli.decoding import load
from ngtcli.decoding.attention import use_grouped
from ngtcli.decoding.calibration import calibrate, remembered_costs
from ngtcli.decoding.exactness.whole_vectors import use_whole_vectors
from ngtcli.decoding.grammar.matcher import _words as _words_of
from ngtcli.decoding.load import Plan
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.background.files import SHIPPED
from ngtcli.drafting.background.loaded import make_shipped
from ngtcli.drafting.costs import CostCurve
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.chat import _try
from ngtcli.system import reporting
from ngtcli.system.trials import Trial
from tests.support.recording_reporter import RecordingReporter

_backgrounds: dict[tuple[Path, str], BackgroundCounts] = {}
_costs: dict[str, CostCurve] = {}
TRIALS = {"exact", "ways"}
_trials: dict[str, Any] = {}  # results by their keys


def shipped_background(name: str, tokenizer: Tokenizer) -> BackgroundCounts:
    """`make_shipped`, which takes a second for each home without a background."""
    key = SHIPPED[name], tokenizer.fingerprint
    if key not in _backgrounds:
        _backgrounds[key] = make_shipped(name, tokenizer)
    return deepcopy(_backgrounds[key])


def measured_costs(model: TargetModel) -> CostCurve:
    """`calibrate`, which takes up to two seconds for each home without costs."""
    key = remembered_costs(model).key
    if key not in _costs:
        _costs[key] = calibrate(model)
    return deepcopy(_costs[key])


def find_trial_once(self: Trial[Any], make: Callable[[], Any], real: Any = Trial.find) -> Any:
    """`Trial.find`, whose trials take seconds for each home without results.

    A key says all that a result depends on. Costs see `measured_once`.
    """
    if self.kind not in TRIALS:
        return real(self, make)
    if self.key in _trials and self.load() is None:
        self.save(_trials[self.key])
    result = real(self, make)
    _trials[self.key] = result
    return result


_words: WeakKeyDictionary[Any, dict[object, Any]] = WeakKeyDictionary()


def words_of(tokenizer: Tokenizer, size: int, ends: frozenset[int], real: Any = _words_of) -> Any:
    """llguidance's form of a tokenizer, which takes 60 ms for each `Tokenizer` over a lent one."""
    forms = _words.setdefault(tokenizer.backend, {})
    key = size, ends
    if key not in forms:
        forms[key] = real(tokenizer, size, ends)
    return forms[key]


_tried: set[object] = set()


def try_template_once(backend: Any, *template: object, real: Any = _try) -> None:
    """`_try`, which forks this large process for each tokenizer that was read, of what it took."""
    key = type(backend), str(getattr(backend, "special_tokens_map", "")), *template
    if key not in _tried:
        real(backend, *template)
        _tried.add(key)


# --- the built-in model ---

_models: dict[tuple[object, ...], tuple[Any, tuple[object, ...]]] = {}  # with their states
_lent: set[tuple[object, ...]] = set()


@contextmanager
def lending() -> Iterator[None]:
    """What is lent within is back at the end."""
    before = set(_lent)
    try:
        yield
    finally:
        _lent.intersection_update(before)


def lend_model(plan: Plan, real: Any = load.read) -> Any:
    """`load.read`, which takes a sixth of a second, of the built-in model.

    A model whose loading reported something is read anew, so that each reader gets the report.
    """
    key = plan.device, plan.format, plan.device_map, torch.get_num_threads()
    if plan.path != str(BUILTIN_PATH) or key in _lent:
        return real(plan)
    hf, state = _models.get(key, (None, ()))
    if hf is None or _state(hf) != state:
        reported = RecordingReporter()
        hf = reported.of(lambda: real(plan))
        for line in reported.statuses:
            reporting.status(line)
        for line in reported.warnings:
            reporting.warn_once(line)
        use_grouped(hf)  # as is done to each model that was read; a second time changes nothing
        use_whole_vectors(hf)
        _models.pop(key, None)
        if not reported.statuses and not reported.warnings:
            _models[key] = hf, _state(hf)
    _lent.add(key)
    return hf


def _state(hf: Any) -> tuple[object, ...]:
    """A value that differs once weights, layers or settings of a model were changed."""
    modules = [
        (id(module), type(module), len(module._forward_hooks), len(module._forward_pre_hooks))
        for module in hf.modules()
    ]
    weights = (*hf.parameters(), *hf.buffers())
    tensors = [(weight.data_ptr(), _version(weight)) for weight in weights]
    return *modules, *tensors, repr(vars(hf.config)), repr(vars(hf.generation_config)), hf.training


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else tensor._version
