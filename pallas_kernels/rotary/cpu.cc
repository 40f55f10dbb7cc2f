// Splits fused projections into rotated queries and keys, and values, in one pass.

#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

void rotate(const float* x, const float* cos, const float* sin, int64_t half,
            float* out) {
  for (int64_t i = 0; i < half; ++i) {
    out[i] = x[i] * cos[i] - x[half + i] * sin[i];
    out[half + i] = x[half + i] * cos[i] + x[i] * sin[i];
  }
}

ffi::Error split_heads(ffi::Buffer<ffi::F32> qkv, ffi::Buffer<ffi::F32> cos,
                       ffi::Buffer<ffi::F32> sin, ffi::ResultBuffer<ffi::F32> q,
                       ffi::ResultBuffer<ffi::F32> k, ffi::ResultBuffer<ffi::F32> v) {
  const auto shape = qkv.dimensions();
  const int64_t rows = shape[0], nodes = shape[1], groups = shape[2];
  const int64_t heads = shape[3] - 2, size = shape[4], half = size / 2;
  const float* from = qkv.typed_data();
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t n = 0; n < nodes; ++n) {
      const int64_t position = (b * nodes + n) * half;
      const float *c = cos.typed_data() + position, *s = sin.typed_data() + position;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t group = b * groups + g;
        for (int64_t r = 0; r < heads; ++r, from += size)
          rotate(from, c, s, half,
                 q->typed_data() + ((group * heads + r) * nodes + n) * size);
        const int64_t at = (group * nodes + n) * size;
        rotate(from, c, s, half, k->typed_data() + at);
        std::memcpy(v->typed_data() + at, from + size, size * sizeof(float));
        from += 2 * size;
      }
    }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(split_heads_f32, split_heads,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
