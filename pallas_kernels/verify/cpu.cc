// The best of a row of scores, and the logarithm of its exponentials' sum.
//
// A row is cut into parts of a fixed size, whose results are merged in order: threads
// and other rows change no bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr int64_t kPart = 8192;  // scores in a part
constexpr float kNone = -std::numeric_limits<float>::infinity();

// The greatest of x[0, count); NaN if one is.
float top_of(const float* x, int64_t count) {
  simd::Vec greatest = simd::all(kNone), strange = simd::zero();
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    const simd::Vec lanes = simd::load(x + i);
    greatest = simd::max(greatest, lanes);
    // 0 for any number but an infinite one: NaN shows up in the sum.
    strange = simd::add(strange, simd::mul(lanes, simd::zero()));
  }
  float top = simd::greatest(greatest);
  bool look = !(simd::sum(strange) == 0);
  for (; i < count; ++i) {
    top = std::max(top, x[i]);
    look = look || x[i] != x[i];
  }
  if (look)
    for (i = 0; i < count; ++i)
      if (x[i] != x[i]) return x[i];
  return top;
}

// Sum of exp(x - base); base is at least as great as every x.
float exponentials(const float* x, int64_t count, float base) {
  alignas(64) float part[256];
  simd::Vec sum = simd::zero();
  for (int64_t from = 0; from < count; from += 256) {
    const int64_t some = std::min<int64_t>(256, count - from);
    for (int64_t i = 0; i < some; ++i) part[i] = simd::exp_of(x[from + i] - base);
    for (int64_t i = 0; i < some; ++i)
      part[i] = x[from + i] == kNone ? 0.0f : part[i];
    std::fill(part + some, part + (some + simd::kLanes - 1) / simd::kLanes * simd::kLanes,
              0.0f);
    for (int64_t i = 0; i < some; i += simd::kLanes)
      sum = simd::add(sum, simd::load(part + i));
  }
  return simd::sum(sum);
}

// Calls f(row, first, count, slot) for every part of every row.
template <class F>
void each_part(int64_t rows, int64_t size, const F& f) {
  const int64_t parts = (size + kPart - 1) / kPart;
  native::Pool::get().run(uint32_t(rows * parts), [&](int64_t i) {
    const int64_t first = i % parts * kPart;
    f(i / parts, first, std::min(kPart, size - first), i);
  });
}

ffi::Error argmax(ffi::Buffer<ffi::F32> scores, ffi::ResultBuffer<ffi::S32> best) {
  const int64_t rows = scores.dimensions()[0], size = scores.dimensions()[1];
  const int64_t parts = (size + kPart - 1) / kPart;
  thread_local std::vector<float> kept;
  kept.resize(rows * parts);
  float* const tops = kept.data();
  const float* x = scores.typed_data();
  each_part(rows, size, [=](int64_t row, int64_t first, int64_t count, int64_t slot) {
    tops[slot] = top_of(x + row * size + first, count);
  });
  for (int64_t row = 0; row < rows; ++row) {
    int64_t part = 0;
    for (int64_t p = 0; p < parts && tops[row * parts + part] == tops[row * parts + part];
         ++p) {
      const float here = tops[row * parts + p];
      if (here != here || here > tops[row * parts + part]) part = p;
    }
    const float top = tops[row * parts + part];
    const float* from = x + row * size;
    int64_t at = part * kPart;
    while (at + 1 < size && !(from[at] == top || (top != top && from[at] != from[at])))
      ++at;
    best->typed_data()[row] = int32_t(at);
  }
  return ffi::Error::Success();
}

ffi::Error log_sum_exp(ffi::Buffer<ffi::F32> logits, ffi::ResultBuffer<ffi::F32> out) {
  const int64_t rows = logits.dimensions()[0], size = logits.dimensions()[1];
  const int64_t parts = (size + kPart - 1) / kPart;
  thread_local std::vector<float> kept;
  kept.resize(2 * rows * parts);
  float *const tops = kept.data(), *const sums = tops + rows * parts;
  const float* x = logits.typed_data();
  each_part(rows, size, [=](int64_t row, int64_t first, int64_t count, int64_t slot) {
    const float* from = x + row * size + first;
    const float top = top_of(from, count);
    tops[slot] = top;
    sums[slot] = top == kNone ? 0.0f : exponentials(from, count, top);
  });
  for (int64_t row = 0; row < rows; ++row) {
    const float *const top = tops + row * parts, *const sum = sums + row * parts;
    float all = kNone, total = 0;
    for (int64_t p = 0; p < parts; ++p) all = top[p] == top[p] ? std::max(all, top[p]) : NAN;
    for (int64_t p = 0; p < parts; ++p)
      if (top[p] != kNone) total += sum[p] * std::exp(top[p] - all);
    out->typed_data()[row] = std::isinf(all) ? all : all + std::log(total);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(argmax_f32, argmax,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(log_sum_exp_f32, log_sum_exp,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
