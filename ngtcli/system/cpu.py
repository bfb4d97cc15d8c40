"""The CPU: its name, its description, and the instruction sets that are used on it.

All code that depends on the CPU asks this file, and so do the tests. So the variables of oneDNN,
torch and MKL that name an instruction set can pretend another CPU (see `tests/support/cpus.py`).
"""

import os
import platform
from functools import lru_cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
# Its lines that tell CPUs apart; the others differ between cores and moments.
_CPU_LINES = {
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "cpu",
    "isa",
    "uarch",
}
# Variables that choose the instructions of oneDNN, torch and MKL, and the precision of oneDNN.
_SWITCHES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
)
# Instruction sets that oneDNN does not use at each value of ONEDNN_MAX_CPU_ISA, as prefixes of
# torch's names. From oneDNN's documentation, "CPU dispatcher control".
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
    """Return the instruction sets that a model's matmuls may use, by torch's names.

    They are the CPU's without those that ONEDNN_MAX_CPU_ISA excludes.
    """
    names = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    unused = _UNUSED.get(names.upper(), ())
    return frozenset(name for name in _cpu_capabilities() if not name.startswith(unused))


def architecture() -> str:
    """Return torch's name of the architecture: "x86_64" or "aarch64"."""
    import torch  # imported here: light commands do not need it

    return str(torch.cpu.get_capabilities().get("architecture", ""))


@lru_cache(maxsize=1)
def _cpu_capabilities() -> frozenset[str]:
    """Return the CPU's instruction sets, by torch's names."""
    import torch  # imported here: light commands do not need it

    capabilities = torch.cpu.get_capabilities()
    return frozenset(name for name, value in capabilities.items() if value is True)


@lru_cache(maxsize=1)
def description() -> str:
    """Return the model and flags of the CPU, of all kinds of cores, as far as they are known."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    cpu_lines = {line for line in lines if line.partition(":")[0].strip() in _CPU_LINES}
    return "\n".join([platform.machine(), platform.processor(), *sorted(cpu_lines)])


def switches() -> tuple[str, ...]:
    """Return the environment variables that are set and choose instructions, as NAME=VALUE."""
    return tuple(f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ)


def model_name() -> str:
    """Return the best known name of the CPU."""
    for line in description().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            if name:
                return name
            break
    return platform.processor() or platform.machine()
