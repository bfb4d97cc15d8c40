// Devices that pretend: "cuda" and "mps" over the CPU's memory.
//
// Each operation under their dispatch keys is the CPU's kernel on CPU tensors over the same memory.
// What comes of it lies in memory of the device, as a view where the kernel gave one. New memory
// is full of ones, which are NaN as floats. Nothing here is quick, or goes on beside the host.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

using c10::DeviceType;
using c10::DispatchKey;
using torch::jit::Stack;

std::atomic<int64_t> limit{INT64_MAX}, live{0};
constexpr size_t kHead = 64;  // bytes before each block, which hold its size

void give_back(void* memory) {
  if (memory == nullptr) return;
  char* block = static_cast<char*>(memory) - kHead;
  live -= *reinterpret_cast<int64_t*>(block);
  std::free(block);
}

template <DeviceType kType>
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    TORCH_CHECK_WITH(OutOfMemoryError, live + bytes <= limit, "CUDA out of memory: ", size);
    void* memory = nullptr;
    if (size > 0) {
      char* block = static_cast<char*>(std::aligned_alloc(kHead, (size + 2 * kHead) & ~(kHead - 1)));
      *reinterpret_cast<int64_t*>(block) = bytes;
      memory = block + kHead;
      std::memset(memory, 0xff, size);
      live += bytes;
    }
    return {memory, memory, &give_back, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

template <DeviceType kType>
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::Device own() const { return {kType, 0}; }
  DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return own(); }
  c10::Device getDevice() const override { return own(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, own()); }
  c10::Stream getDefaultStream(c10::Device) const override { return getStream(own()); }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(own()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

Memory<DeviceType::CUDA> cuda_memory;
Memory<DeviceType::MPS> mps_memory;
REGISTER_ALLOCATOR(DeviceType::CUDA, &cuda_memory);
namespace mps {  // the macro names what it makes alike each time
REGISTER_ALLOCATOR(DeviceType::MPS, &mps_memory);
}
using CudaGuard = Guard<DeviceType::CUDA>;
using MpsGuard = Guard<DeviceType::MPS>;
C10_REGISTER_GUARD_IMPL(CUDA, CudaGuard);
C10_REGISTER_GUARD_IMPL(MPS, MpsGuard);

bool pretends(const c10::Device& device) { return device.is_cuda() || device.is_mps(); }

// A tensor of these sizes over the memory of another one, by its own offset.
at::Tensor over(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return made;
}

at::Tensor on_cpu(const at::Tensor& given) {
  if (!given.defined() || !pretends(given.device())) return given;
  auto* owner = new c10::Storage(given.storage());  // what is made here keeps the memory alive
  auto release = [](void* held) { delete static_cast<c10::Storage*>(held); };
  c10::DataPtr memory(owner->mutable_data(), owner, release, c10::Device(DeviceType::CPU));
  c10::Storage own({}, owner->nbytes(), std::move(memory), nullptr, false);
  return over(std::move(own), c10::DispatchKeySet(DispatchKey::CPU), given);
}

at::Tensor allocated(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype,
                     DeviceType type) {
  const bool mps = type == DeviceType::MPS;
  TORCH_CHECK_TYPE(!mps || dtype != at::kDouble, "Cannot convert a MPS Tensor to float64 dtype");
  c10::Allocator* memory = &cuda_memory;
  if (mps) memory = &mps_memory;
  const c10::DispatchKeySet keys(mps ? DispatchKey::MPS : DispatchKey::CUDA);
  return at::detail::empty_strided_generic(sizes, strides, memory, keys, dtype);
}

// What a kernel needs of a call: the tensors given, and those that it saw in their place.
struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> seen;
  DeviceType type = DeviceType::CPU;  // where its results lie

  at::Tensor lend(const at::Tensor& given, bool written) {
    if (!given.defined() || !pretends(given.device())) return given;
    type = given.device().type();
    // A result that is to be made has no size yet: it cannot get one in borrowed memory.
    const bool grows = written && given.dim() == 1 && given.numel() == 0;
    auto lent = grows ? at::empty({0}, given.options().device(at::kCPU)) : on_cpu(given);
    seen.emplace_back(given, lent);
    return lent;
  }

  at::Tensor take(const at::Tensor& made) {
    if (!made.defined() || type == DeviceType::CPU || !made.device().is_cpu()) return made;
    for (auto& [given, lent] : seen) {
      if (lent.unsafeGetTensorImpl() == made.unsafeGetTensorImpl()) {
        if (given.numel() == 0 && made.numel() > 0) {  // it has grown
          given.resize_(made.sizes());
          on_cpu(given).copy_(made);
        }
        return given;
      }
    }
    for (auto& [given, lent] : seen) {
      if (made.numel() > 0 && made.storage().is_alias_of(lent.storage()))
        return over(given.storage(), given.key_set(), made);
    }
    auto found = allocated(made.sizes(), made.strides(), made.scalar_type(), type);
    on_cpu(found).copy_(made);
    return found;
  }
};

void compute(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  Call call;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& value = (*stack)[first + i];
    const auto* alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      value = call.lend(value.toTensor(), written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (at::Tensor one : value.toTensorList()) lent.push_back(call.lend(one, written));
      value = lent;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> lent;
      for (std::optional<at::Tensor> one : value.toOptionalTensorList())
        lent.push_back(one ? std::optional<at::Tensor>(call.lend(*one, false)) : std::nullopt);
      value = lent;
    } else if (value.isDevice() && pretends(value.toDevice())) {
      call.type = value.toDevice().type();
      value = c10::Device(at::kCPU);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  for (size_t at = stack->size() - op.schema().returns().size(); at < stack->size(); at++) {
    auto& value = (*stack)[at];
    if (value.isTensor()) {
      value = call.take(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> taken;
      for (at::Tensor one : value.toTensorList()) taken.push_back(call.take(one));
      value = taken;
    }
  }
}

template <DeviceType kType>
at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return allocated(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                   c10::dtype_or_default(dtype), kType);
}

template <DeviceType kType>
at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat>) {
  const auto known = C10_AS_INTARRAYREF_SLOW(sizes);
  return allocated(known, c10::TensorType::contiguousStridesOf(known), c10::dtype_or_default(dtype),
                   kType);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(sizes), format);
}

at::Tensor& set(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                c10::SymIntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), offset.expect_int());
  return self;
}

template <DeviceType kType>
void add_kernels(torch::Library& library) {
  library.impl("empty.memory_format", empty<kType>);
  library.impl("empty_strided", empty_strided<kType>);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set);
  // These have kernels for all devices, which would ask for parts that these devices lack.
  for (const char* name : {"copy_", "scaled_dot_product_attention"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}
TORCH_LIBRARY_IMPL(_, MPS, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) { add_kernels<DeviceType::CUDA>(library); }
TORCH_LIBRARY_IMPL(aten, MPS, library) { add_kernels<DeviceType::MPS>(library); }

TORCH_LIBRARY(pretended, library) {
  library.def("cpu(Tensor given) -> Tensor", on_cpu);
  library.def("live() -> int", [] { return live.load(); });
  library.def("limit(int bytes) -> ()", [](int64_t bytes) { limit = bytes; });
}
