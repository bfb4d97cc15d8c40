"""Trials of a model on this machine: each is run once, and its result is stored.

There are three, all in decoding/: how a model can be run (probe.py); whether its forward passes are
exact, which also decides whether half precision that a rule chose stays (exactness/); and what
forward passes cost (calibration.py). Weight formats are not tried: formats.py has rules for them.
"""

from typing import Any, TypeVar

import torch

from ngtcli.models.hf import settled_attention
from ngtcli.models.weights.linear import packed_weights
from ngtcli.system.trials import Trial

Result = TypeVar("Result")
SPREAD = "its layers are on several devices"  # why a feature is unavailable, for people


def stored_trial(kind: str, hf: Any, result: type[Result], *parts: object) -> Trial[Result]:
    """Return a trial of a model, whose result may be stored.

    Args:
        kind: The name of the trial.
        hf: The model; one without values counts as on the CPU.
        result: The type of the result.
        parts: Everything that the result depends on besides the model.
    """
    device = torch.device("cpu") if hf.device.type == "meta" else hf.device
    return Trial(kind, device, (*model_fingerprint(hf), *parts), result)


def module_devices(hf: Any) -> tuple[tuple[str, str], ...]:
    """List the parts of a model with their devices, or "disk"; () if all are on one device."""
    devices = getattr(hf, "hf_device_map", None) or {}
    if len(set(devices.values())) < 2:
        return ()
    return tuple(
        (part, f"GPU {device}" if type(device) is int else str(device))
        for part, device in devices.items()
    )


def model_fingerprint(hf: Any) -> tuple[object, ...]:
    """List what results depend on: dtype, attention, class, configuration, weights, devices."""
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
