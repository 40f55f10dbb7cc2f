// x / rms(x) * weight, each row summed in the same order however many there are.

#include <cmath>
#include <cstdint>

#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

void normalise(const float* x, const float* weight, int64_t size, float eps, float* y) {
  simd::Vec squares = simd::zero();
  int64_t i = 0;
  for (; i + simd::kLanes <= size; i += simd::kLanes) {
    const simd::Vec lanes = simd::load(x + i);
    squares = simd::fma(lanes, lanes, squares);
  }
  float total = simd::sum(squares);
  for (; i < size; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / float(size) + eps);
  for (i = 0; i < size; ++i) y[i] = x[i] * scale * weight[i];
}

ffi::Error rms_norm(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> weight, float eps,
                    ffi::ResultBuffer<ffi::F32> y) {
  const int64_t size = weight.element_count();
  const int64_t rows = size ? int64_t(x.element_count()) / size : 0;
  for (int64_t row = 0; row < rows; ++row)
    normalise(x.typed_data() + row * size, weight.typed_data(), size, eps,
              y->typed_data() + row * size);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(rms_norm_f32, rms_norm,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("eps")
                                  .Ret<ffi::Buffer<ffi::F32>>());
