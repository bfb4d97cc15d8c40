"""What costs seconds to make and is the same for all tests: made once in a process, then copied."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from ngtcli.background.files import SHIPPED
from ngtcli.background.loaded import make_shipped
from ngtcli.decode.calibration import calibrate, remembered_costs
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import CostCurve
from ngtcli.system.trials import Trial
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts

_backgrounds: dict[tuple[Path, str], BackgroundCounts] = {}
_costs: dict[str, CostCurve] = {}
TRIALS = {"dtypes", "exact", "int8", "packed", "ways"}
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
