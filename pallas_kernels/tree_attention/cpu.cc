// Attention of tree nodes to a cached prefix and to their own ancestors.
//
// The keys that a query sees come in parts: the tree's own rows, then the cache in
// blocks of kBlock. Each part gives (greatest score, sum of weights, weighted values),
// and parts are merged in order. What a query's parts are does not depend on other
// queries, nor does the order of any sum: a row's result is the same alone and
// among mates. With few queries parts are computed in parallel and merged after.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using simd::Vec;

constexpr int64_t kBlock = 128;    // cached positions in a part
constexpr int64_t kQueries = 32;   // queries that a task takes
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Shape {
  int64_t rows, groups, heads, nodes, size, slots;
};

struct Inputs {
  Shape is;
  int64_t layers, layer;  // of the caches, and the one to read
  const float *q, *k, *v, *k_cache, *v_cache;
  const int32_t *length, *depth;
  const bool* mask;
  int32_t window;
  float scale, cap;
};

// Queries [begin, end) of group g of row b; query i is head i / nodes, node i % nodes.
struct Tile {
  int64_t b, g, begin, end;
};

// What one part gives for each query of a tile: top, total, then size sums.
inline int64_t stride_of(const Shape& is) { return is.size + 2; }

// Scores of queries x f[count, size] with keys f[keys, size]: f[count, kBlock].
template <int kRows>
void scores_of(const float* x, const float* keys, int64_t num_keys, int64_t size,
               float* out) {
  int64_t p = 0;
  const float* w[4];
  for (; p + 4 <= num_keys; p += 4) {
    for (int i = 0; i < 4; ++i) w[i] = keys + (p + i) * size;
    simd::products<4, kRows>(w, x, size, out + p, kBlock);
  }
  for (; p < num_keys; ++p) {
    w[0] = keys + p * size;
    simd::products<1, kRows>(w, x, size, out + p, kBlock);
  }
}

// Weighted values of kRows queries, kVecs vectors of each at a time.
template <int kRows, int kVecs>
void mix(const float* weights, const float* values, int64_t num_keys, int64_t size,
         float* const* out) {
  Vec sum[kRows][kVecs];
  SPECJAX_UNROLL for (int n = 0; n < kRows; ++n)
    SPECJAX_UNROLL for (int j = 0; j < kVecs; ++j) sum[n][j] = simd::zero();
  for (int64_t p = 0; p < num_keys; ++p) {
    Vec value[kVecs];
    SPECJAX_UNROLL for (int j = 0; j < kVecs; ++j)
      value[j] = simd::load(values + p * size + j * simd::kLanes);
    SPECJAX_UNROLL for (int n = 0; n < kRows; ++n) {
      const Vec weight = simd::all(weights[n * kBlock + p]);
      SPECJAX_UNROLL for (int j = 0; j < kVecs; ++j)
        sum[n][j] = simd::fma(weight, value[j], sum[n][j]);
    }
  }
  SPECJAX_UNROLL for (int n = 0; n < kRows; ++n)
    SPECJAX_UNROLL for (int j = 0; j < kVecs; ++j)
      simd::store(out[n] + j * simd::kLanes, sum[n][j]);
}

// One part for kRows queries: their scores are masked, made weights and mixed.
template <int kRows, class Sees>
void part_of(const Inputs& in, const float* x, const float* keys, const float* values,
             int64_t num_keys, const Sees& sees, float* out) {
  const int64_t size = in.is.size, stride = stride_of(in.is);
  alignas(64) float weights[kRows * kBlock];
  scores_of<kRows>(x, keys, num_keys, size, weights);
  float* mixed[kRows];
  for (int n = 0; n < kRows; ++n) {
    float* row = weights + n * kBlock;
    for (int64_t p = 0; p < num_keys; ++p) row[p] *= in.scale;
    if (in.cap != 0)
      for (int64_t p = 0; p < num_keys; ++p) row[p] = in.cap * std::tanh(row[p] / in.cap);
    sees(n, row);
    // Whole vectors from here on; what is past the keys counts for nothing.
    const int64_t padded = (num_keys + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
    std::fill(row + num_keys, row + padded, kNone);
    Vec greatest = simd::all(kNone);
    for (int64_t p = 0; p < padded; p += simd::kLanes)
      greatest = simd::max(greatest, simd::load(row + p));
    const float top = simd::greatest(greatest);
    const float base = top == kNone ? 0 : top;
    for (int64_t p = 0; p < padded; ++p)
      row[p] = row[p] == kNone ? 0.0f : simd::exp_of(row[p] - base);
    Vec sum = simd::zero();
    for (int64_t p = 0; p < padded; p += simd::kLanes)
      sum = simd::add(sum, simd::load(row + p));
    const float total = simd::sum(sum);
    out[n * stride] = top;
    out[n * stride + 1] = total;
    mixed[n] = out + n * stride + 2;
  }
  int64_t at = 0;
  float* to[kRows];
  const auto aim = [&] {
    for (int n = 0; n < kRows; ++n) to[n] = mixed[n] + at;
  };
  for (; at + 4 * simd::kLanes <= size; at += 4 * simd::kLanes) {
    aim();
    mix<kRows, 4>(weights, values + at, num_keys, size, to);
  }
  for (; at + simd::kLanes <= size; at += simd::kLanes) {
    aim();
    mix<kRows, 1>(weights, values + at, num_keys, size, to);
  }
  for (; at < size; ++at)
    for (int n = 0; n < kRows; ++n) {
      float sum = 0;
      for (int64_t p = 0; p < num_keys; ++p)
        sum += weights[n * kBlock + p] * values[p * size + at];
      mixed[n][at] = sum;
    }
}

// One part for all queries of a tile. `sees(i, row)` masks the scores of query i.
template <class Sees>
void part(const Inputs& in, const Tile& tile, const float* keys, const float* values,
          int64_t num_keys, const Sees& sees, float* out) {
  const Shape& is = in.is;
  const float* x = in.q + (tile.b * is.groups + tile.g) * is.heads * is.nodes * is.size;
  const auto some = [&](auto rows, int64_t i) {
    constexpr int kRows = decltype(rows)::value;
    const auto mine = [&](int n, float* row) { sees(i + n, row); };
    part_of<kRows>(in, x + i * is.size, keys, values, num_keys, mine,
                   out + (i - tile.begin) * stride_of(is));
  };
  int64_t i = tile.begin;
  for (; i + 4 <= tile.end; i += 4) some(std::integral_constant<int, 4>(), i);
  switch (tile.end - i) {
    case 3: return some(std::integral_constant<int, 3>(), i);
    case 2: return some(std::integral_constant<int, 2>(), i);
    case 1: return some(std::integral_constant<int, 1>(), i);
  }
}

// The first block of the cache that any node of row b sees: its least depth is 0.
int64_t first_block(const Inputs& in, int64_t b) {
  if (!in.window) return 0;
  return std::max<int64_t>(0, int64_t(in.length[b]) - in.window + 1) / kBlock;
}

// The keys of a part: of the tree's own rows, or of the cache.
struct Keys {
  bool own;
  int64_t first, count;
};

// Part `index` of row b: 0 holds the tree's rows up to kBlock, and so on, then come
// blocks of the cache.
Keys keys_of(const Inputs& in, int64_t b, int64_t index) {
  const int64_t own_parts = (in.is.nodes + kBlock - 1) / kBlock;
  const bool own = index < own_parts;
  const int64_t first = (own ? index : first_block(in, b) + index - own_parts) * kBlock;
  return {own, first, std::min(kBlock, (own ? in.is.nodes : in.length[b]) - first)};
}

void part_at(const Inputs& in, const Tile& tile, int64_t index, float* out) {
  const Shape& is = in.is;
  const auto [own, first, count] = keys_of(in, tile.b, index);
  const int32_t* depth = in.depth + tile.b * is.nodes;
  const int64_t group = tile.b * is.groups + tile.g;
  if (own) {
    const bool* mask = in.mask + tile.b * is.nodes * is.nodes;
    const auto sees = [&, first = first, count = count](int64_t i, float* row) {
      const int64_t n = i % is.nodes;
      for (int64_t m = 0; m < count; ++m) {
        const bool near = !in.window || depth[n] - depth[first + m] < in.window;
        if (!mask[n * is.nodes + first + m] || !near) row[m] = kNone;
      }
    };
    const int64_t at = (group * is.nodes + first) * is.size;
    part(in, tile, in.k + at, in.v + at, count, sees, out);
    return;
  }
  const int64_t length = in.length[tile.b];
  const auto sees = [&, first = first, count = count](int64_t i, float* row) {
    if (!in.window) return;
    const int64_t oldest = length + depth[i % is.nodes] - in.window + 1;
    for (int64_t p = 0; p < std::min(count, oldest - first); ++p) row[p] = kNone;
  };
  const int64_t cached = (tile.b * in.layers + in.layer) * is.groups + tile.g;
  const int64_t at = (cached * is.slots + first) * is.size;
  part(in, tile, in.k_cache + at, in.v_cache + at, count, sees, out);
}

// Adds part `more` to `sum`, for one query.
void merge(const Shape& is, float* sum, const float* more) {
  if (more[0] == kNone) return;
  if (sum[0] == kNone) {
    std::memcpy(sum, more, sizeof(float) * stride_of(is));
    return;
  }
  const float top = std::max(sum[0], more[0]);
  const float old = simd::exp_of(sum[0] - top), add = simd::exp_of(more[0] - top);
  sum[0] = top;
  for (int64_t i = 1; i < stride_of(is); ++i) sum[i] = sum[i] * old + more[i] * add;
}

// Divides by the totals, into out f[B, N, G, R, D].
void finish(const Inputs& in, const Tile& tile, const float* sums, float* out) {
  const Shape& is = in.is;
  for (int64_t i = tile.begin; i < tile.end; ++i) {
    const float* sum = sums + (i - tile.begin) * stride_of(is);
    const int64_t node = tile.b * is.nodes + i % is.nodes;
    const int64_t head = tile.g * is.heads + i / is.nodes;
    float* to = out + (node * is.groups * is.heads + head) * is.size;
    for (int64_t d = 0; d < is.size; ++d) to[d] = sum[d + 2] / sum[1];
  }
}

int64_t num_parts(const Inputs& in, int64_t b) {
  const int64_t blocks = (in.length[b] + kBlock - 1) / kBlock;
  return (in.is.nodes + kBlock - 1) / kBlock + blocks - first_block(in, b);
}

// Tiles of all queries, in the order of batch rows and groups.
std::vector<Tile> tiles_of(const Shape& is) {
  std::vector<Tile> tiles;
  const int64_t queries = is.heads * is.nodes;
  for (int64_t b = 0; b < is.rows; ++b)
    for (int64_t g = 0; g < is.groups; ++g)
      for (int64_t i = 0; i < queries; i += kQueries)
        tiles.push_back({b, g, i, std::min(queries, i + kQueries)});
  return tiles;
}

// Adds part `more` to `sum`, for all queries of a tile.
void merge_all(const Shape& is, const Tile& tile, float* sum, const float* more) {
  for (int64_t i = 0; i < (tile.end - tile.begin) * stride_of(is); i += stride_of(is))
    merge(is, sum + i, more + i);
}

// A task for each tile: its parts one after another. `slot` holds a part of a tile.
void run_tiles(const Inputs& in, const std::vector<Tile>& tiles, int64_t slot,
               float* out) {
  native::Pool::get().run(uint32_t(tiles.size()), [&](int64_t t) {
    thread_local std::vector<float> held;
    held.resize(2 * slot);
    float *const sums = held.data(), *const more = sums + slot;
    const Tile& tile = tiles[t];
    part_at(in, tile, 0, sums);
    for (int64_t p = 1; p < num_parts(in, tile.b); ++p) {
      part_at(in, tile, p, more);
      merge_all(in.is, tile, sums, more);
    }
    finish(in, tile, sums, out);
  });
}

// A task for each part of each tile, in a slot of its own; they are merged after.
void run_parts(const Inputs& in, const std::vector<Tile>& tiles, int64_t slot,
               float* out) {
  struct Task {
    int64_t tile, part, keys, slot;
  };
  std::vector<Task> tasks;
  for (int64_t t = 0; t < int64_t(tiles.size()); ++t)
    for (int64_t p = 0; p < num_parts(in, tiles[t].b); ++p)
      tasks.push_back({t, p, keys_of(in, tiles[t].b, p).count, int64_t(tasks.size())});
  thread_local std::vector<float> kept;
  kept.resize(tasks.size() * slot);
  float* const parts = kept.data();
  // The last is taken first: the longest, so that threads end at much the same time.
  std::sort(tasks.begin(), tasks.end(),
            [](const Task& a, const Task& b) { return a.keys < b.keys; });
  native::Pool::get().run(uint32_t(tasks.size()), [&](int64_t i) {
    const Task& task = tasks[i];
    part_at(in, tiles[task.tile], task.part, parts + task.slot * slot);
  });
  float* sums = parts;
  for (const Tile& tile : tiles) {
    const int64_t count = num_parts(in, tile.b);
    for (int64_t p = 1; p < count; ++p) merge_all(in.is, tile, sums, sums + p * slot);
    finish(in, tile, sums, out);
    sums += count * slot;
  }
}

void run(const Inputs& in, float* out) {
  const std::vector<Tile> tiles = tiles_of(in.is);
  const int64_t queries = std::min(in.is.heads * in.is.nodes, kQueries);
  const bool enough = int64_t(tiles.size()) >= 4 * native::Pool::get().size();
  (enough ? run_tiles : run_parts)(in, tiles, queries * stride_of(in.is), out);
}

ffi::Error tree_attention(ffi::Buffer<ffi::F32> q, ffi::Buffer<ffi::F32> k,
                          ffi::Buffer<ffi::F32> v, ffi::Buffer<ffi::F32> k_cache,
                          ffi::Buffer<ffi::F32> v_cache, ffi::Buffer<ffi::S32> length,
                          ffi::Buffer<ffi::S32> depth, ffi::Buffer<ffi::PRED> mask,
                          ffi::Buffer<ffi::S32> window, ffi::Buffer<ffi::S32> layer,
                          float scale, float cap,
                          ffi::ResultBuffer<ffi::F32> out) {
  const auto shape = q.dimensions();
  const int64_t slots = k_cache.dimensions()[3];
  const Inputs in{
      {shape[0], shape[1], shape[2], shape[3], shape[4], slots},
      k_cache.dimensions()[1],
      *layer.typed_data(),
      q.typed_data(),
      k.typed_data(),
      v.typed_data(),
      k_cache.typed_data(),
      v_cache.typed_data(),
      length.typed_data(),
      depth.typed_data(),
      mask.typed_data(),
      *window.typed_data(),
      scale,
      cap};
  run(in, out->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(tree_attention_f32, tree_attention,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("cap")
                                  .Ret<ffi::Buffer<ffi::F32>>());
