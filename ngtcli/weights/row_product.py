"""The product of one row and 8-bit weights on AVX-512 VNNI: oneDNN's bits, in less time.

It reads weights as oneDNN orders them: 64 outputs lie together, of each four inputs that follow on
one another; behind all of them stand the sums of each output's, negative. It is in LLVM's language,
which llvmlite compiles when it is first used (0.1 s). Threads, as many as torch has and of its own
library, take the next 64 outputs by a counter.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

TOGETHER = 64  # outputs and inputs are multiples of it
_SHARED = 1 << 18  # weights from which on threads share a product; guess
_FIELDS = "next outputs inputs row whole weights scale out threads parallel most".split()
# Lines with $ stand four times, for 16 outputs each. What is 4,096 bytes ahead is fetched: swept.
# 0x39B4484C00000000 is 1e-30, TINY of onednn.py.
_SOURCE = """
define void @product(ptr %given) {
GIVEN
  br label %look
look:
  %i = phi i64 [0, %0], [%i2, %look]
  %high = phi FLOATS [zeroinitializer, %0], [%high2, %look]
  %x.at = getelementptr float, ptr %row.p, i64 %i
  %x = load FLOATS, ptr %x.at, align 4
  %size = call FLOATS @llvm.fabs(FLOATS %x)
  %high2 = call FLOATS @llvm.maximum(FLOATS %high, FLOATS %size)
  %i2 = add i64 %i, 64
  %is.all = icmp eq i64 %i2, %inputs
  br i1 %is.all, label %found, label %look
found:
  %highest = call float @llvm.vector.reduce.fmaximum(FLOATS %high2)
  %above = call float @llvm.maximum(float %highest, float 0x39B4484C00000000)
  store float %above, ptr %most.in
  %turned = fdiv float 1.0, %above
  %step = fmul float %turned, 127.0
  %step1 = insertelement FLOATS poison, float %step, i32 0
  %steps = shufflevector FLOATS %step1, FLOATS poison, <64 x i32> zeroinitializer
  br label %round
round:
  %k = phi i64 [0, %found], [%k2, %round]
  %y.at = getelementptr float, ptr %row.p, i64 %k
  %y = load FLOATS, ptr %y.at, align 4
  %scaled = fmul FLOATS %y, %steps
  %rounded = call FLOATS @llvm.roundeven(FLOATS %scaled)
  %signed = call <64 x i32> @llvm.fptosi.sat(FLOATS %rounded)
  %unsigned = add <64 x i32> %signed, splat (i32 128)
  %bytes = trunc <64 x i32> %unsigned to <64 x i8>
  %to = getelementptr i8, ptr %whole.p, i64 %k
  store <64 x i8> %bytes, ptr %to, align 1
  %k2 = add i64 %k, 64
  %is.done = icmp eq i64 %k2, %inputs
  br i1 %is.done, label %multiply, label %round
multiply:
  %count = trunc i64 %threads to i32
  call void %parallel.p(ptr @part, ptr %given, i32 %count, i32 0)
  ret void
}
define void @part(ptr %given) {
GIVEN
  %found = load float, ptr %most.in
  %most1 = insertelement FLOATS poison, float %found, i32 0
  %mosts = shufflevector FLOATS %most1, FLOATS poison, <64 x i32> zeroinitializer
  br label %take
take:
  %first = atomicrmw add ptr %given, i64 64 monotonic
  %is.left = icmp slt i64 %first, %outputs
  br i1 %is.left, label %begin, label %end
begin:
  %before = mul i64 %first, %inputs
  %from = getelementptr i8, ptr %weights.p, i64 %before
  br label %add
add:
  %i = phi i64 [0, %begin], [%i2, %add]
  %a$ = phi INTS [zeroinitializer, %begin], [%b$, %add]
  %x.at = getelementptr i8, ptr %whole.p, i64 %i
  %x1 = load i32, ptr %x.at, align 4
  %x2 = insertelement INTS poison, i32 %x1, i32 0
  %x3 = shufflevector INTS %x2, INTS poison, INTS zeroinitializer
  %x = bitcast INTS %x3 to <64 x i8>
  %far = mul i64 %i, 64
  %at = getelementptr i8, ptr %from, i64 %far
  %w.at$ = getelementptr <64 x i8>, ptr %at, i64 $
  %ahead$ = getelementptr i8, ptr %w.at$, i64 4096
  call void @llvm.prefetch(ptr %ahead$, i32 0, i32 3, i32 1)
  %w$ = load <64 x i8>, ptr %w.at$, align 1
  %b$ = call INTS @llvm.x86.avx512.vpdpbusd.512(INTS %a$, <64 x i8> %x, <64 x i8> %w$)
  %i2 = add i64 %i, 4
  %is.all = icmp eq i64 %i2, %inputs
  br i1 %is.all, label %write, label %add
write:
  %to = getelementptr float, ptr %out.p, i64 %first
  %to$ = getelementptr INTS, ptr %to, i64 $
  store INTS %b$, ptr %to$, align 4
  %b = load <64 x i32>, ptr %to, align 4
  %all = mul i64 %inputs, %outputs
  %behind = getelementptr i8, ptr %weights.p, i64 %all
  %sum.at = getelementptr i32, ptr %behind, i64 %first
  %sum = load <64 x i32>, ptr %sum.at, align 1
  %sum128 = shl <64 x i32> %sum, splat (i32 7)
  %c = add <64 x i32> %b, %sum128
  %d = sitofp <64 x i32> %c to FLOATS
  %scale.at = getelementptr float, ptr %scale.p, i64 %first
  %step = load FLOATS, ptr %scale.at, align 4
  %e = fmul FLOATS %d, %step
  %f = fmul FLOATS %e, %mosts
  store FLOATS %f, ptr %to, align 4
  br label %take
end:
  ret void
}"""


@cache
def _compiled() -> tuple[object, Callable[[int], None], int]:
    """What holds the code, `product`, and the address of what runs a function in threads."""
    from llvmlite import binding as llvm

    parallel = ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value
    given = ""
    for number, name in enumerate(_FIELDS):
        given += f"%{name}.in = getelementptr i64, ptr %given, i64 {number}\n"
        given += f"%{name} = load i64, ptr %{name}.in\n%{name}.p = inttoptr i64 %{name} to ptr\n"
    lines = (
        _SOURCE.replace("GIVEN", given)
        .replace("INTS", "<16 x i32>")
        .replace("FLOATS", "<64 x float>")
    )
    text = [
        one.replace("$", str(i))
        for one in lines.splitlines()
        for i in range(4 if "$" in one else 1)
    ]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly("\n".join(text)), host)
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
