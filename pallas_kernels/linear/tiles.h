// Products in whole numbers, by the matrix unit of x86 processors that have one (AMX),
// for weights in blocks of 32 small whole numbers.
//
// A row is cut into blocks as the weights are; each of its numbers becomes a whole
// number of steps of the block's own size, about 2^-23 of its greatest, in three digits
// of eight bits. Whole numbers are added up without loss, in any order: so one row may be
// multiplied by vector instructions and sixteen by the unit, and no bit of a result
// depends on which. Only the sums of a block are floats, added block after block.
#pragma once

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && \
    defined(__linux__)
#define SPECJAX_TILES 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace tiles {

constexpr int kOut = 16;     // outputs multiplied at once: one to a lane
constexpr int kRows = 16;    // rows multiplied at once, at most
constexpr int kByVectors = 2;  // rows up to which vector instructions are faster
constexpr int kBlock = 32;   // weights of a block
constexpr int kWords = 8;    // four weights each
constexpr int kDigits = 3;   // of a row's number
constexpr int kChunk = 6;    // blocks that the unit multiplies one after another
constexpr int kAhead = 4096;  // bytes ahead that are asked for
constexpr float kGreatest = 127 * 65536;  // steps of a block's greatest number

// Whether this process may use the unit; asks the system once.
inline bool available() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, its feature
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
}

// Makes what was written to memory visible to the unit's instructions, which a compiler
// may not know to read it.
inline void compiler_barrier() { asm volatile("" : : : "memory"); }

// Memory at the start of a cache line that a thread keeps.
template <class T>
class Scratch {
 public:
  T* take(int64_t count) {
    if (int64_t(kept_.size()) < count + kAlign) kept_.resize(count + kAlign);
    const auto at = reinterpret_cast<uintptr_t>(kept_.data());
    return reinterpret_cast<T*>((at + 63) / 64 * 64);
  }

 private:
  static constexpr int64_t kAlign = (63 + sizeof(T)) / sizeof(T);  // 64 bytes or more
  std::vector<T> kept_;
};

// What a block of a row has beside its digits.
struct Fact {
  float step;           // that digits count
  float sum;            // of the row's numbers
  int32_t upper_zeros;  // what weights' zeros add to the products of the upper digits
  int32_t last_zeros;   // and of the last one
};

// Rows in digits: [group of rows, block, row of the group, digit, 32].
struct Rows {
  int64_t count, blocks;
  int8_t* digits;
  Fact* facts;  // [block, row]

  int group(int64_t first) const { return int(std::min<int64_t>(kRows, count - first)); }
  int8_t* at(int64_t first, int64_t block) const {
    return digits + (first * blocks + block * group(first)) * kDigits * kBlock;
  }
};

// Splits 32 numbers into digits; kZero is the stored number that means zero.
template <int kZero>
inline Fact split(const float* x, int8_t* digits) {
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  const __m512 sizes = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
  float greatest = _mm512_reduce_max_ps(sizes);
  const bool number = !_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q);
  if (!number) greatest = std::numeric_limits<float>::quiet_NaN();
  const float per_step = greatest > 1e-30f ? kGreatest / greatest : 0;
  __m512i left[2] = {
      _mm512_cvtps_epi32(_mm512_mul_ps(low, _mm512_set1_ps(per_step))),
      _mm512_cvtps_epi32(_mm512_mul_ps(high, _mm512_set1_ps(per_step))),
  };
  int32_t sums[kDigits];
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    __m512i sum = _mm512_setzero_si512();
    for (int half = 0; half < 2; ++half) {
      const __m512i taken = digit ? _mm512_srai_epi32(_mm512_slli_epi32(left[half], 24), 24)
                                  : left[half];
      left[half] = _mm512_srai_epi32(_mm512_sub_epi32(left[half], taken), 8);
      sum = _mm512_add_epi32(sum, taken);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(digits + digit * kBlock + 16 * half),
                       _mm512_cvtepi32_epi8(taken));
    }
    sums[digit] = _mm512_reduce_add_epi32(sum);
  }
  const float step = greatest / kGreatest;
  const int32_t upper = sums[0] * 256 + sums[1];
  return {step, step * (float(upper) * 256 + float(sums[2])), kZero * upper,
          kZero * sums[2]};
}

// Rows x[count, blocks * 32] in digits, in memory of the caller's thread.
template <int kZero>
Rows split_rows(const float* x, int64_t count, int64_t blocks) {
  static thread_local Scratch<int8_t> digits;
  static thread_local Scratch<Fact> facts;
  const Rows rows{count, blocks, digits.take(count * blocks * kBlock * kDigits),
                  facts.take(count * blocks)};
  for (int64_t first = 0; first < count; first += kRows)
    for (int n = 0; n < rows.group(first); ++n)
      for (int64_t b = 0; b < blocks; ++b)
        rows.facts[b * count + first + n] =
            split<kZero>(x + ((first + n) * blocks + b) * kBlock,
                         rows.at(first, b) + n * kDigits * kBlock);
  return rows;
}

// ---- Weights, 16 outputs beside each other: see formats.interleave. A block is the
// float16 numbers of all 16 and then words of four bytes, an output to a lane. ----

// Two weights to a byte, 0 to 15; the upper halves are the last 16 of a block.
template <int kZeroAt, int kHeads>
struct Nibbles {
  static constexpr int kZero = kZeroAt, kHalves = kHeads;
  static constexpr int kBytes = kOut * (2 * kHalves + kBlock / 2);

  static inline void words(const uint8_t* at, __m512i (&to)[kWords]) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int c = 0; c < 4; ++c) {
      const __m512i both = _mm512_loadu_si512(at + 64 * c);
      to[c] = _mm512_and_si512(both, low);
      to[4 + c] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  }
};
using Q4_0 = Nibbles<8, 1>;
using Q4_1 = Nibbles<0, 2>;

// A signed byte each.
struct Q8_0 {
  static constexpr int kZero = 128, kHalves = 1;
  static constexpr int kBytes = kOut * (2 + kBlock);

  static inline void words(const uint8_t* at, __m512i (&to)[kWords]) {
    const __m512i sign = _mm512_set1_epi8(char(0x80));
    for (int c = 0; c < kWords; ++c)
      to[c] = _mm512_xor_si512(_mm512_loadu_si512(at + 64 * c), sign);
  }
};

// The scale of each output, or with `which` 1 its least value.
inline __m512 head(const uint8_t* at, int which) {
  const auto* halves = reinterpret_cast<const __m256i*>(at) + which;
  return _mm512_cvtph_ps(_mm256_loadu_si256(halves));
}

// ---- Products. ----

// The sum so far of 16 outputs of one row.
template <class Format>
struct Sum {
  __m512 scaled = _mm512_setzero_ps(), least = _mm512_setzero_ps();

  // Adds a block: the products of its three digits, and the weights' scale and least.
  inline void add(const __m512i (&digit)[kDigits], __m512 scale, __m512 lowest,
                  const Fact& fact) {
    __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(digit[0], 8), digit[1]);
    __m512i last = digit[2];
    if constexpr (Format::kZero != 0) {
      upper = _mm512_sub_epi32(upper, _mm512_set1_epi32(fact.upper_zeros));
      last = _mm512_sub_epi32(last, _mm512_set1_epi32(fact.last_zeros));
    }
    const __m512 steps = _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256),
                                         _mm512_cvtepi32_ps(last));
    scaled = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(fact.step)), steps,
                             scaled);
    if constexpr (Format::kHalves == 2)
      least = _mm512_fmadd_ps(lowest, _mm512_set1_ps(fact.sum), least);
  }

  __m512 total() const {
    return Format::kHalves == 2 ? _mm512_add_ps(scaled, least) : scaled;
  }
};

// 16 outputs of kN rows, by vector instructions.
template <class Format, int kN>
void by_vectors(const uint8_t* at, const Rows& x, float* y, int64_t y_stride) {
  Sum<Format> sums[kN];
  const int8_t* digits = x.digits;
  for (int64_t b = 0; b < x.blocks; ++b, at += Format::kBytes) {
    for (int byte = 0; byte < Format::kBytes; byte += 64)
      __builtin_prefetch(at + kAhead + byte);
    __m512i words[kWords];
    Format::words(at + Format::kHalves * 2 * kOut, words);
    const __m512 scale = head(at, 0);
    const __m512 least = Format::kHalves == 2 ? head(at, 1) : scale;
    for (int n = 0; n < kN; ++n) {
      __m512i products[kDigits];
      for (int digit = 0; digit < kDigits; ++digit, digits += kBlock) {
        products[digit] = _mm512_setzero_si512();
        for (int c = 0; c < kWords; ++c) {
          int32_t four;
          std::memcpy(&four, digits + 4 * c, 4);
          products[digit] =
              _mm512_dpbusd_epi32(products[digit], words[c], _mm512_set1_epi32(four));
        }
      }
      sums[n].add(products, scale, least, x.facts[b * kN + n]);
    }
  }
  for (int n = 0; n < kN; ++n) _mm512_storeu_ps(y + n * y_stride, sums[n].total());
}

// Tiles 0 to 3 hold products, 4 and 5 digits of rows, 6 and 7 weights; 3 and 5 are for
// what a group's digits leave over of whole tiles.
inline void configure(int rows) {
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;
  const int left = rows * kDigits % 16;
  for (int tile = 0; tile < 8; ++tile) {
    const bool digits = tile == 4 || tile == 5, weights = tile > 5;
    config[16 + 2 * tile] = digits ? kBlock : 64;
    config[48 + tile] =
        uint8_t(weights ? kWords : left && (tile == 3 || tile == 5) ? left : 16);
  }
  compiler_barrier();
  _tile_loadconfig(config);
}

// The compiler wants tiles' numbers as they stand in the source.
#define SPECJAX_MULTIPLY(product, digits, weights, at) \
  _tile_zero(product);                                 \
  _tile_loadd(digits, from + (at) * kBlock, kBlock);   \
  _tile_dpbsud(product, digits, weights);              \
  _tile_stored(product, to + (at) * kOut, 64)

// Products of a block: to[row of digits, 16 outputs].
template <int kWhole, bool kLeft>
inline void multiply(const int8_t* from, const uint8_t* decoded, int32_t* to) {
  compiler_barrier();
  _tile_loadd(6, decoded, 64);
  if constexpr (kWhole > 0) {
    SPECJAX_MULTIPLY(0, 4, 6, 0);
  }
  if constexpr (kWhole > 1) {
    SPECJAX_MULTIPLY(1, 4, 6, 16);
  }
  if constexpr (kWhole > 2) {
    SPECJAX_MULTIPLY(2, 4, 6, 32);
  }
  if constexpr (kLeft) {
    SPECJAX_MULTIPLY(3, 5, 6, 16 * kWhole);
  }
}

#undef SPECJAX_MULTIPLY

// 16 outputs of a group of rows, by the unit. Some blocks are decoded, then multiplied,
// then added up: the unit takes long to see what was written, and to answer.
template <class Format, int kWhole, bool kLeft>
void group_of(const uint8_t* at, const Rows& x, int64_t first, Sum<Format>* sums) {
  alignas(64) uint8_t decoded[kChunk][64 * kWords];
  alignas(64) int32_t products[kChunk][kDigits * kRows * kOut];
  __m512 scale[kChunk], least[kChunk];
  const int group = x.group(first);
  for (int64_t block = 0; block < x.blocks; block += kChunk) {
    const int count = int(std::min<int64_t>(kChunk, x.blocks - block));
    for (int b = 0; b < count; ++b, at += Format::kBytes) {
      __m512i words[kWords];
      Format::words(at + Format::kHalves * 2 * kOut, words);
      for (int c = 0; c < kWords; ++c)
        _mm512_store_si512(decoded[b] + 64 * c, words[c]);
      scale[b] = head(at, 0);
      least[b] = Format::kHalves == 2 ? head(at, 1) : scale[b];
    }
    for (int b = 0; b < count; ++b) {
      for (int byte = 0; byte < Format::kBytes; byte += 64)
        __builtin_prefetch(at + kAhead + b * Format::kBytes + byte);
      multiply<kWhole, kLeft>(x.at(first, block + b), decoded[b], products[b]);
    }
    for (int n = 0; n < group; ++n) {
      Sum<Format> sum = sums[n];
      for (int b = 0; b < count; ++b) {
        const int32_t* made = products[b] + n * kDigits * kOut;
        const __m512i digit[kDigits] = {_mm512_load_si512(made),
                                        _mm512_load_si512(made + kOut),
                                        _mm512_load_si512(made + 2 * kOut)};
        sum.add(digit, scale[b], least[b], x.facts[(block + b) * x.count + first + n]);
      }
      sums[n] = sum;
    }
  }
}

// 16 outputs of every row, by the unit.
template <class Format>
void by_tiles(const uint8_t* at, const Rows& x, float* y, int64_t y_stride) {
  static thread_local Scratch<Sum<Format>> kept;
  Sum<Format>* const sums = kept.take(x.count);
  std::fill(sums, sums + x.count, Sum<Format>());
  for (int64_t first = 0; first < x.count; first += kRows) {
    const int group = x.group(first);
    if (x.count > kRows) configure(group);
    switch (group * kDigits / 16) {
      case 0: group_of<Format, 0, true>(at, x, first, sums + first); break;
      case 1: group_of<Format, 1, true>(at, x, first, sums + first); break;
      case 2: group_of<Format, 2, true>(at, x, first, sums + first); break;
      default: group_of<Format, 3, false>(at, x, first, sums + first);
    }
  }
  for (int64_t n = 0; n < x.count; ++n)
    _mm512_storeu_ps(y + n * y_stride, sums[n].total());
}

// y[n, begin..end) of every row; begin and end are multiples of 16.
template <class Format>
void outputs(const uint8_t* weights, const Rows& x, float* y, int64_t y_stride,
             int64_t begin, int64_t end) {
  static_assert(kByVectors == 2);  // each number of rows up to it is listed here
  auto* const multiplied = x.count == 1   ? by_vectors<Format, 1>
                           : x.count == 2 ? by_vectors<Format, 2>
                                          : by_tiles<Format>;
  if (x.count > kByVectors) configure(x.group(0));
  for (int64_t o = begin; o < end; o += kOut)
    multiplied(weights + o / kOut * x.blocks * Format::kBytes, x, y + o, y_stride);
  if (x.count > kByVectors) _tile_release();
}

}  // namespace tiles

#endif
