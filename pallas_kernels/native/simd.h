// One vector of floats, as wide as the machine that this is compiled for has them.
//
// Multiply-adds are written out (and the compiler is told to fuse nothing else), so
// that a result depends on the order written here and on nothing else.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
namespace simd {
constexpr int kLanes = 16;
using Vec = __m512;
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec all(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
}  // namespace simd
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
namespace simd {
constexpr int kLanes = 8;
using Vec = __m256;
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec all(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
}  // namespace simd
#elif defined(__ARM_NEON)
#include <arm_neon.h>
namespace simd {
constexpr int kLanes = 4;
using Vec = float32x4_t;
inline Vec zero() { return vdupq_n_f32(0); }
inline Vec all(float x) { return vdupq_n_f32(x); }
inline Vec load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, Vec v) { vst1q_f32(p, v); }
inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
}  // namespace simd
#else
namespace simd {
constexpr int kLanes = 4;
struct Vec {
  float x[kLanes];
};
inline Vec all(float x) { return {{x, x, x, x}}; }
inline Vec zero() { return all(0); }
inline Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline void store(float* p, Vec v) { std::memcpy(p, v.x, sizeof v.x); }
template <class F>
inline Vec each(Vec a, Vec b, F f) {
  for (int i = 0; i < kLanes; ++i) a.x[i] = f(a.x[i], b.x[i]);
  return a;
}
inline Vec add(Vec a, Vec b) {
  return each(a, b, [](float p, float q) { return p + q; });
}
inline Vec mul(Vec a, Vec b) {
  return each(a, b, [](float p, float q) { return p * q; });
}
inline Vec max(Vec a, Vec b) {
  return each(a, b, [](float p, float q) { return p > q ? p : q; });
}
inline Vec fma(Vec a, Vec b, Vec c) { return add(mul(a, b), c); }
}  // namespace simd
#endif

// Unrolls the loop that follows early enough for its vectors to stay in registers.
#if defined(__clang__)
#define SPECJAX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SPECJAX_UNROLL _Pragma("GCC unroll 16")
#endif

namespace simd {

// The sum of the lanes: the upper half is added to the lower one, down to one lane.
inline float sum(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  float lane[kLanes];
  store(lane, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}

// The greatest lane.
inline float greatest(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#else
  float lane[kLanes];
  store(lane, v);
  float found = lane[0];
  for (float x : lane) found = x > found ? x : found;
  return found;
#endif
}

// out[i] = sum(v[i]) of 16 vectors, each added up in the order of sum().
inline void sums(const Vec (&v)[16], float* out) {
#if defined(__AVX512F__)
  // Vectors are folded in pairs: one shuffle takes the lower halves of both, another
  // the upper ones, and their sum holds both folded. Four times, and every vector is
  // one lane.
  Vec eight[8], four[4], two[2];
  SPECJAX_UNROLL for (int i = 0; i < 8; ++i)
    eight[i] = add(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),
                   _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
  SPECJAX_UNROLL for (int i = 0; i < 4; ++i)
    four[i] = add(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                  _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xdd));
  SPECJAX_UNROLL for (int i = 0; i < 2; ++i)
    two[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(four[i]),
                                                     _mm512_castps_pd(four[i + 2]))),
                 _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(four[i]),
                                                     _mm512_castps_pd(four[i + 2]))));
  const Vec one = add(_mm512_shuffle_ps(two[0], two[1], 0x88),
                      _mm512_shuffle_ps(two[0], two[1], 0xdd));
  // Where each vector's sum has come to lie.
  const __m512i lane =
      _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  store(out, _mm512_permutexvar_ps(lane, one));
#else
  for (int i = 0; i < 16; ++i) out[i] = sum(v[i]);
#endif
}

// y[n * stride + o] = w[o] . x[n] for kOut vectors w and kRows rows x of the same
// length, 16 products at most. Each is summed in the same order whatever kOut and kRows.
template <int kOut, int kRows>
inline void products(const float* const* w, const float* x, int64_t length, float* y,
                     int64_t stride) {
  static_assert(kOut * kRows <= 16);
  Vec lanes[16];
  SPECJAX_UNROLL for (int i = 0; i < 16; ++i) lanes[i] = zero();
  const int64_t whole = length / kLanes * kLanes;
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec row[kRows];
    SPECJAX_UNROLL for (int n = 0; n < kRows; ++n) row[n] = load(x + n * length + k);
    SPECJAX_UNROLL for (int o = 0; o < kOut; ++o) {
      const Vec weight = load(w[o] + k);
      SPECJAX_UNROLL for (int n = 0; n < kRows; ++n)
        lanes[n * kOut + o] = fma(weight, row[n], lanes[n * kOut + o]);
    }
  }
  float total[16];
  sums(lanes, total);
  for (int64_t k = whole; k < length; ++k)
    for (int n = 0; n < kRows; ++n)
      for (int o = 0; o < kOut; ++o) total[n * kOut + o] += w[o][k] * x[n * length + k];
  for (int n = 0; n < kRows; ++n)
    std::memcpy(y + n * stride, total + n * kOut, kOut * sizeof(float));
}

// exp(x) for x <= 0, plain enough for the compiler to vectorise a loop of it. From -87
// down it is exp(-87), 1.6e-38: whoever takes -inf for nothing must put the 0 there.
inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds to a whole number
  const float whole = shifted - 12582912.0f;
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float poly = 1.9875691500e-4f;
  poly = poly * rest + 1.3981999507e-3f;
  poly = poly * rest + 8.3334519073e-3f;
  poly = poly * rest + 4.1665795894e-2f;
  poly = poly * rest + 1.6666665459e-1f;
  poly = poly * rest + 5.0000001201e-1f;
  poly = poly * rest * rest + rest + 1.0f;
  int32_t power;
  std::memcpy(&power, &shifted, 4);
  power = (power + 127) << 23;  // 2^whole: the magic number's low bits hold it
  float factor;
  std::memcpy(&factor, &power, 4);
  return poly * factor;
}

inline float half_to_float(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  const uint32_t sign = uint32_t(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -value : value;
  }
  const uint32_t wide =
      sign | (fraction << 13) | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23);
  std::memcpy(&value, &wide, sizeof value);
  return value;
#endif
}

}  // namespace simd
