// Stored weights as floats: for each format how many weights a block holds, its bytes,
// and what they mean. Blocks of a row lie one after another; see formats.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd.h"

namespace decoders {

// Asks for what is needed a page from here: on its own the machine stops at the end of
// a page, and blocks are too small for it to catch up.
inline void ahead(const void* from) {
  __builtin_prefetch(static_cast<const char*>(from) + 4096);
}

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

// What half a byte q means: scale * q + least.
struct Line {
  float scale, least;
};

// The low halves of 16 bytes to to_low, the high ones to to_high.
inline void decode_nibbles(const uint8_t* q, Line low, Line high, float* to_low,
                           float* to_high) {
#if defined(__AVX512F__)
  const auto values = [](Line line) {
    const __m512 step =
        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_ps(_mm512_mul_ps(step, _mm512_set1_ps(line.scale)),
                         _mm512_set1_ps(line.least));
  };
  const __m512i wide =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  // A permutation looks at the low four bits of each index only.
  _mm512_storeu_ps(to_low, _mm512_permutexvar_ps(wide, values(low)));
  _mm512_storeu_ps(to_high,
                   _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), values(high)));
#else
  for (int i = 0; i < 16; ++i) to_low[i] = low.scale * float(q[i] & 15) + low.least;
  for (int i = 0; i < 16; ++i) to_high[i] = high.scale * float(q[i] >> 4) + high.least;
#endif
}

struct Q4_0 {  // scale, 32 halves of a byte around 8
  static constexpr int kWeights = 32, kBytes = 18, kHalves = 1;
  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    each_block<Q4_0>(from, to, blocks, [](const uint8_t* q, const float* half, float* w) {
      const Line line{half[0], -8 * half[0]};
      decode_nibbles(q, line, line, w, w + 16);
    });
  }
};

struct Q4_1 {  // scale, least value, 32 halves of a byte
  static constexpr int kWeights = 32, kBytes = 20, kHalves = 2;
  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    each_block<Q4_1>(from, to, blocks, [](const uint8_t* q, const float* half, float* w) {
      const Line line{half[0], half[1]};
      decode_nibbles(q, line, line, w, w + 16);
    });
  }
};

// ---- K-quants: 256 weights in groups that have scales of a few bits each. ----

// Scale and least value of blocks; of 8 groups, in 6 bits each, what those are
// multiplied by; halves of a byte, in runs of 32 whose low halves are one group and
// whose high ones are the next.
struct Q4_K {
  static constexpr int kWeights = 256, kBytes = 144;

  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, from += kBytes, to += kWeights) {
      for (int byte = 0; byte < kBytes; byte += 64) ahead(from + byte);
      Line lines[8];
      read_lines(from, lines);
      for (int i = 0; i < 128; i += 16) {
        const int group = i / 32 * 2;
        float* const low = to + group * 32 + i % 32;
        decode_nibbles(from + 16 + i, lines[group], lines[group + 1], low, low + 32);
      }
    }
  }

 private:
  // Of 12 bytes the first four hold scales and the next four least values, in their
  // low 6 bits, of groups 0 to 3. Those of groups 4 to 7 have their low 4 bits in the
  // halves of the last four bytes and their upper 2 in what the first eight left over.
  static void read_lines(const uint8_t* from, Line* lines) {
    constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kUpper = 0x30303030;
    float halves[2];
    read_halves<2, kBytes>(from, 1, halves);
    uint32_t words[3];
    std::memcpy(words, from + 4, sizeof words);
    const uint32_t parts[4] = {
        words[0] & kSix,
        (words[2] & kFour) | ((words[0] >> 2) & kUpper),
        words[1] & kSix,
        ((words[2] >> 4) & kFour) | ((words[1] >> 2) & kUpper),
    };
    uint8_t factors[16];
    std::memcpy(factors, parts, sizeof factors);
    for (int i = 0; i < 8; ++i)
      lines[i] = {halves[0] * float(factors[i]), -(halves[1] * float(factors[8 + i]))};
  }
};

// Two runs of 128 weights, 6 bits around 32 each: their low 4 bits in halves of a byte,
// their upper 2 in quarters; signed bytes, one for 16 weights, that the block's scale
// is multiplied by; and the scale.
struct Q6_K {
  static constexpr int kWeights = 256, kBytes = 210;

  static void decode(const uint8_t* from, float* to, int64_t blocks) {
    for (int64_t b = 0; b < blocks; ++b, from += kBytes, to += kWeights) {
      for (int byte = 0; byte < kBytes; byte += 64) ahead(from + byte);
      const auto* factors = reinterpret_cast<const int8_t*>(from + 192);
      const float scale = simd::half_to_float(from + 208);
      float steps[16];
      for (int i = 0; i < 16; ++i) steps[i] = scale * float(factors[i]);
      decode_run(from, from + 128, steps, to);
      decode_run(from + 64, from + 160, steps + 8, to + 128);
    }
  }

 private:
  static void decode_run(const uint8_t* low, const uint8_t* high, const float* steps,
                         float* to) {
#if defined(__AVX512F__)
    const auto* from = reinterpret_cast<const __m256i*>(low);
    const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
    const auto joined = [](__m256i fours, __m256i twos) {
      return _mm256_or_si256(_mm256_and_si256(fours, _mm256_set1_epi8(15)),
                             _mm256_and_si256(twos, _mm256_set1_epi8(48)));
    };
    const __m256i whole[4] = {
        joined(a, _mm256_slli_epi16(upper, 4)),
        joined(b, _mm256_slli_epi16(upper, 2)),
        joined(_mm256_srli_epi16(a, 4), upper),
        joined(_mm256_srli_epi16(b, 4), _mm256_srli_epi16(upper, 2)),
    };
    for (int i = 0; i < 8; ++i, to += 16) {
      const __m128i bytes = i % 2 ? _mm256_extracti128_si256(whole[i / 2], 1)
                                  : _mm256_castsi256_si128(whole[i / 2]);
      const __m512i q =
          _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(32));
      _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_set1_ps(steps[i]),
                                         _mm512_cvtepi32_ps(q)));
    }
#else
    for (int i = 0; i < 32; ++i) {
      const int a = low[i], b = low[32 + i], upper = high[i];
      const float* const step = steps + i / 16;
      to[i] = step[0] * float((a & 15) + ((upper << 4) & 48) - 32);
      to[32 + i] = step[2] * float((b & 15) + ((upper << 2) & 48) - 32);
      to[64 + i] = step[4] * float((a >> 4) + (upper & 48) - 32);
      to[96 + i] = step[6] * float((b >> 4) + ((upper >> 2) & 48) - 32);
    }
#endif
  }
};

}  // namespace decoders
