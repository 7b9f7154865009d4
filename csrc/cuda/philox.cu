// Random numbers by counter: thread b of a client makes block b of its stream, four numbers or two sort keys.
#include "philox.h"

#include "cuda/grid.h"

namespace fastfed {

// Rows (clients, n) of the streams of `ids`.
template <class T> struct Draws {
  T* out;
  const long long* ids;
  long long clients, n;
};

FF_DEVICE Words words_of(const Stream& stream, Word client, Word block) {
  return philox(Words{{block, stream.step, client, stream.round}}, stream.key0, stream.key1);
}

struct Uniform {
  FF_DEVICE Quad of(const Words& words) {
    Quad quad;
    FF_UNROLL for (int k = 0; k < QUAD; ++k) quad.e[k] = uniform_of(words.w[k]);
    return quad;
  }
};

struct Normal {
  FF_DEVICE Quad of(const Words& words) {
    Quad quad;
    normal_pair(words.w[0], words.w[1], quad.e[0], quad.e[1]);
    normal_pair(words.w[2], words.w[3], quad.e[2], quad.e[3]);
    return quad;
  }
};

template <class Distribution, bool Wide> FF_DEVICE void draw(const Draws<float>& to, const Stream& stream) {
  const long long client = client_of_block();
  const Span span = quad_of_thread(to.n);
  if (client >= to.clients || span.count <= 0) return;
  const Words words = words_of(stream, Word(to.ids[client]), Word(span.at / QUAD));
  store<Wide>(to.out, client * to.n + span.at, span.count, Distribution::of(words));
}

FF_DEVICE void draw_keys(const Draws<long long>& to, const Stream& stream) {
  const long long client = client_of_block(), block = (long long)blockIdx.x * THREADS + threadIdx.x, first = 2 * block;
  if (client >= to.clients || first >= to.n) return;
  const Words words = words_of(stream, Word(to.ids[client]), Word(block));
  long long* out = to.out + client * to.n + first;
  out[0] = sort_key(words.w[0], words.w[1]);
  if (first + 1 < to.n) out[1] = sort_key(words.w[2], words.w[3]);
}

// Rows (rows, width) of sort keys: counts[r] of client ids[r] at step steps[r], then the largest key.
struct ShuffleKeys {
  long long* out;
  const long long *ids, *steps, *counts;
  long long rows, width;
};

FF_DEVICE void draw_shuffle_keys(const ShuffleKeys& to, Stream stream) {
  const long long row = client_of_block(), block = (long long)blockIdx.x * THREADS + threadIdx.x, first = 2 * block;
  if (row >= to.rows || first >= to.width) return;
  constexpr long long kLargestKey = 0x7FFFFFFFFFFFFFFFll;
  stream.step = Word(to.steps[row]);
  const Words words = words_of(stream, Word(to.ids[row]), Word(block));
  const long long count = to.counts[row];
  long long* out = to.out + row * to.width + first;
  out[0] = first < count ? sort_key(words.w[0], words.w[1]) : kLargestKey;
  if (first + 1 < to.width) out[1] = first + 1 < count ? sort_key(words.w[2], words.w[3]) : kLargestKey;
}

}  // namespace fastfed

#define MAKE(name, Distribution, wide)                                  \
  FF_KERNEL(name, (fastfed::Draws<float> to, fastfed::Stream stream)) { \
    fastfed::draw<fastfed::Distribution, wide>(to, stream);             \
  }
MAKE(philox_uniform, Uniform, false)
MAKE(philox_uniform_wide, Uniform, true)
MAKE(philox_normal, Normal, false)
MAKE(philox_normal_wide, Normal, true)
#undef MAKE

FF_KERNEL(philox_keys, (fastfed::Draws<long long> to, fastfed::Stream stream)) { fastfed::draw_keys(to, stream); }

FF_KERNEL(philox_shuffle_keys, (fastfed::ShuffleKeys to, fastfed::Stream stream)) {
  fastfed::draw_shuffle_keys(to, stream);
}
