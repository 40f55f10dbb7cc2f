// y = x W for few rows x, with W kept in the blocks that it was stored in.
//
// W lies row after row of its transpose: one output's weights are contiguous. A task
// takes kTile outputs, decodes their weights to floats once (into the first-level
// cache) and multiplies them with every row of x. Every product of an output with a row
// is summed in the same order, however many rows there are: a row's result does
// not depend on its mates.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "tiles.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr int kLine = 64;  // bytes that memory gives at once
constexpr int kTile = 8;  // outputs decoded at once
constexpr int kTasks = 8;  // for each thread, so that a late one costs little

// Asks for what is needed a page from here: on its own the machine stops at the end of
// a page, and blocks are too small for it to catch up.
inline void ahead(const void* from) {
  __builtin_prefetch(static_cast<const char*>(from) + 4096);
}

// ---- Formats: how many weights a block holds, its bytes, and its floats. ----

struct F32 {
  static constexpr int kWeights = 1, kBytes = 4;
};

struct BF16 {
  static constexpr int kWeights = 1, kBytes = 2;
  static void decode(const uint8_t* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t high;
      std::memcpy(&high, from + 2 * i, 2);
      const uint32_t bits = uint32_t(high) << 16;
      std::memcpy(to + i, &bits, 4);
    }
  }
};

struct F16 {
  static constexpr int kWeights = 1, kBytes = 2;
  static void decode(const uint8_t* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = simd::half_to_float(from + 2 * i);
  }
};

// The float16 numbers that each block begins with, as floats. A number is then spread
// over a vector by a load, which is free, and not by a shuffle, which is scarce here.
template <int kHalves, int kBytes>
inline void read_halves(const uint8_t* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += kBytes, to += kHalves) {
#if defined(__F16C__)
    uint32_t bits = 0;
    std::memcpy(&bits, from, 2 * kHalves);
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(int(bits)));
    if constexpr (kHalves == 2)
      _mm_storel_pi(reinterpret_cast<__m64*>(to), both);
    else
      _mm_store_ss(to, both);
#else
    for (int i = 0; i < kHalves; ++i) to[i] = simd::half_to_float(from + 2 * i);
#endif
  }
}

constexpr int kGroup = 16;  // blocks whose scales are read at once

// Calls block(stored, halves, to) for each block of a row.
template <class Format, class Block>
inline void each_block(const uint8_t* from, float* to, int64_t blocks,
                       const Block& block) {
  constexpr int kBytes = Format::kBytes;
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t count = std::min<int64_t>(kGroup, blocks - first);
    float halves[kGroup * Format::kHalves];
    read_halves<Format::kHalves, kBytes>(from, count, halves);
    for (int64_t b = 0; b < count; ++b, from += kBytes, to += Format::kWeights) {
      ahead(from);
      block(from + 2 * Format::kHalves, halves + b * Format::kHalves, to);
    }
  }
}

struct Q8_0 {  // scale, 32 signed bytes
  static constexpr int kWeights = 32, kBytes = 34, kHalves = 1;
  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    each_block<Q8_0>(from, to, blocks, [](const uint8_t* q, const float* half, float* w) {
#if defined(__AVX512F__)
      const __m512 scale = _mm512_set1_ps(half[0]);
      for (int i = 0; i < 32; i += 16) {
        const auto* at = reinterpret_cast<const __m128i*>(q + i);
        const __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128(at));
        _mm512_storeu_ps(w + i, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(whole)));
      }
#else
      const auto* whole = reinterpret_cast<const int8_t*>(q);
      for (int i = 0; i < 32; ++i) w[i] = half[0] * float(whole[i]);
#endif
    });
  }
};

// Weights stored in half a byte each: w = scale * q + least, the first 16 in the low
// halves of 16 bytes.
inline void decode_nibbles(const uint8_t* q, float scale, float least, float* w) {
#if defined(__AVX512F__)
  const __m512 step =
      _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 value = _mm512_add_ps(_mm512_mul_ps(step, _mm512_set1_ps(scale)),
                                     _mm512_set1_ps(least));
  const __m512i wide =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  // A permutation looks at the low four bits of each index only.
  _mm512_storeu_ps(w, _mm512_permutexvar_ps(wide, value));
  _mm512_storeu_ps(w + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), value));
#else
  for (int i = 0; i < 16; ++i) w[i] = scale * float(q[i] & 15) + least;
  for (int i = 0; i < 16; ++i) w[16 + i] = scale * float(q[i] >> 4) + least;
#endif
}

struct Q4_0 {  // scale, 32 halves of a byte around 8
  static constexpr int kWeights = 32, kBytes = 18, kHalves = 1;
  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    each_block<Q4_0>(from, to, blocks, [](const uint8_t* q, const float* half, float* w) {
      decode_nibbles(q, half[0], -8 * half[0], w);
    });
  }
};

struct Q4_1 {  // scale, least value, 32 halves of a byte
  static constexpr int kWeights = 32, kBytes = 20, kHalves = 2;
  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    each_block<Q4_1>(from, to, blocks, [](const uint8_t* q, const float* half, float* w) {
      decode_nibbles(q, half[0], half[1], w);
    });
  }
};

// ---- Products. ----

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
      if constexpr (std::is_same_v<Format, F32>) {
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

SPECJAX_LINEAR(linear_f32, linear<F32>);
SPECJAX_LINEAR(linear_bf16, linear<BF16>);
SPECJAX_LINEAR(linear_f16, linear<F16>);
SPECJAX_LINEAR(linear_q8_0, linear<Q8_0>);
SPECJAX_LINEAR(linear_q4_0, linear<Q4_0>);
SPECJAX_LINEAR(linear_q4_1, linear<Q4_1>);

#if SPECJAX_TILES
SPECJAX_LINEAR(linear_q8_0_x16, linear_x16<tiles::Q8_0>);
SPECJAX_LINEAR(linear_q4_0_x16, linear_x16<tiles::Q4_0>);
SPECJAX_LINEAR(linear_q4_1_x16, linear_x16<tiles::Q4_1>);
#endif
