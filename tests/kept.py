"""What costs seconds to make and is the same for all tests: made once in a process, then copied."""

from copy import deepcopy
from pathlib import Path

from ngtcli.background.files import SHIPPED
from ngtcli.background.loaded import make_shipped
from ngtcli.decode.calibration import calibrate, remembered_costs
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import CostCurve
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts

_backgrounds: dict[tuple[Path, str], BackgroundCounts] = {}
_costs: dict[str, CostCurve] = {}


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
