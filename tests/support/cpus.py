"""Other CPUs that the tests can pretend: `TESTS_CPU=avx2 pytest …`.

The variables keep oneDNN, torch and MKL from later instructions, and `ngtcli.system.cpu` from
naming them: decisions and kernels are those of such a CPU. `python -m tests.support.cpus` prints
the names that can be pretended here and differ from this CPU.
"""

import sys
from collections.abc import MutableMapping

VARIABLE = "TESTS_CPU"
CPUS = {
    # AMD before Zen 4, Intel's client CPUs: no AVX-512, no bfloat16.
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    # Cascade Lake, Ice Lake: 8-bit integers, no bfloat16.
    "vnni": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    # Zen 4, Cooper Lake.
    "bf16": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    # Sapphire Rapids.
    "amx": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"},
}
# Of each CPU: an instruction set that it has, and one that it lacks.
MARKS = {
    "avx2": ("avx2", "avx512_f"),
    "vnni": ("avx512_vnni", "avx512_bf16"),
    "bf16": ("avx512_bf16", "amx_bf16"),
    "amx": ("amx_int8", "amx_fp16"),
}


def pretend(environ: MutableMapping[str, str]) -> None:
    """Set the variables of the CPU that TESTS_CPU names. Call it before torch is imported."""
    if name := environ.get(VARIABLE):
        if name not in CPUS:
            raise ValueError(f"{VARIABLE} is {name!r}, and can be {', '.join(CPUS)}")
        assert "torch" not in sys.modules
        environ.update(CPUS[name])


def possible() -> list[str]:
    """Names of the CPUs that this one can pretend to be."""
    from ngtcli.system.cpu import instruction_sets  # here: it imports torch

    sets = instruction_sets()
    return [name for name, (has, lacks) in MARKS.items() if has in sets and lacks in sets]


if __name__ == "__main__":
    names = possible()
    print(*names, sep="\n")
    others = [name for name in CPUS if name not in names]
    print("Not pretended here, for this CPU is one or lacks it:", *others, file=sys.stderr)
