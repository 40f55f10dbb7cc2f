// y = x W for few rows x, with W kept in the blocks that it was stored in.
//
// W lies row after row of its transpose: one output's weights are contiguous. A task
// takes kTile outputs, decodes their weights to floats once (into the first-level
// cache) and multiplies them with every row of x. Every product of an output with a row
// is summed in the same order, however many rows there are: a row's result does
// not depend on its mates.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "decoders.h"
#include "parallel.h"
#include "simd.h"
#include "tiles.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr int kLine = 64;  // bytes that memory gives at once
constexpr int kTile = 8;  // outputs decoded at once
constexpr int kTasks = 8;  // for each thread, so that a late one costs little

inline float* aligned(float* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  return reinterpret_cast<float*>((at + kLine - 1) / kLine * kLine);
}

template <int kOut>
inline void all_rows(const float* const* w, const float* x, int64_t rows,
                     int64_t inputs, float* y, int64_t outputs) {
  int64_t n = 0;
  if constexpr (kOut <= 4)
    for (; n + 4 <= rows; n += 4)
      simd::products<kOut, 4>(w, x + n * inputs, inputs, y + n * outputs, outputs);
  for (; n < rows; ++n)
    simd::products<kOut, 1>(w, x + n * inputs, inputs, y + n * outputs, outputs);
}

// Outputs [begin, end) for all rows.
template <class Format>
void outputs_of(const uint8_t* weights, const float* x, int64_t rows, int64_t inputs,
                int64_t outputs, int64_t begin, int64_t end, float* y) {
  const int64_t blocks = inputs / Format::kWeights;
  const int64_t stride = blocks * Format::kBytes;
  thread_local std::vector<float> scratch;
  scratch.resize(kTile * inputs + kLine);
  float* const decoded = aligned(scratch.data());
  for (int64_t o = begin; o < end; o += kTile) {
    const int64_t count = std::min<int64_t>(kTile, end - o);
    const float* w[kTile];
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* stored = weights + (o + i) * stride;
      if constexpr (std::is_same_v<Format, decoders::F32>) {
        w[i] = reinterpret_cast<const float*>(stored);
        if (rows >= 4)  // Else memory is all that there is to wait for.
          for (int64_t at = 0; at < stride; at += kLine)
            __builtin_prefetch(stored + kTile * stride + at);
      } else {
        float* to = decoded + i * inputs;
        Format::decode(stored, to, blocks);
        w[i] = to;
      }
    }
    if (count == kTile && rows < 4) {
      all_rows<kTile>(w, x, rows, inputs, y + o, outputs);
      continue;
    }
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
      all_rows<4>(w + i, x, rows, inputs, y + o + i, outputs);
    for (; i < count; ++i) all_rows<1>(w + i, x, rows, inputs, y + o + i, outputs);
  }
}

template <class Format>
ffi::Error linear(ffi::Buffer<ffi::F32> x, ffi::AnyBuffer weights,
                  ffi::ResultBuffer<ffi::F32> y) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1];
  const int64_t outputs = y->dimensions()[1];
  native::Pool& pool = native::Pool::get();
  const int64_t tiles = (outputs + kTile - 1) / kTile;
  const int64_t step = std::max<int64_t>(1, tiles / (pool.size() * kTasks)) * kTile;
  const auto* stored = reinterpret_cast<const uint8_t*>(weights.untyped_data());
  const float* from = x.typed_data();
  float* to = y->typed_data();
  pool.run((outputs + step - 1) / step, [=](int64_t i) {
    outputs_of<Format>(stored, from, rows, inputs, outputs, i * step,
                       std::min(outputs, (i + 1) * step), to);
  });
  return ffi::Error::Success();
}

#if SPECJAX_TILES

// The same with 16 outputs' blocks beside each other: see tiles.h.
template <class Format>
ffi::Error linear_x16(ffi::Buffer<ffi::F32> x, ffi::AnyBuffer weights,
                      ffi::ResultBuffer<ffi::F32> y) {
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1];
  const int64_t outputs = y->dimensions()[1];
  native::Pool& pool = native::Pool::get();
  const auto split =
      tiles::split_rows<Format::kZero>(x.typed_data(), rows, inputs / tiles::kBlock);
  const int64_t each = outputs / tiles::kOut / (pool.size() * kTasks);
  const int64_t step = std::max<int64_t>(1, each) * tiles::kOut;
  const auto* stored = reinterpret_cast<const uint8_t*>(weights.untyped_data());
  float* to = y->typed_data();
  pool.run((outputs + step - 1) / step, [=](int64_t i) {
    tiles::outputs<Format>(stored, split, to, outputs, i * step,
                           std::min(outputs, (i + 1) * step));
  });
  return ffi::Error::Success();
}

#endif

}  // namespace

// How many outputs' blocks should lie beside each other for the fastest products here.
extern "C" int linear_lanes() {
#if SPECJAX_TILES
  if (tiles::available()) return tiles::kOut;
#endif
  return 1;
}

#define SPECJAX_LINEAR(name, function)                               \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function,                      \
                                ffi::Ffi::Bind()                     \
                                    .Arg<ffi::Buffer<ffi::F32>>()    \
                                    .Arg<ffi::AnyBuffer>()           \
                                    .Ret<ffi::Buffer<ffi::F32>>())

SPECJAX_LINEAR(linear_f32, linear<decoders::F32>);
SPECJAX_LINEAR(linear_bf16, linear<decoders::BF16>);
SPECJAX_LINEAR(linear_f16, linear<decoders::F16>);
SPECJAX_LINEAR(linear_q8_0, linear<decoders::Q8_0>);
SPECJAX_LINEAR(linear_q4_0, linear<decoders::Q4_0>);
SPECJAX_LINEAR(linear_q4_1, linear<decoders::Q4_1>);
SPECJAX_LINEAR(linear_q4_k, linear<decoders::Q4_K>);
SPECJAX_LINEAR(linear_q6_k, linear<decoders::Q6_K>);

#if SPECJAX_TILES
SPECJAX_LINEAR(linear_q8_0_x16, linear_x16<tiles::Q8_0>);
SPECJAX_LINEAR(linear_q4_0_x16, linear_x16<tiles::Q4_0>);
SPECJAX_LINEAR(linear_q4_1_x16, linear_x16<tiles::Q4_1>);
#endif
