"""Tells the end of memory apart from other errors."""

import torch

# What libraries say where memory ends, in lower case.
_SIGNS = (
    "out of memory",  # CUDA, MPS, HIP
    "can't allocate memory",  # torch on a CPU
    "not enough memory",  # torch on a CPU under Windows
    "not_initialized when calling `cublascreate",  # cuBLAS, which then has no room for itself
    "alloc_failed",  # cuBLAS, cuDNN, cuSPARSE, cuSOLVER
    "failed to allocate",
    "bad_alloc",  # C++
    "could not create a primitive",  # oneDNN, which does not tell memory from other reasons
    "could not create a memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory has ended, the device's or the machine's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)
