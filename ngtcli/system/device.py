"""Chooses the device that a model runs on."""

from ngtcli.errors import ModelError


def pick_device(wanted: str) -> str:
    """The device that "auto" stands for. Raises ModelError where the one named is missing."""
    import torch  # here: light commands do without

    here = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return next(name for name, available in here.items() if available)
    if not here[wanted]:
        raise ModelError(f"no {wanted} device here", "Use --device auto.")
    return wanted
