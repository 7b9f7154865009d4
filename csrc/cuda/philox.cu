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
