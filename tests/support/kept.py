"""What costs seconds to make and is the same for all tests: made once in a process, then copied."""

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from ngtcli.background.files import SHIPPED
from ngtcli.background.loaded import make_shipped
from ngtcli.decode.calibration import calibrate, remembered_costs
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import CostCurve
from ngtcli.system.files import write_json
from ngtcli.system.remembered import Remembered
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts

_backgrounds: dict[tuple[Path, str], BackgroundCounts] = {}
_costs: dict[str, CostCurve] = {}
TRIALS = {"dtypes", "exact", "int8", "packed", "ways"}
_trials: dict[str, Any] = {}  # files of results, by their names


def made_once(name: str, tokenizer: Tokenizer) -> BackgroundCounts:
    """`make_shipped`, which takes a second for each home without a background."""
    key = SHIPPED[name], tokenizer.fingerprint
    if key not in _backgrounds:
        _backgrounds[key] = make_shipped(name, tokenizer)
    return deepcopy(_backgrounds[key])


def measured_once(model: TargetModel) -> CostCurve:
    """`calibrate`, which takes up to two seconds for each home without costs."""
    key = remembered_costs(model).path.name
    if key not in _costs:
        _costs[key] = calibrate(model)
    return deepcopy(_costs[key])


def tried_once(
    self: Remembered[Any], make: Callable[[], Any], real: Any = Remembered.find, **more: Any
) -> Any:
    """`Remembered.find`, whose trials take seconds for each home without results.

    A name says all that a result depends on. Costs see `measured_once`.
    """
    if self.path.parent.name not in TRIALS:
        return real(self, make, **more)
    if self.path.name in _trials and not self.path.exists():
        with suppress(OSError):
            write_json(self.path, _trials[self.path.name])
    found = real(self, make, **more)
    with suppress(OSError, ValueError):
        _trials[self.path.name] = json.loads(self.path.read_text())
    return found
