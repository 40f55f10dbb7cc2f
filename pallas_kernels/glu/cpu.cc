// activation(gate) * up, where the activation is gate * sigmoid(some function of it).

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr int64_t kPart = 512;  // numbers that a task takes

inline float sigmoid(float x) {
  const float small = simd::exp_of(-std::fabs(x));  // never overflows
  return (x < 0 ? small : 1.0f) / (1.0f + small);
}

struct Silu {
  static float inner(float x) { return x; }
};

struct GeluTanh {  // (1 + tanh(z)) / 2 is sigmoid(2 z)
  static float inner(float x) {
    constexpr float kTwice = 1.5957691216057308f;  // 2 * sqrt(2 / pi)
    return kTwice * (x + 0.044715f * x * x * x);
  }
};

template <class Activation>
ffi::Error glu(ffi::Buffer<ffi::F32> gate_up, ffi::ResultBuffer<ffi::F32> y) {
  const int64_t size = y->dimensions().back();
  const int64_t rows = size ? int64_t(y->element_count()) / size : 0;
  const int64_t parts = (size + kPart - 1) / kPart;
  const float* from = gate_up.typed_data();
  float* to = y->typed_data();
  native::Pool::get().run(uint32_t(rows * parts), [=](int64_t i) {
    const int64_t row = i / parts, first = i % parts * kPart;
    const float* const gate = from + 2 * row * size + first;
    const float* const up = gate + size;
    float* const out = to + row * size + first;
    const int64_t count = std::min(kPart, size - first);
    for (int64_t k = 0; k < count; ++k)
      out[k] = gate[k] * sigmoid(Activation::inner(gate[k])) * up[k];
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(glu_silu_f32, glu<Silu>,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(glu_gelu_tanh_f32, glu<GeluTanh>,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
