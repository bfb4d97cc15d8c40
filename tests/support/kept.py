"""What takes long to make and is the same for all tests: made once in a process.

Trials, costs and backgrounds are copied for each use. The weights of the built-in model are lent:
to one run of a command, or to one test, at a time; a second borrower meanwhile reads its own. What
a run changes (caches, captured passes, masks, threads) is in the `TargetModel`, which is made anew
over them. Weights that are not as they were when they were read are lent no more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ngtcli.background.files import SHIPPED
from ngtcli.background.loaded import make_shipped
from ngtcli.decode import load
from ngtcli.decode.attention import use_grouped
from ngtcli.decode.calibration import calibrate, remembered_costs
from ngtcli.decode.load import Plan, Tell
from ngtcli.decode.model import TargetModel
from ngtcli.decode.whole_vectors import use_whole_vectors
from ngtcli.draft.costs import CostCurve
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system.trials import Trial
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts

_backgrounds: dict[tuple[Path, str], BackgroundCounts] = {}
_costs: dict[str, CostCurve] = {}
TRIALS = {"exact", "ways"}
_trials: dict[str, Any] = {}  # results by their keys


def made_once(name: str, tokenizer: Tokenizer) -> BackgroundCounts:
    """`make_shipped`, which takes a second for each home without a background."""
    key = SHIPPED[name], tokenizer.fingerprint
    if key not in _backgrounds:
        _backgrounds[key] = make_shipped(name, tokenizer)
    return deepcopy(_backgrounds[key])


def measured_once(model: TargetModel) -> CostCurve:
    """`calibrate`, which takes up to two seconds for each home without costs."""
    key = remembered_costs(model).key
    if key not in _costs:
        _costs[key] = calibrate(model)
    return deepcopy(_costs[key])


def tried_once(self: Trial[Any], make: Callable[[], Any], real: Any = Trial.find) -> Any:
    """`Trial.find`, whose trials take seconds for each home without results.

    A key says all that a result depends on. Costs see `measured_once`.
    """
    if self.kind not in TRIALS:
        return real(self, make)
    if self.key in _trials and self.load() is None:
        self.save(_trials[self.key])
    found = _trials[self.key] = real(self, make)
    return found


# --- the built-in model ---

_models: dict[tuple[object, ...], tuple[Any, tuple[object, ...]]] = {}  # with their states
_lent: set[tuple[object, ...]] = set()


@contextmanager
def lent_once() -> Iterator[None]:
    """What is lent within is back at the end."""
    before = set(_lent)
    try:
        yield
    finally:
        _lent.intersection_update(before)


def lent(plan: Plan, tell: Tell, real: Any = load.read) -> Any:
    """`load.read`, which takes a sixth of a second, of the built-in model.

    What was read without a warning is kept: a reader who is warned is warned each time.
    """
    key = plan.device, plan.form, plan.device_map, torch.get_num_threads()
    if plan.path != str(BUILTIN_PATH) or key in _lent:
        return real(plan, tell)
    hf, state = _models.get(key, (None, ()))
    if hf is None or _state(hf) != state:
        said = list[str]()

        def warn(line: str) -> None:
            said.append(line)
            tell.warn(line)

        hf = real(plan, replace(tell, warn=warn))
        use_grouped(hf)  # as is done to each model that was read; twice is as once
        use_whole_vectors(hf)
        _models.pop(key, None)
        if not said:
            _models[key] = hf, _state(hf)
    _lent.add(key)
    return hf


def _state(hf: Any) -> tuple[object, ...]:
    """What shows that weights, layers or settings of a model were changed."""
    modules = [
        (id(m), type(m), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in hf.modules()
    ]
    tensors = [(_place(one), _version(one)) for one in (*hf.parameters(), *hf.buffers())]
    return *modules, *tensors, repr(vars(hf.config)), repr(vars(hf.generation_config)), hf.training


def _place(tensor: Any) -> int:
    """Of weights in blocks of a kernel's own nobody can write to a part: the object tells."""
    return id(tensor) if tensor.is_mkldnn else tensor.data_ptr()


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else tensor._version
