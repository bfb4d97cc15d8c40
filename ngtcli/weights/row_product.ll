; The product of one row and 8-bit weights: oneDNN's bits, in less time (see row_product.py).
;
; Weights lie as oneDNN orders them: 64 outputs together, of each four inputs that follow on one
; another; behind all of them the sum of each output's weights, negative. Of %work: the output that
; is next (a counter of all threads), how many outputs and inputs; the row (float32), its integers
; (uint8), the weights (int8), the scale and the results of each output (float32); the threads and
; what runs a function in them (GOMP_parallel); the row's largest magnitude, which @product finds.
%work = type { i64, i64, i64, ptr, ptr, ptr, ptr, ptr, i64, ptr, float }

; Rounds the row to integers, 128 for zero, then has each thread multiply.
define void @product(ptr %given) {
  %inputs.in = getelementptr %work, ptr %given, i32 0, i32 2
  %inputs = load i64, ptr %inputs.in
  %row.in = getelementptr %work, ptr %given, i32 0, i32 3
  %row = load ptr, ptr %row.in
  %whole.in = getelementptr %work, ptr %given, i32 0, i32 4
  %whole = load ptr, ptr %whole.in
  %threads.in = getelementptr %work, ptr %given, i32 0, i32 8
  %threads = load i64, ptr %threads.in
  %parallel.in = getelementptr %work, ptr %given, i32 0, i32 9
  %parallel = load ptr, ptr %parallel.in
  %most.in = getelementptr %work, ptr %given, i32 0, i32 10
  br label %look
look:
  %i = phi i64 [0, %0], [%i2, %look]
  %high = phi <64 x float> [zeroinitializer, %0], [%high2, %look]
  %x.at = getelementptr float, ptr %row, i64 %i
  %x = load <64 x float>, ptr %x.at, align 4
  %size = call <64 x float> @llvm.fabs(<64 x float> %x)
  %high2 = call <64 x float> @llvm.maximum(<64 x float> %high, <64 x float> %size)
  %i2 = add i64 %i, 64
  %is.all = icmp eq i64 %i2, %inputs
  br i1 %is.all, label %found, label %look
found:
  %highest = call float @llvm.vector.reduce.fmaximum(<64 x float> %high2)
  %above = call float @llvm.maximum(float %highest, float 0x39B4484C00000000) ; 1e-30, TINY of onednn.py
  store float %above, ptr %most.in
  %turned = fdiv float 1.0, %above
  %step = fmul float %turned, 127.0
  %step1 = insertelement <64 x float> poison, float %step, i32 0
  %steps = shufflevector <64 x float> %step1, <64 x float> poison, <64 x i32> zeroinitializer
  br label %round
round:
  %k = phi i64 [0, %found], [%k2, %round]
  %y.at = getelementptr float, ptr %row, i64 %k
  %y = load <64 x float>, ptr %y.at, align 4
  %scaled = fmul <64 x float> %y, %steps
  %rounded = call <64 x float> @llvm.roundeven(<64 x float> %scaled)
  %signed = call <64 x i32> @llvm.fptosi.sat(<64 x float> %rounded)
  %unsigned = add <64 x i32> %signed, splat (i32 128)
  %bytes = trunc <64 x i32> %unsigned to <64 x i8>
  %to = getelementptr i8, ptr %whole, i64 %k
  store <64 x i8> %bytes, ptr %to, align 1
  %k2 = add i64 %k, 64
  %is.done = icmp eq i64 %k2, %inputs
  br i1 %is.done, label %multiply, label %round
multiply:
  %count = trunc i64 %threads to i32
  call void %parallel(ptr @part, ptr %given, i32 %count, i32 0)
  ret void
}

; Takes the next 64 outputs, as long as there are any.
define void @part(ptr %given) {
  %outputs.in = getelementptr %work, ptr %given, i32 0, i32 1
  %outputs = load i64, ptr %outputs.in
  %inputs.in = getelementptr %work, ptr %given, i32 0, i32 2
  %inputs = load i64, ptr %inputs.in
  %whole.in = getelementptr %work, ptr %given, i32 0, i32 4
  %whole = load ptr, ptr %whole.in
  %weights.in = getelementptr %work, ptr %given, i32 0, i32 5
  %weights = load ptr, ptr %weights.in
  %scale.in = getelementptr %work, ptr %given, i32 0, i32 6
  %scale = load ptr, ptr %scale.in
  %out.in = getelementptr %work, ptr %given, i32 0, i32 7
  %out = load ptr, ptr %out.in
  %most.in = getelementptr %work, ptr %given, i32 0, i32 10
  %found = load float, ptr %most.in
  %most1 = insertelement <64 x float> poison, float %found, i32 0
  %mosts = shufflevector <64 x float> %most1, <64 x float> poison, <64 x i32> zeroinitializer
  br label %take
take:
  %first = atomicrmw add ptr %given, i64 64 monotonic
  %is.left = icmp slt i64 %first, %outputs
  br i1 %is.left, label %begin, label %end
begin:
  %before = mul i64 %first, %inputs
  %from = getelementptr i8, ptr %weights, i64 %before
  br label %add
add:
  %i = phi i64 [0, %begin], [%i2, %add]
  %a0 = phi <16 x i32> [zeroinitializer, %begin], [%b0, %add]
  %a1 = phi <16 x i32> [zeroinitializer, %begin], [%b1, %add]
  %a2 = phi <16 x i32> [zeroinitializer, %begin], [%b2, %add]
  %a3 = phi <16 x i32> [zeroinitializer, %begin], [%b3, %add]
  %x.at = getelementptr i8, ptr %whole, i64 %i
  %x1 = load i32, ptr %x.at, align 4
  %x2 = insertelement <16 x i32> poison, i32 %x1, i32 0
  %x3 = shufflevector <16 x i32> %x2, <16 x i32> poison, <16 x i32> zeroinitializer
  %x = bitcast <16 x i32> %x3 to <64 x i8>
  %far = mul i64 %i, 64
  %at = getelementptr i8, ptr %from, i64 %far
  %w.at0 = getelementptr <64 x i8>, ptr %at, i64 0
  %w.at1 = getelementptr <64 x i8>, ptr %at, i64 1
  %w.at2 = getelementptr <64 x i8>, ptr %at, i64 2
  %w.at3 = getelementptr <64 x i8>, ptr %at, i64 3
  ; What is 4,096 bytes ahead is fetched: swept.
  %ahead0 = getelementptr i8, ptr %w.at0, i64 4096
  %ahead1 = getelementptr i8, ptr %w.at1, i64 4096
  %ahead2 = getelementptr i8, ptr %w.at2, i64 4096
  %ahead3 = getelementptr i8, ptr %w.at3, i64 4096
  call void @llvm.prefetch(ptr %ahead0, i32 0, i32 3, i32 1)
  call void @llvm.prefetch(ptr %ahead1, i32 0, i32 3, i32 1)
  call void @llvm.prefetch(ptr %ahead2, i32 0, i32 3, i32 1)
  call void @llvm.prefetch(ptr %ahead3, i32 0, i32 3, i32 1)
  %w0 = load <64 x i8>, ptr %w.at0, align 1
  %w1 = load <64 x i8>, ptr %w.at1, align 1
  %w2 = load <64 x i8>, ptr %w.at2, align 1
  %w3 = load <64 x i8>, ptr %w.at3, align 1
  %b0 = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a0, <64 x i8> %x, <64 x i8> %w0)
  %b1 = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a1, <64 x i8> %x, <64 x i8> %w1)
  %b2 = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a2, <64 x i8> %x, <64 x i8> %w2)
  %b3 = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a3, <64 x i8> %x, <64 x i8> %w3)
  %i2 = add i64 %i, 4
  %is.all = icmp eq i64 %i2, %inputs
  br i1 %is.all, label %write, label %add
write: ; The sums of inputs with 128 less: their bytes were unsigned.
  %to = getelementptr float, ptr %out, i64 %first
  %to0 = getelementptr <16 x i32>, ptr %to, i64 0
  %to1 = getelementptr <16 x i32>, ptr %to, i64 1
  %to2 = getelementptr <16 x i32>, ptr %to, i64 2
  %to3 = getelementptr <16 x i32>, ptr %to, i64 3
  store <16 x i32> %b0, ptr %to0, align 4
  store <16 x i32> %b1, ptr %to1, align 4
  store <16 x i32> %b2, ptr %to2, align 4
  store <16 x i32> %b3, ptr %to3, align 4
  %b = load <64 x i32>, ptr %to, align 4
  %all = mul i64 %inputs, %outputs
  %behind = getelementptr i8, ptr %weights, i64 %all
  %sum.at = getelementptr i32, ptr %behind, i64 %first
  %sum = load <64 x i32>, ptr %sum.at, align 1
  %sum128 = shl <64 x i32> %sum, splat (i32 7)
  %c = add <64 x i32> %b, %sum128
  %d = sitofp <64 x i32> %c to <64 x float>
  %scale.at = getelementptr float, ptr %scale, i64 %first
  %step = load <64 x float>, ptr %scale.at, align 4
  %e = fmul <64 x float> %d, %step
  %f = fmul <64 x float> %e, %mosts
  store <64 x float> %f, ptr %to, align 4
  br label %take
end:
  ret void
}
