"""Loading a target model: device, dtype and weights."""

from typing import Any

import torch

from ngtcli.decode.model import TargetModel
from ngtcli.errors import ModelError
from ngtcli.pretrained import load_tokenizer, loading, local_path, transformers_quiet
from ngtcli.threads import pick_threads


def pick_device(wanted: str) -> str:
    """The device that "auto" stands for. Raises ModelError where the one wanted is not here."""
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


def pick_dtype(wanted: str, device: str) -> Any:
    """The dtype to load in; "auto" is float32 on a CPU, elsewhere the checkpoint's own."""
    if wanted == "auto":
        return torch.float32 if device == "cpu" else "auto"
    return getattr(torch, wanted)


def use_threads(wanted: int) -> None:
    """Compute with `wanted` threads on a CPU; 0 leaves the number to what the machine has idle."""
    torch.set_num_threads(pick_threads(wanted))


def load_model(name: str, device: str = "auto", dtype: str = "auto") -> TargetModel:
    """Load a model by folder, hub id or "builtin". Raises ModelError."""
    path = local_path(name)
    where = pick_device(device)
    tokenizer = load_tokenizer(name)
    with loading(name):
        auto = transformers_quiet().AutoModelForCausalLM
        # Left unset, transformers would ask on stdout and read the answer from a piped document.
        hf = auto.from_pretrained(path, dtype=pick_dtype(dtype, where), trust_remote_code=False)
        hf = hf.to(where).eval()
    return TargetModel(hf, tokenizer, name)
