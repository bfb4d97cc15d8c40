"""What is found out by trying a model on this machine: once, then it is stored.

Three things are tried, in decode/: how a model is run (probe.py), whether its passes are exact
(exactness.py), and so whether half precision that was chosen for it stays (load.py), and what
they cost (calibration.py). In what form its weights are computed is no trial: see forms.py.
"""

from typing import Any, TypeVar

import torch

from ngtcli.models.hf import settled_attention
from ngtcli.models.weights.linear import packed_weights
from ngtcli.system.trials import Trial

Found = TypeVar("Found")
SPREAD = "its layers are on several devices"


def remembered(kind: str, hf: Any, found: type[Found], *parts: object) -> Trial[Found]:
    """A kind of trial of a model, whose result also depends on `parts`."""
    device = torch.device("cpu") if hf.device.type == "meta" else hf.device  # without values
    return Trial(kind, device, (*what_matters(hf), *parts), found)


def places_of(hf: Any) -> tuple[tuple[str, str], ...]:
    """Parts of a model and the device of each, or "disk"; () where all are on one device."""
    found = getattr(hf, "hf_device_map", None) or {}
    if len(set(found.values())) < 2:
        return ()
    return tuple((part, f"GPU {on}" if type(on) is int else str(on)) for part, on in found.items())


def what_matters(hf: Any) -> tuple[object, ...]:
    """What a trial depends on: dtype, attention, class, configuration, kinds of storage, places."""
    attention = settled_attention(hf.config)
    kinds = {f"{type(one).__name__} {getattr(one, 'kernel', '')}" for one in packed_weights(hf)}
    about = hf.dtype, attention, type(hf).__name__, hf.config.to_json_string(use_diff=False)
    return *about, *sorted(kinds), *places_of(hf)
