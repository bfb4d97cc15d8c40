"""Rules for the format of a model's weights: the CPU's instructions decide, timings never do."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ngtcli.errors import ModelError
from ngtcli.models.quantized import name_of
from ngtcli.models.weights.linear import prepack_floats
from ngtcli.models.weights.onednn import Int8Kernel
from ngtcli.system import reporting
from ngtcli.system.cpu import architecture, instruction_sets
from ngtcli.system.trials import float32_precision

# Instruction sets that multiply 8-bit integers, fastest first.
_INT8_SETS = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "dot")
HALF_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The format of a model's weights in memory.

    Attributes:
        dtype: The dtype of floats, and of activations between quantized layers; "auto": the
            checkpoint's.
        packed: Floats are prepacked for oneDNN.
        bits: The bits of quantized weights, 0 if none are quantized.
        kernel: Multiplies 8-bit weights.
        chosen_by_rule: A rule chose the dtype, not a setting; another rule may change it.
        why: The reason for the dtype, for people.
    """

    dtype: Any
    packed: bool = False
    bits: int = 0
    kernel: Int8Kernel | None = None
    chosen_by_rule: bool = False
    why: str = ""

    @property
    def kind(self) -> str:
        """The quantization, such as "int8", or "" if there is none."""
        return f"int{self.bits}" if self.bits else ""


def instruction_set_for(dtype: torch.dtype, available: frozenset[str]) -> str:
    """Name the instruction set that multiplies a half precision, or return "" without one.

    >>> instruction_set_for(torch.bfloat16, frozenset({"avx512_bf16", "amx_bf16"}))
    'amx_bf16'
    """
    suffix = "bf16" if dtype == torch.bfloat16 else "fp16"
    return min((name for name in available if name.endswith(suffix)), default="")


def half_of(config: Any) -> torch.dtype | None:
    """Return the half precision of a checkpoint by its configuration, None for another dtype."""
    for part in (config, config.get_text_config()):
        dtype = getattr(part, "dtype", None)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, None)
        if dtype is not None:
            return dtype if dtype in HALF_DTYPES else None
    return None


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype, whether a rule chose it over another, and the reason, for people."""

    dtype: Any
    by_rule: bool = False
    why: str = ""


def dtype_by_rule(half: torch.dtype | None, bits: int, available: frozenset[str]) -> DtypeChoice:
    """Choose the dtype of "auto" on a CPU.

    It is the checkpoint's half precision if the CPU multiplies that, otherwise float32. Between
    8-bit layers float32 is as fast: forward passes over 1, 8 and 32 tokens take 1.1, 1.0 and 0.8
    times as long as with bfloat16 (measured).

    Args:
        half: The half precision of the checkpoint, None for another dtype.
        bits: The bits of quantized weights, 0 if none are quantized.
        available: The instruction sets of the CPU.
    """
    if half is None:
        return DtypeChoice(torch.float32)
    if bits == 8:
        return DtypeChoice(torch.float32, True, "as fast between layers of 8 bits")
    instruction_set = instruction_set_for(half, available)
    if instruction_set:
        return DtypeChoice(half, True, f"this CPU multiplies it ({instruction_set})")
    why = f"this CPU has no instructions for {name_of(half)}"
    return DtypeChoice(torch.float32, True, why)


def dtype_of_gpu(half: torch.dtype | None) -> Any:
    """Choose the dtype of "auto" on CUDA: float16 where bfloat16 is only emulated (before Ampere).

    Otherwise "auto": the checkpoint's dtype.
    """
    if half == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return "auto"


def use_full_float32(device: str) -> None:
    """Multiply float32 in float32; a program that imports ngt may have allowed TF32 or bfloat16.

    cuBLAS gets a workspace of one size in each stream, so that forward passes in CUDA graphs give
    the bits of eager ones.
    """
    if float32_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
        reporting.warn_once(
            "float32 matmuls were allowed to use TF32 or bfloat16; ngt has set them to float32"
        )
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # By default torch allows it for convolutions.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@cache
def int8_kernel(device: str = "cpu") -> Int8Kernel:
    """Return the first 8-bit kernel that passes a test (10 ms).

    Signed activations are fast with AMX and take a slow reference kernel otherwise. Without VNNI,
    8-bit products are summed in 16 bits and overflow; there activations have 7 bits.

    Raises:
        ModelError: The device is not a CPU, or no kernel is correct.
    """
    if device != "cpu":
        raise ModelError(
            f"--quantize int8 needs a CPU, but the device is {device}",
            hint="Use --device cpu, or leave out --quantize int8.",
        )
    signed = [Int8Kernel(True, 127)] if "amx_int8" in instruction_sets() else []
    for kernel in (*signed, Int8Kernel(False, 127), Int8Kernel(False, 63)):
        if kernel.is_correct():
            return kernel
    raise ModelError(
        "--quantize int8 is not supported here: no int8 matmul of this CPU and torch version is"
        " correct",
        hint="Leave out --quantize int8; --dtype bfloat16 takes half of float32's memory.",
    )


def int8_instruction_set() -> str:
    """Name the instruction set that multiplies 8-bit integers on this CPU, or return ""."""
    return next((name for name in _INT8_SETS if name in instruction_sets()), "")


@cache
def prepacks(dtype: torch.dtype) -> bool:
    """Return whether oneDNN prepacks floats of a dtype on this CPU and is faster with them."""
    x86 = architecture() == "x86_64"
    if "avx2" not in instruction_sets() if x86 else dtype not in HALF_DTYPES:
        return False
    return prepack_floats(torch.ones(16, 16, dtype=dtype, device="cpu")) is not None
