"""In what form a model is computed, by rules: what the CPU multiplies decides, and no timing."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ngtcli.errors import ModelError
from ngtcli.models.quantized import name_of
from ngtcli.models.weights.linear import float_blocks
from ngtcli.models.weights.onednn import Int8Kernel
from ngtcli.system.cpu import architecture, instruction_sets
from ngtcli.system.trials import float32_precision

_PRODUCTS = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "dot")  # of integers, quickest first
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Form:
    """How a model's weights are computed.

    `dtype` is that of floats and between layers of integers, "auto" the checkpoint's own; `reason`
    says why where none was named. `packed`: floats lie in blocks. `bits` are those of integers, 0
    where there are none; those of 8 are multiplied by the `kernel`.
    """

    dtype: Any
    packed: bool = False
    bits: int = 0
    kernel: Int8Kernel | None = None
    reason: str = ""

    @property
    def kind(self) -> str:
        """The kind of integers, "" where there are none."""
        return f"int{self.bits}" if self.bits else ""


def multiplies(dtype: torch.dtype, has: frozenset[str]) -> str:
    """The instruction set that multiplies a half precision, "" where there is none.

    >>> multiplies(torch.bfloat16, frozenset({"avx512_bf16", "amx_bf16"}))
    'amx_bf16'
    """
    end = "bf16" if dtype == torch.bfloat16 else "fp16"
    return min((name for name in has if name.endswith(end)), default="")


def half_of(config: Any) -> torch.dtype | None:
    """The half precision that a checkpoint is in by its configuration; None for another dtype."""
    for one in (config, config.get_text_config()):
        found = getattr(one, "dtype", None)
        found = getattr(torch, found, None) if isinstance(found, str) else found
        if found is not None:
            return found if found in _HALVES else None
    return None


def dtype_by_rule(
    half: torch.dtype | None, bits: int, has: frozenset[str]
) -> tuple[torch.dtype, str]:
    """The dtype of "auto" on a CPU that has these instruction sets, and why.

    It is the `half` precision of a checkpoint where the CPU multiplies it, or else float32. With
    integers of 8 bits float32 is as quick between layers (measured: 1.1, 1.0 and 0.8 times as long
    as bfloat16 over 1, 8 and 32 rows).
    """
    if half is None:
        return torch.float32, ""
    if bits == 8:
        return torch.float32, "as quick between layers of 8 bits"
    if found := multiplies(half, has):
        return half, f"this CPU multiplies it ({found})"
    return torch.float32, f"this CPU has no instructions for {name_of(half)}"


def dtype_of_gpu(half: torch.dtype | None) -> Any:
    """The dtype of "auto" on CUDA: float16 where bfloat16 is only emulated, as before Ampere.

    Otherwise "auto": the checkpoint's own.
    """
    if half == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return "auto"


def use_full_float32(device: str, warn: Callable[[str], None]) -> None:
    """Let float32 be multiplied as such; a program that ngt runs in may have allowed less.

    cuBLAS gets a workspace of one size in each stream, so that captured passes have the bits of
    others.
    """
    if float32_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
        warn("products of float32 were allowed in less (TF32 or bfloat16): they are in float32 now")
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # of convolutions, where it is torch's default
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@cache
def int8_kernel(device: str = "cpu") -> Int8Kernel:
    """How 8-bit products are computed: the first way that is right, which is tried (10 ms).

    Signed inputs are quick with AMX, and take a reference kernel's seconds without. Without VNNI
    products of 8 bits are summed in 16 and overflow: inputs have 7 bits there. Raises ModelError on
    another device than a CPU, and where no way is right.
    """
    if device != "cpu":
        what = f"--quantize int8 is for a CPU, and the device is {device}"
        raise ModelError(what, "Give --device cpu, or leave out --quantize int8.")
    signed = [Int8Kernel(True, 127)] if "amx_int8" in instruction_sets() else []
    for kernel in (*signed, Int8Kernel(False, 127), Int8Kernel(False, 63)):
        if kernel.is_right():
            return kernel
    raise ModelError(
        "this CPU, or this version of torch, has no right product of 8-bit integers",
        "Leave out --quantize int8; --dtype bfloat16 takes half of float32's memory.",
    )


def int8_words() -> str:
    """By what this CPU multiplies integers of 8 bits, "" without such instructions."""
    return next((name for name in _PRODUCTS if name in instruction_sets()), "")


@cache
def has_blocks(dtype: torch.dtype) -> bool:
    """Whether floats of a dtype can lie in blocks on this CPU, and are multiplied quicker so."""
    x86 = architecture() == "x86_64"
    if "avx2" not in instruction_sets() if x86 else dtype not in _HALVES:
        return False
    return float_blocks(torch.ones(16, 16, dtype=dtype, device="cpu")) is not None
