// The k-th largest value of a row, and the smallest weight of its nucleus.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kStrands = 64;  // numbers that are looked at side by side

// Calls f(row) for every row, in parallel.
template <class F>
void each_row(int64_t rows, const F& f) {
  native::Pool::get().run(uint32_t(rows), [&](int64_t row) { f(row); });
}

// Floats as whole numbers of the same order, and back: below -inf NaNs with a sign, above
// inf those without. Comparing NaNs themselves would be no order to select by.
inline int32_t turned(int32_t bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; }

float top_k_of(const float* x, int64_t size, int64_t count) {
  if (count <= 0 || size == 0) return kNone;
  thread_local std::vector<int32_t> kept;
  kept.resize(size);
  std::memcpy(kept.data(), x, size * sizeof(float));
  for (int32_t& bits : kept) bits = turned(bits);
  const auto at = kept.begin() + (std::min(count, size) - 1);
  std::nth_element(kept.begin(), at, kept.end(), std::greater<int32_t>());
  const int32_t bits = turned(*at);
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

double sum_of(const float* x, int64_t size) {
  double strand[kStrands] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kStrands <= size; i += kStrands)
    for (int64_t s = 0; s < kStrands; ++s) strand[s] += x[i + s];
  for (double part : strand) sum += part;
  for (; i < size; ++i) sum += x[i];
  return sum;
}

float greatest_of(const float* x, int64_t size) {
  float strand[kStrands], found = x[0];
  std::fill(strand, strand + kStrands, x[0]);
  int64_t i = 0;
  for (; i + kStrands <= size; i += kStrands)
    for (int64_t s = 0; s < kStrands; ++s)
      strand[s] = x[i + s] > strand[s] ? x[i + s] : strand[s];
  for (float one : strand) found = std::max(found, one);
  for (; i < size; ++i) found = std::max(found, x[i]);
  return found;
}

// The smallest weight x in [first, last) before which no more than `allowed` lies: its
// equals and smaller ones aside. Those that can't be it are put away part by part, as in
// a selection of the k-th largest. False where even the smallest leaves room.
bool select_by_mass(float* first, float* last, double allowed, float* found) {
  double larger = 0;  // mass of what lies before `first`
  while (first < last) {
    const float pivot = std::max(std::min(*first, last[-1]),
                                 std::min(std::max(*first, last[-1]),
                                          first[(last - first) / 2]));
    float* const equal = std::partition(first, last, [=](float x) { return x > pivot; });
    float* const less = std::partition(equal, last, [=](float x) { return x == pivot; });
    const double greater = larger + sum_of(first, equal - first);
    if (greater > allowed) {
      last = equal;
      continue;
    }
    larger = greater + double(pivot) * double(less - equal);
    if (larger > allowed) {
      *found = pivot;
      return true;
    }
    first = less;
  }
  return false;
}

// Looks among the weights at least as great as some limit; if these are not enough, the
// limit is lowered.
float top_p_of(const float* x, int64_t size, float share) {
  if (!(share < 1) || size == 0) return 0;
  const double allowed = double(share) * sum_of(x, size);
  const float greatest = greatest_of(x, size);
  if (greatest == std::numeric_limits<float>::infinity()) return greatest;
  thread_local std::vector<float> kept;
  for (float limit = greatest / 256;; limit /= 256) {
    if (!(limit > std::numeric_limits<float>::min())) limit = 0;
    kept.clear();
    for (int64_t i = 0; i < size; ++i)
      if (x[i] >= limit) kept.push_back(x[i]);
    float found;
    if (select_by_mass(kept.data(), kept.data() + kept.size(), allowed, &found))
      return found;
    // All of them are kept, or they are not numbers.
    if (limit == 0) return kept.empty() ? greatest : *std::min_element(kept.begin(), kept.end());
    if (kept.empty()) return greatest;
  }
}

ffi::Error top_k(ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::S32> count,
                 ffi::ResultBuffer<ffi::F32> out) {
  const int64_t size = values.dimensions()[1];
  const float* x = values.typed_data();
  const int32_t* wanted = count.typed_data();
  float* to = out->typed_data();
  each_row(values.dimensions()[0], [=](int64_t row) {
    to[row] = top_k_of(x + row * size, size, wanted[row]);
  });
  return ffi::Error::Success();
}

ffi::Error top_p(ffi::Buffer<ffi::F32> weights, ffi::Buffer<ffi::F32> share,
                 ffi::ResultBuffer<ffi::F32> out) {
  const int64_t size = weights.dimensions()[1];
  const float* x = weights.typed_data();
  const float* wanted = share.typed_data();
  float* to = out->typed_data();
  each_row(weights.dimensions()[0], [=](int64_t row) {
    to[row] = top_p_of(x + row * size, size, wanted[row]);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(top_k_f32, top_k,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(top_p_f32, top_p,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
