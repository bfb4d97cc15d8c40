"""Results of trials of a model on this machine: each is made once, then it is stored.

Three things are tried, in decoding/: how a model is run (probe.py), whether its forward passes are
exact (exactness/), and so whether half precision that a rule chose stays, and what forward passes
cost (calibration.py). The format of its weights is not tried: formats.py has rules for it.
"""

from typing import Any, TypeVar

import torch

from ngtcli.models.hf import settled_attention
from ngtcli.models.weights.linear import packed_weights
from ngtcli.system.trials import Trial

Result = TypeVar("Result")
SPREAD = "its layers are on several devices"


def stored_trial(kind: str, hf: Any, result: type[Result], *parts: object) -> Trial[Result]:
    """Return the stored result of a trial of a model, which depends on `parts` as well."""
    device = torch.device("cpu") if hf.device.type == "meta" else hf.device  # without values
    return Trial(kind, device, (*model_fingerprint(hf), *parts), result)


def module_devices(hf: Any) -> tuple[tuple[str, str], ...]:
    """List parts of a model and the device of each, or "disk"; () where all are on one device."""
    devices = getattr(hf, "hf_device_map", None) or {}
    if len(set(devices.values())) < 2:
        return ()
    return tuple(
        (part, f"GPU {device}" if type(device) is int else str(device))
        for part, device in devices.items()
    )


def model_fingerprint(hf: Any) -> tuple[object, ...]:
    """Return the inputs of a trial: dtype, attention, class, configuration, weights, devices."""
    kinds = {
        f"{type(weight).__name__} {getattr(weight, 'kernel', '')}" for weight in packed_weights(hf)
    }
    return (
        hf.dtype,
        settled_attention(hf.config),
        type(hf).__name__,
        hf.config.to_json_string(use_diff=False),
        *sorted(kinds),
        *module_devices(hf),
    )
