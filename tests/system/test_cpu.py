"""Which instruction sets are used: oneDNN's own words, and the CPUs that tests pretend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ngtcli.system import cpu
from tests.support.cpus import CPUS, MARKS, VARIABLE, possible
from tests.support.helpers import ROOT_FOLDER

pytestmark = pytest.mark.cpu
XEON = frozenset(
    {
        "sse4_1",
        "avx",
        "avx2",
        "fma3",
        "f16c",
        "avx_vnni",
        "avx512_f",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
    }
)
LATER = {
    "SSE41": XEON - {"sse4_1"},
    "AVX2": XEON - {"sse4_1", "avx", "avx2", "fma3", "f16c"},
    "AVX2_VNNI": {name for name in XEON if name.startswith(("avx512", "amx"))},
    "AVX512_CORE": {"avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {name for name in XEON if name.startswith("amx")},
    "AVX512_CORE_VNNI": {"avx_vnni", "avx512_bf16", "avx512_fp16"}
    | {name for name in XEON if name.startswith("amx")},
    "AVX512_CORE_AMX": set[str](),
}


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize("value", [*LATER, "avx2", "DEFAULT", "nonsense", ""])
def test_instruction_sets_that_onednn_is_kept_from_are_not_named(
    value: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(cpu, "_cpu_capabilities", lambda: XEON)
    monkeypatch.setenv(variable, value)
    assert cpu.instruction_sets() == XEON - LATER.get(value.upper(), set())


PROGRAM = """
import torch
from ngtcli.system.cpu import instruction_sets
from ngtcli.models.weights.formats import dtype_by_rule, int8_kernel

torch.ones(16, 64) @ torch.ones(64, 16)
torch.nn.functional.linear(torch.ones(16, 64), torch.ones(16, 64))
kernel = int8_kernel()
print(torch.backends.cpu.get_cpu_capability())
print(dtype_by_rule(torch.bfloat16, 0, instruction_sets()).dtype, kernel.signed, kernel.qmax)
"""
# What torch and oneDNN say of themselves, and what is decided: dtype, and inputs of int8.
WORDS = {
    "avx2": ("Intel AVX2", "AVX2", "torch.float32 False 63"),
    "vnni": ("Intel AVX-512 with Intel DL Boost", "AVX512", "torch.float32 False 127"),
    "bf16": ("bfloat16 support", "AVX512", "torch.bfloat16 False 127"),
    "amx": ("Intel AMX", "AVX512", "torch.bfloat16 True 127"),
}


@pytest.mark.skipif(cpu.architecture() != "x86_64", reason="needs x86-64")
def test_a_pretended_cpu_decides_what_libraries_use_and_what_ngt_decides() -> None:
    """oneDNN names the instructions that it uses."""
    names = [os.environ[VARIABLE]] if VARIABLE in os.environ else possible()
    for name in names:
        environ = {**os.environ, **CPUS[name], "ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environ,
            cwd=ROOT_FOLDER,
            capture_output=True,
            text=True,
            check=True,
        )
        lines = done.stdout.splitlines()
        of_onednn, of_torch, decided = WORDS[name]
        isa = next(line for line in lines if "cpu,isa:" in line).partition("isa:")[2]
        assert of_onednn in isa
        assert lines[-2:] == [of_torch, decided]


def test_this_run_sees_the_cpu_that_it_pretends() -> None:
    name = os.environ.get(VARIABLE)
    if name is None:
        assert cpu.instruction_sets() <= {*torch.cpu.get_capabilities()}
        return
    has, lacks = MARKS[name]
    assert has in cpu.instruction_sets(), f"this CPU cannot pretend {name}"
    assert lacks not in cpu.instruction_sets()


def test_no_other_file_asks_torch_or_the_system_about_the_cpu() -> None:
    """Else it would not see a CPU that is pretended."""
    asks = ("cpu.get_capabilities", "cpu._is_", "backends.cpu", "/proc/cpuinfo", "_is_mkldnn_")
    files = [*(ROOT_FOLDER / "ngtcli").rglob("*.py"), *(ROOT_FOLDER / "tests").rglob("*.py")]
    allowed = {Path(cpu.__file__), Path(__file__)}
    found = [
        f"{file.relative_to(ROOT_FOLDER)}: {words}"
        for file in files
        if file not in allowed
        for words in asks
        if words in file.read_text(encoding="utf-8")
    ]
    assert not found
