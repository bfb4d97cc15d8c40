"""The CPU: its name, what tells it apart from others, and which instruction sets are used on it.

Everything that depends on the CPU asks here, the tests too. So another CPU can be pretended by the
variables of oneDNN, torch and MKL that name an instruction set (see `tests/support/cpus.py`).
"""

import os
import platform
from functools import lru_cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
# The lines of it that tell CPUs apart; the others change from core to core and moment to moment.
_CPU_LINES = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "cpu", "isa", "uarch",
}  # fmt: skip
# The variables by which oneDNN, torch and MKL choose instructions, and the precision of oneDNN.
_SWITCHES = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",
)  # fmt: skip
# What oneDNN does not use at each value of ONEDNN_MAX_CPU_ISA: how torch's names of those
# instruction sets begin. From oneDNN's documentation, "CPU dispatcher control".
_UNUSED = {
    "SSE41": ("avx", "fma", "f16c", "amx"),
    "AVX": ("avx2", "avx_", "avx512", "avx10", "fma", "f16c", "amx"),
    "AVX2": ("avx_", "avx512", "avx10", "amx"),
    "AVX2_VNNI": ("avx_vnni_", "avx_ne", "avx512", "avx10", "amx"),
    "AVX2_VNNI_2": ("avx512", "avx10", "amx"),
    "AVX512_CORE": ("avx_", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx10", "amx"),
    "AVX512_CORE_VNNI": ("avx_", "avx512_bf16", "avx512_fp16", "avx10", "amx"),
    "AVX512_CORE_BF16": ("avx_", "avx512_fp16", "avx10", "amx"),
    "AVX512_CORE_FP16": ("avx10", "amx"),
    "AVX512_CORE_AMX": ("amx_fp16", "avx10_2"),
    "AVX512_CORE_AMX_FP16": ("avx10_2",),
    "AVX10_1_512": ("avx10_2", "amx"),
    "AVX10_1_512_AMX": ("avx10_2", "amx_fp16"),
    "AVX10_1_512_AMX_FP16": ("avx10_2",),
}


def instruction_sets() -> frozenset[str]:
    """The instruction sets that a model's matmuls may use here, by torch's names.

    They are the CPU's without those that ONEDNN_MAX_CPU_ISA keeps oneDNN from.
    """
    names = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    unused = _UNUSED.get(names.upper(), ())
    return frozenset(name for name in _of_cpu() if not name.startswith(unused))


def architecture() -> str:
    """The kind of CPU as torch names it: "x86_64" or "aarch64"."""
    import torch  # here: light commands do without

    return str(torch.cpu.get_capabilities().get("architecture", ""))


@lru_cache(maxsize=1)
def _of_cpu() -> frozenset[str]:
    """The CPU's instruction sets, by torch's names."""
    import torch  # here: light commands do without

    capabilities = torch.cpu.get_capabilities()
    return frozenset(name for name, value in capabilities.items() if value is True)


@lru_cache(maxsize=1)
def description() -> str:
    """Model and flags of the CPU, of all kinds of its cores; what the system tells elsewhere."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = {line for line in lines if line.partition(":")[0].strip() in _CPU_LINES}
    return "\n".join([platform.machine(), platform.processor(), *sorted(known)])


def switches() -> tuple[str, ...]:
    """The variables that are set and choose which instructions are used, as NAME=VALUE."""
    return tuple(f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ)


def model_name() -> str:
    """The name of the CPU, as well as it can be found out."""
    lines = description().splitlines()
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()
