"""The product of one row and 8-bit weights on AVX-512 VNNI: oneDNN's bits, in less time.

Its source, in LLVM's language, stands in row_product.ll; llvmlite compiles it when it is first used
(0.1 s). It reads weights as oneDNN orders them. Threads, as many as torch has and of its own
library, take the next 64 outputs by a counter.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

TOGETHER = 64  # outputs and inputs are multiples of it
_SHARED = 1 << 18  # weights from which on threads share a product; guess


@cache
def _compiled() -> tuple[object, Callable[[int], None], int]:
    """What holds the code, `product`, and the address of what runs a function in threads."""
    from llvmlite import binding as llvm

    parallel = ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value
    text = Path(__file__).with_suffix(".ll").read_text("utf-8")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), host)
    address = engine.get_function_address("product")
    return engine, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), parallel or 0


def row_product(row: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """float32 (1, outputs) of a row, float32 (1, inputs), in integers from 1 to 255, 128 for zero.

    `weights` are int8 as oneDNN orders them, `scale`, float32 (outputs,). Raises AttributeError or
    RuntimeError where it cannot be compiled, or torch's threads not be had.
    """
    (_, call, parallel), inputs, outputs = _compiled(), row.shape[1], len(scale)
    whole, out = torch.empty(inputs, dtype=torch.uint8), torch.empty(1, outputs)
    tensors = [one.data_ptr() for one in (row, whole, weights, scale, out)]
    threads = torch.get_num_threads() if outputs * inputs >= _SHARED else 1
    given = (ctypes.c_int64 * 11)(0, outputs, inputs, *tensors, threads, parallel, 0)
    call(ctypes.addressof(given))
    return out
